"""Whether a submission is accepted: ids, keys, duplicates, cycles, room. All of its units are, or none.

Everything is checked before anything is written, so a refusal has nothing to undo. What becomes of a unit that has
the unique key of another is in duplicates.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from runcue.core.ledger.ledger import Ledger
from runcue.core.model.failure import describe
from runcue.core.model.parse import decode_params
from runcue.core.model.record import UNSETTLED, Spec, WorkState
from runcue.core.schedule.duplicates import Duplicates
from runcue.core.schedule.graph import find_cycle
from runcue.core.schedule.outcome import cancel, fail_for, join
from runcue.core.schedule.plan import NO_ANSWER, Cancel, ReadRequest, Submission, Submit, Withdraw
from runcue.errors import DependencyCycle, DuplicateWork, QueueFull, SubmitError, UnknownService, quoted

NEARLY_FULL = 0.8
CHOOSES = (
    "Task {} chooses the services of each unit: submit it with cue.submit(…, connection=…), which knows how."
)


def add_needs(ledger: Ledger, submit: Submit, wanted: ReadRequest) -> None:
    """Add to `wanted` what has to be read before a submission can be accepted."""
    records = ledger.working.records
    for spec in () if submit.is_plain else submit.specs:
        if spec.is_named and spec.id not in records:
            wanted.ids.add(spec.id)
        if spec.idempotency_key is not None:
            wanted.keys.add(spec.idempotency_key)
        if spec.unique_key is not None:
            wanted.unique_keys.add(spec.unique_key)
        wanted.ids.update(need for need in spec.depends_on if need not in records)


def take(ledger: Ledger, submit: Submit, is_next: bool = False) -> object:
    """Accept a submission: returns its ids, or why it is refused, or NO_ANSWER when it has to wait for room."""
    for name in submit.services:
        if ledger.ready.services.find(name) is None:
            known = [one for one in ledger.ready.services if not one.startswith("#")]
            return SubmitError(str(UnknownService(name, known)))
    if submit.has_cost:
        refusal = _unaffordable(ledger, submit.specs)
        if refusal is not None:
            return refusal
    ids: list[str] | None = None
    fresh = submit.specs
    duplicates = None if submit.is_plain else Duplicates(ledger)
    try:
        if duplicates is not None:
            ids, fresh = _sift(ledger, submit.specs, duplicates)
        has_to_wait = submit.may_wait and bool(ledger.waiting_submits) and not is_next
        if fresh and submit.is_answered and (not _has_room(ledger, submit, len(fresh)) or has_to_wait):
            ledger.waiting_submits.append(submit)
            return NO_ANSWER
        # Where some were dropped to make room, what was to replace them is new.
        while duplicates is not None and duplicates.were_dropped():
            duplicates = Duplicates(ledger)
            ids, fresh = _sift(ledger, submit.specs, duplicates)
            _has_room(ledger, submit, len(fresh))
    except (DuplicateWork, DependencyCycle, QueueFull) as refusal:
        return refusal
    if duplicates is not None:
        duplicates.apply()
    others = ledger.accept(fresh, is_plain=submit.is_plain, at=submit.at)
    if submit.are_usual and not others:
        newest = ledger.counters.seq
        ledger.turn.plan.usual.update(range(newest - len(fresh) + 1, newest + 1))
    for record in others:
        if record.spec.depends_on:
            ledger.retention.want_for(record)
            join(ledger, record)
        else:
            ledger.place(ledger.arm(record))
    if fresh:
        _emit_depth(ledger, ledger.lanes.settings_of(fresh[0].task).max_queued)
    return [spec.id for spec in fresh] if ids is None else ids


def take_submission(ledger: Ledger, item: Submission) -> None:
    """Accept a unit that was submitted from outside. One that is refused fails, and one that has the key of another
    unit is cancelled, so that whoever submitted it finds out. An exact repetition is dropped."""
    submit = item.submit
    [spec] = submit.specs
    settings = ledger.lanes.settings_of(spec.task)
    answer: object = None if item.problem is None else SubmitError(item.problem)
    # Nobody can be made to wait for room: then it is accepted all the same.
    submit.is_answered = settings.reject_policy != "block"
    if answer is None and not item.is_settled:
        rule = ledger.lanes.rules.get(spec.task)
        services = UNSETTLED if rule is None or rule.services is None else rule.services
        if rule is not None:
            spec = replace(spec, timeout=rule.timeout if spec.timeout is None else spec.timeout)
            if rule.services is None:
                answer = SubmitError(CHOOSES.format(quoted(spec.task)))
        submit.specs = [spec := replace(spec, services=services)]
    known = ledger.working.latest(spec.id)
    if answer is None and known is not None and _is_repeated(known.spec, spec):
        return
    answer = take(ledger, submit) if answer is None else answer
    if answer == [spec.id]:
        return
    id = spec.id
    if ledger.working.state_of(id) is not None:  # the name of another unit
        id = f"{id}~{ledger.counters.seq + 1}"
    ledger.accept([replace(spec, id=id, idempotency_key=None, unique_key=None)], at=submit.at)
    if isinstance(answer, Exception):
        record = ledger.working.live(id)
        assert record is not None
        fail_for(ledger, record, describe(answer), answer)
    else:
        assert isinstance(answer, list)
        cancel(ledger, Cancel(id, reason=f"duplicate of {answer[0]}"))


def withdraw(ledger: Ledger, item: Withdraw) -> bool:
    """Forget a submission that waits for room. True when it was still waiting."""
    waiting, worker, ref = ledger.waiting_submits, ledger.turn.origin, item.ref
    found = [one for one in waiting
             if one is item.submit or (ref is not None and ledger.answers.is_at(one, worker, ref))]  # fmt: skip
    for submit in found:
        waiting.remove(submit)
        ledger.answers.drop(submit)
    return bool(found)


def _unaffordable(ledger: Ledger, specs: Sequence[Spec]) -> SubmitError | None:
    """Why one of these units could never start: it needs more of a quantity than a window holds, or a quantity that
    no service of it limits."""
    for spec in specs:
        services = [one for name in spec.services if (one := ledger.ready.services.find(name)) is not None]
        for name, amount in spec.cost:
            if not any(service.has(name) for service in services):
                return SubmitError(
                    f"Task {quoted(spec.task)} costs {name}, and none of its services ({', '.join(spec.services)}) "
                    f"has a limit of that. Declare one, such as service(…, {name}='200k/min')."
                )
            refusing = next((service for service in services if not service.holds(((name, amount),))), None)
            if refusing is not None:
                meter = refusing.tightest(name)
                return SubmitError(
                    f"Task {quoted(spec.task)} needs {amount:,.10g} {name}, more than {refusing.name!r} ever allows "
                    f"({meter.limit:,} in {meter.per:g} s). Split the work, or raise the limit."
                )
    return None


def take_waiting(ledger: Ledger) -> None:
    """Accept submissions that waited for room, in the order they came, as long as there is room."""
    while ledger.waiting_submits:
        submit = ledger.waiting_submits[0]
        most = ledger.lanes.settings_of(submit.specs[0].task).max_queued
        if most is not None and ledger.counters.pending + len(submit.specs) > most:
            break
        ledger.waiting_submits.popleft()
        ledger.turn.act_for(ledger.answers.worker_of(submit))
        ledger.answers.reply(submit, take(ledger, submit, is_next=True))
        ledger.turn.act_for_itself()


def emit_depth(ledger: Ledger) -> None:
    """At the end of a turn, emit how full the queue is to the processes that have last heard something else."""
    if ledger.fleet is None or len(ledger.fleet.members) == 1:
        _emit_depth(ledger, ledger.lanes.settings.max_queued)
        return
    for worker, most in list(ledger.depth_levels):
        ledger.turn.act_for(worker)
        _emit_depth(ledger, most)
    ledger.turn.act_for_itself()


def _emit_depth(ledger: Ledger, most: int | None) -> None:
    """Emit to the process that submits when the queue passes 80 % of its limit, fills up, or leaves either again."""
    if most is None:
        return
    depth, key = ledger.counters.pending, (ledger.turn.origin, most)
    level = 2 if depth >= most else 1 if depth >= most * NEARLY_FULL else 0
    if level != ledger.depth_levels.get(key, 0):
        ledger.depth_levels[key] = level
        ledger.turn.emit("backpressure_active", depth=depth, limit=most, active=level > 0)
    if not level:
        ledger.depth_levels.pop(key, None)


def _sift(ledger: Ledger, specs: Sequence[Spec], duplicates: Duplicates) -> tuple[list[str], list[Spec]]:
    """The ids to answer with, and the specs that are not duplicates of known units."""
    ids: list[str] = []
    fresh: dict[str, Spec] = {}
    keys: dict[str, Spec] = {}
    for spec in specs:
        key = spec.idempotency_key
        if key is not None:
            known = keys[key].id if key in keys and _is_same(keys[key], spec) else _by_key(ledger, spec, key)
            if known is not None:
                ids.append(known)
                continue
            keys[key] = spec
        if spec.unique_key is not None:
            known = duplicates.find(spec, fresh)
            if known is not None:
                ids.append(known)
                continue
        if spec.is_named and (spec.id in fresh or ledger.working.state_of(spec.id) is not None):
            raise DuplicateWork(spec.id)
        fresh[spec.id] = spec
        ids.append(spec.id)
    _refuse_cycles(ledger, fresh)
    return ids, list(fresh.values())


def _by_key(ledger: Ledger, spec: Spec, key: str) -> str | None:
    """The id of the unit that has that key, if this one is a duplicate; None when it takes the key."""
    known = ledger.lookups.found.keys.get(key)
    if known is None:
        return None
    known = ledger.working.latest(known.id) or known
    is_lost = known.state in (WorkState.FAILED, WorkState.CANCELLED)
    # A unit that failed because its dependencies did may come again with new ones, which have other ids.
    is_run_anew = is_lost and spec.on_failed == "resubmit"
    _is_same(known.spec, spec, is_run_anew)
    if is_run_anew:
        return None
    if is_lost and spec.on_failed == "reject":
        raise DuplicateWork(known.id, key, known.state.value)
    return known.id


def _is_same(known: Spec, spec: Spec, is_run_anew: bool = False) -> bool:
    """True; raises when a submission differs from the unit whose key it has."""
    if known.task != spec.task:
        differs = "another task"
    elif known.params != spec.params and _canonical(known.params) != _canonical(spec.params):
        differs = "other params"
    elif not is_run_anew and set(known.depends_on) != set(spec.depends_on):
        differs = "other depends_on"
    else:
        return True
    raise DuplicateWork(known.id, spec.idempotency_key, differs=differs)


def _is_repeated(known: Spec, spec: Spec) -> bool:
    """True when a unit was submitted from outside once more, as it was: whoever did could not know."""
    try:
        return known.idempotency_key == spec.idempotency_key and _is_same(known, spec)
    except DuplicateWork:
        return False


def _canonical(params: bytes) -> bytes:
    """Params as JSON that is comparable: the order of keys does not matter, but 1, 1.0 and True are three values."""
    return msgspec.json.encode(decode_params(params), order="deterministic")


def _refuse_cycles(ledger: Ledger, fresh: dict[str, Spec]) -> None:
    def needs_of(work_id: str) -> Sequence[str]:
        if work_id in fresh:
            return fresh[work_id].depends_on
        record = ledger.working.live(work_id)
        return record.spec.depends_on if record is not None else ()

    several = len(fresh) > 1
    suspects = [
        spec.id
        for spec in fresh.values()
        if spec.is_named
        and spec.depends_on
        and (several or spec.id in spec.depends_on or _is_awaited(ledger, spec.id))
    ]
    if suspects and (ring := find_cycle(suspects, needs_of)) is not None:
        raise DependencyCycle(ring)


def _is_awaited(ledger: Ledger, work_id: str) -> bool:
    """True when a unit waits for that id."""
    is_known = ledger.working.graph.is_awaited(work_id)
    return is_known or (ledger.turn.reader is not None and bool(ledger.waiters(work_id)))


def _has_room(ledger: Ledger, submit: Submit, amount: int) -> bool:
    """True when so many units more may become pending, after dropping the oldest if that is the policy."""
    settings = ledger.lanes.settings_of(submit.specs[0].task)
    most, policy = settings.max_queued, settings.reject_policy
    if most is None or ledger.counters.pending + amount <= most:
        return True
    if amount > most or policy == "reject" or (policy == "block" and not submit.may_wait):
        raise QueueFull(ledger.counters.pending, most, amount)
    if policy == "block":
        return False
    while ledger.counters.pending + amount > most:
        fail_for(ledger, ledger.ages.oldest(), "dropped")
    return True
