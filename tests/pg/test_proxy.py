"""The proxy cuts where it is told to, which rows prove, and passes everything else."""

import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest

from tests.pg.proxy import COMMIT, Proxy, pattern, says
from tests.pg.server import Databases

PATIENCE = 240.0
Change = Callable[[psycopg.Connection], None]


def simple(connection: psycopg.Connection) -> None:
    """One call for each statement, as psycopg does it."""
    connection.execute("INSERT INTO kept VALUES (%s)", [1])
    connection.commit()


def pipeline(connection: psycopg.Connection) -> None:
    """Everything at once, with COMMIT by the extended protocol."""
    with connection.pipeline():
        connection.execute("INSERT INTO kept VALUES (%s)", [1])
        connection.commit()


def prepared(connection: psycopg.Connection) -> None:
    """COMMIT as a statement that was prepared before."""
    connection.execute("INSERT INTO kept VALUES (%s)", [1])
    connection.execute("COMMIT", prepare=True)


def several(connection: psycopg.Connection) -> None:
    """Statements in one query."""
    connection.execute("INSERT INTO kept VALUES (1); END TRANSACTION;")


CHANGES = [simple, pipeline, prepared, several]


@pytest.fixture
def kept(pg: str) -> Iterator[Callable[[], int]]:
    """How many rows are committed, seen from beside the proxy."""
    with psycopg.connect(pg, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept (number int)")

        def count() -> int:
            found = connection.execute("SELECT count(*) FROM kept").fetchone()
            assert found is not None
            return int(found[0])

        yield count


@pytest.mark.parametrize("change", CHANGES)
def test_everything_passes_unless_told_otherwise(
    pg: str, pg_proxy: Proxy, kept: Callable[[], int], change: Change
) -> None:
    with psycopg.connect(pg_proxy.dsn(pg)) as connection:
        change(connection)
        change(connection)
    assert kept() == 2
    assert pg_proxy.done == {"connections": 1}


@pytest.mark.parametrize("change", CHANGES)
def test_cut_before_a_commit_nothing_is_kept(
    pg: str, pg_proxy: Proxy, kept: Callable[[], int], change: Change
) -> None:
    pg_proxy.cut_before_commit()
    with pytest.raises(psycopg.OperationalError), psycopg.connect(pg_proxy.dsn(pg)) as connection:
        change(connection)
    assert kept() == 0
    assert pg_proxy.done["cut before"] == 1
    with psycopg.connect(pg_proxy.dsn(pg)) as connection:
        change(connection)
    assert kept() == 1


@pytest.mark.parametrize("change", CHANGES)
def test_cut_after_a_commit_all_is_kept_and_the_client_cannot_know(
    pg: str, pg_proxy: Proxy, kept: Callable[[], int], change: Change
) -> None:
    pg_proxy.cut_after_commit()
    with pytest.raises(psycopg.OperationalError), psycopg.connect(pg_proxy.dsn(pg)) as connection:
        change(connection)
    assert pg_proxy.done["cut after"] == 1
    assert kept() == 1
    with psycopg.connect(pg_proxy.dsn(pg)) as connection:
        change(connection)
    assert kept() == 2


def test_a_cut_can_wait_for_a_later_commit(pg: str, pg_proxy: Proxy, kept: Callable[[], int]) -> None:
    pg_proxy.cut_after_commit(skip=2)
    with psycopg.connect(pg_proxy.dsn(pg)) as connection:
        simple(connection)
        simple(connection)
        with pytest.raises(psycopg.OperationalError):
            simple(connection)
    assert kept() == 3


def test_one_order_can_be_for_several_times(pg: str, pg_proxy: Proxy, kept: Callable[[], int]) -> None:
    pg_proxy.cut_before_commit(times=2)
    for _ in range(2):
        with pytest.raises(psycopg.OperationalError), psycopg.connect(pg_proxy.dsn(pg)) as connection:
            simple(connection)
    with psycopg.connect(pg_proxy.dsn(pg)) as connection:
        simple(connection)
    assert kept() == 1


def test_a_commit_that_fails_is_not_the_one_to_cut(pg: str, pg_proxy: Proxy, kept: Callable[[], int]) -> None:
    with psycopg.connect(pg, autocommit=True) as connection:
        connection.execute("ALTER TABLE kept ADD UNIQUE (number) DEFERRABLE INITIALLY DEFERRED")
    pg_proxy.cut_after_commit()
    with psycopg.connect(pg_proxy.dsn(pg)) as connection:
        connection.execute("INSERT INTO kept VALUES (1), (1)")
        with pytest.raises(psycopg.errors.UniqueViolation):
            connection.commit()
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM nowhere")
        connection.execute("COMMIT")  # of a transaction that has failed: the server rolls back
        assert pg_proxy.done["cut after"] == 0
        with pytest.raises(psycopg.OperationalError):
            simple(connection)
    assert kept() == 1


def test_a_statement_that_commits_by_itself_can_be_cut_too(
    pg: str, pg_proxy: Proxy, kept: Callable[[], int]
) -> None:
    pg_proxy.cut_before("insert into kept .*")
    pg_proxy.cut_after("insert into kept .*")
    for expected in (0, 1):
        with (
            pytest.raises(psycopg.OperationalError),
            psycopg.connect(pg_proxy.dsn(pg), autocommit=True) as connection,
        ):
            connection.execute("INSERT INTO kept VALUES (%s)", [1])
        assert kept() == expected


def test_frozen_nothing_passes_and_thawed_all_of_it(
    pg: str, pg_proxy: Proxy, kept: Callable[[], int]
) -> None:
    with psycopg.connect(pg_proxy.dsn(pg)) as connection:
        connection.execute("SELECT 1")
        pg_proxy.freeze()
        ended = threading.Event()

        def change() -> None:
            simple(connection)
            ended.set()

        client = threading.Thread(target=change)
        client.start()
        other = threading.Thread(target=lambda: psycopg.connect(pg_proxy.dsn(pg)).close())
        other.start()
        pg_proxy.wait_done("connections", 2)  # taken, but not answered
        assert kept() == 0
        assert not ended.is_set()
        assert other.is_alive()
        pg_proxy.thaw()
        assert ended.wait(PATIENCE)
        client.join(PATIENCE)
        other.join(PATIENCE)
        assert not other.is_alive()
    assert kept() == 1


def test_refused_are_new_connections_only(pg: str, pg_proxy: Proxy, kept: Callable[[], int]) -> None:
    with psycopg.connect(pg_proxy.dsn(pg)) as connection:
        pg_proxy.refuse()
        pg_proxy.refuse()
        with pytest.raises(psycopg.OperationalError, match="refused"):
            psycopg.connect(pg_proxy.dsn(pg))
        simple(connection)
        pg_proxy.pass_all()
        with psycopg.connect(pg_proxy.dsn(pg)) as another:
            simple(another)
    assert kept() == 2


def test_all_connections_can_be_cut_frozen_or_not(pg: str, pg_proxy: Proxy, kept: Callable[[], int]) -> None:
    with psycopg.connect(pg_proxy.dsn(pg)) as one, psycopg.connect(pg_proxy.dsn(pg)) as two:
        pg_proxy.freeze()
        assert pg_proxy.cut_all() == 2
        for connection in (one, two):
            with pytest.raises(psycopg.OperationalError):
                simple(connection)
    pg_proxy.thaw()
    with psycopg.connect(pg_proxy.dsn(pg)) as connection:
        simple(connection)
    assert kept() == 1


def test_a_server_that_is_not_there_looks_so_through_the_proxy(pg_server: Databases, pg: str) -> None:
    with (
        Proxy(1, "/nowhere") as proxy,
        pytest.raises(psycopg.OperationalError, match=r"closed|reset"),
    ):
        psycopg.connect(proxy.dsn(pg))


def test_nothing_runs_on_after_a_proxy_is_closed(pg: str) -> None:
    before = set(threading.enumerate())  # threads of earlier tests may end meanwhile
    with Proxy(1, "/nowhere") as proxy:
        proxy.freeze()
        started = set(threading.enumerate()) - before
        assert len(started) == 1
    assert not any(thread.is_alive() for thread in started)


@pytest.mark.parametrize(
    ("query", "is_one"),
    [
        ("COMMIT", True),
        (" commit work ;", True),
        ("INSERT INTO t VALUES (1); end", True),
        ("COMMIT PREPARED 'x'", False),
        ("SELECT 'commit'", False),
        ("DO $$ BEGIN PERFORM 1; END; $$", False),
        ("", False),
    ],
)
def test_what_counts_as_a_commit(query: str, is_one: bool) -> None:
    assert says(pattern(COMMIT), query) is is_one
