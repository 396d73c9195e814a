"""No-ops by several processes of one namespace against one, and by four that all want one service of 100 places.

All begin at one moment; each submits its share in batches of 100 while all run what is there. Counted is how fast
they run from the first tenth of all units to the last twentieth, or to the end of a bounded time.

Several processes have a loop each that submits. They are compared with one process twice: with one loop, as a program
has that is not spread over processes, and with as many loops as there are processes, which is the same load.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from itertools import pairwise
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


def worker(where: str, path: str, place: int, share: int, concurrent: int, loops: int) -> None:
    """In a process of its own: submit a share by so many loops, and run what is there until ended."""
    with_parent()
    with Board(path, place) as board:
        asyncio.run(_worker(where, board, share, concurrent, loops))


async def _worker(where: str, board: Board, share: int, concurrent: int, loops: int) -> None:
    cue = Cue(where, max_running=AT_ONCE)
    cue.service("outside", concurrent=concurrent)

    @cue.task("work", uses="outside")
    async def no_op(work: Any) -> int:
        board.ran()
        return 1

    async def submit(first: int, end: int) -> None:
        for start in range(first, end, BATCH):
            pages = range(start, min(start + BATCH, end))
            await cue.submit_many([{"task": "work", "params": {"page": page}} for page in pages])

    await cue.count()
    at = await asyncio.to_thread(ready)
    await asyncio.sleep(max(0.0, at - perf_counter()))
    cue.start()
    ends = [share * part // loops for part in range(loops + 1)]
    await asyncio.gather(*(submit(first, end) for first, end in pairwise(ends)))
    await asyncio.sleep(LONGEST)  # whoever started it ends it before


class Round(NamedTuple):
    """One run: units a second, seconds of the processor for each, and the share of the cores that others took."""

    speed: float
    processor: float
    others: float


class Shape(NamedTuple):
    """So many processes, and in each so many loops that submit."""

    processes: int
    loops: int


SINGLE = Shape(1, 1)


def one(place: Place, shape: Shape, concurrent: int, count: int, longest: float, is_busy: bool) -> Round:
    """One run in a fresh place."""
    processes = shape.processes
    queue("runcue").prepare(place.where)
    share = count // processes
    with TemporaryDirectory(prefix="runcue-fleet-") as folder, ExitStack() as stack:
        path = str(Path(folder, "board"))
        board = stack.enter_context(Board(path))
        children = [
            stack.enter_context(
                Child(__name__, "worker", place.where, path, 1 + number, share, concurrent, shape.loops)
            )
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


Rounds = dict[tuple[str, str, Shape], Round]
"""By the kind, the store and the shape; the best of each."""


def run(places: Places, asked: dict[str, Any]) -> Rounds:
    """One process with one loop and with several, and several processes, in turns."""
    found: Rounds = {}
    count, longest = (QUICK, 5.0) if asked["quick"] else (COUNT, 5 * asked["seconds"])
    for store in asked["stores"]:
        for kind, (usual, concurrent) in KINDS.items():
            several = 2 if asked["quick"] else usual
            for _ in range(asked["rounds"]):
                for shape in (SINGLE, Shape(1, several), Shape(several, 1)):
                    with places.fresh(store) as place:
                        this = one(place, shape, concurrent, count, longest, asked["busy"])
                    key = (kind, store, shape)
                    found[key] = max(this, found.get(key, this))
    return found


def ratios(found: Rounds, kind: str, store: str, shape: Shape) -> tuple[float, float]:
    """How many times as fast as one process with one loop, and as one with as many loops as there are processes."""
    speed = found[kind, store, shape].speed
    same = found.get((kind, store, Shape(1, shape.processes * shape.loops)))
    return speed / found[kind, store, SINGLE].speed, speed / same.speed if same else 0.0


def table(found: Rounds) -> list[list[str]]:
    """A row for each kind, store and shape."""
    rows = [
        [
            "no-ops",
            "store",
            "P",
            "loops each",
            "units/s",
            "against one",
            "same load",
            "CPU/unit",
            "others took",
        ]
    ]
    for (kind, store, shape), this in found.items():
        single, same = ratios(found, kind, store, shape)
        rows.append(
            [kind, store, str(shape.processes), str(shape.loops), f"{this.speed:,.0f}", f"{single:.2f} ×",
             f"{same:.2f} ×", f"{1e6 * this.processor:,.0f} µs", f"{100 * this.others:.0f} %"]
        )  # fmt: skip
    return rows


def lines(found: Rounds) -> list[Line]:
    """Both ratios: goals for each."""
    made = []
    for (kind, store, shape), this in found.items():
        if shape.processes == 1:
            continue
        single, same = ratios(found, kind, store, shape)
        alone, loaded = found[kind, store, SINGLE], found[kind, store, Shape(1, shape.processes)]
        name = f"{store}, {shape.processes} {kind}"
        speeds = {f"{name}, units a second": this, f"{store}, 1 {kind}, units a second": alone,
                  f"{store}, 1 {kind}, {shape.processes} loops, units a second": loaded}  # fmt: skip
        made += [
            Line(f"{name}, to 1 with 1 loop", single, "×", at_least=1.0,
                 note=f"{this.speed:,.0f}/s, one {alone.speed:,.0f}"),
            Line(f"{name}, to 1 with {shape.processes} loops", same, "×", at_least=1.0,
                 note=f"the same load; {this.speed:,.0f}/s, one {loaded.speed:,.0f}"),
            *(Line(told, one.speed, "/s", is_detail=True) for told, one in speeds.items()),
        ]  # fmt: skip
    return made
