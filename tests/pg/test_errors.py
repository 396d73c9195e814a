"""What a server, an address or a schema can be that is no good: one honest line, nothing changed, no password."""

from __future__ import annotations

import socket
import traceback
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

import runcue
from runcue.stores.postgres import link, schema
from runcue.stores.postgres.address import Address
from runcue.stores.postgres.link import Link, translate
from tests.handlers import no_op
from tests.pg.server import GUARDED, PASSWORD, Server, database_of
from tests.queues import make_empty


async def refusal(url: str, kind: type[Exception] = runcue.StoreError, **options: Any) -> str:
    """What a Cue says that cannot open that."""
    cue = runcue.Cue(url, **options)
    with pytest.raises(kind) as raised:
        await cue.count()
    text = str(raised.value)
    assert "\n" not in text
    return text


def admin(url: str, *statements: str) -> None:
    """Do something to the database, as its owner."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.fixture
def guarded(pg: str, pg_server: Server) -> str:
    """The same database, as a user with a password who may do little."""
    return pg_server.dsn(pg, tcp=True, user=GUARDED, password=PASSWORD)


async def test_a_wrong_password_is_refused_and_none_is_shown(pg: str, pg_server: Server) -> None:
    url = pg_server.dsn(pg, tcp=True, user=GUARDED, password="swordfish")
    text = await refusal(url)
    assert "password authentication failed" in text
    assert "swordfish" not in text
    assert "***" in text


async def test_a_statement_timeout_that_is_too_short_for_anything_is_named(
    pg: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin(pg, f"ALTER DATABASE {database_of(pg)} SET statement_timeout = '1ms'")
    monkeypatch.setattr(link, "FIRST", "SELECT pg_sleep(60)")
    text = await refusal(pg)
    assert "the statement_timeout of this user, database or server is too short" in text
    assert "another session" not in text
    assert "ALTER ROLE" in text


def test_a_short_statement_timeout_counts_for_the_very_first_statement_alone(
    pg: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin(pg, f"ALTER DATABASE {database_of(pg)} SET statement_timeout = '200ms'")
    monkeypatch.setattr(link, "FIRST", f"{link.FIRST}, pg_sleep(0.4)")
    made = Link(Address(pg))
    assert made.execute("SHOW statement_timeout").fetchone() == ("1min",)
    made.close()


def test_a_statement_that_took_too_long_was_ended_by_no_other_session(pg: str) -> None:
    made = Link(Address(pg))
    made.execute("SET statement_timeout = 10")
    with pytest.raises(psycopg.errors.QueryCanceled) as raised:
        made.execute("SELECT pg_sleep(60)")
    problem = translate(raised.value, made.address)
    assert isinstance(problem, runcue.StorageBusy)
    assert not problem.is_passing
    assert "another session" not in str(problem)
    made.close()


def test_a_session_may_be_idle_for_as_long_as_it_likes(pg: str) -> None:
    with psycopg.connect(pg) as connection:
        if connection.info.server_version < 140000:
            pytest.skip("this server ends no session for being idle")
    admin(pg, f"ALTER DATABASE {database_of(pg)} SET idle_session_timeout = '1h'")
    made = Link(Address(pg))
    assert made.execute("SHOW idle_session_timeout").fetchone() == ("0",)
    made.close()


async def test_nobody_there_is_said_with_the_address(unused: int) -> None:
    text = await refusal(f"postgresql://me:swordfish@127.0.0.1:{unused}/queue")
    assert "cannot be reached" in text
    assert "swordfish" not in text


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:swordfish@[::1/queue",
        "postgresql://me:swordfish@h/queue?nonsense=1",
        "postgres://%zz@h/queue",
    ],
)
async def test_an_address_that_is_none_is_refused(url: str) -> None:
    text = await refusal(url)
    assert "swordfish" not in text


async def test_a_database_that_is_not_there(pg: str, pg_server: Server) -> None:
    assert "does not exist" in await refusal(pg_server.dsn("nowhere"))


async def test_who_may_not_create_a_schema_is_told_what_to_grant(pg: str, guarded: str) -> None:
    text = await refusal(guarded)
    assert "may not do that" in text
    assert "'runcue'" in text


async def test_an_empty_schema_that_was_made_for_us_is_enough(pg: str, guarded: str) -> None:
    admin(pg, f"CREATE SCHEMA runcue AUTHORIZATION {GUARDED}")
    cue = runcue.Cue(guarded)
    assert sum((await cue.count()).values()) == 0
    await cue.close()


async def test_who_may_only_read_is_refused(pg: str, guarded: str) -> None:
    await make_empty(pg)
    admin(
        pg,
        f"GRANT USAGE ON SCHEMA runcue TO {GUARDED}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA runcue TO {GUARDED}",
    )
    cue = runcue.Cue(guarded)
    cue.task("note")(no_op)
    with pytest.raises(runcue.StoreError, match="may not do that"):
        await cue.submit("note")
    await cue.close()


async def test_a_schema_of_another_application_is_left_alone(pg: str) -> None:
    admin(pg, "CREATE SCHEMA runcue", "CREATE TABLE runcue.theirs (a int)")
    assert "another application" in await refusal(pg, runcue.StorageCorrupt)
    with psycopg.connect(pg) as connection:
        found = connection.execute("SELECT relname FROM pg_class WHERE relnamespace = 'runcue'::regnamespace")
        assert found.fetchall() == [("theirs",)]


async def test_a_newer_schema_is_left_alone(pg: str) -> None:
    await make_empty(pg)
    admin(pg, "UPDATE runcue.about SET version = 99")
    assert "newer runcue" in await refusal(pg, runcue.SchemaTooNew)


async def test_a_table_that_is_gone_is_told(pg: str) -> None:
    await make_empty(pg)
    admin(pg, "DROP TABLE runcue.index_heads")
    assert "damaged" in await refusal(pg, runcue.StorageCorrupt)


async def test_a_database_that_is_read_only_is_refused(pg: str) -> None:
    name = pg.partition("?")[0].rpartition("/")[2]
    admin(pg, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    await make_empty(pg)  # a default is no law: this session says that it writes


class Said(Link):
    """A link to a server that says other things of itself."""

    row: tuple[Any, ...] = (180000, "18.0", False, False, "on", 0, "UTF8")

    def __init__(self, **said: Any) -> None:
        self.address = Address("postgresql://me:swordfish@host/queue")
        names = ("number", "version", "is_standby", "is_read_only", "fsync", "backend", "encoding")
        self.row = tuple(said.get(name, value) for name, value in zip(names, self.row, strict=True))

        self.raw = SimpleNamespace(info=SimpleNamespace(backend_pid=0))  # type: ignore[assignment]

    def execute(self, statement: str, bindings: Any = ()) -> Any:
        row = self.row

        class Answer:
            def fetchone(self) -> tuple[Any, ...]:
                return row

        return Answer()


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"number": 120022, "version": "12.22"}, "is PostgreSQL 12.22, which is too old. Use 13 or newer."),
        ({"is_standby": True}, "is a read-only standby. Give the address of the primary server."),
        ({"is_read_only": True}, "is read-only for this user."),
        ({"encoding": "SQL_ASCII"}, "keeps its texts as SQL_ASCII."),
    ],
)
def test_a_server_that_cannot_hold_a_queue_is_refused(said: dict[str, Any], words: str) -> None:
    with pytest.raises(runcue.StoreError) as raised:
        schema.check_server(Said(**said))
    assert words in str(raised.value)
    assert "swordfish" not in str(raised.value)


def test_a_server_that_may_lose_what_it_committed_is_warned_of() -> None:
    assert "fsync=off" in schema.check_server(Said(fsync="off"))[0]
    assert schema.check_server(Said()) == []


async def test_commits_are_waited_for_whatever_the_server_s_default(pg: str) -> None:
    name = pg.partition("?")[0].rpartition("/")[2]
    admin(pg, f"ALTER DATABASE {name} SET synchronous_commit = off")
    for durability, setting in (("full", "on"), ("relaxed", "off")):
        link = Link(Address(pg), durability)
        assert link.execute("SELECT current_setting('synchronous_commit')").fetchone() == (setting,)
        link.close()


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("postgresql://me:swordfish@host/queue", "swordfish"),
        ("postgresql://me:sword%2Ffish@host/queue", "sword/fish"),
        ("postgres://host/queue?user=me&password=swordfish", "swordfish"),
        ("postgresql://host/queue?sslpassword=swordfish&user=me", "swordfish"),
        ("postgresql://host/queue?pass%77ord=swordfish", "swordfish"),
        ("postgresql://me:sw?rdfish@host/queue", "rdfish"),
        ("postgresql://me:sword/fish@host/queue", "fish@"),
        ("postgresql://me:sw@rdfish@host/queue", "rdfish"),
    ],
)
def test_a_password_is_in_no_message(url: str, secret: str) -> None:
    address = Address(url)
    error = psycopg.OperationalError(f"connection to {url} failed: secret {secret}")
    for text in (repr(address), address.shown, str(translate(error, address))):
        assert secret not in text
        assert "fish" not in text


def test_what_is_like_a_password_elsewhere_is_left_readable() -> None:
    address = Address("postgresql://postgres:postgres@host/postgres")
    assert address.plain == "postgresql://postgres:***@host/postgres"
    assert Address("postgresql://host:5432/queue?user=me").plain == "postgresql://host:5432/queue?user=me"


@pytest.fixture
def unused() -> Iterator[int]:
    """A port that nobody listens on."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def shown(error: BaseException) -> str:
    """What a program prints that does not catch it."""
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:xyzzy plugh@127.0.0.1/queue",
        "postgresql://me:xyzzy%zzplugh@127.0.0.1/queue",
        "postgresql://127.0.0.1/queue?passwd=xyzzyplugh",
    ],
)
async def test_no_password_is_in_a_traceback_either(url: str) -> None:
    with pytest.raises(runcue.StoreError) as raised:
        await runcue.Cue(url).count()
    text = shown(raised.value)
    assert "xyzzy" not in text
    assert "plugh" not in text


async def test_who_is_refused_by_a_server_is_not_told_that_there_is_none(pg: str, pg_server: Server) -> None:
    wrong = pg_server.dsn(pg, tcp=True, user=GUARDED, password="swordfish")
    for url in (wrong, pg_server.dsn("nowhere"), pg_server.dsn(pg, tcp=True, user="nobody_there")):
        assert "refuses this connection" in await refusal(url)


async def test_a_server_without_a_connection_left_is_busy(pg: str, guarded: str) -> None:
    admin(pg, f"CREATE SCHEMA runcue AUTHORIZATION {GUARDED}", f"ALTER ROLE {GUARDED} CONNECTION LIMIT 1")
    try:
        with psycopg.connect(guarded):
            assert "has no connection left" in await refusal(guarded, runcue.StorageBusy)
    finally:
        admin(pg, f"ALTER ROLE {GUARDED} CONNECTION LIMIT -1")


async def test_more_than_a_server_takes_at_once_is_refused_before_it_travels(
    pg: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runcue.stores.postgres.link.LARGEST", 100_000)
    cue = runcue.Cue(pg)
    cue.task("note")(no_op)
    with pytest.raises(runcue.StoreError, match="in smaller parts"):
        await cue.submit_many([{"task": "note", "params": {"text": "x" * 50_000}}] * 3)
    await cue.submit("note", params={"text": "x" * 50_000})
    assert (await cue.count())[runcue.WorkState.PENDING] == 1
    await cue.close()


async def test_a_queue_that_is_dropped_or_made_anew_is_neither_read_nor_written(pg: str) -> None:
    cue = runcue.Cue(pg)
    cue.task("note")(no_op)
    await cue.submit("note", id="a")
    assert await cue.get("a") is not None
    admin(pg, "DROP SCHEMA runcue CASCADE")
    with pytest.raises(runcue.StorageReplaced, match="holds no queue any more"):
        await cue.get("a")
    with pytest.raises(runcue.StorageReplaced, match="holds no queue any more"):
        await cue.submit("note")
    await cue.close()
    cue = runcue.Cue(pg)
    await cue.count()
    admin(pg, "UPDATE runcue.head SET identity = 'another'")
    with pytest.raises(runcue.StorageReplaced, match="holds another queue now"):
        await cue.get("a")
    await cue.close()


UNDO = """
CREATE SEQUENCE runcue.undone;
CREATE FUNCTION runcue.undo() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('runcue.undone') <= 3 THEN RAISE 'in the way' USING ERRCODE = '{code}'; END IF;
    RETURN NEW; END $$;
CREATE TRIGGER undo BEFORE INSERT ON runcue.work_units EXECUTE FUNCTION runcue.undo();
"""


@pytest.mark.parametrize("code", ["40001", "40P01", "57014"])
async def test_what_another_session_undid_is_done_again_and_nobody_knows(
    pg: str, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    cue = runcue.Cue(pg)

    @cue.task
    async def note(work: runcue.Work) -> int:
        return 7

    await cue.count()
    caplog.clear()
    admin(pg, UNDO.format(code=code))
    async with cue:
        assert await cue.result(await cue.submit("note"), timeout=240) == 7
    assert not caplog.records
    await cue.close()
