"""Submits the units of schedules when their slots come, and changes schedules.

The unit of a slot is accepted and the schedule moves on to the next slot in one turn. So whoever has the turn submits
it, a slot has one unit, and none is left out by a crash.

Of the slots that nobody decided about when they came, `missed` says which still count: "all" of them, the "latest",
or "none" that is more than LATE seconds old. `overlap` says what becomes of a slot while the unit before it has not
ended: "skip" leaves the slot out, "queue" submits it all the same, "replace" cancels that unit.

A clock that is set does no harm. Slots of cron go forward only: after the clock was set back, a schedule waits until
its next slot comes again. If the clock was set back by more than FAR, it was wrong before, and the schedule goes on
from the present.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from runcue.core.ledger.ledger import Ledger
from runcue.core.model.record import Extras, Spec
from runcue.core.model.schedule import (
    TAG,
    Schedule,
    id_of,
    key_of,
    lag_of,
    next_slot,
    text_of,
)
from runcue.core.schedule import admission
from runcue.core.schedule.outcome import cancel
from runcue.core.schedule.plan import (
    Cancel,
    DeclareSchedules,
    PauseSchedule,
    PutSchedule,
    ReadRequest,
    RunSchedule,
    Submission,
    Submit,
    Unschedule,
)
from runcue.errors import ScheduleConflict, UnknownSchedule

LATE: Final = 60.0
"""Seconds after which a slot that nobody decided about counts as missed."""
FAR: Final = 86400.0 + 3600.0
"""Seconds by which a clock may be set back without that anybody takes it for having been wrong before."""
MANY: Final = 100
"""How many slots of one schedule one turn submits, where all count that were missed."""
NOT_HERE: Final = "the machine that decides cannot find its slots: "
UNKNOWN_TASK: Final = "no program has registered its task {!r} yet"


# --- Slots that come ------------------------------------------------------------------------------


def add_needs(ledger: Ledger, wanted: ReadRequest) -> None:
    """Add to `wanted` what has to be read before the units of due schedules can be submitted."""
    for schedule in ledger.schedules.due():
        if _problem_here(ledger, schedule) is not None:
            continue
        wanted.ids.update(schedule.under_way)
        _add_unique_key(schedule, wanted)
        for slot in _due_slots(ledger, schedule)[0]:
            wanted.ids.add(id_of(schedule.name, slot))
            wanted.keys.add(key_of(schedule.name, slot))


def add_needs_of_run(ledger: Ledger, item: RunSchedule, wanted: ReadRequest) -> None:
    """Add to `wanted` what has to be read before a schedule can be run by hand."""
    schedule = ledger.schedules.find(item.name)
    if schedule is not None:
        wanted.ids.update(schedule.under_way)
        _add_unique_key(schedule, wanted)


def _add_unique_key(schedule: Schedule, wanted: ReadRequest) -> None:
    if schedule.spec.unique_key is not None:
        wanted.unique_keys.add(schedule.spec.unique_key)


def _problem_here(ledger: Ledger, schedule: Schedule) -> str | None:
    """Why this machine cannot find the slots of a schedule, which another one could."""
    timing = schedule.timing
    problem = None if timing.cron is None else ledger.calendar.problem(timing.cron, timing.tz)
    return None if problem is None else f"{NOT_HERE}{problem}"


def look_again(ledger: Ledger) -> None:
    """Let schedules go on whose slots another machine could not find, and this one can."""
    for schedule in ledger.schedules.all():
        if (schedule.problem or "").startswith(NOT_HERE) and _problem_here(ledger, schedule) is None:
            found = replace(schedule, problem=None)
            if found.slot is None:
                _begin(ledger, found)
            else:
                ledger.schedules.put(found)


def submit_due(ledger: Ledger) -> None:
    """Submit what is due, and move the schedules on to their next slots."""
    _follow_clock(ledger)
    for schedule in ledger.schedules.due():
        problem = _problem_here(ledger, schedule)
        if schedule.spec.task not in ledger.lanes.rules:
            problem = UNKNOWN_TASK.format(schedule.spec.task)
        if problem is not None:
            ledger.schedules.put(replace(schedule, problem=problem))
            _tell_problem(ledger, schedule.name, problem)
            continue
        slots, missed, following = _due_slots(ledger, schedule)
        if missed:
            _skip(ledger, schedule.name, missed, "missed")
            schedule = replace(schedule, skipped=schedule.skipped + 1)
        for slot in slots:
            schedule = _submit(ledger, schedule, slot)
        ledger.schedules.put(_waiting_for(ledger, schedule, following))


def _due_slots(ledger: Ledger, schedule: Schedule) -> tuple[list[float], list[float], float | None]:
    """The slots of a due schedule that are submitted now; those that were missed, by the first and the last of them;
    and the slot that follows."""
    turn, slot = ledger.turn, schedule.slot
    assert slot is not None
    now = turn.wall if schedule.by_wall else turn.now
    due = [slot]
    if schedule.missed == "all":
        while (following := _following(ledger, schedule, due[-1])) is not None and len(due) < MANY:
            if following + _lag(ledger, schedule, following) > now:
                break
            due.append(following)
        return due, [], following
    latest = _latest(ledger, schedule, slot, now)
    missed = [] if latest == slot else [slot, _latest(ledger, schedule, slot, latest - 1e-3)]
    if schedule.missed == "none" and now - latest - _lag(ledger, schedule, latest) > LATE:
        missed = list(dict.fromkeys((slot, latest)))
        return [], missed, _following(ledger, schedule, latest)
    return [latest], missed, _following(ledger, schedule, latest)


def _following(ledger: Ledger, schedule: Schedule, slot: float) -> float | None:
    """The slot after another one."""
    timing = schedule.timing
    if timing.every is None:
        return next_slot(timing, ledger.calendar, slot)
    following = slot + timing.every
    turn = ledger.turn
    is_over = timing.until is not None and following - turn.now + turn.wall > timing.until
    return None if is_over else following


def _latest(ledger: Ledger, schedule: Schedule, slot: float, now: float) -> float:
    """The last slot that is due now, of a schedule that is due for a slot."""
    timing, turn = schedule.timing, ledger.turn
    end = now
    if timing.until is not None:
        end = min(now, timing.until if schedule.by_wall else timing.until - turn.wall + turn.now)
    if timing.every is not None:
        latest = slot + max(0.0, (end - slot) // timing.every) * timing.every
    else:
        assert timing.cron is not None
        latest = ledger.calendar.latest(timing.cron, timing.tz, slot, end)
    # The last one may have to wait for its jitter: then the one before it is the last.
    while latest > slot and latest + _lag(ledger, schedule, latest) > now:
        if timing.every is not None:
            latest -= timing.every
        else:
            assert timing.cron is not None
            latest = ledger.calendar.latest(timing.cron, timing.tz, slot, latest - 1e-3)
    return max(latest, slot)


def _lag(ledger: Ledger, schedule: Schedule, slot: float) -> float:
    """How much later than its slot a unit is submitted: always before the next slot."""
    timing = schedule.timing
    if not timing.jitter:
        return 0.0
    following = _following(ledger, schedule, slot)
    longest = timing.jitter if following is None else min(timing.jitter, (following - slot) * 0.999)
    return lag_of(schedule.name, slot, longest)


def _waiting_for(ledger: Ledger, schedule: Schedule, slot: float | None) -> Schedule:
    """A schedule that waits for that slot."""
    due = None if slot is None else slot + _lag(ledger, schedule, slot)
    return replace(schedule, slot=slot, due=due, as_of=ledger.turn.wall)


def _submit(ledger: Ledger, schedule: Schedule, slot: float) -> Schedule:
    """Submit the unit of a slot, unless the one before it stands in its way."""
    id = id_of(schedule.name, slot)
    under_way = _under_way(ledger, schedule)
    if under_way and schedule.overlap == "skip":
        _skip(ledger, schedule.name, [slot], "overlap")
        return replace(schedule, last_slot=slot, skipped=schedule.skipped + 1)
    if schedule.overlap == "replace":
        for one in under_way:
            cancel(ledger, Cancel(one, reason=f"replaced by {id}"))
    spec = replace(schedule.spec, id=id, idempotency_key=key_of(schedule.name, slot))
    return replace(_accept(ledger, schedule, spec, slot), last_slot=slot)


def _accept(ledger: Ledger, schedule: Schedule, spec: Spec, slot: float | None) -> Schedule:
    extras = spec.extras or Extras()
    tags = (*(tag for tag in extras.tags if tag[0] != TAG), (TAG, schedule.name))
    spec = replace(spec, on_failed="return", extras=replace(extras, tags=tuple(sorted(tags))))
    moment = None if slot is None else text_of(slot)
    ledger.turn.emit("schedule_fired", schedule=schedule.name, unit=spec.id, slot=moment)
    submit = Submit([spec], is_plain=False, has_cost=bool(spec.cost))
    admission.take_submission(ledger, Submission(submit, schedule.is_settled))
    # A unit that was accepted and has ended at once is a duplicate of another, or was refused.
    under_way = schedule.under_way
    if schedule.overlap != "queue":
        under_way = tuple(_under_way(ledger, replace(schedule, under_way=(*under_way, spec.id))))
    return replace(
        schedule, last_at=ledger.turn.now, last_id=spec.id, runs=schedule.runs + 1, under_way=under_way
    )


def _under_way(ledger: Ledger, schedule: Schedule) -> list[str]:
    """The units of a schedule that have not ended: of its last slot, and those that were asked for by hand since."""
    return [one for one in schedule.under_way if ledger.working.live(one) is not None]


def _skip(ledger: Ledger, name: str, slots: list[float], reason: str) -> None:
    first, last = text_of(slots[0]), text_of(slots[-1])
    ledger.turn.emit("schedule_skipped", schedule=name, slot=first, until=last, reason=reason)


def _follow_clock(ledger: Ledger) -> None:
    """Have schedules of wall time go on from the present whose slots were chosen while the clock was wrong."""
    for schedule in ledger.schedules.over():
        if schedule.as_of > ledger.turn.wall + 1 and _problem_here(ledger, schedule) is None:
            ledger.schedules.put(_waiting_for(ledger, schedule, _first_slot(ledger, schedule)))
    for schedule in ledger.schedules.chosen_after(ledger.turn.wall + FAR):
        if schedule.problem is not None or _problem_here(ledger, schedule) is not None:
            continue
        following = _first_slot(ledger, schedule) if schedule.by_wall else schedule.slot
        ledger.schedules.put(_waiting_for(ledger, schedule, following))


# --- Schedules that come, change and go -----------------------------------------------------------


def put(ledger: Ledger, item: PutSchedule) -> ScheduleConflict | None:
    """Add a schedule, or change the one of that name."""
    refusal = _put(ledger, item.schedule)
    # One from outside is not settled, and nobody waits for the answer.
    if refusal is not None and not item.schedule.is_settled:
        _refused(ledger, refusal)
    return refusal


def declare(ledger: Ledger, item: DeclareSchedules) -> None:
    """Add or change what the code of a program declares, and delete what it declared once and no longer does."""
    for schedule in item.schedules:
        refusal = _put(ledger, schedule)
        if refusal is not None:
            _refused(ledger, refusal)
    for schedule in ledger.schedules.all() if item.modules else ():
        names = None if schedule.source is None else item.modules.get(schedule.source)
        if names is not None and schedule.name not in names:
            _remove(ledger, schedule.name)


def _put(ledger: Ledger, given: Schedule) -> ScheduleConflict | None:
    """Add a schedule, or change the one of that name: then it keeps its next slot, if its timing stays the same."""
    known = ledger.schedules.find(given.name)
    if known is None:
        _begin(ledger, given)
        ledger.turn.emit("schedule_changed", schedule=given.name, change="added", when=str(given.timing))
    elif _is_taken(ledger, known, given):
        return ScheduleConflict(given.name, known.source, known.spec.task)
    else:
        _change(ledger, known, given)
    if given.problem is not None:
        _tell_problem(ledger, given.name, given.problem)
    return None


def _begin(ledger: Ledger, schedule: Schedule) -> None:
    """Have a schedule wait for its first slot, unless there is something wrong with it."""
    fresh = replace(schedule, declared_at=ledger.turn.now, slot=None)
    problem = None if fresh.is_wrong else _problem_here(ledger, fresh)
    if problem is not None:
        fresh = replace(fresh, problem=problem)
        _tell_problem(ledger, fresh.name, problem)
    slot = None if fresh.is_wrong else _first_slot(ledger, fresh)
    ledger.schedules.put(_waiting_for(ledger, fresh, slot))


def _refused(ledger: Ledger, refusal: ScheduleConflict) -> None:
    ledger.turn.emit("schedule_changed", schedule=refusal.name, change="refused", reason=str(refusal))


def _tell_problem(ledger: Ledger, name: str, problem: str) -> None:
    ledger.turn.emit("schedule_changed", schedule=name, change="held back", reason=problem)


def _is_taken(ledger: Ledger, known: Schedule, given: Schedule) -> bool:
    """True when a name belongs to the code of another program, or to what was added by hand for another task."""
    if known.source == given.source:
        return False
    if known.source is None or given.source is None:
        return known.source is not None or known.spec.task != given.spec.task
    return known.spec.task != given.spec.task and _is_declared(ledger, known)


def _is_declared(ledger: Ledger, schedule: Schedule) -> bool:
    """True while a program lives that has the task of a schedule."""
    return ledger.fleet is None or schedule.spec.task in ledger.lanes.tasks()


def _change(ledger: Ledger, known: Schedule, given: Schedule) -> None:
    changed = replace(
        known,
        timing=given.timing,
        spec=given.spec,
        is_settled=given.is_settled,
        overlap=given.overlap,
        missed=given.missed,
        source=given.source,
        problem=given.problem or _kept_problem(ledger, known, given),
    )
    if changed == known:
        return
    if known.timing != given.timing or known.is_wrong or given.problem is not None:
        _begin(ledger, changed)
    else:
        ledger.schedules.put(changed)
    ledger.turn.emit("schedule_changed", schedule=known.name, change="changed", when=str(given.timing))


def _kept_problem(ledger: Ledger, known: Schedule, given: Schedule) -> str | None:
    """Why a schedule is still held back after it was declared again: nobody has its task."""
    is_unknown = not known.is_wrong and given.spec.task not in ledger.lanes.rules
    return UNKNOWN_TASK.format(given.spec.task) if known.problem is not None and is_unknown else None


def _first_slot(ledger: Ledger, schedule: Schedule) -> float | None:
    """The first slot of a schedule that begins now."""
    timing, turn = schedule.timing, ledger.turn
    if timing.every is None:
        return next_slot(timing, ledger.calendar, turn.wall)
    first = turn.now + timing.every
    if timing.start is not None:
        first = turn.now + timing.start - turn.wall
        if first <= turn.now:
            first += ((turn.now - first) // timing.every + 1) * timing.every
    is_over = timing.until is not None and first - turn.now + turn.wall > timing.until
    return None if is_over else first


def remove(ledger: Ledger, item: Unschedule) -> bool:
    """Delete a schedule; True when there was one. Its units stay."""
    if ledger.schedules.find(item.name) is None:
        ledger.turn.plan.schedules[item.name] = None  # its row may be there, and damaged
        return False
    _remove(ledger, item.name)
    return True


def _remove(ledger: Ledger, name: str) -> None:
    ledger.schedules.remove(name)
    ledger.turn.emit("schedule_changed", schedule=name, change="removed")


def pause(ledger: Ledger, item: PauseSchedule) -> UnknownSchedule | None:
    """Pause or resume a schedule. Slots that pass meanwhile are nobody's: it goes on with the next one."""
    schedule = ledger.schedules.find(item.name)
    if schedule is None:
        return _unknown(ledger, item.name)
    if schedule.is_paused != item.is_paused:
        changed = replace(schedule, is_paused=item.is_paused)
        if not item.is_paused:
            changed = _after_pause(ledger, changed)
        ledger.schedules.put(changed)
        change = "paused" if item.is_paused else "resumed"
        ledger.turn.emit("schedule_changed", schedule=item.name, change=change)
    return None


def _after_pause(ledger: Ledger, schedule: Schedule) -> Schedule:
    """A schedule that goes on with the first slot from now on."""
    slot, turn = schedule.slot, ledger.turn
    now = turn.wall if schedule.by_wall else turn.now
    if slot is None or slot > now or _problem_here(ledger, schedule) is not None:
        return schedule
    every = schedule.timing.every
    slot = _first_slot(ledger, schedule) if every is None else slot + ((now - slot) // every + 1) * every
    return _waiting_for(ledger, schedule, slot)


def run(ledger: Ledger, item: RunSchedule) -> object:
    """Submit a unit of a schedule now, whatever its slots; answered with its id."""
    schedule = ledger.schedules.find(item.name)
    if schedule is None:
        return _unknown(ledger, item.name)
    spec = replace(schedule.spec, id=item.id)
    ledger.schedules.put(_accept(ledger, schedule, spec, None))
    return item.id


def _unknown(ledger: Ledger, name: str) -> UnknownSchedule:
    return UnknownSchedule(name, sorted(one.name for one in ledger.schedules.all()))
