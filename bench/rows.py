"""Measured: a file with N pending works: opening it, the memory of a process that runs it, the cost of a dispatch.

Opening and memory are measured in processes of their own; memory is what is resident above an empty program once
some thousands of works have run. A dispatch is timed as in `depth`: submit, start and finish of one no-op while the
others stay queued, in turns with a small file.
"""

from __future__ import annotations

import asyncio
import gc
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from bench import raw
from bench.child import LONGEST, answers, ready
from bench.durable import CHUNK, prepared
from bench.measure import Line, run
from bench.memory import meter
from runcue import WorkState
from runcue.stores import codec
from runcue.stores.file import open_file

FILL = 50_000


async def no_op(work: Any) -> int:
    """Returns at once."""
    return raw.RESULT


def filled(path: str, depth: int) -> str:
    """A queue with so many pending works: the first by submit, all others like it."""

    async def submit_one() -> None:
        cue = prepared(path, no_op)
        await cue.submit("work", params={"page": 1})
        await cue.close()

    run(submit_one)
    connection = open_file(path, durability="relaxed")
    try:
        [row] = connection.execute(codec.SELECT)
        mould = raw.Mould(codec.read_row(row))
        for first in range(2, depth + 1, FILL):
            with connection:
                rows = mould.inserts(range(first, min(first + FILL, depth + 1)))
                connection.executemany(codec.INSERT, rows)
        connection.execute("UPDATE head SET seq = ?1, pending = ?1", (depth,))
    finally:
        connection.close()
    return path


def opened(path: str, depth: int, count: int) -> tuple[float, float]:
    """In a process of its own: seconds until the first start, and bytes above an empty program after `count`."""

    async def main() -> tuple[float, float]:
        started: list[float] = []
        is_over = asyncio.Event()

        async def handler(work: Any) -> int:
            started.append(perf_counter())
            if len(started) == count:
                is_over.set()
            return raw.RESULT

        gc.collect()
        used = meter()
        empty = used()
        began = perf_counter()
        cue = prepared(path, handler)
        cue.start()
        async with asyncio.timeout(LONGEST):
            await is_over.wait()
        gc.collect()
        grown = used() - empty
        pending = (await cue.count())[WorkState.PENDING]
        await cue.close()
        if not depth - 10 * count < pending < depth:
            raise RuntimeError(f"{pending:,} of {depth:,} works are pending: nothing to measure")
        return started[0] - began, grown

    run(partial(asyncio.sleep, 0))  # what every program with a loop has
    ready()
    return run(main)


class SteadyFile:
    """A queue in a file that is dispatched from and stays as deep as it was."""

    def __init__(self, path: str, depth: int) -> None:
        self._depth = depth
        self._finished = 0
        self._chunk = asyncio.Event()
        self._page = depth
        self._cue = prepared(path, self._work)

    async def _work(self, work: Any) -> int:
        self._finished += 1
        if self._finished % CHUNK == 0:
            self._chunk.set()
        return raw.RESULT

    async def dispatch(self, count: int) -> float:
        """Seconds for submit, start and finish of one work, over `count` of them."""
        self._cue.start()
        await self._cue.resume("outside")
        await self._go_on(10 * CHUNK)
        began, before = perf_counter(), self._finished
        await self._go_on(count)
        each = (perf_counter() - began) / (self._finished - before)
        await self._cue.pause("outside")
        await self._cue.stop()
        counts = await self._cue.count()
        await self._add(self._depth - counts[WorkState.PENDING])
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
        """Let go of the file."""
        await self._cue.close()


def measure(quick: bool) -> list[Line]:
    """Does it matter how much a file holds?"""
    shallow, deep, count, rounds = (200, 5_000, 200, 1) if quick else (1_000, 1_000_000, 2_000, 15)

    async def dispatched(small_path: str, large_path: str) -> tuple[float, float]:
        small, large = SteadyFile(small_path, shallow), SteadyFile(large_path, deep)
        times = [(await small.dispatch(count), await large.dispatch(count)) for _ in range(rounds)]
        await small.close()
        await large.close()
        return min(small for small, _ in times), min(large for _, large in times)

    with TemporaryDirectory() as directory:
        small = filled(str(Path(directory, "small.db")), shallow)
        large = filled(str(Path(directory, "large.db")), deep)
        size = Path(large).stat().st_size
        [(few_opened, few)] = answers((__name__, "opened", small, shallow, min(100, shallow // 2)))
        [(opening, many)] = answers((__name__, "opened", large, deep, 5 * count))
        for path, depth in ((small, shallow), (large, deep)):
            refill(path, depth)
        shallow_each, deep_each = run(partial(dispatched, small, large))

    return [
        Line(f"{deep:,}: open to first start", opening, "s", at_most=5,
             note=f"{size / 1e6:,.0f} MB, {shallow:,} rows {few_opened:.3f} s"),
        Line(f"{deep:,}: memory a row", many / deep, "B", at_most=300,
             note=f"{many / 1e6:.1f} MB in all, {shallow:,} rows {few / 1e6:.1f}"),
        Line(f"{deep:,} rows against {shallow:,}", deep_each / shallow_each, "×", at_most=1.5,
             note=f"{1e6 * deep_each:.1f} µs a dispatch, at {shallow:,} {1e6 * shallow_each:.1f}"),
    ]  # fmt: skip


def refill(path: str, depth: int) -> None:
    """Make a queue as deep as it was before some of it ran."""

    async def submit() -> None:
        cue = prepared(path, no_op)
        missing = depth - (await cue.count())[WorkState.PENDING]
        await cue.submit_many([{"task": "work", "params": {"page": page}} for page in range(missing)])
        await cue.close()

    run(submit)
