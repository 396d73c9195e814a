"""Six programs with a task each and one service for all, of one place or of a rate that is used up.

Each keeps a few units waiting: it submits the next when one has ended. A unit waits from the call of submit to the
first line of its handler; one that has not begun when time is up has waited until then. Each program also submits one
unit of priority 1000, at moments of their own: it should be the next to start once something is free.
"""

from __future__ import annotations

import asyncio
from statistics import mean
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.child import LONGEST, answers, ready
from bench.fleet.machine import Watch, busy
from bench.measure import Line
from bench.measure import run as run_loop
from bench.peers.part import queue
from bench.peers.processor import with_parent
from runcue import Cue

if TYPE_CHECKING:
    from bench.peers.places import Place, Places

PROGRAMS = 6
FEW = 2
"""Programs of a tiny run."""
WAITING = 4
"""Units that each program keeps in the queue."""
HANDLER = 0.02
RATE = (10, 0.2)
"""As many a second as one place does."""
WARM = 0.25
"""The part of the time whose units do not count: the queue has to fill."""
URGENT = 1000
LONGER = 2
"""Times as long as other parts: who starves waits for as long as it is looked at."""
GRACE = 10.0
LIMITS: dict[str, dict[str, Any]] = {"one place": {"concurrent": 1}, "a used-up rate": {"rate": RATE}}


class Unit(NamedTuple):
    """When a unit was submitted, accepted, begun and ended (0: never), and whether it is urgent."""

    called: float
    accepted: float
    began: float
    ended: float
    is_urgent: bool


# --- In processes of their own --------------------------------------------------------------------


def program(where: str, limit: str, number: int, seconds: float) -> tuple[float, list[list[Any]]]:
    """One of them: when its time was up, and its units."""
    with_parent()
    return run_loop(lambda: Program(where, limit, number).run(seconds))


class Program:
    """A task of its own on the service of all."""

    def __init__(self, where: str, limit: str, number: int) -> None:
        self._number = number
        self._units: list[list[Any]] = []
        self._ended: list[asyncio.Event] = []
        self._name = f"task-{number}"
        self._cue = Cue(where)
        given = LIMITS[limit]
        self._cue.service("narrow", **{**given, "rate": tuple(given["rate"])} if "rate" in given else given)
        self._cue.task(self._name, uses="narrow")(self._handler)

    async def _handler(self, work: Any) -> None:
        page = work.params["page"]
        self._units[page][2] = perf_counter()
        await asyncio.sleep(HANDLER)
        self._units[page][3] = perf_counter()
        self._ended[page].set()

    async def _one(self, priority: int = 0) -> None:
        page = len(self._units)
        self._units.append([perf_counter(), 0.0, 0.0, 0.0, priority == URGENT])
        self._ended.append(asyncio.Event())
        await self._cue.submit(self._name, params={"page": page}, priority=priority)
        self._units[page][1] = perf_counter()
        await self._ended[page].wait()

    async def _lane(self, end: float) -> None:
        while perf_counter() < end:
            await self._one()

    async def _urgent(self, moment: float) -> None:
        await asyncio.sleep(max(0.0, moment - perf_counter()))
        await self._one(URGENT)

    async def run(self, seconds: float) -> tuple[float, list[list[Any]]]:
        """Submit and run for so long."""
        await self._cue.count()
        self._cue.start()
        at = await asyncio.to_thread(ready)
        await asyncio.sleep(max(0.0, at - perf_counter()))
        end = at + (1 + WARM) * seconds
        moment = at + seconds * (WARM + 0.8 * (self._number + 1) / (PROGRAMS + 1))
        tasks = [asyncio.create_task(self._lane(end)) for _ in range(WAITING)]
        tasks.append(asyncio.create_task(self._urgent(moment)))
        await asyncio.sleep(max(0.0, end - perf_counter()))
        units = [list(unit) for unit in self._units]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await asyncio.wait_for(self._cue.close(), GRACE)
        except TimeoutError:  # what is measured is over
            pass
        return end, units


# --- The measure ----------------------------------------------------------------------------------


class Found(NamedTuple):
    """One run: seconds of waiting, units a second, the least and the most a program ran; the worst urgent one."""

    longest: float
    mean: float
    speed: float
    least: int
    most: int
    urgent: float
    overtaken: int
    others: float


def free_at(unit: Unit, others: list[Unit], limit: str) -> float:
    """When something was free for a unit for the first time after it was accepted."""
    if limit == "one place":
        moments = sorted([unit.accepted, *(other.ended for other in others if other.ended > unit.accepted)])

        def is_free(moment: float) -> bool:
            return not any(0 < other.began < moment and not 0 < other.ended <= moment for other in others)
    else:
        most, per = RATE
        moments = sorted(
            [unit.accepted, *(other.began + per for other in others if other.began + per > unit.accepted)]
        )

        def is_free(moment: float) -> bool:
            return sum(moment - per < other.began < moment for other in others) < most

    return next((moment for moment in moments if is_free(moment)), moments[-1])


def one(place: Place, limit: str, programs: int, seconds: float) -> Found:
    """One run in a fresh place."""
    queue("runcue").prepare(place.where)
    watch = Watch(place.server)
    told = answers(
        *((__name__, "program", place.where, limit, number, seconds) for number in range(programs))
    )
    others = watch.others()
    end = told[0][0]
    since = end - seconds
    ran_by = [[Unit(*unit) for unit in units] for _, units in told]
    everybody = [unit for units in ran_by for unit in units]
    waits = [
        (unit.began or end) - unit.called
        for unit in everybody
        if not unit.is_urgent and max(unit.began or end, unit.called) >= since
    ]
    ran = [sum(since <= unit.began for unit in units) for units in ran_by]
    urgent, overtaken = [], []
    for unit in everybody:
        if unit.is_urgent:
            rest = [other for other in everybody if other is not unit]
            begun, accepted = unit.began or end, unit.accepted or end
            free = free_at(unit, rest, limit) if unit.accepted else unit.called
            urgent.append(max(0.0, begun - free))
            overtaken.append(sum(accepted < other.began < begun for other in rest if not other.is_urgent))
    if not waits or not urgent:
        raise RuntimeError("no unit was submitted: nothing to measure")
    return Found(
        max(waits), mean(waits), sum(ran) / seconds, min(ran), max(ran), max(urgent), max(overtaken), others
    )


def run(places: Places, asked: dict[str, Any]) -> dict[tuple[str, str], Found]:
    """Each limit in each store, once: fairness is not what noise changes."""
    found = {}
    for store in asked["stores"]:
        for limit in LIMITS:
            with places.fresh(store) as place, busy(asked["busy"], LONGEST):
                found[limit, store] = one(
                    place, limit, FEW if asked["quick"] else PROGRAMS, LONGER * asked["seconds"]
                )
    return found


def table(found: dict[tuple[str, str], Found]) -> list[list[str]]:
    """A row for each limit and store."""
    rows = [["programs on", "store", "units/s", "mean wait", "longest", "against mean", "least / most ran",
             "priority 1000, free to start", "began before it", "others took"]]  # fmt: skip
    return rows + [
        [limit, store, f"{this.speed:.1f}", f"{1e3 * this.mean:,.0f} ms", f"{1e3 * this.longest:,.0f}",
         f"{this.longest / this.mean:.1f} ×", f"{this.least} / {this.most}", f"{1e3 * this.urgent:,.0f} ms",
         str(this.overtaken), f"{100 * this.others:.0f} %"]
        for (limit, store), this in found.items()
    ]  # fmt: skip


def lines(found: dict[tuple[str, str], Found]) -> list[Line]:
    """Does anything starve?"""
    told = []
    for (limit, store), this in found.items():
        note = f"mean {1e3 * this.mean:,.0f} ms, longest {1e3 * this.longest:,.0f}"
        ratio = this.longest / this.mean
        told += [
            Line(f"{store}, {limit}, longest wait", ratio, "× mean", at_most=3, note=note),
            Line(f"{store}, {limit}, mean wait", 1e3 * this.mean, "ms", is_detail=True),
            Line(f"{store}, {limit}, the longest", 1e3 * this.longest, "ms", is_detail=True),
        ]
        note = f"the worst of one for each program; {this.overtaken} others began before it"
        told.append(
            Line(
                f"{store}, {limit}, priority 1000 begins within",
                1e3 * this.urgent,
                "ms",
                at_most=100,
                note=note,
            )
        )
    return told
