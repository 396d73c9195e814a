"""Measured: a file with N pending units: opening it, the memory of a process that runs it, the cost of a dispatch.

Opening and memory are measured in processes of their own; memory is what is resident above an empty program once
some thousands of units have run. A dispatch is timed as in `depth`: submit, start and finish of one no-op while the
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
from bench.durable import no_op, prepared
from bench.measure import Line, run
from bench.memory import meter
from bench.steady import SteadyQueue
from runcue import Cue, WorkState
from runcue.stores.sql import codec, statements
from runcue.stores.sqlite.file import open_file

FILL = 50_000


def filled(path: str, depth: int) -> str:
    """A queue with so many pending units: the first by submit, all others like it."""

    async def submit_one() -> None:
        cue = prepared(path, no_op)
        await cue.submit("work", params={"page": 1})
        await cue.close()

    run(submit_one)
    connection = open_file(path)
    try:
        connection.execute("PRAGMA synchronous = OFF")
        [row] = connection.execute(statements.SELECT)
        mould = raw.Mould(codec.read_row(row))
        for first in range(2, depth + 1, FILL):
            with connection:
                rows = mould.inserts(range(first, min(first + FILL, depth + 1)))
                connection.executemany(statements.INSERT_PLAIN, rows)
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
            raise RuntimeError(f"{pending:,} of {depth:,} units are pending: nothing to measure")
        return started[0] - began, grown

    run(partial(asyncio.sleep, 0))  # what every program with a loop has
    ready()
    return run(main)


def measure(quick: bool) -> list[Line]:
    """Does it matter how much a file holds?"""
    shallow, deep, count, rounds = (200, 5_000, 200, 1) if quick else (1_000, 1_000_000, 2_000, 15)

    async def dispatched(small_path: str, large_path: str) -> tuple[float, float]:
        small = SteadyQueue(shallow, cue=Cue(small_path), full=shallow)
        large = SteadyQueue(deep, cue=Cue(large_path), full=deep)
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
