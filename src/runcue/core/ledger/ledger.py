"""The live work and everything that hangs on it: the one place where a decision is written down.

The parts that decide (admission, outcome, watch, scheduler) read the ledger and change it only through the
few verbs below, so that records, counts, lanes, edges and the plan can never disagree.

live records   pending or running; final ones leave for the store. With a library (a store that several processes
               share) only those in mind: what runs, wherever, and the first of each shelf that could start
slots          token → lane, for everything whose code still runs, overdue code included
held           pending work that may not start before its last attempt's code has ended
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappush
from typing import Any

from msgspec.structs import replace

from runcue.core.ledger.fleet import Fleet
from runcue.core.ledger.retention import Kept
from runcue.core.ledger.risk import Risk
from runcue.core.ledger.timers import BLOCKED, LATER, WALL, Waiting
from runcue.core.model.lifecycle import CANCELLED, COMPLETED, FAILED, finished, move
from runcue.core.model.record import Record, Spec, WorkState
from runcue.core.model.settings import Rule, Settings
from runcue.core.model.state import NO_HEAD, Head
from runcue.core.schedule.gates import Asking, Questions
from runcue.core.schedule.graph import Graph
from runcue.core.schedule.lane import Lane
from runcue.core.schedule.line import READY, shelf_name
from runcue.core.schedule.plan import Item, Outcome, Plan, Submit

STRICT_STEP = 1e10
"""Seconds that one point of priority is worth when waiting is worth nothing (`age_step=None`)."""

HELD = "held/"
"""The shelf of pending work whose last attempt's code may still run, with the name of the worker."""


def waits_for_wall(record: Record, wall: float) -> bool:
    """True while its `run_at` is to come. What has been started was due, wherever that clock went since."""
    return record.started_at is None and (record.spec.run_at or 0) > wall


def rank_of(spec: Spec, now: float, step: float | None) -> float:
    """Constant for ever: waiting is worth as much for everybody, so nothing is ever sorted again."""
    due = max(now + (spec.delay or 0), spec.run_at or 0)
    return due - (STRICT_STEP if step is None else step) * spec.priority


class Ledger(Waiting):
    """Live records, lanes, edges, counts, and the plan under way."""

    def __init__(self, settings: Settings, rules: dict[str, Rule], tag: str, is_whole: bool = True) -> None:
        super().__init__(settings, rules, tag, is_whole)
        self.pending = 0
        self.running = 0
        self._ended = dict.fromkeys((state for state in WorkState if state.is_final), 0)
        self.asking: Asking | None = None
        self.held: dict[str, int] = {}
        self.waiting_submits: deque[Submit] = deque()
        self.depth_levels: dict[tuple[str, int], int] = {}
        """How full the queue is, as was told to whom, by which limit; what is not there is 0."""
        self.moved_at = 0.0
        self.has_moved = False
        self.stalled_for = -math.inf
        """How long it had stood still when its limits on that were last acted on."""
        self._seq = 0
        self.token = 0
        self._kept = Kept(settings.keep_finished)
        self.risk = Risk(self)
        self._head = NO_HEAD
        self.refs: dict[Item, tuple[str, int, int]] = {}
        """Of items that other processes left and that are not answered yet: whose, and which of its."""
        self.asked_of: dict[str, str] = {}
        """Whom the questions about a work went to that are under way, where that is another process."""

    def ask_with(self, questions: Questions) -> None:
        """The application registered these callbacks: from now on everything pending is asked by them."""
        self.ready.questions = questions
        self.rearrange()

    def rearrange(self) -> None:
        """What is known of tasks has changed: put everything pending where it belongs by that."""
        rules = [self.ready.questions, *(rule.questions for rule in self.rules.values() if rule.questions)]
        if any(rules) or self.asking is not None:
            scored = {bool(self.questions_of(task).score) for task in self._known_tasks()}
            self.asking = Asking(self.records, self.ready, is_mixed=len(scored) > 1)
            self.asked_of.clear()
        self.ready.clear()
        self.forget_lanes()
        self.later.clear()
        self.later_by_wall.clear()
        for record in list(self.records.values()):
            if record.token or record.id in self.held:
                continue
            if self.is_whole or record.id in self.plan.records:
                self.place(record)
            else:  # it is read again
                del self.records[record.id]
        self.registered = (0, 0)

    def _known_tasks(self) -> Iterable[str]:
        if self.fleet is None:
            return self.rules
        return {task for member in self.fleet.members.values() for task in member.worker.tasks}

    # looking ----------------------------------------------------------------------------------------------

    @property
    def counts(self) -> dict[WorkState, int]:
        """How many works there are in each state; of ended ones, how many there ever were."""
        return {WorkState.PENDING: self.pending, WorkState.RUNNING: self.running, **self._ended}

    @property
    def seq(self) -> int:
        """The number of the newest work."""
        return self._seq

    def count(self, head: Head) -> None:
        """Go on from these counters."""
        self._head = head
        self._seq, self.token = head.seq, head.token
        self.pending, self.running, self.blocked = head.pending, head.running, head.blocked
        self._ended = {COMPLETED: head.completed, FAILED: head.failed, CANCELLED: head.cancelled}

    def finish(self) -> Plan:
        """The plan, with what has to be written besides records."""
        plan, ended = self.plan, self._ended
        for service in self.changed:
            if not service.name.startswith("#"):
                plan.services[service.name] = service.state()
        self.changed.clear()
        fleet, before = self.fleet, self._head
        if fleet is not None:
            plan.workers.update((member.id, member.worker) for member in fleet.changed)
            fleet.changed.clear()
            self._address_events(fleet)
            self._let_guests_go()
            for lane in self.ready.lanes.values():
                lane.line.written()
                if not lane.questions:  # what callbacks are about stays in mind until they were asked
                    lane.line.shorten()
        decider, wake_at = before.decider, before.wake_at
        if fleet is not None:
            successor = None if self.waiting_submits else fleet.successor(self.worker, self.now)
            decider = successor or self.worker
            if successor is not None:
                plan.part(successor)  # it is woken
            if plan.is_whole:
                plan.has_moved_alarm = len(fleet.members) > 1 and wake_at is not None and wake_at <= self.now
                wake_at = None if plan.wake_at == math.inf else plan.wake_at
        told = before.told + len(plan.events)
        plan.head = Head(before.revision, self._seq, self.token, told, self.now, self.pending, self.running,
                         ended[COMPLETED], ended[FAILED], ended[CANCELLED], self.blocked, decider,
                         wake_at)  # fmt: skip
        self._head = plan.head
        return plan

    def _address_events(self, fleet: Fleet) -> None:
        """Have each process told of the events that are its own: of everyday ones only if it wants to hear them."""
        plan = self.plan
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

    def _let_guests_go(self) -> None:
        """The turn is over: keep in mind only what runs and what its lane has in its line."""
        for work_id in self.guests:
            record = self.records.get(work_id)
            if record is not None and not record.token and not self._is_in_line(record):
                del self.records[work_id]
        self.guests.clear()
        self.graph = Graph()

    def _is_in_line(self, record: Record) -> bool:
        """True when its lane has that pending work in its line, or callbacks are about it."""
        if record.id in self.held:
            return True
        if record.state is not WorkState.PENDING or not str(record.shelf).startswith(READY):
            return False
        lane = self.find_lane(record.spec)
        return lane is not None and lane.line.reaches(record)

    # telling and writing ----------------------------------------------------------------------------------

    def reply(self, item: Item, answer: Any) -> None:
        """Have whoever asked for that told the answer."""
        worker, *ref = self.refs.pop(item, (self.worker,))
        plan = self.plan if worker == self.worker else self.plan.part(worker)
        plan.replies.append((tuple(ref) or item, answer))

    def accept(self, specs: Sequence[Spec]) -> list[Record]:
        """New work: a record for each. What may start as far as it is concerned is put in its lane; the others are
        returned, not yet in their place."""
        now, plan, seq, settings = self.now, self.plan, self._seq, self.settings
        if self.fleet is not None and specs:  # all of them come from one program
            settings = self.settings_of(specs[0].task)
        if self.origin != self.worker:
            plan.foreign.update(
                dict.fromkeys(range(len(plan.events), len(plan.events) + len(specs)), self.origin)
            )
        tell = plan.events.append
        is_watched = settings.pending_timeout is not None or settings.pending_warn_after is not None
        join = self.ready.push_all if self.asking is None else self.asking.arrived
        fresh: dict[str, Record] = {}
        others: list[Record] = []
        runs: list[tuple[Lane, list[Record]]] = []
        run: list[Record] = []
        lane: Lane | None = None
        for spec in specs:
            seq += 1
            rank = now
            if spec.priority or spec.run_at is not None or spec.delay:
                rank = rank_of(spec, now, settings.age_step)
            if is_watched or spec.depends_on or spec.run_at is not None or spec.delay:
                record = Record(spec.id, spec, seq, rank, now, since=now)
                others.append(record)
            else:
                mine = self.lane_of(spec) if self.fleet is None else self.find_lane(spec)
                if mine is None:  # nobody knows that task yet
                    record = Record(spec.id, spec, seq, rank, now, since=now)
                    others.append(record)
                else:
                    if mine is not lane:
                        run = []
                        runs.append((mine, run))
                        lane = mine
                    record = Record(spec.id, spec, seq, rank, now, since=now, shelf=mine.shelf, place=rank)
                    run.append(record)
            fresh[spec.id] = record
            tell(record)
            if spec.depends_on:
                plan.dependent.append(record)
            if spec.idempotency_key is not None:
                plan.keyed.append(record)
                self.found.keys[spec.idempotency_key] = record
                self.has_looked = True
        self._seq = seq
        self.pending += len(specs)
        self.has_moved = True
        self.records.update(fresh)
        if plan.records:
            plan.records.update(fresh)
        else:
            plan.records = fresh
        for mine, run in runs:
            plan.shelves.add(mine.shelf)
            join(mine, run)
        if settings.reject_policy == "drop_oldest":
            for record in fresh.values():
                self.note_age(record)
        return others

    def place(self, record: Record) -> None:
        """Put pending work where it waits: for a time, for others, or in its lane."""
        lane, shelf, place = self._where(record)
        shelves = self.plan.shelves
        if not shelf.startswith(HELD):
            shelves.add(shelf)
        worker = record.worker if shelf.startswith(HELD) else None
        if shelf != record.shelf or place != record.place or worker != record.worker:
            if record.shelf is not None and not record.shelf.startswith(HELD):
                shelves.add(record.shelf)
            record = replace(record, shelf=shelf, place=place, worker=worker)
            self.write(record)
        if lane is not None:
            if self.asking is not None:
                self.asking.arrived(lane, [record])
            else:
                self.ready.push(lane, record)
        elif self.is_whole:
            if shelf is LATER:
                heappush(self.later, (place, record.seq, record.id))
            elif shelf is WALL:
                heappush(self.later_by_wall, (place, record.seq, record.id))
        else:
            self.guests.add(record.id)
            if shelf in (LATER, WALL):
                self.heads[shelf] = min(self.heads.get(shelf, (math.inf, 0)), (place, record.seq))

    def _where(self, record: Record) -> tuple[Lane | None, str, float]:
        """Where pending work waits: its lane if it could start, its shelf, and its place there."""
        spec = record.spec
        if record.id in self.held:
            return None, f"{HELD}{record.worker or self.worker}", record.since
        if record.missing and not self.questions_of(spec.task).dependencies:
            return None, BLOCKED, record.rank
        if record.next_retry_at is not None and record.next_retry_at > self.now:
            return None, LATER, record.next_retry_at
        if spec.run_at is not None and waits_for_wall(record, self.wall):
            return None, WALL, spec.run_at
        if spec.delay and record.created_at + spec.delay > self.now:
            return None, LATER, record.created_at + spec.delay
        lane = self.find_lane(spec)
        if lane is None:  # whoever knows that task puts it where it belongs
            return None, shelf_name(spec.task, spec.queue, spec.services), record.rank
        return lane, lane.shelf, record.rank

    def exchange(self, record: Record, changed: Record) -> None:
        """Pending work has another record now: where the old one stands in line, the new one takes its place."""
        if not record.token and str(record.shelf).startswith(READY):
            self.leave_line(record)  # it is asked anew
            self.place(changed)

    def leave_line(self, record: Record) -> None:
        """That pending work waits elsewhere, or nowhere, from now on: its line must not count it as first."""
        lane = self.find_lane(record.spec)
        if lane is not None:
            if self.asking is not None:
                self.asking.left(record.id, lane)
            self.ready.left(lane)

    # starting and ending ----------------------------------------------------------------------------------

    def release(self, token: int, work_id: str) -> Lane | None:
        """The code of that attempt has ended: its places in the services are free. The lane it came from."""
        lane = self.slots.pop(token, None)
        if lane is None:
            return None
        for service in lane.services:
            service.active -= 1
            self.ready.touch(service)
        if token in self.unentered:
            self.returned(token, work_id)
        self.spending.pop(token, None)
        member = self.runners.pop(token, None)
        if self.fleet is not None and member is not None:
            assert lane.crew is not None
            self.fleet.free(member, lane.crew.needs)
            self.fleet.ended(member, token)
        if token in self.overdue:
            self._code_ended(token, self.overdue.pop(token))
        return lane

    def _code_ended(self, token: int, work_id: str) -> None:
        """The code of an attempt that was given up is over: its work may go on, whoever it was that gave it up."""
        was_held = self.held.get(work_id) == token
        if was_held:
            del self.held[work_id]
        record = self.live(work_id) if was_held or not self.is_whole else None
        if record is not None and not record.token and was_held:
            self.place(record)
        elif record is None and not self.is_whole:
            final = self.latest(work_id) or self.look_up(work_id)
            if final is not None and final.state.is_final and final.worker is not None:
                self.plan.records[work_id] = replace(final, worker=None)
                self.plan.rewritten.add(work_id)

    def spend(self, record: Record) -> Record:
        """The start under way counts, however it ends."""
        record = replace(record, spent=record.attempt)
        self.records[record.id] = record
        return record

    def put_back(self, record: Record, verb: str, **changes: Any) -> Record:
        """A running work becomes pending again."""
        token = record.token
        if record.id == self.risk.id:
            self.risk.is_over()
        worker = record.worker if token in self.overdue else None
        record = move(record, verb, token=0, worker=worker, shelf=None, since=self.now, **changes)
        self.running -= 1
        self.pending += 1
        self.has_moved = True
        self.note_age(record)
        if token in self.overdue:
            self.held[record.id] = token
        self.write(record)
        record = self.arm(record)
        self.place(record)
        return record

    def close(self, record: Record, verb: str, **changes: Any) -> Record:
        """A live work comes to its end: it leaves the ledger for the store."""
        is_over = record.token and record.token not in self.overdue
        return self.leave(
            record,
            move(record, verb, token=0, completed_at=self.now, next_retry_at=None, missing=0, shelf=None, place=0.0,
                 watch_at=None, worker=None if is_over else record.worker, **changes),
        )  # fmt: skip

    def leave(self, record: Record, final: Record) -> Record:
        """`record` has become `final`: nothing here hangs on it any more."""
        del self.records[record.id]
        self.plan.records[record.id] = final
        self._ended[final.state] += 1
        self.has_moved = True
        if record.missing:
            self.blocked -= 1
            self.graph.drop(record.id, record.spec.depends_on)
        if record.token:
            self.running -= 1
            if record.id == self.risk.id:
                self.risk.is_over()
        else:
            self.pending -= 1
            if record.shelf is not None and not record.shelf.startswith(HELD):
                self.plan.shelves.add(record.shelf)
            self.leave_line(record)
            self.held.pop(record.id, None)
        self._kept.add(final)
        return final

    def complete(self, outcomes: Iterable[Outcome]) -> Outcome | None:
        """Results came: `release`, `leave` and `tell` in one, for the end that is on every work's path. Stops at the
        first that no longer counts, and returns it."""
        plan, now, records, slots, risk = self.plan, self.now, self.records, self.slots, self.risk
        unentered, spending, written, fleet = self.unentered, self.spending, plan.records, self.fleet
        done: list[Record] = []
        lanes: dict[Lane, None] = {}
        stale: Outcome | None = None
        for outcome in outcomes:
            token, record = outcome.token, records.get(outcome.id)
            if record is None or record.token != token:
                stale = outcome
                break
            lanes[lane := slots.pop(token)] = None
            for service in lane.services:
                service.active -= 1
                is_moved = service.width is not None or service.throttle_streak
                if is_moved and service.went_well(record.started_at or 0.0):
                    self.changed[service] = None
            if fleet is not None:
                assert lane.crew is not None
                fleet.free(self.runners.pop(token), lane.crew.needs)
            if token in unentered:
                self.returned(token, record.id)
            spending.pop(token, None)
            del records[record.id]
            written[record.id] = final = finished(record, outcome.result, now)
            done.append(final)
            if record.id == risk.id:
                risk.is_over()
            if record.missing:  # a callback let it start before they were there
                plan.rewritten.add(record.id)
                self.blocked -= 1
                self.graph.drop(record.id, record.spec.depends_on)
        for service in dict.fromkeys(one for lane in lanes for one in lane.services):
            self.ready.touch(service)
        self._ended[COMPLETED] += len(done)
        self.running -= len(done)
        self.has_moved |= bool(done)
        self._kept.add(*done)
        plan.finals.update(enumerate(done, len(plan.events)))
        if self.origin != self.worker:
            plan.foreign.update(
                dict.fromkeys(range(len(plan.events), len(plan.events) + len(done)), self.origin)
            )
        plan.events += done
        return stale

    def forget(self) -> None:
        """When the inbox is taken in, and at the end of a turn: let go of the oldest final records beyond
        `keep_finished`."""
        self.plan.forget += [oldest.id for oldest in self._kept.surplus()]

    def drop_idle_lanes(self) -> None:
        """When there are many more lanes than before: drop those that have no work."""
        if self.ready.has_many_lanes:
            self.ready.drop_idle(set() if self.asking is None else self.asking.busy_lanes(), self.now)
            self.forget_lanes()

    def purge(self, record: Record) -> None:
        """A final work goes without a trace."""
        self._kept.drop(record)
        self._ended[record.state] -= 1
        self.plan.purged.append(record.id)
        self.unlearn(record)

    def revive(self, record: Record) -> Record:
        """A final work becomes live again, with a fresh budget and a new place among its equals."""
        self._kept.drop(record)
        if record.seq <= self._head.seq:  # else it is new in this turn, too
            self.plan.revived.add(record.id)
        self._seq += 1
        self._ended[record.state] -= 1
        record = move(record, "revive", failures=0, throttled_since=None, completed_at=None, started_at=None,
                      result=None, error=None, traceback=None)  # fmt: skip
        record = replace(record, seq=self._seq, since=self.now, crashes=0)
        self.pending += 1
        self.has_moved = True
        self.write(record)
        self.note_age(record)
        for token, work_id in self.overdue.items():
            if work_id == record.id:
                self.held[work_id] = token
        return record
