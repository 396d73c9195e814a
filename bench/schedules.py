"""Measured: what many schedules cost a process with nothing to do, and how late a slot starts its unit.

Each store has 10,000 schedules, half of an hour and half of a cron that come later than the measurement ends, and the
processor time of the process is taken while it waits. Then a few schedules of every second start units, and how late
a handler begins is the queue's time then, less the slot's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from functools import partial
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

from bench.measure import Line, run
from bench.peers.places import Places
from runcue import Cue

MANY, FEW = 10_000, 20
AT_ONCE = 500


async def added(cue: Cue, number: int) -> None:
    """Add a schedule whose next slot is far away."""
    if number % 2:
        await cue.schedule(f"s{number}", "later", every="5h")
    else:
        await cue.schedule(f"s{number}", "later", cron="0 0 1 1 *")


async def waiting(target: str | None, amount: int, seconds: float) -> tuple[float, list[float]]:
    """The share of a core that so many schedules take, and the seconds after each slot at which its handler began."""
    cue = Cue(target)
    late: list[float] = []
    now: list[Callable[[], float]] = []

    @cue.task
    async def later(work: Any) -> None: ...

    @cue.task
    async def tick(work: Any) -> None:
        slot = datetime.fromisoformat(work.idempotency_key.rpartition("/")[2])
        late.append(now[0]() - slot.timestamp())

    async with cue:
        await cue.count()
        for first in range(0, amount, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, amount))
            await asyncio.gather(*(added(cue, number) for number in numbers))
        await asyncio.sleep(1.0)
        began, used = perf_counter(), process_time()
        await asyncio.sleep(seconds)
        share = (process_time() - used) / (perf_counter() - began)
        now.append(cue._open("measure").clock.now)
        for number in range(FEW):  # their slots are spread over the second
            await cue.schedule(f"t{number}", "tick", every="1s", overlap="queue")
            await asyncio.sleep(0.037)
        await asyncio.sleep(seconds)
    await cue.close()
    return share, late


def measure(quick: bool) -> list[Line]:
    """What do 10,000 schedules cost, and how late are they?"""
    amount, seconds = (50, 1.0) if quick else (MANY, 10.0)
    told: list[Line] = []
    with TemporaryDirectory(prefix="runcue-bench-") as folder, Places() as places:
        stores: list[tuple[str, str | None]] = [("memory", None), ("file", f"{folder}/queue.db")]
        if not quick:
            with places.fresh("postgres") as place:
                stores.append(("PostgreSQL", place.where))
                told += _lines(stores, amount, seconds)
        else:
            told += _lines(stores, amount, seconds)
    return told


def _lines(stores: list[tuple[str, str | None]], amount: int, seconds: float) -> list[Line]:
    told: list[Line] = []
    for name, target in stores:
        share, late = run(partial(waiting, target, amount, seconds))
        told += [
            Line(f"{name}: {amount:,} schedules, idle", 100 * share, "% of a core", below=1.0),
            Line(f"{name}: slot to handler, p50", 1e3 * median(late), "ms"),
            Line(f"{name}: slot to handler, p99", 1e3 * quantiles(late, n=100, method="inclusive")[98], "ms",
                 below=50.0),
        ]  # fmt: skip
    return told
