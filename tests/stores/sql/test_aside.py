"""Damaged work: nobody waits for it, and it comes back when it is mended."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from runcue import Cue, Reader, StorageCorrupt, WorkState
from runcue.core.model.lifecycle import finished, started
from runcue.core.model.record import Record
from runcue.ports import Turn
from runcue.stores.sqlite.store import sqlite_store
from runcue.testing import run
from runcue.testing.manual_turns import NOW, Hand, pending
from tests.handlers import no_op
from tests.stores.hands import change

INDEX_KEY = "ready/call"
PATIENCE = 240.0


@asynccontextmanager
async def hand_on(path: Path, kept: dict[str, Record] | None = None) -> AsyncIterator[Hand]:
    store = sqlite_store(str(path), durability="relaxed", lease=30.0)
    try:
        yield Hand(store, {} if kept is None else kept)
    finally:
        await store.close()


def page(index_key: str) -> Any:
    def look(turn: Turn) -> list[str]:
        assert turn.reader is not None
        return [record.id for record in turn.reader.page(index_key, None, 10)]

    return look


async def counts(hand: Hand) -> tuple[int, int]:
    store: Any = hand.store
    found = await store.counts()
    return found[WorkState.PENDING], found[WorkState.RUNNING]


BAD_JSON = "UPDATE work_units SET params = '{' WHERE seq = 1"
NO_TEXT = "UPDATE work_units SET params = CAST(x'7bff7d' AS TEXT) WHERE seq = 1"
NO_NAME = "UPDATE work_units SET id = CAST(x'77ff' AS TEXT) WHERE seq = 1"


@pytest.mark.parametrize("damage", [BAD_JSON, NO_TEXT, NO_NAME])
async def test_who_joins_does_not_wait_for_damaged_work(path: Path, damage: str) -> None:
    def queue() -> Cue:
        cue = Cue(path)
        cue.task("note")(no_op)
        return cue

    cue = queue()
    await cue.submit("note", id="broken")
    await cue.submit("note", id="sound")
    await cue.close()
    change(path, damage)
    cue = queue()
    async with cue:
        await cue.join(timeout=PATIENCE)
        assert (await cue.count())[WorkState.PENDING] == 0
        assert [work.id for work in await cue.list()] == ["sound"]
    await cue.close()


async def test_damaged_work_is_counted_out_once_and_the_turn_after_knows(path: Path) -> None:
    async with hand_on(path) as hand, hand_on(path, hand.kept) as other:
        await hand.write(*[pending(number) for number in (1, 2, 3)])
        change(path, "UPDATE work_units SET params = '{' WHERE seq = 1")
        assert await hand.look(page(INDEX_KEY)) == ["w2", "w3"]
        assert await counts(hand) == (2, 0)
        await hand.write(pending(4))
        assert hand.changes is not None
        assert hand.changes.head.pending == 2
        assert await other.look(page(INDEX_KEY)) == ["w2", "w3", "w4"]
        await other.write(pending(5))
        assert await counts(hand) == (4, 0)


async def test_damaged_work_that_was_running_is_not_counted_as_running(path: Path) -> None:
    async with hand_on(path) as hand:
        await hand.write(pending(1))
        await hand.write(started(hand.kept["w1"], 1, NOW, "me", "running/me"))
        change(path, "UPDATE work_units SET params = '{' WHERE seq = 1")
        assert await hand.look(page("running/me")) == []
        assert await counts(hand) == (0, 0)
        await hand.write(pending(2))
        assert await counts(hand) == (1, 0)


async def test_mended_work_is_back_with_the_next_process_and_counted(path: Path) -> None:
    async with hand_on(path) as hand:
        await hand.write(pending(1, watch_at=NOW), pending(2))
        change(path, "UPDATE work_units SET params = '{' WHERE seq = 1")
        assert await hand.look(page(INDEX_KEY)) == ["w2"]
    kept = hand.kept
    async with hand_on(path, kept) as hand:
        assert await hand.look(page(INDEX_KEY)) == ["w2"], "it is still damaged"
        assert await counts(hand) == (1, 0)
    change(path, "UPDATE work_units SET params = '{}' WHERE seq = 1")
    async with hand_on(path, kept) as hand:
        assert await hand.look(page(INDEX_KEY)) == ["w1", "w2"]
        assert hand.changes is not None
        assert hand.changes.index_heads[INDEX_KEY] == (NOW + 1, 1)
        assert await counts(hand) == (2, 0)
        assert await hand.store.get("w1") == kept["w1"]
        await hand.write(pending(3))
        assert await counts(hand) == (3, 0)


@pytest.mark.parametrize("index_key", ["blocked", "held/me"])
async def test_what_waited_for_others_stays_aside_until_somebody_writes_it(
    path: Path, index_key: str
) -> None:
    async with hand_on(path) as hand:
        await hand.write(pending(1, index_key=index_key), pending(2))
        change(path, "UPDATE work_units SET params = '{' WHERE seq = 1")
        assert await hand.look(page(index_key)) == []
        change(path, "UPDATE work_units SET params = '{}' WHERE seq = 1")
    kept = hand.kept
    async with hand_on(path, kept) as hand:
        assert await hand.look(page(index_key)) == []
        assert await counts(hand) == (1, 0)
        cancelled = replace(
            kept["w1"], state=WorkState.CANCELLED, completed_at=NOW, index_key=None, sort_key=0.0
        )
        await hand.write(cancelled)
        assert await counts(hand) == (1, 0)


async def test_an_attempt_whose_row_was_set_aside_can_finish(path: Path) -> None:
    async with hand_on(path) as hand, hand_on(path, hand.kept) as other:
        await hand.write(pending(1))
        await hand.write(started(hand.kept["w1"], 1, NOW, "me", "running/me"))
        change(path, "UPDATE work_units SET params = '{' WHERE seq = 1")
        assert await other.look(page("running/me")) == []
        await hand.write(finished(hand.kept["w1"], 1, NOW))
        assert await counts(hand) == (0, 0)
        [(state,)] = apsw.Connection(str(path)).execute("SELECT state FROM work_units")
        assert state == "completed"


def test_mended_work_runs(path: Path) -> None:
    def queue() -> Cue:
        cue = Cue(path)

        @cue.task
        async def double(work: Any) -> int:
            return 2 * int(work.params["n"])

        return cue

    async def submit() -> None:
        cue = queue()
        await cue.submit("double", params={"n": 4}, id="w")
        await cue.close()

    async def first() -> None:
        cue = queue()
        async with cue:
            await cue.join(timeout=PATIENCE)
            with pytest.raises(StorageCorrupt, match="'w'"):
                await cue.get("w")
        await cue.close()

    async def second() -> None:
        cue = queue()
        async with cue:
            assert await cue.result("w", timeout=PATIENCE) == 8
            assert (await cue.count())[WorkState.PENDING] == 0
        await cue.close()

    run(submit())
    change(path, "UPDATE work_units SET state = 'parked' WHERE id = 'w'")
    run(first())
    with Reader(path) as reader:
        with pytest.raises(StorageCorrupt, match="'w'"):
            reader.get("w")
        with pytest.raises(StorageCorrupt, match="'w'"):
            reader.explain("w")
        assert reader.list() == []
    change(path, "UPDATE work_units SET state = 'pending' WHERE id = 'w'")
    run(second())
