"""Timed: from the first submission until all no-ops are over, submission included; concurrency 100.

The other side is `asyncio.gather` over the same no-op, each under one Semaphore(100). Figures are how many
times as fast runcue is: 2 means half the time; one line compares the processor's time of single submits with that of
`submit_many`, where 2 means twice as much. The no-op that returns at once never fills the semaphore, so
gather does almost nothing for it; the one that gives way once does, and is shown for comparison.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from time import perf_counter, process_time
from typing import Any, NamedTuple

from bench.measure import Line, run
from runcue import Cue

CONCURRENT = 100


class Took(NamedTuple):
    """Seconds of a run, by the clock on the wall and of the processor."""

    wall: float
    processor: float


class Watch:
    """Both clocks, from now on."""

    def __init__(self) -> None:
        self._wall, self._processor = perf_counter(), process_time()

    def took(self) -> Took:
        """What has passed."""
        return Took(perf_counter() - self._wall, process_time() - self._processor)


async def no_op(work: Any) -> None:
    """Returns at once."""


async def give_way(work: Any) -> None:
    """Suspends once."""
    await asyncio.sleep(0)


async def by_gather(count: int, handler: Callable[[Any], Any]) -> Took:
    semaphore = asyncio.Semaphore(CONCURRENT)

    async def one(item: dict[str, Any]) -> None:
        async with semaphore:
            await handler(item)

    watch = Watch()
    await asyncio.gather(*(one({"page": page}) for page in range(count)))
    return watch.took()


async def by_submit_many(count: int, handler: Callable[[Any], Any]) -> Took:
    async with prepared(handler) as cue:
        watch = Watch()
        await cue.submit_many({"task": "work", "params": {"page": page}} for page in range(count))
        await cue.join()
        return watch.took()


async def by_submit(count: int, handler: Callable[[Any], Any]) -> Took:
    async with prepared(handler) as cue:
        watch = Watch()
        for page in range(count):
            await cue.submit("work", params={"page": page})
        await cue.join()
        return watch.took()


def prepared(handler: Callable[[Any], Any]) -> Cue:
    """A Cue with one service and one task."""
    cue = Cue()
    cue.service("outside", concurrent=CONCURRENT)
    cue.task("work", uses="outside")(handler)
    return cue


def best_of(rounds: int, count: int, handler: Callable[[Any], Any], *ways: Callable[..., Any]) -> list[Took]:
    """The best of several rounds for each way, by each clock; all ways take turns."""
    found = [[run(partial(way, count, handler)) for way in ways] for _ in range(rounds)]
    return [Took(*map(min, zip(*column, strict=True))) for column in zip(*found, strict=True)]


def measure(quick: bool) -> list[Line]:
    """How fast no-op coroutines get through."""
    count, rounds = (2_000, 1) if quick else (100_000, 7)
    gather, many, single = best_of(rounds, count, no_op, by_gather, by_submit_many, by_submit)
    slow_gather, slow_many = best_of(rounds, count, give_way, by_gather, by_submit_many)

    def line(name: str, base: Took, this: Took, at_least: float | None) -> Line:
        note = f"{1e6 * this.wall / count:.1f} µs each, gather {1e6 * base.wall / count:.1f}"
        return Line(name, base.wall / this.wall, "×", at_least=at_least, note=note, more=True)

    return [
        line(f"{count:,} by submit_many", gather, many, 1.0),
        line(f"{count:,} by submit, one by one", gather, single, None),
        Line("submit to submit_many, processor", single.processor / many.processor, "×", at_most=1.5,
             note=f"{1e6 * single.processor / count:.1f} µs each, submit_many {1e6 * many.processor / count:.1f}, "
                  f"gather {1e6 * gather.processor / count:.1f}"),
        line(f"{count:,} that give way, submit_many", slow_gather, slow_many, None),
        Line("submit_many, each", 1e6 * many.wall / count, "µs", is_detail=True),
        Line("gather, each", 1e6 * gather.wall / count, "µs", is_detail=True),
        Line("units a second by submit_many", count / many.wall, "/s", is_detail=True),
    ]  # fmt: skip
