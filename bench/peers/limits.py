"""Counted: starts of calls that all want to begin at once, under a limit of so many a second.

Times are taken in the calls, by the clock that all processes share. A window of one second, wherever it begins, that
holds more starts than the limit exceeds it. Use is the time that so many starts need at the very least over the time
they took, from burst to burst; more than 100 % is too fast. The processor's time is that of the whole process, for
each start.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from importlib import import_module
from time import process_time
from typing import Any

from bench.child import answers, ready
from bench.limiter import exceeded, used
from bench.peers import homes

LIMITERS = ("runcue", "aiometer", "aiolimiter", "pyrate_limiter")
LIMITS = (1000, 100)
BURSTS = 4


def work(name: str, limit: int, bursts: int) -> dict[str, Any]:
    """In a process of its own: let so many calls begin, and judge when they did."""
    module = import_module(f"bench.peers.limiters.{name}")
    homes.use(module.HOME)
    asyncio.run(module.starts(1000, 10))  # everything is imported before anything counts
    ready()
    began = process_time()
    times = sorted(asyncio.run(module.starts(limit, limit * bursts)))
    processor = process_time() - began
    return {
        "exceeded": exceeded(times, limit, 1.0),
        "worst": max(bisect_left(times, at + 1.0) - place for place, at in enumerate(times)),
        "used": used(times, limit, 1.0),
        "processor": processor / len(times),
        "count": len(times),
    }


def measure(*, quick: bool = False) -> list[dict[str, Any]]:
    """What each limiter let through; the round with the least work for the processor counts."""
    rows: list[dict[str, Any]] = []
    for name in LIMITERS:
        module = import_module(f"bench.peers.limiters.{name}")
        gone = homes.missing(module.HOME, module.NEEDS)
        for limit in LIMITS[1:] if quick else LIMITS:
            row = {"name": name.replace("_", "-"), "how": module.HOW, "limit": limit, "error": ""}
            rows.append(row)
            if gone:
                row["error"] = f"not here: {', '.join(gone)}; {homes.INSTALL}"
                continue
            try:
                tries = [
                    answers((__name__, "work", name, limit, 2 if quick else BURSTS))
                    for _ in range(1 if quick else 2)
                ]
            except RuntimeError as error:
                row["error"] = str(error)
                continue
            row.update(min((found for (found,) in tries), key=lambda found: found["processor"]))
    return rows
