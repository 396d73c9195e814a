"""runcue: a service with a rate, the windows of which are exact, in a queue in memory."""

from __future__ import annotations

from bench.limiter import entries

NEEDS = ()
HOME = ""
HOW = "cue.service(…, rate=…)"


async def starts(limit: int, count: int) -> list[float]:
    """When each of so many calls began."""
    return await entries(f"{limit}/s", count)
