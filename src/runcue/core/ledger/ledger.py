"""The live units, and all that is kept about them: the only place where a unit moves from one state to the next.

The modules that decide (admission, outcome, watch, scheduler) read the parts of the ledger, and move units only by
the verbs below, so that records, counts, lanes, dependencies and the plan can never disagree.

turn         the turn under way: time, plan, where to read more (current.py)
working      the records that are loaded (working_set.py); lookups: what was read for this turn
counters     how many units there are in each state
lanes        the rules of tasks, and the lane of a unit
ready        which of the units that could start is next
capacity     slots that attempts take up; grants: what rates and quantities granted them
timers       units that wait for a moment; ages: the oldest pending unit
notices      events about services
groups       how many units of each group are in each state
schedules    what submits units at moments, and which of them is due
answers      replies to other processes; inherited: attempts from before this ledger
held         pending units that may not start before the code of their last attempt has ended
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from runcue.core.ledger.ages import Ages
from runcue.core.ledger.answers import Answers
from runcue.core.ledger.capacity import Capacity
from runcue.core.ledger.counters import Counters
from runcue.core.ledger.current import CurrentTurn
from runcue.core.ledger.deadlines import is_before_run_at
from runcue.core.ledger.fleet import Fleet
from runcue.core.ledger.grants import Grants
from runcue.core.ledger.groups import Groups
from runcue.core.ledger.inherited import Inherited
from runcue.core.ledger.lanes import Lanes
from runcue.core.ledger.lookups import Lookups
from runcue.core.ledger.notices import Notices
from runcue.core.ledger.retention import FinishedRetention
from runcue.core.ledger.risk import Risk
from runcue.core.ledger.schedules import Schedules
from runcue.core.ledger.timers import BLOCKED, LATER, WALL, Timers
from runcue.core.ledger.working_set import WorkingSet
from runcue.core.limits.service import Service
from runcue.core.model.lifecycle import COMPLETED, finished, move
from runcue.core.model.record import Record, Spec, WorkState
from runcue.core.model.schedule import NO_CALENDAR, Calendar
from runcue.core.model.settings import Rule, Settings
from runcue.core.schedule.gates import Gates, Questions
from runcue.core.schedule.lane import Lane
from runcue.core.schedule.line import READY, index_key_of
from runcue.core.schedule.plan import Outcome, Plan, Submit, TurnReader
from runcue.core.schedule.ready import Ready

STRICT_STEP = 1e10
"""Seconds that one point of priority is worth when waiting is worth nothing (`age_step=None`)."""

HELD = "held/"
"""The index key of pending units whose last attempt is overdue; the id of its worker follows."""


def rank_of(spec: Spec, now: float, step: float | None) -> float:
    """The place of a unit among all: when it is due, less what its priority is worth. It never changes, because
    waiting is worth the same for all units; so nothing is ever sorted again."""
    due = max(now + (spec.delay or 0), spec.run_at or 0)
    return due - (STRICT_STEP if step is None else step) * spec.priority


def expiry(spec: Spec, now: float) -> float | None:
    """When a unit expires that comes now, or is retried by hand now."""
    expires = None if spec.extras is None else spec.extras.expires
    return None if expires is None else now + expires


class Ledger:
    """Moves units from one state to the next, in all parts at once."""

    def __init__(
        self,
        settings: Settings,
        rules: dict[str, Rule],
        worker: str,
        *,
        is_shared: bool = False,
        calendar: Calendar = NO_CALENDAR,
    ) -> None:
        """`is_shared` says that other processes may use the store: not all live records are loaded."""
        self.is_shared = is_shared
        self.calendar = calendar
        self.turn = CurrentTurn(worker)
        self.lookups = Lookups(self.turn)
        self.working = WorkingSet(self.turn, self.lookups, is_complete=not is_shared)
        self.counters = Counters()
        self.fleet: Fleet | None = Fleet(self._touch) if is_shared else None
        """The worker processes, where several may share the queue."""
        records = self.working.records
        if self.fleet is None:
            self.ready = Ready(records)
        else:
            self.ready = Ready(records, self.working.read_lane, self.working.heads, self.fleet.crew)
        self.lanes = Lanes(settings, rules, records, self.ready, self.fleet)
        self.notices = Notices(self.turn, self.ready)
        self.capacity = Capacity(self.turn, self.ready, self.fleet, self.notices)
        self.grants = Grants(self.turn, self.ready, is_stored=is_shared)
        self.timers = Timers(self.turn, self.working)
        is_noted = not is_shared and settings.reject_policy == "drop_oldest"
        self.ages = Ages(self.turn, self.working, is_noted=is_noted)
        self.retention = FinishedRetention(settings.keep_finished)
        self.groups = Groups(self.turn)
        self.schedules = Schedules(self.turn)
        self.risk = Risk(self.turn, self.working, self.place)
        self.gates: Gates | None = None
        self.held: dict[str, int] = {}
        self.waiting_submits: deque[Submit] = deque()
        self.depth_levels: dict[tuple[str, int], int] = {}
        """What was last emitted to which process about the filling of the queue under which limit, if not 0."""
        self.answers = Answers(self.turn)
        self.inherited = Inherited()
        self.asked_of: dict[str, str] = {}
        """The other process whose callbacks are being called about a unit."""

    def _touch(self, service: Service) -> None:
        self.ready.touch(service)

    # the turn -----------------------------------------------------------------------------------------------

    def begin(self, now: float, wall: float, reader: TurnReader | None = None) -> None:
        """Begin a turn at this moment, with an empty plan."""
        self.turn.begin(now, wall, reader)
        self.timers.begin()
        self.lookups.begin()
        self.groups.begin()

    def finish(self) -> Plan:
        """Add to the plan what has to be written besides records, and return it."""
        plan, fleet, before = self.turn.plan, self.fleet, self.counters.stored
        self.groups.settle()
        plan.services.update(self.notices.take_changed())
        decider, wake_at = before.decider, before.wake_at
        if fleet is not None:
            self._finish_for_others(plan, fleet)
            successor = None if self.waiting_submits else fleet.successor(self.turn.worker, self.turn.now)
            decider = successor or self.turn.worker
            if successor is not None:
                plan.part(successor)  # a process with a part is woken
            if plan.is_whole:
                is_past = wake_at is not None and wake_at <= self.turn.now
                plan.has_moved_alarm = len(fleet.members) > 1 and is_past
                wake_at = None if plan.wake_at == math.inf else plan.wake_at
        plan.head = self.counters.store(self.turn.now, len(plan.events), decider, wake_at)
        return plan

    def _finish_for_others(self, plan: Plan, fleet: Fleet) -> None:
        """Plan what other processes have to know, and keep loaded only what the next turn needs."""
        plan.workers.update((member.id, member.worker) for member in fleet.changed)
        fleet.changed.clear()
        self._address_events(fleet)
        self.working.evict([one for one in self.working.transient() if not self._is_in_line(one)])
        for lane in self.ready.lanes.values():
            lane.line.written()
            if not lane.questions:  # units that callbacks decide about stay loaded
                lane.line.shorten()

    def _address_events(self, fleet: Fleet) -> None:
        """Put each foreign event into the part of its process; everyday events only if the process wants them."""
        plan = self.turn.plan
        for place, worker in plan.foreign.items():
            member = fleet.members.get(worker)
            news = plan.events[place]
            if member is None or (isinstance(news, Record) and not member.worker.hears):
                continue
            part = plan.part(worker)
            if place in plan.finals:
                part.finals[len(part.events)] = news
            part.is_notable |= not isinstance(news, Record)
            part.events.append(news)

    def _is_in_line(self, record: Record) -> bool:
        """True when the next turn needs that pending unit: it is in the line of its lane, or held."""
        if record.id in self.held:
            return True
        if record.state is not WorkState.PENDING or not str(record.index_key).startswith(READY):
            return False
        lane = self.lanes.find(record.spec)
        return lane is not None and lane.line.reaches(record)

    # callbacks and lanes ------------------------------------------------------------------------------------

    def ask_with(self, questions: Questions) -> None:
        """The application registered these callbacks: they are called about all pending units from now on."""
        self.ready.ask_with(questions)
        self.rearrange()

    def rearrange(self) -> None:
        """Rules or callbacks have changed: put each pending unit where it belongs now."""
        if self.lanes.has_questions() or self.gates is not None:
            scored = {bool(self.lanes.questions_of(task).score) for task in self.lanes.tasks()}
            self.gates = Gates(self.working.records, self.ready, is_mixed=len(scored) > 1)
            self.asked_of.clear()
        self.ready.clear()
        self.lanes.forget(self.capacity.lanes())
        self.timers.clear()
        for record in list(self.working.records.values()):
            if record.token or record.id in self.held:
                continue
            if not self.is_shared or record.id in self.turn.plan.records:
                self.place(record)
            else:  # it is read again
                self.working.unload(record)
        self.lanes.set_changed()

    def drop_idle_lanes(self) -> None:
        """Drop lanes without units, once there are many more lanes than before."""
        if self.ready.has_many_lanes:
            self.ready.drop_idle(set() if self.gates is None else self.gates.busy_lanes(), self.turn.now)
            self.lanes.forget(self.capacity.lanes())

    # pending ------------------------------------------------------------------------------------------------

    def accept(
        self, specs: Sequence[Spec], *, is_plain: bool = False, at: float | None = None
    ) -> list[Record]:
        """Make a record for each new unit, submitted `at` some time (None: now). Those that wait for nothing are put
        in their lane; the others are returned, for the caller to place. `is_plain` says that none has a key or
        dependencies."""
        now, plan, seq, lanes = self.turn.now, self.turn.plan, self.counters.seq, self.lanes
        if at is not None:
            now = min(at, now)
        settings = lanes.settings
        find_lane: Callable[[Spec], Lane | None] = lanes.lane_of
        if self.fleet is not None and specs:  # all of them come from one program
            settings, find_lane = lanes.settings_of(specs[0].task), lanes.find
        self.turn.attribute(len(specs))
        emit = plan.events.append
        is_watched = settings.pending_timeout is not None or settings.pending_warn_after is not None
        join = self.ready.push_all if self.gates is None else self.gates.arrived
        fresh: dict[str, Record] = {}
        others: list[Record] = []
        runs: list[tuple[Lane, list[Record]]] = []
        run: list[Record] = []
        lane: Lane | None = None
        task = services = queue = (
            None  # of the unit before, which is in `lane`: most units of a batch are alike
        )
        for spec in specs:
            seq += 1
            rank = now
            if spec.priority or spec.run_at is not None or spec.delay:
                rank = rank_of(spec, now, settings.age_step)
            extras = spec.extras
            if (
                is_watched
                or spec.run_at is not None
                or spec.delay
                or spec.depends_on
                or (extras is not None and extras.expires is not None)
            ):
                record = Record(spec.id, spec, seq, rank, now, since=now, expires_at=expiry(spec, now))
                others.append(record)
            else:
                mine = lane
                if spec.services is not services or spec.task != task or spec.queue != queue:
                    task, services, queue = spec.task, spec.services, spec.queue
                    mine = find_lane(spec)
                if mine is None:  # no process has declared that task yet
                    record = Record(spec.id, spec, seq, rank, now, since=now)
                    others.append(record)
                    task = None
                else:
                    if mine is not lane:
                        run = []
                        runs.append((mine, run))
                        lane = mine
                    record = Record(
                        spec.id, spec, seq, rank, now, since=now, index_key=mine.index_key, sort_key=rank
                    )
                    run.append(record)
            fresh[spec.id] = record
            emit(record)
            if not is_plain:
                self._note_names(record)
        self.counters.accepted(len(specs))
        self.working.add(fresh)
        for mine, run in runs:
            plan.index_keys.add(mine.index_key)
            join(mine, run)
        if settings.reject_policy == "drop_oldest":
            for record in fresh.values():
                self.ages.note(record)
        return others

    def _note_names(self, record: Record) -> None:
        """Plan what others find a new unit by: its keys, and what it depends on."""
        spec, plan = record.spec, self.turn.plan
        if spec.depends_on:
            plan.dependent.append(record)
        if spec.idempotency_key is not None or spec.unique_key is not None:
            plan.keyed.append(record)
            self.lookups.note_keys(record)
        self.groups.note_new(record)

    def place(self, record: Record) -> None:
        """Put a pending unit where it waits: for its time, for other units, or in its lane."""
        lane, index_key, sort_key = self._where(record)
        index_keys = self.turn.plan.index_keys
        if not index_key.startswith(HELD):
            index_keys.add(index_key)
        worker = record.worker if index_key.startswith(HELD) else None
        if index_key != record.index_key or sort_key != record.sort_key or worker != record.worker:
            if record.index_key is not None and not record.index_key.startswith(HELD):
                index_keys.add(record.index_key)
            record = replace(record, index_key=index_key, sort_key=sort_key, worker=worker)
            self.working.write(record)
        if lane is not None:
            if self.gates is not None:
                self.gates.arrived(lane, [record])
            else:
                self.ready.push(lane, record)
            return
        if self.is_shared:
            self.working.only_this_turn(record.id)
        if index_key in (LATER, WALL):
            self.timers.wait(record, index_key, sort_key)

    def _where(self, record: Record) -> tuple[Lane | None, str, float]:
        """Where a pending unit waits: its lane if it may start, its index key, and its sort key."""
        spec = record.spec
        if record.id in self.held:
            return None, f"{HELD}{record.worker or self.turn.worker}", record.since
        if record.missing and not self.lanes.questions_of(spec.task).dependencies:
            return None, BLOCKED, record.rank
        if record.next_retry_at is not None and record.next_retry_at > self.turn.now:
            return None, LATER, record.next_retry_at
        if spec.run_at is not None and is_before_run_at(record, self.turn.wall):
            return None, WALL, spec.run_at
        if spec.delay and record.created_at + spec.delay > self.turn.now:
            return None, LATER, record.created_at + spec.delay
        lane = self.lanes.find(spec)
        if lane is None:  # it is placed anew once its task and services are known
            return None, index_key_of(spec.task, spec.queue, spec.services), record.rank
        return lane, lane.index_key, record.rank

    def arm(self, record: Record, after: float = -math.inf) -> Record:
        """Watch for the next time limit of a pending unit. Returns its record with that moment."""
        return self.timers.arm(record, self.lanes.settings_of(record.spec.task), after)

    def exchange(self, record: Record, changed: Record) -> None:
        """A pending unit has a changed record: if the old one is in the line of its lane, put the new one there."""
        if not record.token and str(record.index_key).startswith(READY):
            self.leave_line(record)  # callbacks are called about it anew
            self.place(changed)

    def leave_line(self, record: Record) -> None:
        """Take a pending unit out of the line of its lane: it waits elsewhere from now on, or has ended."""
        lane = self.lanes.find(record.spec)
        if lane is not None:
            if self.gates is not None:
                self.gates.left(record.id, lane)
            self.ready.left(lane)

    def hold(self, work_id: str, token: int) -> None:
        """Let that unit not start before the code of that attempt has ended."""
        self.held[work_id] = token

    def waiters(self, work_id: str) -> list[Record]:
        """The units that wait for another one, in the order they came."""
        return self.working.waiters(work_id) if self.counters.blocked else []

    # running ------------------------------------------------------------------------------------------------

    def release(self, token: int, work_id: str) -> Lane | None:
        """The code of an attempt has ended: free its slots, settle its grants. Returns the lane it counted in."""
        lane = self.capacity.release(token)
        if lane is not None:
            self.grants.ended(token, work_id)
            given_up = self.capacity.code_ended(token)
            if given_up is not None:
                self._code_ended(token, given_up)
        return lane

    def _code_ended(self, token: int, work_id: str) -> None:
        """The code of an overdue attempt has ended: its unit may start again, and has no worker any more."""
        working = self.working
        was_held = self.held.get(work_id) == token
        if was_held:
            del self.held[work_id]
        record = working.live(work_id) if was_held or self.is_shared else None
        if record is not None and not record.token and was_held:
            self.place(record)
        elif record is None and self.is_shared:
            final = working.latest(work_id) or self.lookups.look_up(work_id)
            if final is not None and final.state.is_final and final.worker is not None:
                plan = self.turn.plan
                plan.records[work_id] = replace(final, worker=None)
                plan.rewritten.add(work_id)

    def put_back(self, record: Record, verb: str, **changes: Any) -> Record:
        """Make a running unit pending again."""
        token = record.token
        if record.id == self.risk.id:
            self.risk.is_over()
        is_overdue = self.capacity.overdue(token) is not None
        worker = record.worker if is_overdue else None
        if record.spec.group is not None:
            self.groups.note_move(record, WorkState.PENDING)
        record = move(record, verb, token=0, worker=worker, index_key=None, since=self.turn.now,
                      progress=None, **changes)  # fmt: skip
        self.counters.returned()
        self.ages.note(record)
        if is_overdue:
            self.hold(record.id, token)
        self.working.write(record)
        record = self.arm(record)
        self.place(record)
        return record

    # the end ------------------------------------------------------------------------------------------------

    def close(self, record: Record, verb: str, **changes: Any) -> Record:
        """End a live unit: move it to a final state, and let it leave the ledger."""
        is_over = record.token and self.capacity.overdue(record.token) is None
        final = move(record, verb, token=0, completed_at=self.turn.now, next_retry_at=None, missing=0, index_key=None,
                     sort_key=0.0, watch_at=None, worker=None if is_over else record.worker, **changes)  # fmt: skip
        self.groups.note_move(record, final.state)
        self.working.unload(record)
        self.turn.plan.records[record.id] = final
        self.counters.ended(final.state, was_running=bool(record.token))
        if record.missing:
            self._unblock(record)
        if record.token:
            if record.id == self.risk.id:
                self.risk.is_over()
        else:
            if record.index_key is not None and not record.index_key.startswith(HELD):
                self.turn.plan.index_keys.add(record.index_key)
            self.leave_line(record)
            self.held.pop(record.id, None)
        self.retention.add(final)
        self.retention.end(record)
        return final

    def _unblock(self, record: Record) -> None:
        self.counters.became_unblocked()
        self.working.graph.drop(record.id, record.spec.depends_on)

    def complete(self, outcomes: Iterable[Outcome]) -> Outcome | None:
        """Complete running units: `release`, `close` and `emit` in one, because every unit takes this path. Stops at
        the first outcome that no longer counts, and returns it."""
        plan, now, records, risk = self.turn.plan, self.turn.now, self.working.records, self.risk
        grants_ended, written = self.grants.ended, plan.records
        were_running: list[Record] = []
        done: list[Record] = []
        stale: Outcome | None = None
        are_granted, are_wanted = self.grants.are_any(), bool(self.retention.wanted)
        for outcome in outcomes:
            token, record = outcome.token, records.get(outcome.id)
            if record is None or record.token != token:
                stale = outcome
                break
            were_running.append(record)
            if are_granted:
                grants_ended(token, record.id)
            del records[record.id]
            written[record.id] = final = finished(record, outcome.result, now)
            done.append(final)
            if are_wanted:
                self.retention.end(record)
            if record.id == risk.id:
                risk.is_over()
            if record.spec.group is not None or record.spec.extras is not None:
                self.groups.note_move(record, COMPLETED)
            if record.missing:  # a callback let it start before its dependencies had completed
                plan.rewritten.add(record.id)
                self._unblock(record)
        self.capacity.release_good(were_running)
        if done:
            self.counters.ended(COMPLETED, was_running=True, amount=len(done))
            self.retention.add(*done)
            plan.finals.update(enumerate(done, len(plan.events)))
            self.turn.attribute(len(done))
            plan.events += done
        return stale

    def forget(self) -> None:
        """Forget the oldest final records beyond `keep_finished`."""
        for oldest in self.retention.surplus():
            self.groups.forgot(oldest)
            self.turn.plan.forget.append(oldest.id)

    def purge(self, record: Record) -> None:
        """Delete a final unit without a trace."""
        self.retention.drop(record)
        self.counters.purged(record.state)
        if record.spec.group is not None:
            self.groups.left(record.spec.group, record.state)
        self.turn.plan.purged.append(record.id)
        self.lookups.forget(record)

    def revive(self, record: Record) -> Record:
        """Make a final unit pending again, with no failures and a new number. The caller places it."""
        self.retention.drop(record)
        if record.seq <= self.counters.stored.seq:  # else the store does not have it yet
            self.turn.plan.revived.add(record.id)
        seq = self.counters.revived(record.state)
        self.groups.note_move(record, WorkState.PENDING)
        record = move(record, "revive", failures=0, throttled_since=None, completed_at=None, started_at=None,
                      result=None, error=None, traceback=None)  # fmt: skip
        expires_at = expiry(record.spec, self.turn.now)
        record = replace(
            record, seq=seq, since=self.turn.now, crashes=0, expires_at=expires_at, progress=None
        )
        if record.spec.unique_key is not None:  # it is the newest of those that have its key
            self.turn.plan.keyed.append(record)
            self.lookups.note_keys(record)
        self.retention.want_for(record)
        self.working.write(record)
        self.ages.note(record)
        token = self.capacity.overdue_attempt_of(record.id)
        if token is not None:
            self.hold(record.id, token)
        return record
