"""Measured: opening a queue whose service has a long history of starts: until the first start, in processor time.

A service under a rate was used for a day: so many starts are in its log, and ten of them inside its window. A process
opens the queue, starts one no-op and leaves, in turns with a short history; the best round of each counts. On
PostgreSQL this is the process's own time, not the server's.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

from bench.child import LONGEST
from bench.measure import Line, best_in_turns, run
from bench.peers.places import Places
from runcue import Cue
from runcue.core.model.state import Grant
from runcue.core.schedule.plan import Plan
from runcue.stores.postgres.address import address_of
from runcue.stores.postgres.store import postgres_store
from runcue.stores.sqlite.store import sqlite_store
from runcue.testing.manual_turns import Hand

DAY = 86400.0
INSIDE = 10
AT_ONCE = 20_000


def made(target: str) -> Cue:
    """A Cue with one task under a rate that is never reached."""
    cue = Cue(target)
    cue.service("outside", rate="1000/min")
    return cue


async def opened(target: str) -> float:
    """Seconds of processor time from opening to the first start."""
    cue = made(target)
    began = process_time()
    found: list[float] = []

    @cue.task("work", uses="outside")
    async def work(work: Any) -> None:
        found.append(process_time() - began)

    async with cue, asyncio.timeout(LONGEST):
        await cue.wait(await cue.submit("work"))
    await cue.close()
    return found[0]


async def fill(target: str, starts: int) -> None:
    """Write that many starts into the log of a queue, over a day up to now."""
    await opened(target)
    store: Any
    if "://" in target:
        store = postgres_store(address_of(target, "default"), durability="full", lease=30.0)
    else:
        store = sqlite_store(target, durability="full", lease=30.0)
    hand = Hand(store, {})
    now = store.clock.now()
    old = starts - INSIDE
    times = [now - DAY + number * (DAY - 120) / old for number in range(old)] + [now - 1.0] * INSIDE
    for first in range(0, starts, AT_ONCE):
        grants = [Grant("outside", at, work_id="w") for at in times[first : first + AT_ONCE]]

        def write(plan: Plan, turn: Any, grants: list[Grant] = grants) -> None:
            plan.grants += grants

        await hand.turn(write)
    await store.close()


def compared(where: str, short: str, long: str, few: int, many: int, rounds: int) -> Line:
    """Opening with a long history against opening with a short one."""
    run(partial(fill, short, few))
    run(partial(fill, long, many))
    best_short, best_long = best_in_turns(
        rounds, lambda: run(partial(opened, short)), lambda: run(partial(opened, long))
    )
    return Line(f"{where}: {many:,} starts against {few:,}", best_long / best_short, "×", at_most=1.5,
                note=f"{1e3 * best_long:.1f} ms, {1e3 * best_short:.1f} with {few:,}")  # fmt: skip


def measure(quick: bool) -> list[Line]:
    """Does it matter how much was started before?"""
    few, many, rounds = (100, 2_000, 1) if quick else (1_000, 1_000_000, 15)
    with TemporaryDirectory() as directory:
        short_path, long_path = str(Path(directory, "short.db")), str(Path(directory, "long.db"))
        lines = [compared("file", short_path, long_path, few, many, rounds)]
    if not quick:
        with Places() as places, places.fresh("postgres") as short, places.fresh("postgres") as long:
            lines.append(compared("PostgreSQL", short.where, long.where, few, many, rounds))
    return lines
