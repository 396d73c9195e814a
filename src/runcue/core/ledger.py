"""The live work and everything that hangs on it: the one place where a decision is written down.

The parts that decide (admission, outcome, watch, scheduler) read the ledger and change it only through the
few verbs below, so that records, counts, lanes, edges and the plan can never disagree.

live records   pending or running; final ones leave for the store
slots          token → lane, for everything whose code still runs, overdue code included
held           pending work that may not start before its last attempt's code has ended
"""

from __future__ import annotations

import math
from collections import Counter, deque
from heapq import heappop, heappush
from itertools import count
from typing import Any

import msgspec
from msgspec.structs import replace

from runcue.core.asking import Asking, Questions
from runcue.core.breaker import Breaker
from runcue.core.graph import Graph
from runcue.core.lifecycle import move
from runcue.core.limits import Service
from runcue.core.model import Record, Spec, WorkState
from runcue.core.plan import Found, Plan, Submit
from runcue.core.ready import Lane, Ready
from runcue.core.retry import Retry

STRICT_STEP = 1e10
"""Seconds that one point of priority is worth when waiting is worth nothing (`age_step=None`)."""

CIRCUIT_EVENTS = {"open": "circuit_opened", "half_open": "circuit_half_open", "closed": "circuit_closed"}
RATE_LIMITED_EVERY = 1.0


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


class Ledger:
    """Live records, lanes, edges, counts, and the plan under way."""

    def __init__(self, settings: Settings, rules: dict[str, Rule], tag: str) -> None:
        self.settings = settings
        self.rules = rules
        self.tag = tag
        self.begin(0.0, 0.0)
        self.records: dict[str, Record] = {}
        self.counts: Counter[WorkState] = Counter()
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
        self._seq = 0
        self._token = 0
        self._finished: deque[str] = deque()
        self._revived: Counter[str] = Counter()
        self._by_age: deque[str] = deque()
        self._unentered: dict[int, list[Service]] = {}
        self._epochs: dict[int, list[tuple[Service, Breaker, int]]] = {}
        self._told_limited_at: dict[str, float] = {}

    def begin(self, now: float, wall: float) -> None:
        """A turn begins at this moment, with an empty plan."""
        self.now, self.wall = now, wall
        self.plan = Plan()
        self.found = Found()
        self.looked_up: set[str] = set()
        self.keys_looked_up: set[str] = set()

    def ask_with(self, questions: Questions) -> None:
        """The application registered these callbacks: from now on everything pending is asked by them."""
        self.asking = Asking(self.records, self.ready, questions)
        self.ready.clear()
        self.later.clear()
        self.later_by_wall.clear()
        for record in list(self.records.values()):
            if not record.token and record.id not in self.held:
                self.place(record)

    # looking ----------------------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """How much is pending."""
        return self.counts[WorkState.PENDING]

    @property
    def running(self) -> int:
        """How much is running."""
        return self.counts[WorkState.RUNNING]

    def state_of(self, work_id: str) -> WorkState | None:
        """How that work stands, live, kept or forgotten; None when it was never submitted."""
        record = self.records.get(work_id) or self.found.records.get(work_id)
        if record is not None:
            return record.state
        state = self.found.forgotten.get(work_id)
        if state is None and work_id[11:19] == self.tag and len(work_id) == 27:
            return WorkState.COMPLETED  # an id of our own that nobody keeps: it ended well long ago
        return state

    def lane_of(self, record: Record) -> Lane:
        """The lane that work belongs to."""
        return self.ready.lane(record, self.rules[record.spec.task].implicit)

    # telling and writing ----------------------------------------------------------------------------------

    def tell(self, type: str, record: Record | None = None, **data: Any) -> None:
        """Have an event told once the turn is committed."""
        self.plan.events.append((type, self.now, record, data or None))

    def write(self, record: Record) -> None:
        """This is how a live work stands from now on."""
        self.records[record.id] = record
        self.plan.records[record.id] = record

    def accept(self, spec: Spec) -> Record:
        """New work: a record for it, in its place."""
        now = self.now
        self._seq = seq = self._seq + 1
        rank = now
        if spec.priority or spec.run_at is not None or spec.delay:
            step = self.settings.age_step
            rank = max(now + (spec.delay or 0), spec.run_at or 0)
            rank -= (STRICT_STEP if step is None else step) * spec.priority
        record = Record(spec.id, spec, seq, rank, now)
        self.records[spec.id] = record
        self.plan.records[spec.id] = record
        self.plan.events.append(("queued", now, record, None))
        self.counts[WorkState.PENDING] += 1
        self.has_moved = True
        if spec.idempotency_key is not None:
            self.plan.keyed.append(record)
        if self.settings.reject_policy == "drop_oldest":
            self._by_age.append(spec.id)
        return record

    def place(self, record: Record) -> None:
        """Put pending work where it waits: for a time, for others, or in its lane."""
        spec = record.spec
        asking = self.asking
        if spec.depends_on and self.graph.is_waiting(record.id):
            if asking is None or not asking.questions.dependencies:
                return
        if record.next_retry_at is not None and record.next_retry_at > self.now:
            heappush(self.later, (record.next_retry_at, record.seq, record.id))
        elif spec.run_at is not None and spec.run_at > self.wall:
            heappush(self.later_by_wall, (spec.run_at, record.seq, record.id))
        elif spec.delay and record.created_at + spec.delay > self.now:
            heappush(self.later, (record.created_at + spec.delay, record.seq, record.id))
        elif asking is not None:
            asking.arrived(self.lane_of(record), record)
        else:
            self.ready.push(self.lane_of(record), record)

    def watch(self, at: float, kind: str, record: Record) -> None:
        """Look at that pending work again at that time, if it has not moved by then (watch.py)."""
        heappush(self.deadlines, (at, next(self._numbers), kind, record))

    def watch_pending(self, record: Record) -> None:
        """Pending work has a limited time to be pending, counted from when it might first run."""
        spec, settings = record.spec, self.settings
        since = max(self.now + (spec.delay or 0), record.next_retry_at or 0)
        if spec.run_at is not None:
            since = max(since, self.now + spec.run_at - self.wall)
        if settings.pending_warn_after is not None:
            self.watch(since + settings.pending_warn_after, "pending_warning", record)
        if settings.pending_timeout is not None:
            self.watch(since + settings.pending_timeout, "pending_timeout", record)

    def place_due(self) -> None:
        """Place what only waited for its time."""
        for heap, now in ((self.later, self.now), (self.later_by_wall, self.wall)):
            while heap and heap[0][0] <= now:
                _, seq, work_id = heappop(heap)
                record = self.records.get(work_id)
                if record is not None and record.seq == seq and not record.token and work_id not in self.held:
                    self.place(record)

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
            started = move(
                record, "start", attempt=record.spent + 1, token=token, started_at=now, next_retry_at=None
            )
            records[record.id] = started
            plan.records[record.id] = started
            plan.start.append(started)
            plan.events.append(("started", now, started, None))
            self.slots[token] = lane
            if rated:
                self._unentered[token] = rated
                plan.rated.add(token)
            if breakers:
                self._count_on_circuits(breakers, token)
        self.counts[WorkState.PENDING] -= amount
        self.counts[WorkState.RUNNING] += amount
        self.has_moved = True

    def _count_on_circuits(self, services: list[Service], token: int) -> None:
        epochs = self._epochs[token] = []
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
            if blocked is not None:
                self.tell("service_rate_limited", service=service.name, until=blocked.until,
                          details=blocked.details)  # fmt: skip

    def entered(self, token: int, at: float) -> None:
        """A granted start entered its handler: its windows count from then on."""
        for service in self._unentered.pop(token, ()):
            service.entered(at)
            self.ready.touch(service)

    def judge_circuits(self, token: int, verdict: bool | None) -> None:
        """An attempt ended well, badly, or in a way that proves nothing about its services."""
        for service, breaker, epoch in self._epochs.pop(token, ()):
            if service.breaker is breaker:
                self.tell_circuit(service, breaker.ended(epoch, verdict, self.now))
                self.ready.touch(service)

    def release(self, token: int) -> None:
        """The code of that attempt has ended: its places in the services are free."""
        lane = self.slots.pop(token, None)
        if lane is None:
            return
        for service in lane.services:
            service.active -= 1
            self.ready.touch(service)
        for service in self._unentered.pop(token, ()):  # it was never called: what was granted was not used
            service.returned()
        if self.overdue.pop(token, None) is not None:
            self._let_go(token)

    def _let_go(self, token: int) -> None:
        for work_id in [work_id for work_id, holder in self.held.items() if holder == token]:
            del self.held[work_id]
            record = self.records.get(work_id)
            if record is not None:
                self.place(record)

    def give_up(self, token: int, work_id: str) -> None:
        """That attempt no longer counts, but its code may still run: its places stay taken."""
        self.overdue[token] = work_id

    def put_back(self, record: Record, verb: str, **changes: Any) -> Record:
        """A running work becomes pending again."""
        token = record.token
        record = move(record, verb, token=0, **changes)
        self.write(record)
        self.counts[WorkState.RUNNING] -= 1
        self.counts[WorkState.PENDING] += 1
        self.has_moved = True
        if self.settings.reject_policy == "drop_oldest":
            self._by_age.appendleft(record.id)
        if token in self.overdue:
            self.held[record.id] = token
        else:
            self.place(record)
        if self.settings.pending_timeout is not None or self.settings.pending_warn_after is not None:
            self.watch_pending(record)
        return record

    def close(self, record: Record, verb: str, **changes: Any) -> Record:
        """A live work comes to its end: it leaves the ledger for the store."""
        was = record.state
        final = move(record, verb, token=0, completed_at=self.now, next_retry_at=None, **changes)
        del self.records[record.id]
        self.plan.records[record.id] = final
        self.counts[was] -= 1
        self.counts[final.state] += 1
        self.has_moved = True
        spec = record.spec
        if spec.depends_on:
            self.graph.drop(record.id)
        if was is WorkState.PENDING:
            lane = self.lane_of(record)
            if self.asking is not None:
                self.asking.left(record.id, lane)
            self.ready.left(lane)
            self.held.pop(record.id, None)
        self._remember(final)
        return final

    def _remember(self, final: Record) -> None:
        keep = self.settings.keep_finished
        if keep is None:
            return
        self._finished.append(final.id)
        while len(self._finished) > keep:
            oldest = self._finished.popleft()
            if self._revived[oldest]:
                self._revived[oldest] -= 1
            else:
                self.plan.forget.append(oldest)

    def revive(self, record: Record) -> Record:
        """A final work becomes live again, with a fresh budget and a new place among its equals."""
        self._seq += 1
        self.counts[record.state] -= 1
        record = move(record, "revive", failures=0, throttled_since=None, completed_at=None, started_at=None,
                      result=None, error=None, traceback=None)  # fmt: skip
        record = replace(record, seq=self._seq)
        self._revived[record.id] += 1
        self.counts[WorkState.PENDING] += 1
        self.write(record)
        return record

    def oldest_pending(self) -> Record | None:
        """The pending work that was submitted first (only kept track of for `drop_oldest`)."""
        while self._by_age:
            record = self.records.get(self._by_age.popleft())
            if record is not None and record.state is WorkState.PENDING:
                return record
        return None
