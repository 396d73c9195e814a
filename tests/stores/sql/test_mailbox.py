"""What processes leave for each other in a file: what becomes of it when a commit fails, a process dies, or nobody
waits for the answer."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from runcue.core.model.lifecycle import started
from runcue.core.model.record import Record
from runcue.core.model.state import Overdue
from runcue.core.schedule.plan import Cancel, Plan
from runcue.errors import StorageFull, StoreError
from runcue.ports import Outgoing, Takeover, Turn
from runcue.stores.sql.store import SqlStore
from runcue.stores.sqlite.store import sqlite_store
from runcue.stores.sqlite.transaction import FileTransaction
from runcue.testing.faults import _FailingConnection
from runcue.testing.manual_turns import NOW, Hand, pending


@asynccontextmanager
async def pair(path: Path) -> AsyncIterator[tuple[Hand, SqlStore]]:
    """One who decides, and the store of another."""
    stores = [sqlite_store(str(path / "queue.db"), durability="relaxed", lease=30.0) for _ in range(2)]
    one = Hand(stores[0], {})
    try:
        await one.turn()
        yield one, stores[1]
    finally:
        for store in stores:
            await store.close()


async def give(one: Hand, store: SqlStore, seq: int = 1) -> Record:
    """Have a start decided for the other."""
    running = started(pending(seq), seq, NOW, store.worker, f"running/{store.worker}")

    def change(plan: Plan, turn: Turn) -> None:
        one.put(plan, running)
        plan.part(store.worker).start = [running]

    await one.turn(change)
    return running


def ail(store: SqlStore, instead: str, error: type[apsw.Error] = apsw.IOError) -> None:
    store._tables.use(_FailingConnection(store._tables.connection, instead, 1, error))


async def test_a_post_whose_commit_took_place_all_the_same_is_there_once(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, store):
        ail(store, "COMMIT")
        received = await store.exchange(Outgoing(1, [Cancel("w1")]))
        assert received.unread == {1}
        await one.turn()
        assert [post.number for post in one.posts] == [1]


async def test_a_post_whose_commit_failed_is_not_there(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, store):
        running = await give(one, store)
        for error, problem in ((apsw.IOError, StoreError), (apsw.FullError, StorageFull)):
            ail(store, "ROLLBACK", error)
            with pytest.raises(problem):
                await store.exchange(Outgoing(1, [Cancel("w1")]))
        await one.turn()
        assert not one.posts
        assert (await store.exchange(None)).plan.start == [running]


async def test_letters_of_a_commit_that_took_place_all_the_same_are_read(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, store):
        running = await give(one, store)
        ail(store, "COMMIT")
        assert (await store.exchange(None)).plan.start == [running]
        assert (await store.exchange(None)).plan.start == []


async def test_a_post_is_there_though_the_letters_beside_it_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read by the next exchange; who has left nothing is told what is wrong."""

    def unreadable(*given: object) -> None:
        raise apsw.IOError("disk I/O error")

    async with pair(tmp_path) as (one, store):
        running = await give(one, store)
        with monkeypatch.context() as patch:
            patch.setattr(store._tables.mailbox, "received", unreadable)
            received = await store.exchange(Outgoing(1, [Cancel("w1")]))
            assert (received.is_whole, received.unread, received.plan.start) == (False, {1}, [])
            with pytest.raises(StoreError, match="disk I/O error"):
                await store.exchange(None)
        assert (await store.exchange(None)).plan.start == [running]
        await one.turn()
        assert [post.number for post in one.posts] == [1]


async def test_starts_that_may_have_been_read_in_vain_come_again_too_late_to_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path) as (one, store):
        running = await give(one, store)
        ail(store, "COMMIT")
        with monkeypatch.context() as patch:
            patch.setattr(FileTransaction, "_is_committed", lambda *given: False)
            with pytest.raises(StoreError, match="unknown"):
                await store.exchange(None)
        plan = (await store.exchange(None)).plan
        assert (plan.start, plan.rated) == ([running], {running.token: 0.0})
        assert (await store.exchange(None)).plan.start == []


async def test_what_was_to_be_stopped_is_told_anew_to_who_may_have_missed_it(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, store):
        overdue = (Overdue(7, "w7", "task", "default", ()),)

        def change(plan: Plan, turn: Turn) -> None:
            plan.workers = {store.worker: replace(store.me(), overdue=overdue)}

        await one.turn(change)
        received = await store.exchange(None)
        assert (received.given_up, received.has_missed) == ([], False)
        store._tables.mailbox.letters_may_be_lost()
        received = await store.exchange(None)
        assert (received.given_up, received.has_missed) == ([("w7", 7)], True)
        received = await store.exchange(None)
        assert (received.given_up, received.has_missed) == ([], False)


async def test_starts_that_nobody_waited_for_come_again(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, store):
        running = await give(one, store)
        asking = asyncio.ensure_future(store.exchange(None))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()
        assert (await store.exchange(None)).plan.start == [running]


async def test_a_post_that_cannot_be_read_is_left_to_others_and_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(tmp_path) as (one, store):
        for number, body in enumerate(('[["dance",{}]]', "[", '[["cancel",{"id":"w1"}]]')):
            await store.exchange(Outgoing(number, []))
            store._tables.connection.execute("UPDATE inbox SET body = ? WHERE number = ?", (body, number))
        for _ in range(3):
            await one.turn()
            await store.exchange(Outgoing(9, []))
        assert (await store.exchange(None)).unread == {0, 1, 9}
        told = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert len(told) == 2
        assert "dance" in told[0].getMessage()


async def test_a_damaged_letter_is_left_out_and_its_starts_come_again(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, store):
        running = await give(one, store)
        store._tables.connection.execute("UPDATE letters SET body = '['")
        plan = (await store.exchange(None)).plan
        assert (plan.start, plan.rated) == ([running], {running.token: 0.0})


async def test_who_decides_alone_reads_no_inbox(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, store):
        await one.write(pending(1))
        said: list[Any] = []
        connection = one.store._tables.connection  # type: ignore[attr-defined] # it is one in a file

        def note(cursor: Any, statement: str, bindings: Any) -> bool:
            said.append(statement)
            return True

        connection.set_exec_trace(note)
        await one.write(pending(2))
        assert not [statement for statement in said if "FROM inbox" in statement]
        await store.exchange(Outgoing(1, []))
        await one.write(pending(3))
        assert [statement for statement in said if "FROM inbox" in statement]
        connection.set_exec_trace(None)


async def test_what_a_turn_started_that_failed_and_was_kept_is_begun_though_another_decides_by_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It failed after its commit: nobody here has heard what it started."""
    async with pair(tmp_path) as (one, other):
        ours, turns = one.shared, one.store._database.transaction  # type: ignore[attr-defined]
        sync = turns._sync_log
        running = started(pending(1), 1, NOW, ours.me().id, f"running/{ours.me().id}")

        def failing() -> None:
            raise StoreError("the disk said no")

        monkeypatch.setattr(turns, "_sync_log", failing)
        with pytest.raises(StoreError):
            await one.turn(lambda plan, turn: one.put(plan, running))
        monkeypatch.setattr(turns, "_sync_log", sync)
        theirs = Hand(other, {running.id: running})
        await theirs.turn(takeover=Takeover(ours.me().id))
        received = await ours.exchange(None)
        assert [(record.token, received.plan.rated[record.token]) for record in received.plan.start] == [
            (1, 0.0)
        ]
        assert (await ours.exchange(None)).plan.start == []
