"""The places that attempts take up: slots in services, grants under rates, calls that circuits count.

slots     token → lane, for everything whose code still runs, overdue code included
runners   token → who runs it, where several processes share the queue
overdue   attempts that no longer count but whose code still runs
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from runcue.core.ledger.fleet import Fleet, Member
from runcue.core.ledger.working_set import Mind
from runcue.core.limits.breaker import Breaker
from runcue.core.limits.meter import Spending
from runcue.core.limits.service import Blocked, Service
from runcue.core.model.events import Told, is_final
from runcue.core.model.record import Record, Spec
from runcue.core.model.retry import Retry
from runcue.core.model.settings import Questions, Rule, Settings
from runcue.core.model.state import Grant, Overdue
from runcue.core.schedule.lane import Lane
from runcue.core.schedule.line import Line
from runcue.core.schedule.plan import Entry
from runcue.core.schedule.ready import Ready

CIRCUIT_EVENTS = {"open": "circuit_opened", "half_open": "circuit_half_open", "closed": "circuit_closed"}
RATE_LIMITED_EVERY = 1.0
Granted: TypeAlias = tuple[list[Service], float, float]
NOBODY = Spec("", "", b"", ())
NOT_RATED: Granted = ([], 0.0, 0.0)
SAFE = 2.0
"""How much longer than it usually takes a call may take to begin."""
HALF_LIFE = 10.0
"""Seconds after which half of a delay that did not happen again is forgotten."""


class Places(Mind):
    """Live records, and what their attempts take up."""

    def __init__(self, settings: Settings, rules: dict[str, Rule], worker: str, is_whole: bool) -> None:
        super().__init__(settings, worker, is_whole)
        self.rules = rules
        self._last_spec = NOBODY
        self._last_lane: Lane
        self.fleet: Fleet | None = None if is_whole else Fleet(self._touch)
        """Who runs work, where several processes share the queue."""
        if self.fleet is None:
            self.ready = Ready(self.records)
        else:
            self.ready = Ready(self.records, self.read_lane, self.heads, self.fleet.crew)
        self.runners: dict[int, Member] = {}
        """Who runs each attempt, by token; only with a fleet."""
        self.origin = worker
        """The process that brought what is being decided: its callbacks and its log are told of it."""
        self._unrecalled: list[Service] = []
        """Services that are watched since this turn: what was started before is not counted yet."""
        if not is_whole:
            self.ready.services.on_new = self._unrecalled.append
        self.slots: dict[int, Lane] = {}
        self.overdue: dict[int, str] = {}
        self.orphans: list[Record] = []
        """Attempts from before this ledger was made whose code still runs."""
        self.answered: set[int] = set()
        """Tokens of those that have answered, in a turn of which it is not known whether it was kept, or after it."""
        self.begun: set[int] = set()
        """Tokens of attempts that this process is about to begin, or of which it has left the outcome: they are not
        to be put back when it takes over."""
        self.spending: dict[int, Spending] = {}
        """What running attempts have reserved or used of quantities."""
        self.unentered: dict[int, Granted] = {}
        """Services with a rate that granted a start whose handler was not entered yet, when they did, and from when
        on whoever decides next counts it."""
        self._lag = self._lagged_at = 0.0
        """How long it took from a grant to the handler at most, lately: a slow disk or a busy loop takes its time."""
        self._was_late_at = -math.inf
        self.epochs: dict[int, list[tuple[Service, Breaker, int]]] = {}
        self._told_limited_at: dict[str, float] = {}
        self._throttled: dict[Service, None] = {}
        """Services that asked to be left alone, as was told here: so is the end of that."""
        self.changed: dict[Service, None] = {}
        """Services of which something is to be written."""

    def _touch(self, service: Service) -> None:
        self.ready.touch(service)

    def recall_starts(self) -> None:
        """Count what was started before its service was watched here: read at once for all of them."""
        if not self._unrecalled:
            return
        services = {service.name: service for service in self._unrecalled if service.reach}
        self._unrecalled.clear()
        if self.library is not None and services:
            starts: dict[str, list[Grant]] = {}
            for start in self.library.starts({name: self.now - one.reach for name, one in services.items()}):
                starts.setdefault(start.service, []).append(start)
            for name, some in starts.items():
                services[name].recall(some)
                self.ready.touch(services[name])

    # lanes ----------------------------------------------------------------------------------------------

    def lane_of(self, spec: Spec) -> Lane:
        """The lane that work belongs to. Work mostly comes in runs of one kind, so the last lane is kept at hand."""
        last = self._last_spec
        if spec.task is last.task and spec.services is last.services and spec.queue is last.queue:
            return self._last_lane
        self._last_spec = spec
        self._last_lane = self.ready.lane(spec, self.rules[spec.task])
        return self._last_lane

    def find_lane(self, spec: Spec) -> Lane | None:
        """The same; None for a task that nobody has told of, or that uses what nobody declared."""
        rule = self.rules.get(spec.task)
        if rule is None:
            return None
        services = spec.services if rule.services is None else rule.services
        find = self.ready.services.find
        implicit = rule.implicit if self.fleet is None else rule.shared
        is_known = all(find(name) is not None for name in (*services, *implicit))
        return self.lane_of(spec) if is_known else None

    def lane_run(self, spec: Spec, chosen: str | None) -> Lane:
        """The lane in which the attempt of a running work is counted."""
        lane = self.find_lane(spec)
        if lane is None:  # nobody knows its task any more: it counts where it can
            assert self.fleet is not None
            known = (self.ready.services.find(name) for name in spec.services)
            services = tuple(one for one in known if one is not None)
            crew = self.fleet.crew(spec.task, spec.queue, ())
            return Lane(spec.task, self.ready.queue(spec.queue), services, Line(self.records), crew=crew)
        member = None if chosen is None else self.ready.services.get(chosen)
        return lane if lane.group is None or member is None else lane.on(member)

    def questions_of(self, task: str) -> Questions:
        """What callbacks are asked about work of that task."""
        rule = self.rules.get(task)
        return self.ready.questions if rule is None or rule.questions is None else rule.questions

    def retry_of(self, task: str) -> Retry:
        """What follows a failed attempt at work of that task."""
        rule = self.rules.get(task)
        return Retry() if rule is None else rule.retry

    def implicit_of(self, task: str) -> tuple[str, ...]:
        """What its executor uses besides the services of a work."""
        rule = self.rules.get(task)
        return () if rule is None else rule.implicit

    def settings_of(self, task: str) -> Settings:
        """The options that hold for work of that task."""
        rule = self.rules.get(task)
        return self.settings if rule is None or rule.settings is None else rule.settings

    def forget_lanes(self) -> None:
        """Lanes were dropped: look each up again, and let go of who ran their work."""
        self._last_spec = NOBODY
        if self.fleet is not None:
            lanes = (*self.ready.lanes.values(), *self.slots.values())
            self.fleet.drop_crews(lane.crew for lane in lanes)

    # telling and writing ---------------------------------------------------------------------------------

    def tell(
        self, type: str, record: Record | None = None, exception: BaseException | None = None, **data: Any
    ) -> None:
        """Have an event told once the turn is committed. An exception goes to callbacks, and is not kept."""
        told = Told(type, self.now, record, data or None)
        plan = self.plan
        if self.origin != self.worker:
            plan.foreign[len(plan.events)] = self.origin
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
        self.plan.rewritten.add(record.id)

    def count_on_circuits(self, services: list[Service], token: int) -> None:
        epochs = self.epochs[token] = []
        for service in services:
            assert service.breaker is not None
            self.changed[service] = None
            self.tell_circuit(service, service.breaker.started(self.now))
            epochs.append((service, service.breaker, service.breaker.epoch))
            if service.breaker.probe_deadline is not None:
                self.ready.wake_service(service, service.breaker.probe_deadline)

    def tell_circuit(self, service: Service, news: str | None) -> None:
        """A circuit changed: tell it, and let its lanes look again."""
        if news is not None:
            assert service.breaker is not None
            self.changed[service] = None
            self.tell(CIRCUIT_EVENTS[news], service=service.name, failures=service.breaker.failures)
            self.tell_availability(service)
            self.ready.touch(service)

    def tell_availability(self, service: Service, is_told: bool = False, **data: Any) -> None:
        """Tell it when a service came to be available or no longer is; with `is_told` in any case."""
        outage = service.outage(self.now)
        if is_told or service.is_out != (outage is not None):
            service.is_out = outage is not None
            reason, until = (None, None) if outage is None else (outage.reason, outage.until)
            self.tell("service_status", service=service.name, available=outage is None, reason=reason,
                      until=until, **data)  # fmt: skip

    def tell_throttled(self, service: Service, until: float, details: str) -> None:
        """The far side asked to be left alone until then."""
        used, limit = service.fullest(self.now)
        self.tell("service_rate_limited", service=service.name, until=until, current_rate=used, limit=limit,
                  details=details)  # fmt: skip
        self.tell_availability(service)
        self._throttled[service] = None

    def tell_recovered(self, service: Service) -> None:
        """The time of that service has come: if it was told here that the far side asked for that, tell its end."""
        if service in self._throttled:
            if self.now < service.throttled_until:  # it asked again since
                self.ready.wake_service(service, service.throttled_until)
            else:
                del self._throttled[service]
                self.tell_availability(service)

    def tell_limited(self, service: Service, blocked: Blocked) -> None:
        """A service lets nothing start because of its rate: told at most once a second."""
        told_at = self._told_limited_at
        if self.now - told_at.get(service.name, -math.inf) >= RATE_LIMITED_EVERY:
            told_at.pop(service.name, None)
            told_at[service.name] = self.now
            while self.now - next(iter(told_at.values())) >= RATE_LIMITED_EVERY:  # of keys that are gone, too
                del told_at[next(iter(told_at))]
            used, limit = service.fullest(self.now)
            self.tell("service_rate_limited", service=service.name, until=blocked.until, current_rate=used,
                      limit=limit, details=blocked.details)  # fmt: skip

    @property
    def lag(self) -> float:
        """How long a call has to be given to begin, by what was seen lately."""
        return self._lag * 2.0 ** ((self._lagged_at - self.now) / HALF_LIFE) if self._lag else 0.0

    def slack(self, services: list[Service]) -> float:
        """How long after its grant a call may begin. It has to be possible, or nothing would ever begin."""
        return max(min(service.slack for service in services), SAFE * self.lag)

    def log_starts(self, services: list[Service], records: list[Record], counted_at: float) -> None:
        """Have whoever decides next count these starts."""
        if not self.is_whole:
            names = [service.name for service in services if service.windows]
            self.plan.grants += [
                Grant(name, counted_at, 1, "", record.id) for name in names for record in records
            ]

    def entered(self, entries: list[Entry]) -> None:
        """Granted starts entered their handlers: their windows count from then on."""
        touched: list[Service] = []
        longest = 0.0
        for token, at, began in entries:
            services, granted_at, _ = self.unentered.pop(token, NOT_RATED)
            for service in services:
                service.entered(at)
            if services and token in self.spending:
                self.spending[token].enter(at)
            if services is not touched:
                for service in services:
                    self.ready.touch(service)
                touched = services
            if services and began - granted_at > longest:
                longest = began - granted_at
        if longest > self.lag:
            self._lag, self._lagged_at = longest, self.now

    def was_late(self, token: int) -> None:
        """A call could not begin in time: the next are given more, up to what this one would have needed."""
        if token in self.unentered and self._was_late_at < self.now:
            self._was_late_at = self.now
            services, granted_at, _ = self.unentered[token]
            enough = max(2 * self.lag, min(service.slack for service in services))
            self._lag, self._lagged_at = min(enough, max(self.lag, self.now - granted_at)), self.now

    def judge_circuits(self, token: int, verdict: bool | None) -> None:
        """An attempt ended well, badly, or in a way that proves nothing about its services."""
        for service, breaker, epoch in self.epochs.pop(token, ()):
            if service.breaker is breaker:
                self.changed[service] = None
                self.tell_circuit(service, breaker.ended(epoch, verdict, self.now))
                self.ready.touch(service)

    def returned(self, token: int, work_id: str) -> None:
        """It was never called: what was granted was not used, and whoever decides next counts one less."""
        services, _, counted_at = self.unentered.pop(token)
        spending = self.spending.get(token)
        for service in services:
            service.returned()
            self.ready.touch(service)
            if not self.is_whole and service.windows:
                self.plan.grants.append(Grant(service.name, counted_at, -1, work_id=work_id))
        if spending is not None:
            spending.returned()
            for name, amount in spending.amounts.items():
                self._tell_used(spending, name, -amount)

    # quantities -------------------------------------------------------------------------------------------

    def reserve(self, record: Record, token: int, services: list[Service], counted_at: float) -> None:
        """A start is granted: what it is expected to use of each quantity is taken from here on."""
        metered = tuple(service for service in services if service.meters)
        spending = self.spending[token] = Spending(metered, {}, counted_at, work_id=record.id)
        for name, amount in record.spec.cost:
            for service in self.slots[token].services:
                service.spend_budget(name, amount)
            self._tell_used(spending, name, spending.settle(name, amount))

    def recall(self, record: Record, lane: Lane) -> None:
        """An attempt from before this ledger goes on: what it reserved is counted, and it may say it used more."""
        metered = tuple(service for service in lane.services if service.meters)
        if metered:
            assert self.library is not None
            at = self.now if record.started_at is None else record.started_at
            counted: dict[str, float] = {}
            for service in metered:  # what one charge changes is the same for all of them
                counted |= self.library.spent(record.id, service.name, at)
            self.spending[record.token] = Spending(metered, counted, at, at, True, record.id)

    def charge(self, token: int, amounts: dict[str, float]) -> None:
        """A running attempt says what it has really used so far: that counts from when it was entered."""
        spending = self.spending.get(token)
        if spending is None:
            return
        for name, amount in amounts.items():
            self._tell_used(spending, name, spending.settle(name, amount))
        for service in spending.services:
            self.ready.touch(service)

    def _tell_used(self, spending: Spending, name: str, more: float) -> None:
        """Have whoever decides next count that much more of a quantity."""
        if more and not self.is_whole:
            self.plan.grants += [
                Grant(service.name, spending.counted_at, more, name, spending.work_id)
                for service in spending.services
                if any(meter.name == name for meter in service.meters)
            ]

    def observe(self, token: int, name: str | None, left: Sequence[tuple[str, float, float]]) -> None:
        """The far side of a running attempt said what it will still take, and for how long that holds.

        Calls that are under way here and that it may not have seen yet are taken off.
        """
        lane = self.slots.get(token)
        if lane is None:
            return
        named = [one for one in lane.services if name is not None and name in (one.name, one.base)]
        own = named or [one for one in lane.services if not one.name.startswith("#")]
        for service in own[:1]:
            for quantity, amount, seconds in sorted(left, key=lambda one: (one[1], -one[2]), reverse=True):
                service.observe(quantity, amount - service.under_way(quantity), self.now + seconds)
                self.ready.wake_service(service, self.now + seconds)
            self.ready.touch(service)

    # attempts that no longer count --------------------------------------------------------------------------

    def stop(self, token: int) -> None:
        """Have the code of that attempt told to stop, wherever it runs."""
        member = self.runners.get(token)
        if member is None or member.id == self.worker:
            self.plan.stop.append(token)
        else:
            self.plan.part(member.id).stop.append(token)

    def give_up(self, record: Record) -> None:
        """The attempt of that running work no longer counts, but its code may still run: its places stay taken."""
        token = record.token
        self.overdue[token] = record.id
        member = self.runners.get(token)
        if self.fleet is not None and member is not None:
            spec = record.spec
            given_up = Overdue(token, record.id, spec.task, spec.queue, spec.services, record.chosen)
            self.fleet.give_up(member, given_up)

    def count_run(self, token: int, lane: Lane, member: Member) -> None:
        """An attempt from before this ledger runs there: it takes up its places."""
        self.slots[token] = lane
        self.runners[token] = member
        for service in lane.services:
            service.active += 1
        assert lane.crew is not None
        member.take(lane.crew.needs, 1)
