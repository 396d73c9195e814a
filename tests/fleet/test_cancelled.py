"""A start that was given up before its process has read it takes up no place."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from runcue import Cue, Work, WorkState

PATIENCE = 60.0


async def test_what_was_cancelled_before_it_was_read_leaves_room_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    async def work(work: Work) -> None:
        ran.append(work.id)

    one, other = (Cue(tmp_path / "queue.db", durability="relaxed", max_running=1) for _ in range(2))
    for cue in (one, other):
        cue.task("work")(work)
    async with asyncio.timeout(PATIENCE):
        await one.count()
        one.start(queues=["elsewhere"])
        await one.count()
        await other.count()
        other.start(queues=["default"])
        await other.count()
        assert other._system is not None
        store, may_read, under_way = other._system.store, asyncio.Event(), asyncio.Lock()
        may_read.set()

        def later(step: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            async def gated(*given: Any) -> Any:
                await may_read.wait()
                async with under_way:
                    return await step(*given)

            return gated

        for name in ("exchange", "turn"):
            monkeypatch.setattr(store, name, later(getattr(store, name)))
        await other.count()  # whatever was under way before is over
        may_read.clear()
        async with under_way:
            await one.submit("work", id="a")
        while not (await one.count())[WorkState.RUNNING]:
            pass
        assert await one.cancel("a")
        may_read.set()
        await one.submit("work", id="b")
        await one.result("b")
        assert ran == ["b"]
        await other.close()
        await one.close()
