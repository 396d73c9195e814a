"""Counted: handler entries of a saturated service; N+1 of them less than a window apart exceed it.

Use is the time that so many starts need at the very least, from burst to burst, over the time they took.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import Any

from bench.measure import Line, run
from runcue import Cue


async def entries(rate: str, count: int) -> list[float]:
    """When each of `count` handlers was entered."""
    times: list[float] = []
    cue = Cue()
    cue.service("outside", rate=rate)

    @cue.task("work", uses="outside")
    async def work(work: Any) -> None:
        times.append(perf_counter())

    async with cue:
        await cue.submit_many({"task": "work", "params": {"page": page}} for page in range(count))
        await cue.join()
    return times


def exceeded(times: list[float], limit: int, window: float) -> int:
    """How many windows hold more than `limit` starts."""
    return sum(later - earlier < window for earlier, later in zip(times, times[limit:], strict=False))


def used(times: list[float], limit: int, window: float) -> float:
    """The share, in per cent, of the permitted starts that were made after the first burst."""
    bursts = len(times) // limit - 1
    took = sum(times[bursts * limit + i] - times[i] for i in range(limit)) / limit
    return 100 * bursts * window / took


def lines(rate: str, limit: int, window: float, bursts: int, has_goal: bool) -> list[Line]:
    times = run(partial(entries, rate, limit * bursts))
    least = min(later - earlier for earlier, later in zip(times, times[limit:], strict=False))
    note = f"{limit * bursts:,} starts in {times[-1] - times[0]:.2f} s, narrowest {1e3 * least:.3f} ms"
    return [
        Line(f"{rate}: windows exceeded", exceeded(times, limit, window), "", at_most=0, note=note),
        Line(f"{rate}: permitted starts used", used(times, limit, window), "%", 99 if has_goal else None),
    ]


def measure(quick: bool) -> list[Line]:
    """Is a rate ever exceeded, and is all of it used?"""
    if quick:
        return lines("20/100ms", 20, 0.1, 4, True)
    return [
        *lines("1000/s", 1000, 1.0, 6, True),
        *lines("100/s", 100, 1.0, 6, True),
        *lines("10/100ms", 10, 0.1, 50, False),
    ]
