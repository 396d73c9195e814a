"""pyrate-limiter: one `Limiter` with a bucket in memory, acquired by each of many coroutines."""

from __future__ import annotations

import asyncio
from importlib import import_module
from time import perf_counter

NEEDS = ("pyrate_limiter",)
HOME = "python"
HOW = "await Limiter(Rate(…, Duration.SECOND)).try_acquire_async(…)"


async def starts(limit: int, count: int) -> list[float]:
    """When each of so many calls began."""
    times: list[float] = []
    module = import_module("pyrate_limiter")
    limiter = module.Limiter(module.Rate(limit, module.Duration.SECOND))

    async def call() -> None:
        await limiter.try_acquire_async("call")
        times.append(perf_counter())

    await asyncio.gather(*(call() for _ in range(count)))
    limiter.close()
    return times
