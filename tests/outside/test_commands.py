"""`runcue relay` moves what an Outbox gathers; `runcue sql` prints the schema of a queue and grants roles."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import runcue
from runcue import Client, Cue, Outbox, Reader, StoreError
from runcue.stores.postgres import schema, script
from tests.cli.inside import Prompt
from tests.outside.psql import psql
from tests.patience import until_sync
from tests.pg.server import GUARDED, PASSWORD
from tests.queues import make_empty

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def runcue_(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Prompt:
    """`runcue_("relay", …)`: that command in this process."""
    return Prompt("runcue", monkeypatch, capsys)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """The file of an application, with three units in its outbox."""
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        Outbox(connection).create()
        for order in range(3):
            Outbox(connection).submit("confirm", params={"order": order}, id=f"order-{order}")
        connection.commit()
    return path


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    """The file of a queue."""
    asyncio.run(make_empty(tmp_path / "queue.db"))
    return tmp_path / "queue.db"


def ids(queue: str | Path) -> list[str]:
    with Reader(queue) as reader:
        return sorted(work.id for work in reader.list())


THREE = ["order-0", "order-1", "order-2"]


# --- runcue relay ---------------------------------------------------------------------------------


def test_what_is_in_an_outbox_is_moved_once(runcue_: Prompt, shop: Path, queue: Path) -> None:
    assert runcue_("relay", str(queue), "--from", str(shop), "--once") == (0, "3 rows moved.\n", "")
    assert runcue_("relay", str(queue), "--from", str(shop), "--once") == (0, "0 rows moved.\n", "")
    assert ids(queue) == THREE


def test_it_is_moved_from_a_mysql_database_to_a_queue_in_postgresql(
    runcue_: Prompt, mysql: Any, pg: str
) -> None:
    asyncio.run(make_empty(pg))
    address = mysql.database()
    with closing(mysql.connect(address)) as connection:
        Outbox(connection, table="letters").create()
        Outbox(connection, table="letters").submit("confirm", id="a")
        connection.commit()
    told = runcue_("relay", pg, "--from", address, "--table", "letters", "--once")
    assert told == (0, "1 row moved.\n", "")
    assert ids(pg) == ["a"]


def test_it_is_moved_from_postgresql_and_by_a_function_of_ones_own(
    runcue_: Prompt, pg: str, queue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(pg) as connection:
        Outbox(connection).create()
        Outbox(connection).submit("confirm", id="a")
    assert runcue_("relay", str(queue), "--from", pg, "--once").out == "1 row moved.\n"
    with psycopg.connect(pg) as connection:
        Outbox(connection).submit("confirm", id="b")
    (tmp_path / "our_shop.py").write_text(
        f"import psycopg\ndef connect():\n    return psycopg.connect({pg!r})\n"
        "def broken():\n    return 1 / 0\nname = 1\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert runcue_("relay", str(queue), "--from", "our_shop:connect", "--once").out == "1 row moved.\n"
    assert ids(queue) == ["a", "b"]
    told = runcue_("relay", str(queue), "--from", "our_shop:broken", "--once")
    assert (told.code, told.out) == (4, "")
    assert "our_shop.broken() failed at" in told.err
    for name, said in (
        ("our_shop:name", "our_shop.name is no function that returns a connection, but int."),
        ("our_shop:nothing", "our_shop has no 'nothing'."),
        ("no_shop:connect", "There is no module 'no_shop' here"),
    ):
        told = runcue_("relay", str(queue), "--from", name, "--once")
        assert told.code == 2
        assert said in told.err


def test_a_relay_goes_on_until_it_is_killed_and_leaves_nothing_undone(shop: Path, queue: Path) -> None:
    code = "import sys; from runcue.cli.main import runcue; sys.argv[0] = 'runcue'; runcue()"
    call = [sys.executable, "-c", code, "relay", str(queue), "--from", str(shop), "--every", "0.01"]
    for number, end in enumerate((signal.SIGINT, signal.SIGKILL)):
        with closing(sqlite3.connect(shop, timeout=60)) as connection:
            Outbox(connection).submit("confirm", id=f"more-{number}")
            connection.commit()
        with subprocess.Popen(call, stderr=subprocess.PIPE) as process:
            until_sync(lambda: f"more-{number}" in ids(queue))  # noqa: B023 (it is called in this turn of the loop)
            process.send_signal(end)
            assert process.stderr is not None
            assert process.stderr.read() == b""
        assert process.returncode == (130 if end == signal.SIGINT else -signal.SIGKILL)
    assert ids(queue) == ["more-0", "more-1", *THREE]


def test_what_cannot_be_relayed_is_said_in_one_line(
    runcue_: Prompt, shop: Path, queue: Path, pg: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty.db"
    sqlite3.connect(empty).close()
    empty.touch()
    once = "--once"
    for source, code, said in (
        (str(tmp_path / "gone.db"), 3, "is not there. Give the file of an SQLite database."),
        (
            str(empty),
            3,
            "The outbox runcue_outbox cannot be read: OperationalError: no such table: runcue_outbox",
        ),
        (str(queue), 2, "An Outbox is in another file than the queue."),
        ("oracle://shop@db/shop", 2, "oracle://shop@db/shop is no database that runcue knows."),
        ("mysql://shop@db/shop?colour=red", 2, "There is no option 'colour' in the address"),
        (
            "mysql://shop:open-sesame@127.0.0.1:1/shop",
            3,
            "mysql://shop:***@127.0.0.1:1/shop cannot be reached",
        ),
        ("postgresql://shop:open-sesame@127.0.0.1:1/shop", 3, "***@127.0.0.1:1/shop cannot be reached"),
    ):
        told = runcue_("relay", str(queue), "--from", source, once)
        assert (told.code, told.out) == (code, ""), source
        assert said in told.err, source
        assert told.err.count("\n") == 1
        assert "open-sesame" not in told.err
    told = runcue_("relay", str(queue), "--from", str(empty))  # the same without --once
    assert (told.code, told.out) == (3, "")
    assert "make it once, with runcue.Outbox(connection).create()" in told.err
    assert runcue_("relay", str(tmp_path / "no.db"), "--from", str(shop), once).code == 3
    assert runcue_("relay", str(queue), "--from", str(shop), "--every", "often").code == 2
    assert runcue_("relay", str(queue), "--from", str(shop), "--table", "a;b", once).code == 2
    for name in ("pymysql", "psycopg"):
        monkeypatch.setitem(sys.modules, name, None)
    for scheme, said in (("mysql", "pip install pymysql"), ("postgresql", 'pip install "runcue[postgres]"')):
        told = runcue_("relay", str(queue), "--from", f"{scheme}://shop@db/shop", once)
        assert told.code == 4
        assert said in told.err


# --- runcue sql -----------------------------------------------------------------------------------


def units(target: str, name: str) -> list[int]:
    """What a queue does with a unit that SQL submits and one of a Client."""

    async def main() -> list[int]:
        cue = Cue(target, name=name)

        @cue.task
        async def double(number: int) -> int:
            return 2 * number

        async with cue:
            found = await cue.results([work.id for work in await cue.list()], timeout=60)
        await cue.close()
        return sorted(found)

    return asyncio.run(main())


@pytest.mark.parametrize("name", ["default", "mail"])
def test_what_is_dumped_makes_a_queue_by_psql(runcue_: Prompt, pg: str, name: str) -> None:
    told = runcue_("sql", "dump", "--name", name)
    assert told.code == 0
    psql(pg, told.out)
    space = "runcue" if name == "default" else f"runcue_{name}"
    psql(pg, f"SELECT {space}.submit('double', '{{\"number\": 1}}')")
    with Client(pg, name=name) as client:
        client.submit("double", params={"number": 2})
    assert units(pg, name) == [2, 4]
    with psycopg.connect(pg) as connection:
        [(identity,)] = connection.execute(f"SELECT identity FROM {space}.head").fetchall()
    assert len(identity) == 32


LOOK = (
    """SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns
       WHERE table_schema = 'runcue' ORDER BY 1, 2""",
    "SELECT indexdef FROM pg_indexes WHERE schemaname = 'runcue' ORDER BY 1",
    """SELECT proname, prosecdef, proconfig, proacl::text FROM pg_proc
       WHERE pronamespace = 'runcue'::regnamespace ORDER BY 1""",
    "SELECT application, version FROM runcue.about",
)
"""What a schema consists of."""


def made(dsn: str) -> list[Any]:
    with psycopg.connect(dsn) as connection:
        return [connection.execute(question).fetchall() for question in LOOK]


@pytest.fixture
def by_a_cue(pg_server: Any) -> Iterator[list[Any]]:
    """What a Cue makes."""
    dsn = pg_server.database()
    asyncio.run(make_empty(dsn))
    yield made(dsn)
    pg_server.drop(dsn)


def test_what_is_dumped_is_what_a_cue_makes(runcue_: Prompt, pg: str, by_a_cue: list[Any]) -> None:
    psql(pg, runcue_("sql", "dump").out)
    assert made(pg) == by_a_cue


def test_the_steps_after_a_version_bring_a_queue_up_to_date_once(
    runcue_: Prompt, pg: str, by_a_cue: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        for name, value in (
            ("VERSION", 7),
            ("MIGRATIONS", schema.MIGRATIONS[:7]),
            (
                "HEAD_INSERT",
                "INSERT INTO head VALUES (1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, 0, $1, NULL, NULL, 0)",
            ),
        ):
            patch.setattr(script, name, value)
        psql(pg, runcue_("sql", "dump").out)
    with pytest.raises(StoreError, match="was made by an older runcue"):
        Reader(pg)
    steps = runcue_("sql", "dump", "--after", "7").out
    psql(pg, steps)
    assert made(pg) == by_a_cue
    with pytest.raises(subprocess.CalledProcessError) as refused:
        psql(pg, steps)
    assert "the queue default is not of version 7" in refused.value.stderr
    assert made(pg) == by_a_cue
    told = runcue_("sql", "dump", "--after", str(schema.VERSION))
    assert (told.code, told.out) == (2, "")
    assert f"they are counted up to {schema.VERSION}" in told.err


def test_a_role_submits_by_what_was_granted_and_by_nothing_else(
    runcue_: Prompt, pg: str, pg_server: Any
) -> None:
    asyncio.run(make_empty(pg))
    web = pg_server.dsn(pg, tcp=True, user=GUARDED, password=PASSWORD)
    call = "SELECT runcue.submit('double', '{\"number\": 1}')"
    told = runcue_("sql", "grant", pg, GUARDED)
    assert (told.code, told.out) == (0, "")
    assert f"{GUARDED} may submit to " in told.err
    with psycopg.connect(web) as connection:
        connection.execute(call)
        connection.commit()
        for refused in ("SELECT * FROM runcue.work_units", "INSERT INTO runcue.submissions DEFAULT VALUES"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(refused)
            connection.rollback()
    with Client(web) as client, pytest.raises(StoreError, match="permission denied"):
        client.submit("double", params={"number": 2})
    told = runcue_("sql", "grant", pg, GUARDED, "--tables")
    assert "also on its own connections" in told.err
    told = runcue_("sql", "grant", web, "postgres")
    assert (told.code, told.out) == (3, "")
    assert "does not own the queue 'default'. Grant as the role that made it." in told.err
    assert PASSWORD not in told.err
    with Client(web) as client:
        client.submit("double", params={"number": 2})
        with psycopg.connect(web) as connection:
            client.submit("double", params={"number": 3}, connection=connection)
    assert units(pg, "default") == [2, 4, 6]
    with psycopg.connect(pg) as connection:
        connection.execute(f"DROP OWNED BY {GUARDED}")


def test_what_cannot_be_granted_is_said_in_one_line(runcue_: Prompt, pg: str, queue: Path) -> None:
    asyncio.run(make_empty(pg))
    for target, role, code, said in (
        (str(queue), "web", 2, "Roles submit to queues in PostgreSQL. Give an address"),
        (pg, "no'body\"; DROP SCHEMA runcue", 2, "has no role "),
        (pg, "", 2, "role name"),
        (pg.replace("/test_", "/gone_"), "web", 3, "does not exist"),
    ):
        told = runcue_("sql", "grant", target, role)
        assert (told.code, told.out) == (code, ""), target
        assert said in told.err, target
    with pytest.raises(runcue.ConfigError, match="is a file: whoever may write to it submits"):
        Client(queue).grant("web")


def test_without_the_driver_it_is_said_what_to_install(
    runcue_: Prompt, pg: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "runcue.stores.postgres.script", None)
    told = runcue_("sql", "dump")
    assert (told.code, told.out) == (4, "")
    assert 'pip install "runcue[postgres]"' in told.err
    with pytest.raises(runcue.ConfigError, match=r"pip install .runcue\[postgres\]"):
        Client(pg).grant("web")
