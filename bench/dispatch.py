"""Timed: from the first submission until all no-ops are over, submission included; concurrency 100.

The other side is `asyncio.gather` over the same no-op, each under one Semaphore(100). Figures are how many
times as fast runcue is: 2 means half the time. The no-op that returns at once never fills the semaphore, so
gather does almost nothing for it; the one that gives way once does, and is shown for comparison.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

from bench.measure import Line, best_in_turns, run
from runcue import Cue

CONCURRENT = 100


async def no_op(work: Any) -> None:
    """Returns at once."""


async def give_way(work: Any) -> None:
    """Suspends once."""
    await asyncio.sleep(0)


async def by_gather(count: int, handler: Callable[[Any], Any]) -> float:
    semaphore = asyncio.Semaphore(CONCURRENT)

    async def one(item: dict[str, Any]) -> None:
        async with semaphore:
            await handler(item)

    began = perf_counter()
    await asyncio.gather(*(one({"page": page}) for page in range(count)))
    return perf_counter() - began


async def by_submit_many(count: int, handler: Callable[[Any], Any]) -> float:
    async with prepared(handler) as cue:
        began = perf_counter()
        await cue.submit_many({"task": "work", "params": {"page": page}} for page in range(count))
        await cue.join()
        return perf_counter() - began


async def by_submit(count: int, handler: Callable[[Any], Any]) -> float:
    async with prepared(handler) as cue:
        began = perf_counter()
        for page in range(count):
            await cue.submit("work", params={"page": page})
        await cue.join()
        return perf_counter() - began


def prepared(handler: Callable[[Any], Any]) -> Cue:
    """A Cue with one service and one task."""
    cue = Cue()
    cue.service("outside", concurrent=CONCURRENT)
    cue.task("work", uses="outside")(handler)
    return cue


def measure(quick: bool) -> list[Line]:
    """How fast no-op coroutines get through."""
    count, rounds = (2_000, 1) if quick else (100_000, 7)
    ways = (by_gather, by_submit_many, by_submit)

    def timed(way: Callable[..., Any], handler: Callable[[Any], Any]) -> Callable[[], float]:
        return lambda: run(partial(way, count, handler))

    gather, many, single = best_in_turns(rounds, *(timed(way, no_op) for way in ways))
    slow_gather, slow_many = best_in_turns(rounds, *(timed(way, give_way) for way in ways[:2]))

    def line(name: str, base: float, time: float, at_least: float | None) -> Line:
        note = f"{1e6 * time / count:.1f} µs each, gather {1e6 * base / count:.1f}"
        return Line(name, base / time, "×", at_least=at_least, note=note)

    return [
        line(f"{count:,} by submit_many", gather, many, 1.0),
        line(f"{count:,} by submit, one by one", gather, single, None),
        line(f"{count:,} that give way, submit_many", slow_gather, slow_many, None),
    ]
