"""The live work and everything that hangs on it: the one place where a decision is written down.

The parts that decide (admission, outcome, watch, scheduler) read the ledger and change it only through the
few verbs below, so that records, counts, lanes, edges and the plan can never disagree.

live records   pending or running; final ones leave for the store
slots          token → lane, for everything whose code still runs, overdue code included
held           pending work that may not start before its last attempt's code has ended
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any

import msgspec
from msgspec.structs import replace

from runcue.core.asking import Asking, Questions
from runcue.core.breaker import Breaker
from runcue.core.events import Told, is_final
from runcue.core.graph import Graph
from runcue.core.lifecycle import COMPLETED, finished, move, started
from runcue.core.limits import Service
from runcue.core.model import Record, Spec, WorkState
from runcue.core.plan import Found, Plan, Revive, Submit
from runcue.core.ready import Lane, Ready
from runcue.core.retry import Retry

STRICT_STEP = 1e10
"""Seconds that one point of priority is worth when waiting is worth nothing (`age_step=None`)."""

CIRCUIT_EVENTS = {"open": "circuit_opened", "half_open": "circuit_half_open", "closed": "circuit_closed"}
RATE_LIMITED_EVERY = 1.0
NOBODY = Spec("", "", b"", ())
FEW = 100
"""How many outdated entries a heap may hold, besides a multiple of the living, before they are swept out."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a Cue that decide something."""

    max_queued: int | None = None
    reject_policy: str = "reject"
    keep_finished: int | None = 100_000
    age_step: float | None = 60.0
    pending_timeout: float | None = None
    pending_warn_after: float | None = None
    stall_timeout: float | None = None
    stall_warn_after: float | None = None
    throttle_timeout: float = 3600.0
    status_interval: float = 1.0


class Rule(msgspec.Struct, frozen=True):
    """What deciding needs to know of a task: its retries, and what its executor takes up."""

    retry: Retry
    implicit: tuple[str, ...] = ()


def waits_for_wall(record: Record, wall: float) -> bool:
    """True while its `run_at` is to come. What has been started was due, wherever that clock went since."""
    return record.started_at is None and (record.spec.run_at or 0) > wall


class Ledger:
    """Live records, lanes, edges, counts, and the plan under way."""

    def __init__(self, settings: Settings, rules: dict[str, Rule], tag: str) -> None:
        self.settings = settings
        self.rules = rules
        self.tag = tag
        self.has_looked = True
        self.begin(0.0, 0.0)
        self.records: dict[str, Record] = {}
        self.pending = 0
        self.running = 0
        self._ended = dict.fromkeys((state for state in WorkState if state.is_final), 0)
        self.ready = Ready(self.records)
        self.asking: Asking | None = None
        self.graph = Graph()
        self.slots: dict[int, Lane] = {}
        self.overdue: dict[int, str] = {}
        self.held: dict[str, int] = {}
        self.waiting_submits: deque[Submit] = deque()
        self.later: list[tuple[float, int, str]] = []
        self.later_by_wall: list[tuple[float, int, str]] = []
        self.deadlines: list[tuple[float, int, str, Record]] = []
        self.depth_level = 0
        self.moved_at = 0.0
        self.has_moved = False
        self.has_warned = False
        self._numbers = count()
        self._last_spec = NOBODY
        self._last_lane: Lane
        self._seq = 0
        self._token = 0
        self._finished: deque[Record] = deque()
        self._revived: set[int] = set()
        self._by_age: list[tuple[int, str]] = []
        self._unentered: dict[int, list[Service]] = {}
        self.epochs: dict[int, list[tuple[Service, Breaker, int]]] = {}
        self._told_limited_at: dict[str, float] = {}

    def begin(self, now: float, wall: float) -> None:
        """A turn begins at this moment, with an empty plan."""
        self.now, self.wall = now, wall
        self.plan = Plan()
        if self.has_looked:
            self.look_anew()

    def look_anew(self) -> None:
        """Forget what was looked up for an earlier turn."""
        self.has_looked = False
        self.found = Found()
        self.looked_up: set[str] = set()
        self.keys_looked_up: set[str] = set()
        self.walks: dict[Revive, tuple[list[str], set[str]]] = {}  # how far each has got (outcome.py)

    def ask_with(self, questions: Questions) -> None:
        """The application registered these callbacks: from now on everything pending is asked by them."""
        self.asking = Asking(self.records, self.ready, questions)
        self.ready.clear()
        self._last_spec = NOBODY
        self.later.clear()
        self.later_by_wall.clear()
        for record in list(self.records.values()):
            if not record.token:
                self.place(record)

    # looking ----------------------------------------------------------------------------------------------

    @property
    def counts(self) -> dict[WorkState, int]:
        """How many works there are in each state; of ended ones, how many there ever were."""
        return {WorkState.PENDING: self.pending, WorkState.RUNNING: self.running, **self._ended}

    def latest(self, work_id: str) -> Record | None:
        """The newest record of that work: live, ended in this turn, or kept by the store."""
        return self.records.get(work_id) or self.plan.records.get(work_id) or self.found.records.get(work_id)

    def state_of(self, work_id: str) -> WorkState | None:
        """How that work stands, live, kept or forgotten; None when it was never submitted."""
        record = self.latest(work_id)
        if record is not None:
            return record.state
        state = self.found.forgotten.get(work_id)
        if state is None and work_id[11:19] == self.tag and len(work_id) == 27:
            return WorkState.COMPLETED  # an id of our own that nobody keeps: it ended well long ago
        return state

    def lane_of(self, record: Record) -> Lane:
        """The lane that work belongs to. Work mostly comes in runs of one kind, so the last lane is kept at hand."""
        spec = record.spec
        last = self._last_spec
        if spec.task is last.task and spec.services is last.services and spec.queue is last.queue:
            return self._last_lane
        self._last_spec = spec
        self._last_lane = self.ready.lane(record, self.rules[spec.task].implicit)
        return self._last_lane

    # telling and writing ----------------------------------------------------------------------------------

    def tell(
        self, type: str, record: Record | None = None, exception: BaseException | None = None, **data: Any
    ) -> None:
        """Have an event told once the turn is committed. An exception goes to callbacks, and is not kept."""
        told = Told(type, self.now, record, data or None)
        plan = self.plan
        if exception is not None:
            plan.errors[len(plan.events)] = exception
        if is_final(told):
            plan.finals[len(plan.events)] = told
        plan.events.append(told)
        plan.is_notable = True

    def write(self, record: Record) -> None:
        """This is how a live work stands from now on."""
        self.records[record.id] = record
        self.plan.records[record.id] = record

    def accept(self, specs: Sequence[Spec]) -> list[Record]:
        """New work: a record for each, not yet in its place."""
        now, records, plan, seq = self.now, self.records, self.plan, self._seq
        fresh: dict[str, Record] = {}
        for spec in specs:
            seq += 1
            rank = now
            if spec.priority or spec.run_at is not None or spec.delay:
                rank = self._rank(spec)
            record = fresh[spec.id] = Record(spec.id, spec, seq, rank, now)
            plan.events.append(record)
            if spec.depends_on:
                plan.dependent.append(record)
            if spec.idempotency_key is not None:
                plan.keyed.append(record)
                self.found.keys[spec.idempotency_key] = record
                self.has_looked = True
        self._seq = seq
        records.update(fresh)
        if plan.records:
            plan.records.update(fresh)
        else:
            plan.records = fresh
        self.pending += len(fresh)
        self.has_moved = True
        accepted = list(fresh.values())
        if self.settings.reject_policy == "drop_oldest":
            for record in accepted:
                self._note_age(record)
        return accepted

    def _rank(self, spec: Spec) -> float:
        """Constant for ever: waiting is worth as much for everybody, so nothing is ever sorted again."""
        step = self.settings.age_step
        due = max(self.now + (spec.delay or 0), spec.run_at or 0)
        return due - (STRICT_STEP if step is None else step) * spec.priority

    def place(self, record: Record) -> None:
        """Put pending work where it waits: for a time, for others, or in its lane."""
        spec = record.spec
        asking = self.asking
        if record.id in self.held:
            return
        waits = spec.depends_on and self.graph.is_waiting(record.id)
        if waits and (asking is None or not asking.questions.dependencies):
            return
        if record.next_retry_at is not None and record.next_retry_at > self.now:
            heappush(self.later, (record.next_retry_at, record.seq, record.id))
        elif spec.run_at is not None and waits_for_wall(record, self.wall):
            heappush(self.later_by_wall, (spec.run_at, record.seq, record.id))
        elif spec.delay and record.created_at + spec.delay > self.now:
            heappush(self.later, (record.created_at + spec.delay, record.seq, record.id))
        elif asking is not None:
            asking.arrived(self.lane_of(record), [record])
        else:
            self.ready.push(self.lane_of(record), record)

    def place_plain(self, records: list[Record]) -> list[Record]:
        """Place what may start as far as it is concerned, a lane at a time; the others are returned."""
        join = self.ready.push_all if self.asking is None else self.asking.arrived
        others: list[Record] = []
        run: list[Record] = []
        lane: Lane | None = None
        for record in records:
            spec = record.spec
            if spec.depends_on or spec.run_at is not None or spec.delay:
                others.append(record)
                continue
            mine = self.lane_of(record)
            if mine is not lane and lane is not None:
                join(lane, run)
                run = []
            lane = mine
            run.append(record)
        if lane is not None:
            join(lane, run)
        return others

    def watch(self, at: float, kind: str, record: Record) -> None:
        """Look at that pending work again at that time, if it has not moved by then (watch.py)."""
        deadlines = self.deadlines
        heappush(deadlines, (at, next(self._numbers), kind, record))
        if len(deadlines) > 4 * len(self.records) + FEW:
            deadlines[:] = sorted(entry for entry in deadlines if self.records.get(entry[3].id) is entry[3])

    def watch_pending(self, record: Record) -> None:
        """Pending work has a limited time to be pending, counted from when it might first run."""
        spec, settings = record.spec, self.settings
        since = max(self.now, record.created_at + (spec.delay or 0), record.next_retry_at or 0)
        if spec.run_at is not None:
            since = max(since, self.now + spec.run_at - self.wall)
        if settings.pending_warn_after is not None:
            self.watch(since + settings.pending_warn_after, "pending_warning", record)
        if settings.pending_timeout is not None:
            self.watch(since + settings.pending_timeout, "pending_timeout", record)

    def place_due(self) -> bool:
        """Place what only waited for its time; True when there was something."""
        any_due = False
        for heap, now in ((self.later, self.now), (self.later_by_wall, self.wall)):
            while heap and heap[0][0] <= now:
                _, seq, work_id = heappop(heap)
                record = self.records.get(work_id)
                if record is not None and record.seq == seq and not record.token:
                    any_due = True
                    self.place(record)
        return any_due

    # starting and ending ----------------------------------------------------------------------------------

    def start(self, lane: Lane, batch: list[Record]) -> None:
        """Grant these starts: services, windows and circuits count them from here."""
        now, records, plan = self.now, self.records, self.plan
        amount = len(batch)
        rated: list[Service] = []
        breakers = []
        for service in lane.services:
            service.active += amount
            if service.windows:
                service.granted(amount)
                rated.append(service)
            if service.breaker is not None:
                breakers.append(service)
        for record in batch:
            self._token = token = self._token + 1
            running = started(record, token, now)
            records[record.id] = running
            plan.records[record.id] = running
            plan.start.append(running)
            plan.events.append(running)
            self.slots[token] = lane
            if rated:
                self._unentered[token] = rated
                plan.rated.add(token)
            if breakers:
                self._count_on_circuits(breakers, token)
        self.pending -= amount
        self.running += amount
        self.has_moved = True

    def _count_on_circuits(self, services: list[Service], token: int) -> None:
        epochs = self.epochs[token] = []
        for service in services:
            assert service.breaker is not None
            self.tell_circuit(service, service.breaker.started(self.now))
            epochs.append((service, service.breaker, service.breaker.epoch))
            if service.breaker.probe_deadline is not None:
                self.ready.wake_service(service, service.breaker.probe_deadline)

    def tell_circuit(self, service: Service, news: str | None) -> None:
        """A circuit changed: tell it, and let its lanes look again."""
        if news is not None:
            assert service.breaker is not None
            self.tell(CIRCUIT_EVENTS[news], service=service.name, failures=service.breaker.failures)
            self.ready.touch(service)

    def tell_limited(self, service: Service) -> None:
        """A service lets nothing start because of its rate: told at most once a second."""
        if self.now - self._told_limited_at.get(service.name, -math.inf) >= RATE_LIMITED_EVERY:
            self._told_limited_at[service.name] = self.now
            blocked = service.blocked(self.now)
            assert blocked is not None  # a choice found it so, and a choice makes no room
            self.tell("service_rate_limited", service=service.name, until=blocked.until,
                      details=blocked.details)  # fmt: skip

    def entered(self, token: int, at: float) -> None:
        """A granted start entered its handler: its windows count from then on."""
        for service in self._unentered.pop(token, ()):
            service.entered(at)
            self.ready.touch(service)

    def judge_circuits(self, token: int, verdict: bool | None) -> None:
        """An attempt ended well, badly, or in a way that proves nothing about its services."""
        for service, breaker, epoch in self.epochs.pop(token, ()):
            if service.breaker is breaker:
                self.tell_circuit(service, breaker.ended(epoch, verdict, self.now))
                self.ready.touch(service)

    def release(self, token: int) -> Lane | None:
        """The code of that attempt has ended: its places in the services are free. The lane it came from."""
        lane = self.slots.pop(token, None)
        if lane is None:
            return None
        for service in lane.services:
            service.active -= 1
            if service.parked:
                self.ready.touched[service] = None
        if token in self._unentered:
            self._return(token)
        if token in self.overdue:
            work_id = self.overdue.pop(token)
            if self.held.get(work_id) == token:
                del self.held[work_id]
                self.place(self.records[work_id])
        return lane

    def _return(self, token: int) -> None:
        """It was never called: what was granted was not used."""
        for service in self._unentered.pop(token):
            service.returned()

    def spend(self, record: Record) -> Record:
        """The start under way counts, however it ends."""
        record = replace(record, spent=record.attempt)
        self.records[record.id] = record
        return record

    def give_up(self, token: int, work_id: str) -> None:
        """That attempt no longer counts, but its code may still run: its places stay taken."""
        self.overdue[token] = work_id

    def put_back(self, record: Record, verb: str, **changes: Any) -> Record:
        """A running work becomes pending again."""
        token = record.token
        record = move(record, verb, token=0, **changes)
        self.write(record)
        self.running -= 1
        self.pending += 1
        self.has_moved = True
        self._note_age(record)
        if token in self.overdue:
            self.held[record.id] = token
        else:
            self.place(record)
        if self.settings.pending_timeout is not None or self.settings.pending_warn_after is not None:
            self.watch_pending(record)
        return record

    def close(self, record: Record, verb: str, **changes: Any) -> Record:
        """A live work comes to its end: it leaves the ledger for the store."""
        return self.leave(
            record, move(record, verb, token=0, completed_at=self.now, next_retry_at=None, **changes)
        )

    def leave(self, record: Record, final: Record) -> Record:
        """`record` has become `final`: nothing here hangs on it any more."""
        del self.records[record.id]
        self.plan.records[record.id] = final
        self._ended[final.state] += 1
        self.has_moved = True
        if record.spec.depends_on:
            self.graph.drop(record.id)
        if record.token:
            self.running -= 1
        else:
            self.pending -= 1
            lane = self.lane_of(record)
            if self.asking is not None:
                self.asking.left(record.id, lane)
            self.ready.left(lane)
            self.held.pop(record.id, None)
        if self.settings.keep_finished is not None:
            self._finished.append(final)
        return final

    def complete(self, record: Record, result: Any) -> Record:
        """A result came: `release`, `leave` and `tell` in one, for the end that is on every work's path."""
        plan, token = self.plan, record.token
        for service in self.slots.pop(token).services:
            service.active -= 1
            if service.parked:
                self.ready.touched[service] = None
            if service.throttle_streak and (record.started_at or 0.0) >= service.throttled_until:
                service.throttle_streak = 0  # not one that was in flight before the pause
        if token in self._unentered:
            self._return(token)
        final = finished(record, result, self.now)
        del self.records[record.id]
        plan.records[record.id] = final
        self._ended[COMPLETED] += 1
        self.running -= 1
        self.has_moved = True
        if record.spec.depends_on:
            self.graph.drop(record.id)
        if self.settings.keep_finished is not None:
            self._finished.append(final)
        plan.finals[len(plan.events)] = final
        plan.events.append(final)
        return final

    def forget(self) -> None:
        """When the inbox is taken in, and at the end of a turn: let go of the oldest final records beyond
        `keep_finished`."""
        keep = self.settings.keep_finished
        while keep is not None and len(self._finished) - len(self._revived) > keep:
            oldest = self._finished.popleft()
            if oldest.seq in self._revived:
                self._revived.remove(oldest.seq)
            else:
                self.plan.forget.append(oldest.id)

    def drop_idle_lanes(self) -> None:
        """When there are many more lanes than before: drop those that have no work."""
        if self.ready.has_many_lanes:
            self.ready.drop_idle(set() if self.asking is None else self.asking.busy_lanes())
            self._last_spec = NOBODY

    def revive(self, record: Record) -> Record:
        """A final work becomes live again, with a fresh budget and a new place among its equals."""
        if self.settings.keep_finished is not None:
            self._revived.add(record.seq)
        self._seq += 1
        self._ended[record.state] -= 1
        record = move(record, "revive", failures=0, throttled_since=None, completed_at=None, started_at=None,
                      result=None, error=None, traceback=None)  # fmt: skip
        record = replace(record, seq=self._seq)
        self.pending += 1
        self.has_moved = True
        self.write(record)
        self._note_age(record)
        for token, work_id in self.overdue.items():
            if work_id == record.id:
                self.held[work_id] = token
        return record

    def oldest_pending(self) -> Record:
        """The pending work that was submitted first; there is some (and it is only known for `drop_oldest`)."""
        while True:
            seq, work_id = heappop(self._by_age)
            record = self.records.get(work_id)
            if record is not None and record.seq == seq and not record.token:
                return record

    def _note_age(self, record: Record) -> None:
        """Work became pending: remember its place among the oldest, if anybody is ever going to ask."""
        if self.settings.reject_policy == "drop_oldest":
            by_age = self._by_age
            heappush(by_age, (record.seq, record.id))
            if len(by_age) > 2 * len(self.records) + FEW:
                by_age[:] = sorted((one.seq, one.id) for one in self.records.values() if not one.token)
