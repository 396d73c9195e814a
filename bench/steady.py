"""A queue that is dispatched from and stays as deep as it was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any

from bench import raw
from runcue import Cue, PriorityContext, WorkState

CHUNK = 100
CONCURRENT = 100
FILL = 50_000


class SteadyQueue:
    """Holds `depth` units in one lane; what is started is replaced in chunks of a hundred.

    In a Cue that is given, `full` says how many units are there already.
    """

    def __init__(
        self,
        depth: int,
        priority: Callable[[PriorityContext], float] | None = None,
        cue: Cue | None = None,
        full: int = 0,
    ) -> None:
        self.depth = depth
        self._finished = 0
        self._chunk = asyncio.Event()
        self._page = full
        self._cue = cue = cue or Cue()
        cue.service("outside", concurrent=CONCURRENT)
        cue.task("work", uses="outside")(self._work)
        if priority is not None:
            cue.priority(priority)

    async def _work(self, work: Any) -> int:
        self._finished += 1
        if self._finished % CHUNK == 0:
            self._chunk.set()
        return raw.RESULT

    async def fill(self) -> None:
        """Queue everything, and wait until nothing is left to do about it."""
        await self._cue.pause("outside")
        self._cue.start()
        for left in range(self.depth, 0, -FILL):
            await self._add(min(left, FILL))
        await calm()
        await self._cue.stop()

    async def dispatch(self, count: int) -> float:
        """Seconds for submit, start and finish of one unit, over `count` of them."""
        self._cue.start()
        await self._cue.resume("outside")
        await self._go_on(10 * CHUNK)
        began, before = perf_counter(), self._finished
        await self._go_on(count)
        each = (perf_counter() - began) / (self._finished - before)
        await self._cue.pause("outside")
        await self._cue.stop()
        counts = await self._cue.count()
        await self._add(self.depth - counts[WorkState.PENDING])
        return each

    async def _go_on(self, count: int) -> None:
        end = self._finished + count
        while (before := self._finished) < end:
            self._chunk.clear()
            await self._chunk.wait()
            await self._add(self._finished - before)

    async def _add(self, count: int) -> None:
        first, self._page = self._page, self._page + count
        await self._cue.submit_many(
            [{"task": "work", "params": {"page": page}} for page in range(first, self._page)]
        )

    async def close(self) -> None:
        """Let go of the queue."""
        await self._cue.close()


async def calm(longest: float = 60.0) -> None:
    """Wait until this process does next to nothing."""
    end = perf_counter() + longest
    while perf_counter() < end:
        began = process_time()
        await asyncio.sleep(0.5)
        if process_time() - began < 0.05:
            return
