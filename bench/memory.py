"""Measured: growth of the process's resident memory while units with params {"page": i} are queued."""

from __future__ import annotations

import gc
import mmap
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from bench.measure import Line, run
from runcue import Cue

STATM = Path("/proc/self/statm")
CHUNK = 10_000


def meter() -> Callable[[], int]:
    """A function that gives the bytes in use: resident ones on Linux, allocated ones elsewhere."""
    if STATM.exists():
        return lambda: int(STATM.read_text().split()[1]) * mmap.PAGESIZE
    tracemalloc.start()
    return lambda: tracemalloc.get_traced_memory()[0]


def measure(quick: bool) -> list[Line]:
    """How much memory one queued work takes."""
    depths = (1_000, 5_000) if quick else (100_000, 1_000_000)

    async def main() -> list[float]:
        cue = Cue()
        cue.service("outside", concurrent=1)
        cue.task("work", uses="outside")(lambda work: None)
        await cue.submit("work")  # what every Cue has once
        gc.collect()
        used = meter()
        empty, filled, found = used(), 0, []
        for depth in depths:
            for first in range(filled, depth, CHUNK):
                pages = range(first, min(first + CHUNK, depth))
                await cue.submit_many({"task": "work", "params": {"page": page}} for page in pages)
            filled = depth
            gc.collect()
            found.append((used() - empty) / depth)
        return found

    return [
        Line(f"each of {depth:,} queued", each, "B", at_most=1024)
        for depth, each in zip(depths, run(main), strict=True)
    ]
