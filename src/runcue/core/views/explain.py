"""Why a unit waits, and until when. Decides nothing; at most it leaves an empty lane behind.

A unit is held back by something of its own (a dependency, a time, a callback) or by a limit. A unit that only a limit
holds back is a candidate. At each service the candidates of all lanes that use it stand in one line, in the order in
which they start. `ahead` is a place in that line, and the exact time of a rate follows from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from runcue.core.ledger.deadlines import is_before_run_at
from runcue.core.ledger.fleet import HERE, Crew
from runcue.core.ledger.ledger import HELD, Ledger
from runcue.core.limits.meter import Cost, DryRun
from runcue.core.limits.service import Blocked, Limits, Service
from runcue.core.model.record import Record, WorkState
from runcue.core.schedule.gates import Gates
from runcue.core.schedule.lane import Lane

THREADS = "#threads"
OWN_POOL = "#process_pool"
POOL = "process_pool"
"""The service that limits the process pools of all processes together, if an application declares it."""
FULL = frozenset({"rate", "concurrency"})
UNSERVED = "unserved"
BEING_ASKED = "is being asked"
NOT_SERVED = "queue {!r} is not one that start(queues=…) named"
NOT_READY = {"not_ready": "is_ready has not said yes", "unseen": "its files cannot be looked at"}
"""Details of a closed gate; for a missing input they name the file."""


class Explanation(msgspec.Struct, frozen=True):
    """Why a unit waits: one reason, until when if that is known, and how many are ahead of it."""

    work_id: str
    state: WorkState
    reason: str
    details: str = ""
    until: float | None = None
    ahead: int = 0
    service: str | None = None
    waits_for: tuple[str, ...] = ()
    expires_at: float | None = None
    """When a pending unit fails if it has not started before."""

    @property
    def brief(self) -> str:
        """The reason in a few words, without the time: `rate openai`, `concurrency openai, 5 of 5`, `after 2/5`."""
        service = self.service or ""
        match self.reason:
            case "dependency" if not self.details[:1].isdigit():
                return "dependencies not satisfied"
            case "dependency" if len(self.waits_for) == 1 and self.details.endswith("satisfied"):
                return f"after {self.waits_for[0]}"
            case "dependency":
                return f"after {self.details.replace(' satisfied', '')}"
            case "concurrency":
                return f"concurrency {service}, {self.details}"
            case "circuit":
                return f"circuit {service} {self.details}"
            case reason:
                return f"{reason.replace('_', ' ')} {service}".rstrip()


def explain(ledger: Ledger, record: Record, now: float, wall: float, is_started: bool) -> Explanation:
    """The first thing that keeps a unit from running, in the order in which runcue checks."""
    why = _own_reason(ledger, record, now, wall, is_started)
    if why is not None:
        return why
    lines, key = _Lines(ledger, now, is_started), _key(ledger, record)
    for other in ledger.working.all_pending():
        if _own_reason(ledger, other, now, wall, is_started) is None and _key(ledger, other) < key:
            lines.join(other)
    return lines.why(record)


def explain_alone(
    ledger: Ledger, records: Iterable[Record], now: float, wall: float, is_started: bool
) -> Iterator[Explanation]:
    """Why each of these units waits, as if no others were there: fast, for a view of many units."""
    lines = _Lines(ledger, now, is_started)
    candidates: list[Record] = []
    for record in records:
        why = _own_reason(ledger, record, now, wall, is_started)
        if why is None:
            candidates.append(record)
        else:
            yield why
    candidates.sort(key=lambda record: _key(ledger, record))
    for record in candidates:
        yield lines.why(record)
        lines.join(record)


def explain_pending(
    ledger: Ledger, now: float, wall: float, is_started: bool
) -> list[tuple[Record, Explanation]]:
    """Why each pending unit waits, by rank; then the units in the inbox. One walk along the lines: the cost is that
    of sorting."""
    pending = sorted(ledger.working.all_pending(), key=lambda record: (record.rank, record.seq))
    if ledger.turn.reader is not None:  # units that this turn has taken from the inbox are among the others
        pending += [
            record for record in ledger.turn.reader.accepted() if record.id not in ledger.turn.plan.records
        ]
    answers = {why.work_id: why for why in explain_alone(ledger, pending, now, wall, is_started)}
    return [(record, answers[record.id]) for record in pending]


# reasons of the unit's own --------------------------------------------------------------------------------


def _own_reason(
    ledger: Ledger, record: Record, now: float, wall: float, is_started: bool
) -> Explanation | None:
    """What keeps a unit from being a candidate; None when nothing does."""
    if record.token:
        return _running(ledger, record)
    if record.state is not WorkState.PENDING:
        return _answer(record, record.state.value, record.error or "")
    if record.index_key is None:  # a turn that takes it from the inbox gives it an index key
        return _answer(record, "inbox", "accepted; the deciding process has yet to take it in")
    spec, gates = record.spec, ledger.gates
    if record.index_key.startswith(HELD):
        return _answer(record, "overdue", "its last attempt was given up but its code still runs")
    if record.missing and not ledger.lanes.questions_of(spec.task).dependencies:
        return _dependency(ledger, record)
    if record.next_retry_at is not None and record.next_retry_at > now:
        return _answer(record, _why_later(record), f"attempt {record.spent + 1}", until=record.next_retry_at)
    if spec.run_at is not None and is_before_run_at(record, wall):
        return _answer(record, "scheduled", "run_at", until=now + spec.run_at - wall)
    if spec.delay and record.created_at + spec.delay > now:
        return _answer(record, "scheduled", "delay", until=record.created_at + spec.delay)
    if ledger.lanes.find(spec) is None:
        return _answer(record, "unknown_task", f"no process has declared a task {spec.task!r}")
    return None if gates is None else _gate(ledger, gates, record, is_started)


def _running(ledger: Ledger, record: Record) -> Explanation:
    """A unit runs, or (on a shared queue) its start is assigned to a worker that has not read it yet."""
    worker, reader = record.worker, ledger.turn.reader
    is_elsewhere = worker is not None and reader is not None and worker != ledger.turn.worker
    if worker and reader and is_elsewhere and record.token in reader.unstarted(worker):
        return _answer(record, "given", f"worker {worker} has yet to begin it")
    return _answer(record, "running")


def _dependency(ledger: Ledger, record: Record) -> Explanation:
    missing = ledger.working.missing(record)
    unknown = sum(ledger.working.state_of(need) is None for need in missing)
    done = len(record.spec.depends_on) - len(missing)
    details = f"{done}/{len(record.spec.depends_on)} satisfied"
    if unknown:
        details += f", {unknown} never submitted"
    return _answer(record, "dependency", details, waits_for=tuple(missing))


def _why_later(record: Record) -> str:
    if record.throttled_since is not None:
        return "throttled"
    return "retry" if record.spent == record.attempt else "snoozed"  # a snoozed start is not spent


def _gate(ledger: Ledger, gates: Gates, record: Record, is_started: bool) -> Explanation | None:
    """Which callback holds a unit back, or that callbacks are still to be called about it."""
    wait = gates.waiting.get(record.id)
    if wait is not None:
        is_off = wait.lane.queue.is_paused or not is_started  # no callback is called until that changes
        until = None if is_off else max(ledger.turn.now, wait.asked_at + wait.rest)
        if wait.why == "dependency":
            details = "dependency_satisfied has not said yes"
            return _answer(record, "dependency", details, until, waits_for=record.spec.depends_on)
        details = NOT_READY.get(wait.why, f"its input {wait.lacks} is not there")
        return _answer(record, "not_ready", details, until)
    questions = ledger.lanes.questions_of(record.spec.task)
    if not is_started or not questions.gates:  # a score alone is asked only where there is room
        return None
    lane = ledger.lanes.lane_of(record.spec)
    if record.id in lane.entries or (lane.queue.is_paused and not gates.is_asked(record.id)):
        return None
    if gates.has_unmet_needs(record, lane):
        return _answer(record, "dependency", BEING_ASKED, waits_for=record.spec.depends_on)
    return _answer(record, "not_ready", BEING_ASKED)


# reasons of limits ----------------------------------------------------------------------------------------


def _key(ledger: Ledger, record: Record) -> tuple[bool, float, int]:
    """The place of a candidate among all: first in the order of the callbacks, then units without an answer by
    rank."""
    judged = ledger.lanes.lane_of(record.spec).entries.get(record.id)
    return (True, record.rank, record.seq) if judged is None else (False, judged[0], judged[1])


class _Standing(msgspec.Struct, frozen=True):
    """What blocks a lane, if anything, and at which services its units are in line."""

    service: Service | None
    blocked: Blocked | None
    lines: tuple[Service, ...]


class _Lines:
    """How many candidates stand in each line so far: they are ahead of the next one."""

    def __init__(self, ledger: Ledger, now: float, is_started: bool) -> None:
        self._ledger = ledger
        self._now = now
        self._is_started = is_started
        is_idle = ledger.fleet is not None and not any(ledger.fleet.serving())
        self._in_line = FULL | {UNSERVED} if is_idle else FULL
        """The reasons of blocked services for which a unit stays in the lines of its services."""
        self._standings: dict[Lane, _Standing] = {}
        self._counts: dict[Lane | Service | str, int] = {}
        self._dry_runs: dict[Service, DryRun] = {}

    def join(self, record: Record) -> None:
        """Add the next candidate to its lines."""
        lane, counts = self._ledger.lanes.lane_of(record.spec), self._counts
        counts[lane] = counts.get(lane, 0) + 1
        for service in self._standing(lane).lines:
            for line in service.needs if isinstance(service, Crew) else (service,):
                counts[line] = counts.get(line, 0) + 1
            if record.spec.cost and service.meters:
                dry_run = self._dry_run(service)
                dry_run.start(record.spec.cost, dry_run.peek(record.spec.cost))

    def why(self, record: Record) -> Explanation:
        """Why a candidate does not start, when all those ahead of it were added."""
        lane = self._ledger.lanes.lane_of(record.spec)
        ahead = self._counts.get(lane, 0)
        if not self._is_started and not self._ledger.is_shared:
            return _answer(record, "not_started", "call start() or use `async with`", ahead=ahead)
        if lane.queue.is_paused:
            is_by_hand = lane.queue.name in self._ledger.ready.paused
            details = f"queue {lane.queue.name!r}" if is_by_hand else NOT_SERVED.format(lane.queue.name)
            return _answer(record, "paused", details, ahead=ahead)
        standing = self._standing(lane, record.spec.cost)
        if standing.service is not None and standing.blocked is not None:
            return self._blocked(record, lane, standing, standing.service, standing.blocked)
        if ahead:
            return _answer(record, "order", f"{ahead} ahead of it", ahead=ahead)
        for service in lane.services:
            if service.held_by is not None and service.held_by is not lane:
                return _answer(
                    record, "concurrency", "a slot is held for an older unit", service=service.name
                )
            first = service.parked.first_costly() if service.sells(record.spec.cost) else None
            if first is not None and (first.rank, first.seq) < (record.rank, record.seq):
                until = max(self._turns(record, lane))
                return _answer(record, "rate", "an older unit waits for more, and goes first", until,
                               service=service.name)  # fmt: skip
        gates = self._ledger.gates
        is_passed = record.id in lane.entries and gates is not None and not gates.is_asked(record.id)
        if gates is not None and lane.questions and not is_passed:
            return _answer(record, "not_ready", BEING_ASKED)
        return _answer(record, "ready", "starts in the next turn")

    def _blocked(
        self, record: Record, lane: Lane, standing: _Standing, service: Service, blocked: Blocked
    ) -> Explanation:
        line: Lane | Service | str = service if service in standing.lines else lane
        name = service.name
        if isinstance(service, Crew):
            name = service.scarce()[0]
            line = name or line
        ahead = self._counts.get(line, 0)
        if blocked.reason == UNSERVED:
            return self._unserved(record, self._counts.get(lane, 0))
        if name == THREADS:
            return _answer(record, "threads", blocked.details, ahead=ahead)
        if name == HERE:
            return _answer(record, "max_running", blocked.details, ahead=ahead)
        if name == OWN_POOL:
            return _answer(record, blocked.reason, blocked.details, ahead=ahead, service=POOL)
        until = blocked.until
        if blocked.reason == "rate" and until is not None:  # every rate of this unit has to have room by then
            until = max(until, *self._turns(record, lane))
        return _answer(record, blocked.reason, blocked.details, until, ahead, service.name)

    def _unserved(self, record: Record, ahead: int) -> Explanation:
        """Why no worker may run that unit."""
        fleet, spec = self._ledger.fleet, record.spec
        assert fleet is not None
        serving = list(fleet.serving())
        if not serving:
            return _answer(
                record, "not_started", "no process that has the queue open runs units", ahead=ahead
            )
        if not any(spec.task in member.worker.tasks for member in serving):
            details = f"no process that runs units has a task {spec.task!r}"
            return _answer(record, "unknown_task", details, ahead=ahead)
        return _answer(record, "paused", NOT_SERVED.format(spec.queue), ahead=ahead)

    def _turns(self, record: Record, lane: Lane) -> Iterator[float]:
        """When each rate of the unit's services has room for it and for all those ahead."""
        yield self._now
        for service in lane.services:
            for window in service.windows:
                yield window.turn_of(self._counts.get(service, 0), self._now)
            if record.spec.cost and service.meters:
                yield self._dry_run(service).peek(record.spec.cost) or self._now

    def _dry_run(self, service: Service) -> DryRun:
        if service not in self._dry_runs:
            self._dry_runs[service] = DryRun(service.meters, self._now)
        return self._dry_runs[service]

    def _standing(self, lane: Lane, cost: Cost = ()) -> _Standing:
        if cost:  # each is another case
            return _look_at(lane, self._now, self._in_line, cost)
        standing = self._standings.get(lane)
        if standing is None:
            standing = self._standings[lane] = _look_at(lane, self._now, self._in_line)
        return standing


def _look_at(lane: Lane, now: float, in_line: frozenset[str], cost: Cost = ()) -> _Standing:
    """How a lane stands. Shut services (paused, throttled, tripped) come before full ones: they last longer, and
    units that wait for them are in no other line. That no worker runs units comes last."""
    found = [(service, blocked) for service in lane.services if (blocked := service.blocked(now, cost))]
    found.sort(key=lambda one: one[1].reason == UNSERVED)
    shut = [(service, blocked) for service, blocked in found if blocked.reason not in in_line]
    service, blocked = next(iter(shut + found), (None, None))
    lines = tuple(one for one in lane.services if all(other is one for other, _ in shut))
    return _Standing(service, blocked, () if lane.queue.is_paused else lines)


def _answer(
    record: Record, reason: str, details: str = "", until: float | None = None, ahead: int = 0,
    service: str | None = None, waits_for: tuple[str, ...] = (),
) -> Explanation:  # fmt: skip
    expires_at = record.expires_at if record.state is WorkState.PENDING else None
    return Explanation(record.id, record.state, reason, details, until, ahead, service, waits_for, expires_at)


def _plain(amount: float) -> float:
    """A whole amount as an int, for people."""
    return int(amount) if amount == int(amount) else amount


def snapshot(service: Service, now: float) -> dict[str, Any]:
    """One service for people: its limits, how much of them is used, and what blocks it."""
    limits = service.limits
    blocked = service.blocked(now)
    return {
        "name": service.name,
        "running": service.active,
        "concurrent": limits.concurrent if service.width is None else service.cap,
        "adaptive": None if limits.adaptive is None else msgspec.structs.asdict(limits.adaptive),
        "rates": [
            {"rate": str(rate), "used": window.limit - window.room(now), "limit": window.limit}
            for rate, window in zip(limits.rates, service.windows, strict=True)
        ],
        "quantities": [
            {"name": one.name, "used": _plain(one.limit - one.room(now)), "limit": one.limit, "per": one.per}
            for one in service.meters
        ],
        "circuit": None if service.breaker is None else service.breaker.state,
        "circuit_threshold": limits.circuit_threshold,
        "circuit_timeout": limits.circuit_timeout,
        "paused": service.is_paused,
        "each": None if limits.each is None else str(limits.each),
        "declared": None if service.declared in (None, Limits(service.name)) else str(service.declared),
        "blocked": None if blocked is None else blocked.reason,
        "until": None if blocked is None else blocked.until,
    }
