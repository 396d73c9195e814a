"""Why work waits, and until when. Reads the ledger, changes nothing."""

from __future__ import annotations

from typing import Any

import msgspec

from runcue.core.ledger import Ledger, waits_for_wall
from runcue.core.limits import Blocked, Service
from runcue.core.model import Record, WorkState
from runcue.core.ready import Lane

THREADS = "#threads"


class Explanation(msgspec.Struct, frozen=True):
    """Why a work stands where it stands: one reason, until when if that is known, and what is ahead."""

    work_id: str
    state: WorkState
    reason: str
    details: str = ""
    until: float | None = None
    ahead: int = 0
    service: str | None = None
    waits_for: tuple[str, ...] = ()


def explain(ledger: Ledger, record: Record, now: float, wall: float, is_started: bool) -> Explanation:
    """The first thing that keeps this work from running, in the order in which runcue checks."""
    if record.token:
        return _answer(record, "running")
    if record.state is not WorkState.PENDING:
        return _answer(record, record.state.value, record.error or "")
    spec = record.spec
    if record.id in ledger.held:
        return _answer(record, "overdue", "its last attempt was given up but its code still runs")
    asking = ledger.asking
    missing = ledger.graph.missing(record.id)
    if missing and not (asking is not None and asking.questions.dependencies):
        return _dependency(ledger, record)
    if (record.next_retry_at or 0) > now:
        reason = "retry" if record.failures else "snoozed"
        return _answer(record, reason, f"attempt {record.spent + 1}", until=record.next_retry_at)
    if waits_for_wall(record, wall):
        return _answer(record, "scheduled", "run_at", until=now + (spec.run_at or 0) - wall)
    if spec.delay and record.created_at + spec.delay > now:
        return _answer(record, "scheduled", "delay", until=record.created_at + spec.delay)
    if asking is not None and record.id in asking.waiting:
        wait = asking.waiting[record.id]
        if wait.why == "dependency":
            return _dependency(ledger, record)
        return _answer(record, "not_ready", "is_ready has not said yes", until=wait.asked_at + wait.rest)
    lane = ledger.lane_of(record)
    if not is_started:
        return _answer(
            record, "not_started", "call start() or use `async with`", ahead=_ahead(ledger, record)
        )
    return _capacity(ledger, record, lane, now)


def _dependency(ledger: Ledger, record: Record) -> Explanation:
    unmet = ledger.graph.missing(record.id)
    missing = tuple(need for need in record.spec.depends_on if need in unmet)
    unknown = sum(need not in ledger.records for need in missing)
    done = len(record.spec.depends_on) - len(missing)
    details = f"{done}/{len(record.spec.depends_on)} satisfied"
    if unknown:
        details += f", {unknown} never submitted"
    return msgspec.structs.replace(_answer(record, "dependency", details), waits_for=missing)


def _capacity(ledger: Ledger, record: Record, lane: Lane, now: float) -> Explanation:
    ahead = _ahead(ledger, record)
    if lane.queue.is_paused:
        by_hand = lane.queue.name in ledger.ready.paused
        details = f"queue {lane.queue.name!r}" + ("" if by_hand else " is not one that start(queues=…) named")
        return _answer(record, "paused", details, ahead=ahead)
    for service in lane.services:
        blocked = service.blocked(now)
        if blocked is not None:
            return _blocked(record, service, blocked, ahead, now)
    if ahead:
        return _answer(record, "order", f"{ahead} ahead of it", ahead=ahead)
    for service in lane.services:
        if service.held_by is not None and service.held_by is not lane:
            return _answer(record, "concurrency", "a place is kept for older work", service=service.name)
    return _answer(record, "ready", "starts in the next turn")


def _blocked(record: Record, service: Service, blocked: Blocked, ahead: int, now: float) -> Explanation:
    if service.name == THREADS:
        return _answer(record, "threads", blocked.details, ahead=ahead)
    until = blocked.until
    if blocked.reason == "rate" and until is not None:
        until = max(window.turn_of(ahead, now) for window in service.windows)
    return _answer(record, blocked.reason, blocked.details, until, ahead, service.name)


def _answer(
    record: Record, reason: str, details: str = "", until: float | None = None, ahead: int = 0,
    service: str | None = None,
) -> Explanation:  # fmt: skip
    return Explanation(record.id, record.state, reason, details, until, ahead, service)


def _ahead(ledger: Ledger, record: Record) -> int:
    """How many pending works of the same lane come first. Looks at all of them: only people ask for this."""
    spec, key = record.spec, (record.rank, record.seq)
    return sum(
        other.spec.services == spec.services and (other.rank, other.seq) < key
        for other in ledger.records.values()
        if not other.token and other.spec.task == spec.task and other.spec.queue == spec.queue
    )


def snapshot(service: Service, now: float) -> dict[str, Any]:
    """One service for people: its limits, how much of them is used, and what blocks it."""
    limits = service.limits
    blocked = service.blocked(now)
    return {
        "name": service.name,
        "running": service.active,
        "concurrent": limits.concurrent,
        "rates": [
            {"rate": str(rate), "used": window.limit - window.room(now), "limit": window.limit}
            for rate, window in zip(limits.rates, service.windows, strict=True)
        ],
        "circuit": None if service.breaker is None else service.breaker.state,
        "paused": service.is_paused,
        "blocked": None if blocked is None else blocked.reason,
        "until": None if blocked is None else blocked.until,
    }
