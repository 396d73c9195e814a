"""An Outbox: units in a database that the queue is not in, each moved into the queue exactly once."""

from __future__ import annotations

import asyncio
import logging
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import psycopg
import pymysql
import pytest

from runcue import Client, ConfigError, Cue, Outbox, StoreError, SubmitError, WorkState
from runcue.api import outbox as module
from tests.outside.inserting import Outsider
from tests.patience import until
from tests.queues import make_empty

pytestmark = pytest.mark.timeout(300)


class Shop(NamedTuple):
    """An application's own database, with an outbox in it."""

    connect: Callable[..., Any]
    connection: Any


@pytest.fixture(params=["sqlite3", "psycopg", "pymysql"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """A database of each kind."""
    connect: Callable[..., Any]
    if request.param == "sqlite3":
        path = tmp_path / "shop.db"

        def connect() -> Any:
            return sqlite3.connect(path, timeout=60)
    elif request.param == "psycopg":
        dsn = request.getfixturevalue("pg")

        def connect() -> Any:
            return psycopg.connect(dsn)
    else:
        server = request.getfixturevalue("mysql")
        address = server.database()

        def connect() -> Any:
            return server.connect(address)

    with closing(connect()) as connection:
        for _ in range(2):  # the second time there is nothing to do
            Outbox(connection).create()
        yield Shop(connect, connection)


def test_what_is_committed_is_moved_and_what_is_rolled_back_never_was(shop: Shop, tmp_path: Path) -> None:
    with Client(tmp_path / "queue.db") as client:
        assert client.relay(shop.connection) == 0
        Outbox(shop.connection).submit("confirm", params={"order": 1})
        shop.connection.rollback()
        assert client.relay(shop.connection) == 0
        params = {"order": "ü😀\\'); DROP TABLE runcue_outbox; --"}
        id = Outbox(shop.connection).submit("confirm", params=params, id="Straße 😀", priority=3)
        shop.connection.commit()
        assert client.relay(shop.connection) == 1
        [work] = client.list()
        assert (work.id, work.params, work.priority) == (id, params, 3)
        assert client.relay(shop.connection) == 0


async def test_cancels_and_retries_follow_the_submission_of_their_unit(shop: Shop, tmp_path: Path) -> None:
    cue, outbox = Cue(tmp_path / "queue.db"), Outbox(shop.connection)

    @cue.task
    async def confirm(order: int) -> int:
        return order

    for order, verbs in enumerate(("", "c", "cr", "crc")):
        id = outbox.submit("confirm", params={"order": order}, id=f"order-{order}")
        for verb in verbs:
            (outbox.cancel if verb == "c" else outbox.retry)(id, cascade=True)
    shop.connection.commit()
    with Client(tmp_path / "queue.db") as client:
        assert client.relay(shop.connection) == 10
    async with cue:
        await cue.join(timeout=60)
        states = [str((await cue.wait(f"order-{order}", 60)).state) for order in range(4)]
    assert states == ["completed", "cancelled", "completed", "cancelled"]
    await cue.close()


def test_numbers_grow_whatever_the_clock_does(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = module.Numbers()
    moments = iter([5000, 5000, 1000, 9000])
    monkeypatch.setattr("time.time_ns", lambda: next(moments) * 1_000_000)
    made = [numbers.next() for _ in range(4)]
    assert made == sorted(made)
    assert {len(one) for one in made} == {32}


def test_more_than_are_moved_at_once_are_moved_in_several_goes(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST", 4)
    ids = [Outbox(shop.connection).submit("confirm", params={"order": number}) for number in range(10)]
    shop.connection.commit()
    with Client(tmp_path / "queue.db") as client:
        assert [client.relay(shop.connection) for _ in range(4)] == [4, 4, 2, 0]
        assert {work.id for work in client.list()} == {*ids}
        monkeypatch.setattr(module, "MOST_SIGNS", 100)
        for _ in range(3):
            Outbox(shop.connection).submit("confirm", params={"text": "x" * 80})
        shop.connection.commit()
        assert [client.relay(shop.connection) for _ in range(4)] == [1, 1, 1, 0]


def test_rows_that_a_driver_gives_as_dicts_are_moved_too(mysql: Any, tmp_path: Path) -> None:
    with closing(mysql.connect(mysql.database(), cursorclass=pymysql.cursors.DictCursor)) as connection:
        Outbox(connection).create()
        id = Outbox(connection).submit("confirm")
        connection.commit()
        with Client(tmp_path / "queue.db") as client:
            assert client.relay(connection) == 1
            assert client.get(id) is not None


@pytest.mark.parametrize("style", ["qmark", "numeric", "named", "format", "pyformat"])
def test_values_are_written_as_each_driver_wants_them(
    style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    class Cursor(sqlite3.Cursor):
        """A cursor of a driver with that style, on a database that knows one."""

        def execute(self, statement: str, values: Any = ()) -> Any:
            said.append(statement)
            if style in {"format", "pyformat"}:
                statement = statement.replace("%s", "?")
            return super().execute(statement, values)

    class Connection(sqlite3.Connection):
        """A connection of such a driver."""

        def cursor(self, factory: Any = Cursor) -> Any:
            return super().cursor(factory)

    monkeypatch.setattr(sys.modules[__name__], "paramstyle", style, raising=False)
    with closing(sqlite3.connect(tmp_path / "shop.db", factory=Connection)) as connection:
        Outbox(connection).create()
        id = Outbox(connection).submit("confirm", params={"order": "'"})
        connection.commit()
        with Client(tmp_path / "queue.db") as client:
            assert client.relay(connection) == 1
            work = client.get(id)
            assert work is not None
            assert work.params == {"order": "'"}
    wanted = {"qmark": "(?, ?, ?, ?)", "format": "(%s, %s, %s, %s)", "pyformat": "(%s, %s, %s, %s)"}
    assert any(wanted.get(style, "(:1, :2, :3, :4)") in statement for statement in said)


# --- Exactly once ---------------------------------------------------------------------------------


async def test_what_is_moved_twice_is_one_unit(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cue, ran = Cue(tmp_path / "queue.db"), []

    @cue.task
    async def confirm(order: int) -> None:
        ran.append(order)

    Outbox(shop.connection).submit("confirm", params={"order": 1})
    Outbox(shop.connection).submit("confirm", params={"order": 2}, idempotency_key="two")
    shop.connection.commit()

    class Killed(BaseException):
        """The program dies between the two commits."""

    def killed(*given: object) -> None:
        raise Killed

    client = Client(tmp_path / "queue.db")
    async with cue:
        for is_last in (False, False, True):
            with monkeypatch.context() as patch:
                if is_last:
                    assert client.relay(shop.connection) == 2
                else:
                    patch.setattr(Outbox, "delete", killed)
                    with pytest.raises(Killed):
                        client.relay(shop.connection)
            cue.wake()
            await cue.join(timeout=60)
        counts = await cue.count()
    assert sorted(ran) == [1, 2]
    assert counts[WorkState.COMPLETED] == sum(counts.values()) == 2
    client.close()
    await cue.close()


async def test_several_relays_at_once_move_each_unit_once(shop: Shop, tmp_path: Path) -> None:
    await make_empty(tmp_path / "queue.db")
    ids = {Outbox(shop.connection).submit("confirm", params={"order": number}) for number in range(300)}
    shop.connection.commit()
    errors: list[Exception] = []

    def move() -> None:
        with closing(shop.connect()) as connection, Client(tmp_path / "queue.db") as client:
            while True:
                try:
                    if not client.relay(connection):
                        return
                except (
                    pymysql.OperationalError,
                    sqlite3.OperationalError,
                ) as error:  # both delete the same rows
                    errors.append(error)
                    connection.rollback()

    threads = [threading.Thread(target=move) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    cue = Cue(tmp_path / "queue.db")
    cue.task("confirm")(confirmed)
    async with cue:
        await cue.join(timeout=120)
        counts = await cue.count()
        assert counts[WorkState.COMPLETED] == sum(counts.values()) == len(ids), errors
    await cue.close()


async def confirmed(order: int) -> None: ...


RELAY = """
import os, signal, sqlite3, sys, runcue
from runcue.api.outbox import Outbox
def killed(*given):
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[3] == "before":
    runcue.Client._insert = killed
else:
    Outbox.delete = killed
runcue.Client(sys.argv[2]).relay(sqlite3.connect(sys.argv[1]))
"""


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_relay_that_is_killed_loses_nothing_and_doubles_nothing(
    outsider: Outsider, tmp_path: Path, moment: str
) -> None:
    await make_empty(outsider.target)
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        Outbox(connection).create()
        for order in range(5):
            Outbox(connection).submit("confirm", params={"order": order})
        connection.commit()
        for _ in range(2):
            done = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-c", RELAY, str(path), outsider.target, moment],
                capture_output=True,
                check=False,
            )
            assert done.returncode == -signal.SIGKILL, done.stderr
        with Client(outsider.target) as client:
            assert client.relay(connection) == 5
            assert client.relay(connection) == 0
    cue = Cue(outsider.target)
    cue.task("confirm")(confirmed)
    async with cue:
        await cue.join(timeout=60)
        counts = await cue.count()
        assert counts[WorkState.COMPLETED] == sum(counts.values()) == 5
    await cue.close()


# --- cue.relay ------------------------------------------------------------------------------------


async def test_a_cue_relays_until_it_is_closed(shop: Shop, tmp_path: Path) -> None:
    cue, ran = Cue(tmp_path / "queue.db"), []

    @cue.task
    async def confirm(order: int) -> None:
        ran.append(order)

    async with cue:
        relaying = asyncio.create_task(cue.relay(shop.connect, every=0.01))
        for order in range(3):
            Outbox(shop.connection).submit("confirm", params={"order": order})
            shop.connection.commit()
            await until(lambda: len(ran) == order + 1)  # noqa: B023 (it is called in this turn of the loop)
    await cue.close()
    await asyncio.wait_for(relaying, 60)
    assert ran == [0, 1, 2]


async def test_a_relay_goes_on_after_its_database_was_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("runcue.api.relay.SHORTEST_PAUSE", 0.01)
    cue, path = Cue(tmp_path / "queue.db"), tmp_path / "shop.db"
    cue.task("confirm")(confirmed)
    opened: list[Connection] = []

    class Connection(sqlite3.Connection):
        """A connection that ends when the database goes away."""

        is_lost = False

        def cursor(self, *given: Any) -> Any:
            if self.is_lost:
                raise sqlite3.OperationalError("the server has gone away")
            return super().cursor(*given)

        def close(self) -> None:
            super().close()
            if self.is_lost:
                raise sqlite3.OperationalError("it has gone away")

    def connect() -> Connection:
        opened.append(sqlite3.connect(path, factory=Connection))
        return opened[-1]

    with closing(sqlite3.connect(path)) as connection:
        Outbox(connection).create()
        async with cue:
            relaying = asyncio.create_task(cue.relay(connect, every=0))
            await until(lambda: opened)
            for order in range(2):
                id = Outbox(connection).submit("confirm", params={"order": order})
                connection.commit()
                await until(lambda: Client(tmp_path / "queue.db").get(id) is not None)  # noqa: B023 (the same)
                opened[-1].is_lost = True
                await until(lambda: len(opened) == order + 2)  # noqa: B023 (the same)
            relaying.cancel()
            with suppress(asyncio.CancelledError):
                await relaying
            await cue.join(timeout=60)
    said = [record for record in caplog.records if "are not moved, trying again" in record.message]
    assert len(said) == 2
    assert {record.levelno for record in said} == {logging.WARNING}
    assert "the server has gone away" in said[0].message
    await cue.close()


async def test_what_is_wrong_from_the_beginning_ends_a_relay(tmp_path: Path) -> None:
    cue = Cue(tmp_path / "queue.db")
    with pytest.raises(
        StoreError, match=r"runcue_outbox cannot be read: OperationalError: .* make it once, with"
    ):
        await cue.relay(lambda: sqlite3.connect(tmp_path / "shop.db"))
    with pytest.raises(ZeroDivisionError):
        await cue.relay(lambda: 1 / 0)
    with pytest.raises(ConfigError, match="takes a DB-API connection"):
        await cue.relay(object)
    with pytest.raises(ConfigError, match="every"):
        await cue.relay(object, every="often")
    with pytest.raises(ConfigError, match="into a queue that outlives its process"):
        await Cue().relay(object)
    await cue.close()


def test_mistakes_are_named(shop: Shop) -> None:
    with pytest.raises(ConfigError, match="is no name of a table"):
        Outbox(shop.connection, table="a; DROP TABLE b")
    with pytest.raises(ConfigError, match=r"takes a DB-API connection, such as .* not object"):
        Outbox(object())
    connection = apsw.Connection(":memory:")
    with pytest.raises(ConfigError, match="takes a DB-API connection"):
        Outbox(connection)
    connection.close()
    with pytest.raises(SubmitError, match="has a connection already"):
        Outbox(shop.connection).submit("confirm", connection=shop.connection)
    for verb in (Outbox(shop.connection).cancel, Outbox(shop.connection).retry):
        with pytest.raises(ConfigError, match="Invalid id"):
            verb("")
