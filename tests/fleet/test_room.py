"""Who gives up waiting for room in a queue that another process decides over is told what became of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from runcue import Cue, QueueFull, Work, WorkState
from tests.fleet.slow import Slow

Pair = tuple[Cue, Cue]


@asynccontextmanager
async def pair(path: Path, block_timeout: float | None = None) -> AsyncIterator[Pair]:
    """One that decides, and another; there is room for one unit."""
    one, other = (
        Cue(path / "queue.db", durability="relaxed", max_queued=1, reject_policy="block",
            block_timeout=block_timeout)
        for _ in range(2)
    )  # fmt: skip

    async def work(work: Work) -> None: ...

    for cue in (one, other):
        cue.task("work")(work)
    try:
        await one.count()
        await other.count()
        yield one, other
    finally:
        await other.close()
        await one.close()


async def pending(cue: Cue) -> int:
    return (await cue.count())[WorkState.PENDING]


@pytest.mark.parametrize("timeout", [0.0, 0.02])
async def test_who_gives_up_waiting_is_told_that_the_queue_is_full(tmp_path: Path, timeout: float) -> None:
    async with pair(tmp_path, timeout) as (one, other):
        await one.submit("work", id="first")
        with pytest.raises(QueueFull):
            await other.submit("work", id="second")
        assert await other.cancel("first")
        assert await pending(other) == 0, "what was withdrawn is not accepted later"
        assert await other.submit("work", id="second") == "second"


async def test_who_gives_up_while_an_exchange_is_under_way_is_not_accepted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path) as (one, other):
        await one.submit("work", id="first")
        slow = Slow(other, monkeypatch)
        second = asyncio.create_task(other.submit("work", id="second"))
        await slow.next()  # it was left
        await one.count()  # and taken
        slow.hold()
        await slow.next()  # which is about to be known
        second.cancel()
        await asyncio.sleep(0)
        slow.let_go()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert await one.cancel("first")
        assert await pending(one) == 0


async def test_who_gives_up_when_it_decides_itself_over_what_it_left_is_not_accepted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path) as (one, other):
        await one.submit("work", id="first")
        slow = Slow(other, monkeypatch)
        second = asyncio.create_task(other.submit("work", id="second"))
        await slow.next()
        await one.close()
        assert await pending(other) == 1
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert await other.cancel("first")
        assert await pending(other) == 0
