"""A process that left more than one turn takes, and then decides itself: it knows what is left of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from runcue import Cue, Work, WorkState
from runcue.stores.sql import inbox
from tests.fleet.slow import Slow


@asynccontextmanager
async def pair(path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Cue, Cue]]:
    """One that decides, and another. A turn takes two posts."""
    monkeypatch.setattr(inbox, "MOST_POSTS", 2)
    one, other = (Cue(path / "queue.db", durability="relaxed") for _ in range(2))
    try:
        await one.count()
        await other.count()
        yield one, other
    finally:
        await other.close()
        if one._system is not None:
            one._system.engine.abandon()  # it may be in the middle of a turn
        await one.close()


def stop_deciding(cue: Cue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have that process take no turn any more, as if it were stopped."""
    assert cue._system is not None

    async def never(*given: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(cue._system.store, "turn", never)


async def test_who_takes_over_sees_all_that_it_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(tmp_path, monkeypatch) as (one, other):

        async def work(work: Work) -> None: ...

        other.task("work")(work)
        stop_deciding(one, monkeypatch)
        for _ in range(9):
            await other.submit("work")
        assert (await other.count())[WorkState.PENDING] == 9
        assert await other.submit("work", id="a") == "a"


async def test_what_ended_is_not_run_again_though_its_outcome_is_not_taken_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path, monkeypatch) as (one, other):
        begun: list[str] = []
        all_begun = asyncio.Event()
        ends = {f"u{number}": asyncio.Event() for number in range(9)}

        async def work(work: Work) -> None:
            begun.append(work.id)
            if len(begun) == len(ends):
                all_begun.set()
            await ends[work.id].wait()

        one.task("else")(work)
        one.start()
        await one.count()
        other.task("work")(work)
        other.start()
        for work_id in ends:
            await other.submit("work", id=work_id)
        await all_begun.wait()
        assert other._system is not None
        peer = other._system.engine._peer
        assert peer is not None
        assert not peer.decides
        stop_deciding(one, monkeypatch)
        slow = Slow(other, monkeypatch)
        for end in ends.values():
            end.set()
            for _ in range(2):  # each outcome is a post of its own
                await slow.next()
        await other.join(timeout=30)
        assert peer.decides
        assert sorted(begun) == sorted(ends)
        assert (await other.count())[WorkState.COMPLETED] == len(ends)
