"""No-ops by several processes of one namespace against one, and by four that all want one service of 100 places.

All begin at one moment; each submits its share in batches of 100 while all run what is there. Counted is how fast
they run from the first tenth of all units to the last twentieth, or to the end of a bounded time.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.child import HEAD_START, LONGEST, Child, ready
from bench.fleet.machine import Watch, busy
from bench.fleet.queues import PLENTY
from bench.measure import Line
from bench.peers.board import Board
from bench.peers.part import queue
from bench.peers.processor import used, with_parent
from runcue import Cue

if TYPE_CHECKING:
    from bench.peers.places import Place, Places

BATCH = 100
AT_ONCE = 100
FIRST, LAST = 0.1, 0.95
POLL = 0.005
COUNT = 20_000
QUICK = 400
KINDS = {"in one namespace": (8, PLENTY), "on one service of 100": (4, AT_ONCE)}
"""What is compared with one process: how many, and the places of the service for all."""


def worker(where: str, path: str, place: int, share: int, concurrent: int) -> None:
    """In a process of its own: submit a share, and run what is there until ended."""
    with_parent()
    with Board(path, place) as board:
        asyncio.run(_worker(where, board, share, concurrent))


async def _worker(where: str, board: Board, share: int, concurrent: int) -> None:
    cue = Cue(where, max_running=AT_ONCE)
    cue.service("outside", concurrent=concurrent)

    @cue.task("work", uses="outside")
    async def no_op(work: Any) -> int:
        board.ran()
        return 1

    await cue.count()
    at = await asyncio.to_thread(ready)
    await asyncio.sleep(max(0.0, at - perf_counter()))
    cue.start()
    for start in range(0, share, BATCH):
        pages = range(start, min(start + BATCH, share))
        await cue.submit_many([{"task": "work", "params": {"page": page}} for page in pages])
    await asyncio.sleep(LONGEST)  # whoever started it ends it before


class Round(NamedTuple):
    """One run: units a second, seconds of the processor for each, and the share of the cores that others took."""

    speed: float
    processor: float
    others: float


def one(place: Place, processes: int, concurrent: int, count: int, longest: float, is_busy: bool) -> Round:
    """One run in a fresh place."""
    queue("runcue").prepare(place.where)
    share = count // processes
    with TemporaryDirectory(prefix="runcue-fleet-") as folder, ExitStack() as stack:
        path = str(Path(folder, "board"))
        board = stack.enter_context(Board(path))
        children = [
            stack.enter_context(Child(__name__, "worker", place.where, path, 1 + number, share, concurrent))
            for number in range(processes)
        ]
        for child in children:
            child.until_ready()
        stack.enter_context(busy(is_busy, longest))
        at = perf_counter() + HEAD_START
        for child in children:
            child.begin(at)

        def reached(units: float) -> tuple[float, int, float]:
            while (total := board.total()) < units and perf_counter() < at + longest:
                time.sleep(POLL)
            return perf_counter(), total, used(*board.processes()) + place.used()

        began, before, used_before = reached(FIRST * share * processes)
        watch = Watch(place.server)
        ended, after, used_after = reached(LAST * share * processes)
        others = watch.others()
        if any(child.has_ended for child in children):
            raise RuntimeError("a worker ended before its time")
    if after <= before:
        raise RuntimeError(f"{after:,} units ran within {longest:g} s: nothing to measure")
    return Round((after - before) / (ended - began), (used_after - used_before) / (after - before), others)


Rounds = dict[tuple[str, str, int], Round]
"""By the kind, the store and how many processes; the best of each."""


def run(places: Places, asked: dict[str, Any]) -> Rounds:
    """One process and several in turns."""
    found: Rounds = {}
    count, longest = (QUICK, 5.0) if asked["quick"] else (COUNT, 5 * asked["seconds"])
    for store in asked["stores"]:
        for kind, (several, concurrent) in KINDS.items():
            for _ in range(asked["rounds"]):
                for processes in (1, 2 if asked["quick"] else several):
                    with places.fresh(store) as place:
                        this = one(place, processes, concurrent, count, longest, asked["busy"])
                    key = (kind, store, processes)
                    found[key] = max(this, found.get(key, this))
    return found


def table(found: Rounds) -> list[list[str]]:
    """A row for each kind, store and number of processes."""
    rows = [["no-ops", "store", "P", "units/s", "against one", "CPU/unit", "others took"]]
    return rows + [
        [kind, store, str(processes), f"{this.speed:,.0f}", f"{this.speed / found[kind, store, 1].speed:.2f} ×",
         f"{1e6 * this.processor:,.0f} µs", f"{100 * this.others:.0f} %"]
        for (kind, store, processes), this in found.items()
    ]  # fmt: skip


def lines(found: Rounds) -> list[Line]:
    """The ratios."""
    return [
        Line(f"{store}, {processes} {kind}", this.speed / found[kind, store, 1].speed, "×", at_least=1.0,
             note=f"{this.speed:,.0f}/s, one {found[kind, store, 1].speed:,.0f}")
        for (kind, store, processes), this in found.items()
        if processes > 1
    ]  # fmt: skip
