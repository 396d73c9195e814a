"""What follows when an attempt ends or a unit is cancelled, skipped or revived, for the unit and for its dependents.

A dependency that ends without success ends its dependents in the same turn, however deep they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from runcue.core.ledger.ledger import Ledger
from runcue.core.limits.service import FIRST_THROTTLE, LONGEST_THROTTLE, Group
from runcue.core.model.failure import Failure
from runcue.core.model.record import HISTORY_KEPT, Attempt, Record, WorkState
from runcue.core.model.retry import delay_after
from runcue.core.schedule.graph import find_cycle
from runcue.core.schedule.lane import Lane
from runcue.core.schedule.plan import Cancel, Ended, Outcome, Purge, ReadRequest, Revive
from runcue.errors import DependencyCycle, DuplicateWork, RateLimited, WorkNotFound

STOPPED = "stopped"
"""The reason of a cancellation that comes from stop()."""
NEVER_BEGAN = frozenset({"late", "unbegun"})
"""Failures of attempts whose handler was never called: they are granted anew."""
SHORTEST_PAUSE = 0.05
"""Least seconds before a start that uses up no attempt: a handler that always asks for "at once" must not spin."""


def take_results(ledger: Ledger, outcomes: Iterable[Outcome]) -> None:
    """Take in outcomes with results, in order: all at once as long as only their own units are concerned."""
    rest = iter(outcomes)
    while True:
        has_more = ledger.capacity.are_calls_counted() or ledger.counters.blocked or ledger.gates is not None
        outcome = next(rest, None) if has_more else ledger.complete(rest)
        if outcome is None:
            return
        take(ledger, outcome)


def take(ledger: Ledger, outcome: Outcome) -> None:
    """Take in the outcome of an attempt."""
    record = ledger.working.records.get(outcome.id)
    token = outcome.token
    if record is None or record.token != token:
        if outcome.has_ended:  # else its code still runs and keeps its slots: `Ended` will come
            lane = ledger.release(token, outcome.id)
            ledger.capacity.judge(token, None)
            # else an earlier turn took it, and was committed after all
            if not ledger.inherited.was_answered(token):
                _emit_stale(ledger, outcome.id, lane)
        return
    failure = outcome.failure
    if failure is None:
        ledger.complete((outcome,))
        if ledger.capacity.are_calls_counted():
            ledger.capacity.judge(token, True)
        if ledger.gates is not None or ledger.counters.blocked:
            _completed_for_others(ledger, ledger.turn.plan.records[record.id], outcome.makes)
        return
    if failure.kind == "late":
        ledger.grants.was_late(token)
    if failure.kind in NEVER_BEGAN and (lane := ledger.capacity.lane_of(token)) is not None:
        ledger.grants.never_began(record, lane)
    if outcome.has_ended:
        ledger.release(token, record.id)
    else:
        ledger.capacity.give_up(record)
        ledger.capacity.stop(token)
    if failure.kind == "throttled":
        _throttled(ledger, record, failure, outcome.error)
    elif failure.kind in NEVER_BEGAN:
        ledger.capacity.judge(token, None)
        ledger.put_back(record, "return")
    elif failure.kind == "snoozed":
        ledger.capacity.judge(token, None)
        until = ledger.turn.now + max(SHORTEST_PAUSE, failure.after or 0.0)
        ledger.put_back(record, "return", next_retry_at=until, throttled_since=None)
    else:
        _failed(ledger, record, failure, outcome)


def ended(ledger: Ledger, item: Ended) -> None:
    """The code of an overdue attempt has ended: free its slots, and let its unit start again."""
    lane = ledger.release(item.token, item.id)
    ledger.capacity.judge(item.token, None)
    if item.has_answer:
        _emit_stale(ledger, item.id, lane)


def _emit_stale(ledger: Ledger, work_id: str, lane: Lane | None) -> None:
    """Emit that an answer came which no longer counts. The unit may have ended, and its record may not be loaded."""
    data: dict[str, Any] = {} if lane is None else {"task": lane.task}
    ledger.turn.emit("stale_completion", ledger.working.latest(work_id), work_id=work_id, **data)


def skip(ledger: Ledger, record: Record) -> None:
    """Complete a unit without a start: its output is valid."""
    final = ledger.close(
        record, "skip", skipped=True, started_at=None, result=None, error=None, traceback=None
    )
    ledger.turn.emit("skipped", final)
    _completed_for_others(ledger, final)


def fail_for(ledger: Ledger, record: Record, error: str, exception: BaseException | None = None) -> None:
    """Fail a unit for a reason that no attempt of it gave, and its dependents with it."""
    _end(ledger, record, "fail", "failed", error, exception=exception)
    _lose(ledger, record.id, "prerequisite_failed", cascade=False)


def cancel(ledger: Ledger, item: Cancel) -> bool:
    """Cancel a pending or running unit. A running handler is told to stop, and its answer no longer counts."""
    record = ledger.working.live(item.id)
    if record is None:
        return False
    if item.reason == STOPPED and ledger.is_shared:
        _stop(ledger, record)
        return True
    _cancel_one(ledger, record, item.reason)
    _lose(ledger, record.id, "prerequisite_cancelled", item.cascade)
    return True


def _stop(ledger: Ledger, record: Record) -> None:
    """A process stops: a unit that it runs becomes pending again for other processes, and no attempt is counted."""
    if record.token and record.worker == ledger.turn.origin:
        ledger.capacity.stop(record.token)
        ledger.capacity.give_up(record)
        ledger.put_back(record, "return")


def add_needs(ledger: Ledger, item: Revive, wanted: ReadRequest) -> None:
    """Add to `wanted` what has to be read before a unit can be revived: itself, its dependencies, its dependents.

    Called again when that was read, it goes on where it was: all rounds together cost one walk.
    """
    found = ledger.lookups.found
    todo, again, seen = ledger.lookups.walk(item)
    while todo:
        work_id = todo.pop()
        record = ledger.working.latest(work_id)
        is_unread = record is None and not ledger.lookups.has(work_id)
        if is_unread:
            wanted.ids.add(work_id)
        if record is not None:
            wanted.ids.update(need for need in record.spec.depends_on if ledger.working.latest(need) is None)
            if record.spec.idempotency_key is not None:
                wanted.keys.add(record.spec.idempotency_key)
            if record.spec.unique_key is not None:
                wanted.unique_keys.add(record.spec.unique_key)
        if item.cascade and work_id not in found.dependents:
            is_unread = True
            wanted.dependents_of.add(work_id)
        if is_unread:
            again.append(work_id)
        elif item.cascade:
            known = [dependent.id for dependent in found.dependents[work_id]]
            fresh = [
                dependent
                for dependent in known + ledger.working.graph.waiters(work_id)
                if dependent not in seen
            ]
            seen.update(fresh)
            todo += fresh


def revive(ledger: Ledger, item: Revive) -> bool | Exception:
    """Make a failed or cancelled unit pending again; with `cascade` also the units that failed because it did."""
    record = ledger.working.latest(item.id)
    if record is None:
        option = "retention" if ledger.is_shared else "keep_finished"
        return WorkNotFound(item.id, ledger.working.state_of(item.id) is not None, option)
    if record.state not in (WorkState.FAILED, WorkState.CANCELLED):
        return False
    owner = _owner_of_key(ledger, record)
    if owner.id != record.id:
        return DuplicateWork(owner.id, record.spec.idempotency_key, owner.state.value)
    original = _original_of(ledger, record)
    if original.id != record.id:
        return DuplicateWork(original.id, state=original.state.value, is_unique=True)
    company = {record.id: record}
    if item.cascade:
        _gather_company(ledger, company)
        ring = find_cycle(company, lambda here: company[here].spec.depends_on if here in company else ())
        if ring is not None:
            return DependencyCycle(ring)
    revived = [ledger.revive(one) for one in company.values()]
    for one in revived:
        ledger.turn.emit("queued", one)
    for one in revived:
        join(ledger, one)
    return True


def purge(ledger: Ledger, item: Purge) -> int:
    """Delete those of these units that had failed before this turn. Returns how many they are."""
    count = 0
    for work_id in item.ids:
        record = ledger.lookups.found.records.get(work_id)
        is_new = work_id in ledger.turn.plan.records  # no caller can know yet that it failed in this turn
        if record is not None and record.state is WorkState.FAILED and not is_new:
            ledger.purge(record)
            count += 1
    return count


def _owner_of_key(ledger: Ledger, record: Record) -> Record:
    key = record.spec.idempotency_key
    return record if key is None else ledger.lookups.found.keys.get(key, record)


def _original_of(ledger: Ledger, record: Record) -> Record:
    """The pending or running unit that has the same unique key as a final one; that one itself if there is none."""
    key = record.spec.unique_key
    newest = record if key is None else ledger.lookups.found.unique_keys.get(key, record)
    newest = ledger.working.latest(newest.id) or newest
    return record if newest.state.is_final else newest


def _gather_company(ledger: Ledger, company: dict[str, Record]) -> None:
    """Add all units that failed because one of these did, unless another unit has taken over a key of theirs."""
    ended_now: dict[str, list[str]] = {}
    for record in ledger.turn.plan.records.values():
        for need in record.spec.depends_on:
            ended_now.setdefault(need, []).append(record.id)
    todo = list(company)
    while todo:
        lost = todo.pop()
        known = [dependent.id for dependent in ledger.lookups.found.dependents.get(lost, ())]
        for work_id in known + ended_now.get(lost, []):
            latest = ledger.working.latest(work_id)
            assert latest is not None
            is_lost = latest.state is WorkState.FAILED and str(latest.error).startswith("prerequisite_")
            is_taken = (
                _owner_of_key(ledger, latest).id != work_id or _original_of(ledger, latest) is not latest
            )
            if is_lost and work_id not in company and not is_taken:
                company[work_id] = latest
                todo.append(work_id)


def join(ledger: Ledger, record: Record) -> None:
    """Note what a unit depends on, and place it. It fails at once if a dependency has failed or was cancelled."""
    spec = record.spec
    states = {need: ledger.working.state_of(need) for need in spec.depends_on}
    for state, error in (
        (WorkState.FAILED, "prerequisite_failed"),
        (WorkState.CANCELLED, "prerequisite_cancelled"),
    ):
        if state in states.values():
            fail_for(ledger, record, error)
            return
    missing = [need for need, state in states.items() if state is not WorkState.COMPLETED]
    if missing:
        ledger.counters.became_blocked()
        ledger.working.graph.add(record.id, missing)
        record = replace(record, missing=len(missing))
        ledger.working.write(record)
    ledger.place(ledger.arm(record))


def _completed_for_others(ledger: Ledger, final: Record, makes: tuple[str, ...] = ()) -> None:
    """A unit has completed: its dependents may start, and units that were not ready are asked about again."""
    if ledger.gates is not None:
        ledger.gates.completed(makes)
    for record in ledger.waiters(final.id):
        _satisfied(ledger, record)
    ledger.working.graph.satisfy(final.id)


def _satisfied(ledger: Ledger, record: Record) -> None:
    """Count one missing dependency of a unit less."""
    nearer = replace(record, missing=record.missing - 1)
    ledger.working.write(nearer)
    if not nearer.missing:
        ledger.counters.became_unblocked()
    if ledger.lanes.questions_of(record.spec.task).dependencies:
        ledger.exchange(record, nearer)
    elif not nearer.missing and not record.token:
        ledger.place(nearer)


def _failed(ledger: Ledger, record: Record, failure: Failure, outcome: Outcome) -> None:
    now = ledger.turn.now
    ledger.capacity.judge(record.token, _verdict(failure))
    retry = record.spec.retry or ledger.lanes.rule_of(record.spec.task).retry
    failures = record.failures + 1
    line = _history_line(record, failure, now)
    changes: dict[str, Any] = {
        "failures": failures,
        "spent": record.attempt,
        "throttled_since": None,
        "error": failure.message,
        "traceback": failure.traceback or None,
        "history": _with(record, line),
        "result": outcome.result,  # such as what a command printed before it failed
    }
    will_retry = failure.kind != "permanent" and failures < retry.max_attempts
    data: dict[str, Any] = {"will_retry": will_retry, "duration": line.duration, "exception": outcome.error}
    if not will_retry:
        final = ledger.close(record, "fail", **changes)
        ledger.turn.emit("failed", final, **data)
        _lose(ledger, record.id, "prerequisite_failed", cascade=False)
        return
    after = failure.after if failure.after is not None else delay_after(retry, record.id, failures)
    again = ledger.put_back(record, "retry", next_retry_at=now + after, **changes)
    ledger.turn.emit("failed", again, **data)
    ledger.turn.emit("retrying", again, attempt=record.attempt + 1, next_retry_at=now + after)


def _history_line(record: Record, failure: Failure, now: float) -> Attempt:
    began = now if record.started_at is None else record.started_at
    return Attempt(record.attempt, began, max(0.0, now - began), failure.message, record.worker)


def _with(record: Record, line: Attempt) -> tuple[Attempt, ...]:
    """The history of a unit with one more line."""
    return (*record.history[1 - HISTORY_KEPT :], line)


def _verdict(failure: Failure) -> bool | None:
    """What a failed attempt proves about its services, for their circuits (limits/breaker.py)."""
    if failure.is_answer:
        return True
    return None if failure.kind == "permanent" else False


def _throttled(ledger: Ledger, record: Record, failure: Failure, exception: BaseException | None) -> None:
    """A remote service throttled the attempt: the whole service waits, and no attempt is counted."""
    now = ledger.turn.now
    ledger.capacity.judge(record.token, None)
    since = now if record.throttled_since is None else record.throttled_since
    until = _pause(ledger, record, failure, now - since)
    if now - since >= ledger.lanes.settings_of(record.spec.task).throttle_timeout:
        line = _history_line(record, failure, now)
        _rate_limited(ledger, record, line, failure.traceback or None, exception)
        return
    ledger.put_back(record, "return", throttled_since=since, next_retry_at=until)


def _pause(ledger: Ledger, record: Record, failure: Failure, throttled_for: float) -> float | None:
    """Throttle the service that asked for it. Returns until when the unit has to wait if that service does not hold
    it back, else None."""
    now = ledger.turn.now
    after = None if failure.after is None else max(SHORTEST_PAUSE, failure.after)
    find = ledger.ready.services.find
    rule = ledger.lanes.rule_of(record.spec.task)
    services = record.services or rule.services or ()
    names = (*filter(None, (failure.service,)), *services)
    known = (find(name) for name in names)
    service = next((one for one in known if one is not None and not isinstance(one, Group)), None)
    if service is None:
        if after is not None:
            return now + after
        return now + min(FIRST_THROTTLE + throttled_for, LONGEST_THROTTLE)  # doubles: 1, 2, 4, …
    until = service.throttle(now, after)
    service.narrow(now, now if record.started_at is None else record.started_at)
    ledger.notices.changed(service)
    ledger.ready.wake_service(service, until)
    ledger.notices.throttled(service, until, failure.message)
    uses = (*services, *rule.implicit)
    return None if service.name in uses else until


def throttled_too_long(ledger: Ledger, record: Record) -> None:
    """Fail a pending unit that was throttled for longer than `throttle_timeout`."""
    line = Attempt(record.attempt, record.started_at, None, "rate_limited")
    _rate_limited(ledger, record, line, None, RateLimited())


def _rate_limited(
    ledger: Ledger, record: Record, line: Attempt, traceback: str | None, exception: BaseException | None
) -> None:
    final = ledger.close(
        record, "fail", error="rate_limited", traceback=traceback, history=_with(record, line)
    )
    ledger.turn.emit("failed", final, will_retry=False, duration=line.duration, exception=exception)
    _lose(ledger, record.id, "prerequisite_failed", cascade=False)


def _cancel_one(ledger: Ledger, record: Record, reason: str) -> None:
    if record.token:
        ledger.capacity.stop(record.token)
        ledger.capacity.give_up(record)
        if reason != STOPPED:  # after stop() the next attempt has the same number
            record = ledger.working.amend(replace(record, spent=record.attempt))
    _end(ledger, record, "cancel", "cancelled", reason)


def _end(
    ledger: Ledger, record: Record, verb: str, type: str, error: str, exception: BaseException | None = None
) -> None:
    final = ledger.close(record, verb, error=error)
    data: dict[str, Any] = {} if type == "cancelled" else {"will_retry": False, "exception": exception}
    if not record.token:
        data["duration"] = None  # no attempt ended here, whenever the last one started
    ledger.turn.emit(type, final, **data)


def _lose(ledger: Ledger, work_id: str, error: str, cascade: bool) -> None:
    """A unit ended without success: end its dependents, and theirs, each once."""
    stack = [(work_id, error)]
    while stack:
        lost, error = stack.pop()
        for record in ledger.waiters(lost):
            if cascade:
                _cancel_one(ledger, record, error)
                stack.append((record.id, "prerequisite_cancelled"))
            elif not record.token:
                _end(ledger, record, "fail", "failed", error)
                stack.append((record.id, "prerequisite_failed"))
            else:  # a callback let it start before its dependency ended: it goes on
                _satisfied(ledger, record)
        ledger.working.graph.satisfy(lost)
