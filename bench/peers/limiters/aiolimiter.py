"""aiolimiter: one `AsyncLimiter`, a leaky bucket, around each of many coroutines."""

from __future__ import annotations

import asyncio
from importlib import import_module
from time import perf_counter

NEEDS = ("aiolimiter",)
HOME = "python"
HOW = "async with AsyncLimiter(…, 1)"


async def starts(limit: int, count: int) -> list[float]:
    """When each of so many calls began."""
    times: list[float] = []
    limiter = import_module("aiolimiter").AsyncLimiter(limit, 1)

    async def call() -> None:
        async with limiter:
            times.append(perf_counter())

    await asyncio.gather(*(call() for _ in range(count)))
    return times
