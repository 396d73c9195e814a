"""Time limits on waiting: for dependencies, while throttled, in the pending state; and on a standstill of the queue.

A queue stands still when nothing runs and nothing has started, finished or arrived for a while, although units are
pending whose own time (`run_at`, a delay, a retry) has come.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from runcue.core.ledger.deadlines import DEPENDENCY, EXPIRED, THROTTLE, TIMEOUT, WARNING, deadlines, due_at
from runcue.core.ledger.ledger import Ledger
from runcue.core.limits.breaker import end_of
from runcue.core.model.record import Record
from runcue.core.schedule.outcome import fail_for, throttled_too_long

ENDS = frozenset({TIMEOUT, EXPIRED})
"""Limits that end a unit, whatever it waits for."""


def check(ledger: Ledger) -> None:
    """Act on every time limit that is reached."""
    for record in ledger.timers.reached():
        _check_limits(ledger, record)
    is_moving = ledger.counters.settle(ledger.turn.now)
    if not is_moving and ledger.counters.pending and not ledger.counters.running:
        _check_stall(ledger)


def wakes_at(ledger: Ledger) -> float:
    """When the next time limit may be reached."""
    at = ledger.timers.next_limit_at()
    if ledger.counters.pending and not ledger.counters.running:
        limits = [limit for limit in _stall_limits(ledger) if limit > ledger.counters.stalled_for]
        if ledger.counters.has_moved:  # units failed for it just now: the next turn measures from there
            at = ledger.turn.now
        elif limits:
            at = min(at, end_of(ledger.counters.moved_at, min(limits)))
    return at


def _check_limits(ledger: Ledger, record: Record) -> None:
    """Act on the limits of a unit that were reached since the last look at it.

    Limits that count from `run_at` move when the wall clock is set: one may lie before the last look although it was
    never reached. What ends a unit counts all the same, since only a pending one is looked at; so does its only
    limit.
    """
    settings, now = ledger.lanes.settings_of(record.spec.task), ledger.turn.now
    since = -math.inf if record.watch_at is None else record.watch_at
    limits = sorted(deadlines(record, settings, now, ledger.turn.wall))
    for at, kind in limits:
        if at > now or (at < since and kind not in ENDS and len(limits) > 1):
            continue
        if kind == DEPENDENCY:
            if _has_unmet_needs(ledger, record):
                fail_for(ledger, record, DEPENDENCY)
                return
        elif kind == EXPIRED:
            fail_for(ledger, record, EXPIRED)
            return
        elif kind == THROTTLE:
            if _is_throttled(ledger, record):
                throttled_too_long(ledger, record)
                return
        elif kind == WARNING:
            ledger.turn.emit(WARNING, record, seconds=(settings.pending_warn_after or 0) + now - at)
        else:
            waited = (settings.pending_timeout or 0) + now - at
            _time_out(ledger, record, f"Pending timeout after {waited:.3g} s")
            return
    ledger.exchange(record, ledger.arm(record, after=now))


def _is_throttled(ledger: Ledger, record: Record) -> bool:
    """True while a unit that was throttled still waits because of that."""
    if (record.next_retry_at or 0) > ledger.turn.now:
        return True
    lane = ledger.lanes.find(record.spec)
    return lane is not None and any(service.throttled_until > ledger.turn.now for service in lane.services)


def _has_unmet_needs(ledger: Ledger, record: Record) -> bool:
    gates = ledger.gates
    if gates is not None and ledger.lanes.questions_of(record.spec.task).dependencies:
        lane = ledger.lanes.find(record.spec)
        said = None if lane is None else gates.has_unmet_needs(record, lane)
        if said is not None:
            return said
    return record.missing > 0


def _stall_limits(ledger: Ledger) -> Iterator[float]:
    """How long a standstill may last, by the options of every known program."""
    for settings in (ledger.lanes.settings, *map(ledger.lanes.settings_of, ledger.lanes.rules)):
        for limit in (settings.stall_warn_after, settings.stall_timeout):
            if limit is not None:
                yield limit


def _check_stall(ledger: Ledger) -> None:
    """Act on a standstill: for each unit by the options of its own program."""
    idle, before = ledger.turn.now - ledger.counters.moved_at, ledger.counters.stalled_for
    if not any(before < limit <= idle for limit in _stall_limits(ledger)):
        return
    now, wall = ledger.turn.now, ledger.turn.wall
    stuck = [record for record in ledger.working.all_pending() if due_at(record, now, wall) <= now]
    stuck.sort(key=lambda record: record.seq)
    if not stuck:
        ledger.counters.restart_stall(ledger.turn.now)
        return
    ledger.counters.note_stall(idle)
    _warn_of_stall(ledger, Counter(record.spec.task for record in stuck), before, idle)
    for record in stuck:
        timeout = ledger.lanes.settings_of(record.spec.task).stall_timeout
        is_over = timeout is not None and idle >= timeout
        if is_over and ledger.working.live(record.id) is not None:  # it may have failed with a dependency
            _time_out(ledger, record, f"Stall timeout after {idle:.3g} s without progress")


def _warn_of_stall(ledger: Ledger, stuck: Counter[str], before: float, idle: float) -> None:
    """Emit warnings to the workers that have the tasks of stuck units, if their program wants a warning by now."""
    for task in list(stuck):
        warn = ledger.lanes.settings_of(task).stall_warn_after
        if warn is None or not before < warn <= idle:
            del stuck[task]
    if not stuck:
        return
    members = () if ledger.fleet is None else ledger.fleet.members.values()
    amounts = {member.id: sum(stuck[task] for task in {*member.worker.tasks}) for member in members}
    concerned = {worker: amount for worker, amount in amounts.items() if amount}
    for worker, amount in (concerned or {ledger.turn.worker: stuck.total()}).items():
        ledger.turn.act_for(worker)
        ledger.turn.emit("stall_warning", seconds=idle, pending=amount)
    ledger.turn.act_for_itself()


def _time_out(ledger: Ledger, record: Record, message: str) -> None:
    fail_for(ledger, record, f"TimeoutError: {message}", TimeoutError(message))
