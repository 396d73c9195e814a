"""When a queue will be done, and which limit is the bottleneck: a dry run of all that is pending.

Units are taken in order, and each starts as soon as its services have a slot, a call in every window and enough of
every quantity. It takes as long, and as many attempts, as units of its task took lately. What callbacks will say,
circuits that will open and units yet to be submitted are not foreseen.

Beyond `MOST` units the others are assumed to go on at the pace of the last ones.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, TypeAlias

import msgspec

from runcue.core.ledger.deadlines import due_at
from runcue.core.ledger.fleet import Crew
from runcue.core.ledger.ledger import Ledger
from runcue.core.limits.meter import Cost, DryRun
from runcue.core.limits.service import UNLIMITED, Group, Service
from runcue.core.model.record import Record
from runcue.core.schedule.lane import Lane

MOST: Final = 20_000
RECENT: Final = 200
"""How many of the last units of a task say how long the next will take."""
ONE_CALL: Final = ("", 1)
When: TypeAlias = tuple[float, str]
"""A moment, and the limit that lets nothing start before it."""


class Forecast(msgspec.Struct, frozen=True):
    """When all units will be done; `None` when that cannot be known, or something has to be resumed first."""

    pending: int
    running: int
    seconds: float | None
    """How long it will take from now on."""
    done_at: float | None
    """When that is, as queue time."""
    bottleneck: str | None = None
    """The service that all units together wait for longest."""
    limit: str | None = None
    """Which limit of it: "rate", "concurrency", the name of a quantity, "paused", "circuit" or "throttled"."""
    details: str = ""


class Pace(msgspec.Struct, frozen=True):
    """How long an attempt of a task takes, and how many attempts a unit takes."""

    seconds: float
    attempts: float = 1.0


def tasks_of(ledger: Ledger) -> list[str]:
    """The tasks of pending and running units: their pace has to be known."""
    pending = islice(ledger.working.all_pending(), MOST)
    return sorted({record.spec.task for record in (*pending, *ledger.working.records.values())})


def paces(recent: Iterable[Record]) -> dict[str, Pace]:
    """The pace of each task, by its last units."""
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
    """When all pending and running units will be done, if none are submitted."""
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
        return Forecast(*counts, None, None, service, limit, f"{amount:,} cannot continue")
    slowest, scarcest = stage.bottleneck()
    seconds = stage.ends_at - now
    if ledger.counters.pending > len(pending):
        seconds += (ledger.counters.pending - len(pending)) * stage.interval()
    details = f"nothing is known yet of how long {', '.join(missing)} takes" if missing else ""
    if missing and scarcest in (None, "concurrency"):
        return Forecast(*counts, None, None, slowest, scarcest, details)
    return Forecast(*counts, seconds, now + seconds, slowest, scarcest, details)


class _Stage:
    """The dry run: when each unit ends, and what each service has granted by then."""

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
        """Start all units, each after its dependencies. Returns how many cannot start unless somebody intervenes, by
        reason; units that depend on those are not counted."""
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
        """The dependency of a unit that was never submitted, if it has one."""
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
        at, limit, name = max(after, self._now, due_at(record, self._now, self._wall)), "", ""
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

    def _services(self, lane: Lane, cost: Cost) -> list[Service]:
        """The services of a lane, with the member of a group that is free first."""
        found = []
        for service in lane.services:
            if isinstance(service, Group):
                service = min(service.members, key=lambda one: self._resource(one).opens(cost)[0])
            # a lane without workers is forecast as if it had some
            if service is not lane.crew or service.cap:
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
        """The service that is waited for longest in all, and which limit of it."""
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
    """One service in the dry run: when it opens, when its slots are free, what its windows hold."""

    def __init__(self, service: Service, busy: Sequence[float], now: float) -> None:
        self._dry_run = DryRun((*(one.as_meter() for one in service.windows), *service.meters), now)
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
        """When the next call may start, and which limit allows none before."""
        latest = self._opens
        if self._slots is not None and self._slots[0] > latest[0]:
            latest = self._slots[0], "concurrency"
        at = self._dry_run.peek(cost)
        if at is None:
            return math.inf, "rate"
        if at > latest[0]:
            latest = at, self._dry_run.scarce or "rate"
        return latest

    def take(self, cost: Cost, at: float, end: float) -> None:
        """Have a call start and end at these moments."""
        self._dry_run.start(cost, at)
        if self._slots is not None:
            # Take the slot that was free last: those before it are left for units that start earlier.
            del self._slots[bisect_right(self._slots, at) - 1]
            insort(self._slots, end)
