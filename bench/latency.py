"""Timed: from the call of submit() to the first line of the handler, on a queue with nothing else in it.

The other side, in turns with it, is the same for a task started with `asyncio.create_task`.
"""

from __future__ import annotations

import asyncio
from statistics import median, quantiles
from time import perf_counter
from typing import Any

from bench.measure import Line, run
from runcue import Cue


async def latencies(count: int) -> tuple[list[float], list[float]]:
    """Seconds from asking to running, by create_task and by submit."""
    entered = 0.0

    async def handler(work: Any) -> None:
        nonlocal entered
        entered = perf_counter()

    cue = Cue()
    cue.service("outside", concurrent=100)
    cue.task("work", uses="outside")(handler)
    by_task, by_submit = [], []
    async with cue:
        for page in range(count):
            began = perf_counter()
            await asyncio.create_task(handler(None))
            by_task.append(entered - began)
            await asyncio.sleep(0.001)  # let everything fall asleep
            began = perf_counter()
            await cue.wait(await cue.submit("work", params={"page": page}))
            by_submit.append(entered - began)
            await asyncio.sleep(0.001)
    return by_task, by_submit


def measure(quick: bool) -> list[Line]:
    """How long an idle queue takes to start something."""
    by_task, by_submit = run(lambda: latencies(50 if quick else 3_000))
    note = f"create_task {1e3 * median(by_task):.3f}"
    return [
        Line("submit to handler, p50", 1e3 * median(by_submit), "ms", below=0.5, note=note),
        Line("submit to handler, p99", 1e3 * quantiles(by_submit, n=100)[98], "ms"),
    ]
