"""A fleet as people have it: P processes with ten places each, handlers that wait 100 ms, and one that submits.

It submits 1.2 × of what they could do, a call for each unit at its own moment, with at most so many calls under way
(`MOST`): who answers slower gets less. Counted are the handlers that end within the seconds after a warm-up, the
processor's time of all processes and of the server in them, the calls made in them, and what the server logged (for a
file: what the processes wrote).
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from bench.child import HEAD_START, LONGEST, Child, ready
from bench.fleet.machine import Watch, busy, written
from bench.fleet.queues import PEERS, PLACES, Submit, on_its_loop, opened
from bench.measure import Line
from bench.peers.board import Board
from bench.peers.part import queue
from bench.peers.processor import used, with_parent

if TYPE_CHECKING:  # children need little of it
    import psycopg

    from bench.peers.places import Place, Places

HANDLER = 0.1
"""Seconds that a handler waits."""
MORE = 1.2
"""Submitted, as a multiple of what the processes could do."""
MOST = 100
"""Submits under way at once, at most."""
WARM = 0.5
"""How long it runs before anything counts, as a part of how long it runs then."""
TICK = 0.001
GRACE = 15.0
"""Seconds that submits get to return when all is over."""


# --- In processes of their own --------------------------------------------------------------------


def worker(name: str, where: str, path: str, place: int) -> None:
    """Run what is there until ended."""
    with_parent()
    with Board(path, place) as board:
        on_its_loop(name, _worker(name, where, board))


async def _worker(name: str, where: str, board: Board) -> None:
    async def run() -> None:
        await asyncio.sleep(HANDLER)
        board.ran()

    async with opened(name, where, run):
        await asyncio.to_thread(ready)
        await asyncio.sleep(LONGEST)  # whoever started it ends it before


def submitter(name: str, where: str, path: str, place: int, rate: float, seconds: float) -> dict[str, float]:
    """Submit so many a second, and tell how long that took."""
    with_parent()
    with Board(path, place):
        return on_its_loop(name, _submitter(name, where, rate, seconds))


async def _submitter(name: str, where: str, rate: float, seconds: float) -> dict[str, float]:
    async with opened(name, where, None) as submit:
        await submit(0)
        at = await asyncio.to_thread(ready)
        await asyncio.sleep(max(0.0, at - perf_counter()))
        calls = Calls(submit)
        await calls.paced(at, rate, at + (WARM + 1) * seconds)
        took = calls.since(at + WARM * seconds)
    return {
        "p50": median(took),
        "p99": quantiles(took, n=100, method="inclusive")[98] if len(took) > 1 else took[0],
        "worst": max(took),
        "submitted": len(took) / seconds,
    }


class Calls:
    """The submits of one process: when each was called, and how long it took."""

    def __init__(self, submit: Submit) -> None:
        self._submit = submit
        self._calls: list[list[float]] = []

    async def _one(self, page: int) -> None:
        call = [perf_counter(), 0.0]
        self._calls.append(call)
        await self._submit(page)
        call[1] = perf_counter()

    async def paced(self, at: float, rate: float, end: float) -> None:
        """Call as often as that until the end; then wait a while for those under way."""
        under_way: set[asyncio.Task[None]] = set()
        while (now := perf_counter()) < end:
            due = int((now - at) * rate) - len(self._calls)
            under_way |= {
                asyncio.create_task(self._one(number)) for number in range(min(due, MOST - len(under_way)))
            }
            await asyncio.sleep(TICK)
            for task in [task for task in under_way if task.done()]:
                task.result()
                under_way.discard(task)
        if under_way:
            _, left = await asyncio.wait(under_way, timeout=GRACE)
            for task in left:
                task.cancel()

    def since(self, moment: float) -> list[float]:
        """How long those took that were called then or later; who never returned took until now."""
        now = perf_counter()
        return [(end or now) - began for began, end in self._calls if began >= moment] or [GRACE]


# --- The measure ----------------------------------------------------------------------------------


class Reading(NamedTuple):
    """What the counters say at one moment."""

    at: float
    units: int
    client: float
    server: float
    logged: int


class Fleet:
    """The processes of one run, seen from the one that started them."""

    def __init__(self, name: str, place: Place, folder: str, processes: int, seconds: float) -> None:
        self._place = place
        self._stack = ExitStack()
        path = str(Path(folder, "board"))
        self._board = self._stack.enter_context(Board(path))
        self._server: psycopg.Connection[Any] | None = None
        if place.server:
            import psycopg

            self._server = self._stack.enter_context(psycopg.connect(place.where, autocommit=True))
        rate = MORE * processes * PLACES / HANDLER
        asked: list[tuple[Any, ...]] = [
            ("submitter", name, place.where, path, 1, rate, seconds),
            *(("worker", name, place.where, path, 2 + number) for number in range(processes)),
        ]
        self._children = [self._stack.enter_context(Child(__name__, *one)) for one in asked]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def until_ready(self) -> None:
        """Wait until all have prepared."""
        for child in self._children:
            child.until_ready()

    def begin(self) -> float:
        """Tell all when to begin."""
        at = perf_counter() + HEAD_START
        for child in self._children:
            child.begin(at)
        return at

    def read(self) -> Reading:
        """All counters, now."""
        pids = self._board.processes()
        logged = written(pids)
        if self._server is not None:
            asked = self._server.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint")
            logged = asked.fetchall()[0][0]
        return Reading(perf_counter(), self._board.total(), used(*pids), self._place.used(), logged)

    def submits(self) -> dict[str, float]:
        """What the submitter tells when it has ended; all others have to be there still."""
        found: dict[str, float] = self._children[0].answer()
        if any(child.has_ended for child in self._children[1:]):
            raise RuntimeError("a worker ended before its time")
        return found


@dataclass(frozen=True)
class Round:
    """One run: units a second, and for each unit seconds of the processor and bytes; seconds of a submit."""

    speed: float
    ideal: float
    client: float
    server: float
    logged: float
    submitted: float
    p50: float
    p99: float
    worst: float
    others: float

    @property
    def ratio(self) -> float:
        """Of what would be possible."""
        return self.speed / self.ideal

    @property
    def processor(self) -> float:
        """Seconds for each unit, all together."""
        return self.client + self.server


def one(name: str, place: Place, processes: int, seconds: float, is_busy: bool) -> Round:
    """One run in a fresh place."""
    queue(name).prepare(place.where)
    with (
        TemporaryDirectory(prefix="runcue-fleet-") as folder,
        Fleet(name, place, folder, processes, seconds) as fleet,
    ):
        fleet.until_ready()
        with busy(is_busy, (WARM + 1) * seconds + GRACE):
            at = fleet.begin()
            time.sleep(max(0.0, at + WARM * seconds - perf_counter()))
            watch, before = Watch(place.server), fleet.read()
            time.sleep(max(0.0, at + (WARM + 1) * seconds - perf_counter()))
            after, others = fleet.read(), watch.others()
            submits = fleet.submits()
    took, units = after.at - before.at, after.units - before.units
    return Round(
        speed=units / took,
        ideal=processes * PLACES / HANDLER,
        client=(after.client - before.client) / max(1, units),
        server=(after.server - before.server) / max(1, units),
        logged=(after.logged - before.logged) / max(1, units),
        others=others,
        **submits,
    )


Key = tuple[str, str, int]
"""A queue, the kind of its store, and how many processes."""


@dataclass
class Found:
    """What every queue did, the best round of each, and why some did nothing."""

    rounds: dict[Key, Round]
    errors: dict[tuple[str, str], str]

    def of(self, name: str, store: str) -> dict[int, Round]:
        """The rounds of one queue in one store."""
        return {key[2]: found for key, found in self.rounds.items() if key[:2] == (name, store)}


def run(places: Places, asked: dict[str, Any]) -> Found:
    """Everybody in turns, with more and more processes; who fails once is out, and the others go on."""
    from bench.peers.timed import absent

    contenders = [("runcue", store) for store in asked["stores"]]
    if asked["peers"] and "postgres" in asked["stores"]:
        contenders += [(name, "postgres") for name in PEERS]
    found = Found({}, {key: reason for key in contenders if (reason := absent(key[0]))})
    for processes in asked["processes"]:
        for _ in range(asked["rounds"]):
            for name, store in contenders:
                if (name, store) in found.errors:
                    continue
                try:
                    with places.fresh(store) as place:
                        this = one(name, place, processes, asked["seconds"], asked["busy"])
                except RuntimeError as error:
                    found.errors[name, store] = f"P = {processes}: {error}"
                    continue
                before = found.rounds.get((name, store, processes), this)
                found.rounds[name, store, processes] = max(before, this, key=lambda one: one.speed)
    return found


def table(found: Found) -> list[list[str]]:
    """A row for each queue and number of processes."""
    rows = [["queue", "P", "units/s", "of ideal", "CPU/unit", "of it server", "submits/s", "submit p50", "p99",
             "worst", "logged/unit", "others took"]]  # fmt: skip
    rows += [
        [f"{name}, {store}", str(processes), f"{this.speed:,.0f}", f"{this.ratio:.2f}",
         f"{1e3 * this.processor:.2f} ms", f"{1e3 * this.server:.2f}", f"{this.submitted:,.0f}",
         f"{1e3 * this.p50:.1f} ms", f"{1e3 * this.p99:.1f}", f"{1e3 * this.worst:.0f}",
         f"{this.logged / 1024:.1f} KiB", f"{100 * this.others:.0f} %"]
        for (name, store, processes), this in sorted(found.rounds.items(), key=lambda one: one[0][2])
    ]  # fmt: skip
    return [*rows, *([f"{name}, {store}", reason] for (name, store), reason in found.errors.items())]


def lines(found: Found, is_busy: bool) -> list[Line]:
    """The ratios, and what they should be on a machine with nothing else to do; busy, only that more is not less."""
    told: list[Line] = []
    for store in dict.fromkeys(key[1] for key in found.rounds):
        ours = found.of("runcue", store)
        for processes, this in ours.items():
            aim = {"postgres": 0.9, "file": 0.85}[store] if processes == 16 and not is_busy else None
            note = f"{this.speed:,.0f}/s, others took {100 * this.others:.0f} % of the cores"
            name = f"{store}, P = {processes}"
            told += [
                Line(f"{name}, of the ideal", this.ratio, "×", at_least=aim, note=note),
                Line(f"{name}, units a second", this.speed, "/s", is_detail=True),
                Line(f"{name}, CPU of a unit", 1e3 * this.processor, "ms", is_detail=True),
                Line(f"{name}, p99 of a submit", 1e3 * this.p99, "ms", is_detail=True),
            ]
            for peer in PEERS:
                if other := found.of(peer, store).get(processes):
                    ratio = this.speed / max(1.0, other.speed)
                    note = f"{this.speed:,.0f}/s, {peer} {other.speed:,.0f}"
                    told += [
                        Line(f"{name}, against {peer}", ratio, "×", at_least=1.0, note=note),
                        Line(f"{name}, {peer}, units a second", other.speed, "/s", is_detail=True),
                    ]
        told += _compared(store, ours, is_busy)
    return told


def _compared(store: str, ours: dict[int, Round], is_busy: bool) -> list[Line]:
    """More processes against fewer."""
    told: list[Line] = []
    sizes = sorted(ours)
    for fewer, more in pairwise(sizes):
        ratio = ours[more].speed / max(1.0, ours[fewer].speed)
        told.append(Line(f"{store}, P = {more} against {fewer}", ratio, "×", at_least=1.0))
    if 8 in ours and 32 in ours and is_busy:
        ratio = ours[32].speed / max(1.0, ours[8].speed)
        told.append(Line(f"{store}, busy, P = 32 against 8", ratio, "×", at_least=1.0))
    if 1 in ours and 16 in ours:
        ratio = ours[16].processor / max(1e-9, ours[1].processor)
        aim = None if is_busy else 1.5
        told.append(Line(f"{store}, CPU of a unit, P = 16 against 1", ratio, "×", at_most=aim))
    if 16 in ours:
        told.append(
            Line(f"{store}, P = 16, submit p99", 1e3 * ours[16].p99, "ms", at_most=None if is_busy else 50)
        )
    if 32 in ours and store == "postgres" and not is_busy:
        told.append(Line(f"{store}, P = 32", ours[32].speed, "/s", at_least=1500))
    if store == "postgres" and ours:
        logged = ours[sizes[-1]].logged / 1024
        told.append(Line(f"{store}, P = {sizes[-1]}, WAL of a unit", logged, "KiB", at_most=2.2))
    return told
