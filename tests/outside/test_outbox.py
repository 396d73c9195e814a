"""An Outbox: units in a database that the queue is not in, each moved into the queue exactly once."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from runcue import Client, ConfigError, Cue, Outbox, SubmitError, WorkState
from runcue.api import outbox as module

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(params=["sqlite3", "psycopg"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A connection to an application's own database, with an outbox in it."""
    connection: Any
    if request.param == "sqlite3":
        connection = sqlite3.connect(tmp_path / "shop.db")
    else:
        connection = psycopg.connect(request.getfixturevalue("pg"))
    for _ in range(2):  # the second time there is nothing to do
        Outbox(connection).create()
    yield connection
    connection.close()


def test_what_is_committed_is_moved_and_what_is_rolled_back_never_was(shop: Any, tmp_path: Path) -> None:
    with Client(tmp_path / "queue.db") as client:
        assert client.relay(shop) == 0
        Outbox(shop).submit("confirm", params={"order": 1})
        shop.rollback()
        assert client.relay(shop) == 0
        id = Outbox(shop).submit("confirm", params={"order": "ü'); DROP TABLE"}, priority=3)
        shop.commit()
        assert client.relay(shop) == 1
        [work] = client.list()
        assert (work.id, work.params, work.priority) == (id, {"order": "ü'); DROP TABLE"}, 3)
        assert client.relay(shop) == 0


def test_more_than_are_moved_at_once_are_moved_in_several_goes(
    shop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST", 4)
    ids = [Outbox(shop).submit("confirm", params={"order": number}) for number in range(10)]
    shop.commit()
    with Client(tmp_path / "queue.db") as client:
        assert [client.relay(shop) for _ in range(4)] == [4, 4, 2, 0]
        assert {work.id for work in client.list()} == {*ids}


async def test_what_is_moved_twice_is_one_unit(
    shop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cue, ran = Cue(tmp_path / "queue.db"), []

    @cue.task
    async def confirm(order: int) -> None:
        ran.append(order)

    Outbox(shop).submit("confirm", params={"order": 1})
    Outbox(shop).submit("confirm", params={"order": 2}, idempotency_key="two")
    shop.commit()

    class Killed(BaseException):
        """The program dies between the two commits."""

    def killed(*given: object) -> None:
        raise Killed

    client = Client(tmp_path / "queue.db")
    async with cue:
        for is_last in (False, False, True):
            with monkeypatch.context() as patch:
                if is_last:
                    assert client.relay(shop) == 2
                else:
                    patch.setattr(Outbox, "delete", killed)
                    with pytest.raises(Killed):
                        client.relay(shop)
            cue.wake()
            await cue.join(timeout=60)
        counts = await cue.count()
    assert sorted(ran) == [1, 2]
    assert counts[WorkState.COMPLETED] == sum(counts.values()) == 2
    client.close()
    await cue.close()


def test_mistakes_are_named(shop: Any) -> None:
    with pytest.raises(ConfigError, match="is no name of a table"):
        Outbox(shop, table="a; DROP TABLE b")
    with pytest.raises(ConfigError, match=r"takes a DB-API connection, such as .* not object"):
        Outbox(object())
    connection = apsw.Connection(":memory:")
    with pytest.raises(ConfigError, match="takes a DB-API connection"):
        Outbox(connection)
    connection.close()
    with pytest.raises(SubmitError, match="has a connection already"):
        Outbox(shop).submit("confirm", connection=shop)
