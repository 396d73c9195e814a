"""A process that can start nothing more leaves news of others alone, but for what it must see."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from runcue import Cue, Work
from runcue.core.plan import Plan
from runcue.stores import neighbours

PATIENCE = 240.0


class Handler:
    """Runs until it is stopped."""

    def __init__(self) -> None:
        self.began, self.stopped = asyncio.Event(), asyncio.Event()

    async def __call__(self, work: Work) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped.set()


def counted(cue: Cue, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Has an entry for each turn that this Cue takes from now on."""
    assert cue._system is not None
    store, turns = cue._system.store, list[None]()
    turn = store.turn

    async def noted(*given: Any) -> Plan:
        turns.append(None)
        return await turn(*given)

    monkeypatch.setattr(store, "turn", noted)
    return turns


@pytest.mark.parametrize("max_running", [1, None])
async def test_news_wait_while_nothing_can_be_started_and_a_cancellation_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_running: int | None
) -> None:
    monkeypatch.setattr(neighbours, "LOOK_AROUND", 1000.0)
    one, other = Cue(tmp_path / "queue.db", max_running=max_running), Cue(tmp_path / "queue.db")
    handler = Handler()
    for cue in (one, other):
        cue.task("work")(handler)
    async with asyncio.timeout(PATIENCE), one:
        await other.get_config()
        work_id = await one.submit("work")
        await handler.began.wait()
        await one.count()
        turns = counted(one, monkeypatch)
        assert one._system is not None
        for _ in range(20):
            one._system.engine.wake(False)
            await asyncio.sleep(0)
        before = len(turns)
        assert (before == 0) is (max_running == 1)
        assert await other.cancel(work_id)
        await handler.stopped.wait()
        assert len(turns) > before
    await one.close()
    await other.close()


async def test_who_was_full_starts_what_came_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "LOOK_AROUND", 1000.0)
    one, other = Cue(tmp_path / "queue.db", max_running=1), Cue(tmp_path / "queue.db")
    go, began, seen = asyncio.Event(), asyncio.Event(), list[str]()

    async def work(work: Work) -> None:
        seen.append(work.id)
        began.set()
        await go.wait()

    for cue in (one, other):
        cue.task("work")(work)
    async with asyncio.timeout(PATIENCE), one:
        await one.submit("work", id="first")
        await began.wait()
        await other.submit("work", id="second")
        await one.count()
        assert seen == ["first"]
        go.set()
        await other.wait("second")
    assert seen == ["first", "second"]
    await one.close()
    await other.close()


async def test_news_that_come_while_the_turn_that_makes_room_is_told_are_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "LOOK_AROUND", 1000.0)
    one, other = Cue(tmp_path / "queue.db", max_running=1), Cue(tmp_path / "queue.db")
    began, go, submitted = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work(work: Work) -> None:
        began.set()
        await go.wait()

    for cue in (one, other):
        cue.task("work")(work)
    async with asyncio.timeout(PATIENCE), one:
        await one.submit("work", id="first")
        await began.wait()
        await one.count()
        assert one._system is not None
        engine, store = one._system.engine, one._system.store
        turn = store.turn

        async def late(*given: Any) -> Plan:
            plan = await turn(*given)
            if "first" in plan.records and not plan.is_full:  # committed, and not yet acted upon
                await other.submit("work", id="second")
                engine.wake(False)
                submitted.set()
            return plan

        monkeypatch.setattr(store, "turn", late)
        go.set()
        await submitted.wait()
        await other.wait("second")
    await one.close()
    await other.close()
