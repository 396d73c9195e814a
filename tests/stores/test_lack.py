"""The system has no room for a thread, an open file or a turn: the call says so, and turns go on afterwards."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

import runcue
from runcue import Reader
from runcue.core.schedule.plan import Plan
from runcue.errors import StoreError
from runcue.ports import Turn
from runcue.stores.presence.presence import side_directory
from runcue.stores.sqlite import wal_checkpoint
from runcue.stores.sqlite.store import sqlite_store
from runcue.testing.manual_turns import Hand, pending
from tests.handlers import no_op
from tests.patience import until
from tests.stores.room import NO_THREAD, Room, no_descriptors, room

__all__ = ["room"]

BOUND = 240.0


def queue(path: Path) -> runcue.Cue:
    cue = runcue.Cue(path, durability="relaxed")
    cue.task("note")(no_op)
    return cue


# threads --------------------------------------------------------------------------------------------------


async def test_the_log_is_copied_later_when_no_thread_can_be_started_for_it(
    tmp_path: Path, room: Room, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wal_checkpoint, "CHECKPOINT_PAGES", 1)
    monkeypatch.setattr(wal_checkpoint, "TOO_LONG", 1_000_000)
    copied = threading.Event()
    copy = wal_checkpoint.Log._copy

    def noted(self: wal_checkpoint.Log) -> None:
        copy(self)
        copied.set()

    monkeypatch.setattr(wal_checkpoint.Log, "_copy", noted)
    room.lacking = "runcue-log"
    cue = queue(tmp_path / "queue.db")
    async with asyncio.timeout(BOUND), cue:
        for _ in range(3):
            await cue.result(await cue.submit("note"))
        assert room.refused
        assert not copied.is_set()
        room.lacking = ""
        while not copied.is_set():
            await cue.submit("note")
        await cue.join()
    assert len([line for line in caplog.messages if "can't start new thread" in line]) == 1


async def test_whatever_the_copying_of_the_log_raises_the_commit_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(wal_checkpoint.Log, "_see_to", raising)
    cue = queue(tmp_path / "queue.db")
    async with asyncio.timeout(BOUND), cue:
        assert await cue.result(await cue.submit("note")) is None


@pytest.mark.parametrize("name", ["runcue-store", "runcue-heart"])
async def test_a_call_fails_for_which_no_thread_can_be_started_and_the_next_does_not(
    name: str, tmp_path: Path, room: Room
) -> None:
    cue = queue(tmp_path / "queue.db")
    room.lacking = name
    with pytest.raises(StoreError, match=NO_THREAD.format(name)):
        await cue.submit("note")
    room.lacking = ""
    async with asyncio.timeout(BOUND), cue:
        assert await cue.result(await cue.submit("note")) is None
    await cue.close()
    assert [one.name for one in side_directory(tmp_path / "queue.db").glob("*.lock")] == []


async def test_a_question_fails_for_which_no_thread_can_be_started_and_the_next_does_not(
    tmp_path: Path, room: Room
) -> None:
    cue = queue(tmp_path / "queue.db")
    async with asyncio.timeout(BOUND), cue:
        id = await cue.submit("note")
        room.lacking = "runcue-looking"
        with pytest.raises(StoreError, match=NO_THREAD.format("runcue-looking")):
            await cue.get(id)
        room.lacking = ""
        assert await cue.get(id) is not None


async def test_a_cue_is_closed_for_which_no_thread_can_be_started(tmp_path: Path, room: Room) -> None:
    cue = queue(tmp_path / "queue.db")
    room.lacking = "runcue-store"
    with pytest.raises(StoreError, match=NO_THREAD.format("runcue-store")):
        await cue.submit("note")
    await cue.close()
    assert [one.name for one in side_directory(tmp_path / "queue.db").glob("*.lock")] == []


async def test_a_dead_process_is_lost_as_soon_as_its_leftovers_can_be_ended(
    tmp_path: Path, room: Room
) -> None:
    path = str(tmp_path / "queue.db")
    other = sqlite_store(path, durability="relaxed", lease=30.0)
    await Hand(other, {}).join()
    store = sqlite_store(path, durability="relaxed", lease=30.0, end_leftovers=lambda worker: True)
    lost: list[str] = []
    store.listen(lambda is_urgent: None, lost.append)
    room.lacking = "runcue-leftovers"
    other.abandon()
    await Hand(store, {}).write(pending(2))  # after which it looks around
    await until(lambda: len(room.refused) > 1)
    assert not lost
    room.lacking = ""
    await until(lambda: other.worker in lost)
    await store.close()


async def test_work_goes_on_without_a_watchdog(
    tmp_path: Path, room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    room.lacking = "runcue-watchdog"
    cue = queue(tmp_path / "queue.db")
    async with asyncio.timeout(BOUND), cue:
        assert await cue.result(await cue.submit("note")) is None
    expected = "no watchdog: a handler that holds the event loop will not be reported: can't start new thread"
    assert expected in caplog.messages


async def test_a_slow_callback_for_which_no_thread_can_be_started_ends_no_turns(
    tmp_path: Path, room: Room
) -> None:
    room.lacking = "runcue-priority"
    cue = runcue.Cue(tmp_path / "queue.db", callback_timeout=0.001)
    cue.service("one", concurrent=1)
    cue.task("note", uses="one")(lambda work: None)

    @cue.priority
    def slow(context: runcue.PriorityContext) -> float:
        began = perf_counter()
        while perf_counter() - began < 0.002:
            pass
        return 0.0

    async with asyncio.timeout(BOUND):
        await cue.submit_many([{"task": "note"} for _ in range(3)])
        async with cue:
            await cue.join()
    assert room.refused


# files and memory -----------------------------------------------------------------------------------------


async def test_too_many_open_files_are_no_question_of_permissions(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    cue = queue(path)
    await cue.submit("note")
    other = queue(path)
    said = r"as many files open as it may\. Raise its limit \(ulimit -n\)"
    with no_descriptors():
        with pytest.raises(StoreError, match=said):
            await other.submit("note")
        with pytest.raises(StoreError, match=said):
            Reader(path)
        with pytest.raises(StoreError, match=said):
            await cue.list()
        await cue.submit("note")
    assert len(await cue.list()) == 2
    await other.submit("note")
    await other.close()
    await cue.close()


async def test_a_turn_without_memory_fails_and_the_next_does_not(tmp_path: Path) -> None:
    store = sqlite_store(str(tmp_path / "queue.db"), durability="relaxed", lease=30.0)
    hand = Hand(store, {})

    def greedy(plan: Plan, turn: Turn) -> None:
        raise MemoryError

    with pytest.raises(StoreError, match="There was too little memory for"):
        await hand.turn(greedy)
    await hand.write(pending(1))
    await hand.compare()
    await store.close()
