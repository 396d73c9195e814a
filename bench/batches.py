"""Timed: from the first item until every unit was handed out by `cue.map`; no-ops in memory, concurrency 100.

The other side is the same by `submit_many` and `join`, which hands out nothing. Figures are how many times as fast
the map is: 0.5 means twice the time. A list is pulled on the loop, a generator in a thread; with keys, each
submission is looked up by its key as well, and the second run of the same items takes everything from the store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from time import perf_counter
from typing import Any

from bench.dispatch import no_op, prepared
from bench.measure import Line, best_in_turns, run
from runcue import Work
from runcue.api.batch import map as call_each


async def by_join(count: int) -> float:
    async with prepared(no_op) as cue:
        began = perf_counter()
        await cue.submit_many({"task": "work", "params": {"page": page}} for page in range(count))
        await cue.join()
        return perf_counter() - began


async def by_map(
    count: int, kind: Callable[[list[Any]], Iterable[Any]], key: str | None, rerun: bool
) -> float:
    pages = [{"page": page} for page in range(count)]
    async with prepared(no_op) as cue:
        if rerun:
            await drained(cue.map("work", pages, key=key), count)
        began = perf_counter()
        await drained(cue.map("work", kind(pages), key=key), count)
        return perf_counter() - began


async def drained(units: AsyncIterator[Work], count: int) -> None:
    got = 0
    async for _ in units:
        got += 1
    if got != count:
        raise RuntimeError(f"{got} of {count} units were handed out")


def by_function(count: int) -> float:
    async def nothing(page: int) -> None: ...

    began = perf_counter()
    call_each(nothing, range(count), concurrent=100)
    return perf_counter() - began


def measure(quick: bool) -> list[Line]:
    """How fast no-ops get through a map."""
    count, rounds = (1_000, 1) if quick else (20_000, 7)

    def timed(*how: Any) -> Callable[[], float]:
        return lambda: run(partial(by_map, count, *how))

    join, *times = best_in_turns(
        rounds,
        lambda: run(partial(by_join, count)),
        timed(list, None, False),
        timed(iter, None, False),
        timed(list, "page", False),
        timed(list, "page", True),
        lambda: by_function(count),
    )
    names = ("of a list", "of a generator", "with keys", "with keys, all done", "by runcue.map")
    return [
        Line(
            f"{count:,} {name}",
            join / time,
            "×",
            note=f"{1e6 * time / count:.1f} µs each, join {1e6 * join / count:.1f}",
        )
        for name, time in zip(names, times, strict=True)
    ]
