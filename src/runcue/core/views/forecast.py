"""When a queue will be done, and which limit is the bottleneck: the whole of it rehearsed, without running anything.

Work is taken in its order, and each starts as soon as its services have a place, a call in every window and enough of
every quantity. How long it takes, and how often it is tried, is what its task took lately. Nothing is known of what
callbacks will say, of circuits that will open, or of work yet to be submitted.

Beyond `MOST` works the rest is taken to go on at the pace of the last of those.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, TypeAlias

import msgspec

from runcue.core.ledger.fleet import Crew
from runcue.core.ledger.ledger import Ledger
from runcue.core.limits.meter import Cost, DryRun
from runcue.core.limits.service import UNLIMITED, Group, Service
from runcue.core.model.record import Record
from runcue.core.schedule.lane import Lane

MOST: Final = 20_000
RECENT: Final = 200
"""How many of a task's last works say how long the next will take."""
ONE_CALL: Final = ("", 1)
When: TypeAlias = tuple[float, str]
"""A moment, and which limit it is that lets nothing start before it."""


class Forecast(msgspec.Struct, frozen=True):
    """When all that is queued will be done; `None` when nobody can know, or something has to be resumed first."""

    pending: int
    running: int
    seconds: float | None
    """How long it will take from now on."""
    done_at: float | None
    """The same as a moment of queue time."""
    bottleneck: str | None = None
    """The service that is waited for longest, by all works together."""
    limit: str | None = None
    """What of it: "rate", "concurrency", the name of a quantity, "paused", "circuit" or "throttled"."""
    details: str = ""


class Pace(msgspec.Struct, frozen=True):
    """What a work of some task takes: seconds for an attempt, and how many attempts."""

    seconds: float
    attempts: float = 1.0


def tasks_of(ledger: Ledger) -> list[str]:
    """The tasks of what is pending or running: those of which the pace has to be known."""
    pending = islice(ledger.working.all_pending(), MOST)
    return sorted({record.spec.task for record in (*pending, *ledger.working.records.values())})


def paces(recent: Iterable[Record]) -> dict[str, Pace]:
    """What the last works of each task took."""
    found: dict[str, list[Record]] = {}
    for record in recent:
        if record.started_at is not None and record.completed_at is not None:
            found.setdefault(record.spec.task, []).append(record)
    return {task: _pace(records) for task, records in found.items()}


def _pace(records: Sequence[Record]) -> Pace:
    last = [(one.completed_at or 0.0) - (one.started_at or 0.0) for one in records]
    attempts = sum(max(1, one.spent) for one in records)
    return Pace(sum(last) / len(last), attempts / len(records))


def forecast(ledger: Ledger, paces: dict[str, Pace], now: float, wall: float) -> Forecast:
    """What comes of everything that is pending and running, if nothing more is submitted."""
    running = [record for record in ledger.working.records.values() if record.token]
    pending = list(islice(ledger.working.all_pending(), MOST))
    counts = ledger.counters.pending, ledger.counters.running
    if not pending and not running:
        return Forecast(*counts, 0.0, now)
    missing = sorted({one.spec.task for one in (*pending, *running) if one.spec.task not in paces})
    stage = _Stage(ledger, paces, now, wall, running)
    pending.sort(key=lambda record: (record.rank, record.seq))
    held = stage.play(pending)
    if held:
        (limit, service), amount = max(held.items(), key=lambda one: one[1])
        return Forecast(*counts, None, None, service, limit, f"{amount:,} cannot go on")
    slowest, scarcest = stage.bottleneck()
    seconds = stage.ends_at - now
    if ledger.counters.pending > len(pending):
        seconds += (ledger.counters.pending - len(pending)) * stage.interval()
    details = f"nothing is known yet of how long {', '.join(missing)} takes" if missing else ""
    if missing and scarcest in (None, "concurrency"):
        return Forecast(*counts, None, None, slowest, scarcest, details)
    return Forecast(*counts, seconds, now + seconds, slowest, scarcest, details)


class _Stage:
    """The services, each with what it will have done when."""

    def __init__(
        self, ledger: Ledger, paces: dict[str, Pace], now: float, wall: float, running: Sequence[Record]
    ) -> None:
        self._ledger = ledger
        self._paces = paces
        self._now = now
        self._wall = wall
        self._ends: dict[str, float] = {}
        self._resources: dict[Service, _Resource] = {}
        self._waits: dict[tuple[str, str], float] = {}
        self._starts: list[float] = []
        self.ends_at = now
        busy: dict[Service, list[float]] = {}
        for record in running:
            pace = paces.get(record.spec.task, Pace(0.0))
            left = max(pace.seconds - (now - (record.started_at or now)), pace.seconds / 10)
            self._ended(record.id, now + left)
            lane = ledger.capacity.lane_of(record.token)
            for service in () if lane is None else lane.services:
                busy.setdefault(service, []).append(now + left)
        self._busy = busy

    def play(self, pending: Sequence[Record]) -> dict[tuple[str, str], int]:
        """Start all of them, each after what it depends on. How many cannot go on before somebody does something, and
        why; of those that depend on such work nothing is said."""
        held: dict[tuple[str, str], int] = {}
        known = {record.id for record in pending}
        needs = {
            one.id: [need for need in one.spec.depends_on if one.missing and need in known] for one in pending
        }
        waiters: dict[str, list[Record]] = {}
        for record in pending:
            for need in needs[record.id]:
                waiters.setdefault(need, []).append(record)
        missing = {work_id: len(some) for work_id, some in needs.items()}
        line = deque(record for record in pending if not missing[record.id])
        while line:
            record = line.popleft()
            after = [self._ends.get(need, self._now) for need in record.spec.depends_on if record.missing]
            why = self._lost(record, known) or self._start(record, max(after, default=0.0))
            if why is not None:
                held[why] = held.get(why, 0) + 1
                continue
            for waiter in waiters.get(record.id, ()):
                missing[waiter.id] -= 1
                if not missing[waiter.id]:
                    line.append(waiter)
        return held

    def _lost(self, record: Record, known: set[str]) -> tuple[str, str] | None:
        """What that work waits for though nobody has submitted it."""
        strangers = [need for need in record.spec.depends_on if need not in known and need not in self._ends]
        if not record.missing or not strangers:
            return None
        missing = self._ledger.working.missing(record)
        lost = [need for need in strangers if need in missing and self._ledger.working.state_of(need) is None]
        return ("dependency", lost[0]) if lost else None

    def _start(self, record: Record, after: float) -> tuple[str, str] | None:
        lane = self._ledger.lanes.find(record.spec)
        if lane is None:
            return "unknown_task", record.spec.task
        if lane.queue.is_paused:
            return "paused", lane.queue.name
        pace = self._paces.get(record.spec.task, Pace(0.0))
        cost: Cost = (ONE_CALL, *record.spec.cost)
        if pace.attempts != 1.0:
            cost = tuple((name, amount * pace.attempts) for name, amount in cost)
        services = self._services(lane, cost)
        at, limit, name = max(after, self._due(record)), "", ""
        for service in services:
            when, why = self._resource(service).opens(cost)
            if when == math.inf:
                return why, service.name
            if when > at:
                at, limit = when, why
                name = service.scarce()[0] if isinstance(service, Crew) else service.name
        end = at + pace.seconds * pace.attempts
        for service in services:
            self._resource(service).take(cost, at, end)
        self._starts.append(at)
        self._ended(record.id, end)
        if limit:
            self._waits[limit, name] = self._waits.get((limit, name), 0.0) + at - self._now
        return None

    def _due(self, record: Record) -> float:
        """When the work's own times let it start."""
        spec = record.spec
        times = [self._now, record.next_retry_at or 0.0, record.created_at + (spec.delay or 0.0)]
        if spec.run_at is not None and record.started_at is None:
            times.append(self._now + spec.run_at - self._wall)
        return max(times)

    def _services(self, lane: Lane, cost: Cost) -> list[Service]:
        """The services of a lane, with that member of a group that is free first."""
        found = []
        for service in lane.services:
            if isinstance(service, Group):
                service = min(service.members, key=lambda one: self._resource(one).opens(cost)[0])
            if service is not lane.crew or service.cap:  # where nobody runs it yet, as if somebody did
                found.append(service)
        return found

    def _resource(self, service: Service) -> _Resource:
        resource = self._resources.get(service)
        if resource is None:
            resource = self._resources[service] = _Resource(service, self._busy.get(service, []), self._now)
        return resource

    def _ended(self, work_id: str, at: float) -> None:
        self._ends[work_id] = at
        self.ends_at = max(self.ends_at, at)

    def bottleneck(self) -> tuple[str | None, str | None]:
        """What is waited for longest in all: which service, and which limit of it."""
        if not self._waits:
            return None, None
        limit, service = max(self._waits, key=lambda one: self._waits[one])
        return service, limit

    def interval(self) -> float:
        """Seconds from one start to the next, among the later half."""
        starts = sorted(self._starts)
        half = starts[len(starts) // 2 :]
        return (half[-1] - half[0]) / (len(half) - 1) if len(half) > 1 else 0.0


class _Resource:
    """One service: from when on it takes calls, when its places are free, and what its windows hold by then."""

    def __init__(self, service: Service, busy: Sequence[float], now: float) -> None:
        self._rehearsal = DryRun((*(one.as_meter() for one in service.windows), *service.meters), now)
        self._slots: list[float] | None = None
        if service.cap < UNLIMITED:
            taken = sorted(busy)[: service.cap]
            self._slots = [now] * (service.cap - len(taken)) + taken
        self._opens: When = (now, "")
        blocked = service.blocked(now)
        if blocked is not None and blocked.reason in ("paused", "throttled", "circuit"):
            until = blocked.until if blocked.reason != "paused" else None
            self._opens = (math.inf if until is None else until), blocked.reason

    def opens(self, cost: Cost) -> When:
        """From when on the next call may start, and what stands against an earlier one."""
        latest = self._opens
        if self._slots is not None and self._slots[0] > latest[0]:
            latest = self._slots[0], "concurrency"
        at = self._rehearsal.peek(cost)
        if at is None:
            return math.inf, "rate"
        if at > latest[0]:
            latest = at, self._rehearsal.scarce or "rate"
        return latest

    def take(self, cost: Cost, at: float, end: float) -> None:
        """A call starts and ends then."""
        self._rehearsal.start(cost, at)
        if self._slots is not None:
            # The one that was free last: those before it are for others that start earlier.
            del self._slots[bisect_right(self._slots, at) - 1]
            insort(self._slots, end)
