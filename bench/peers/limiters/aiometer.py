"""aiometer: `run_on_each` with `max_per_second`, which spaces calls evenly."""

from __future__ import annotations

from importlib import import_module
from time import perf_counter

NEEDS = ("aiometer",)
HOME = "python"
HOW = "run_on_each(…, max_per_second=…)"


async def starts(limit: int, count: int) -> list[float]:
    """When each of so many calls began."""
    times: list[float] = []

    async def call(_: int) -> None:
        times.append(perf_counter())

    await import_module("aiometer").run_on_each(call, list(range(count)), max_per_second=limit)
    return times
