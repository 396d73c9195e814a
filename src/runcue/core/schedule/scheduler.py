"""The decisions of one turn, in order. Pure: same records, same time, same answers → same plan.

begin       a turn starts at `now`
catch_up    take in what the store has and this process does not know: everything, if another process decided before
greet       take in the rules and workers of processes that introduce themselves
needs       which records the items of the inbox need; the engine reads them, `absorb` takes them in
take_posts  take in the items that other processes left: submissions, outcomes, verdicts of callbacks, …
take_in     take in the items of this process
plan        act on what time has brought; choose callbacks to call, units to start, the time of the next turn
finish      add what has to be written besides records
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from runcue.core.ledger.ledger import Ledger
from runcue.core.limits.service import Group, Limits
from runcue.core.model.record import Progress, Record
from runcue.core.model.schedule import NO_CALENDAR, Calendar
from runcue.core.model.settings import Rule, Settings
from runcue.core.model.state import adjusted
from runcue.core.schedule import admission, editing, occurrences, outcome, takeover, watch
from runcue.core.schedule.gates import Allowance, Questions
from runcue.core.schedule.plan import (
    NO_ANSWER,
    Adjust,
    Cancel,
    Changes,
    Charge,
    Configure,
    Declare,
    DeclareSchedules,
    Edit,
    Ended,
    Entered,
    Hello,
    Item,
    Look,
    Lost,
    Missed,
    Observe,
    Outcome,
    Pause,
    PauseSchedule,
    Plan,
    Post,
    Purge,
    PutSchedule,
    ReadRequest,
    ReadResult,
    Revive,
    RunSchedule,
    Serve,
    Submission,
    Submit,
    Tell,
    TurnReader,
    Unschedule,
    Verdicts,
    Withdraw,
)
from runcue.core.schedule.starting import start
from runcue.errors import UnknownService

NOTHING = ReadRequest()
LOOKS_UP = frozenset({Submit, Submission, Revive, Edit, Purge, RunSchedule})
"""Items that may be about stored units."""


class Scheduler:
    """Takes the steps of a turn. What they do is in the ledger and in the modules that change it."""

    def __init__(
        self,
        settings: Settings,
        rules: dict[str, Rule],
        worker: str,
        *,
        is_shared: bool = False,
        calendar: Calendar = NO_CALENDAR,
    ) -> None:
        self.ledger = Ledger(settings, rules, worker, is_shared=is_shared, calendar=calendar)
        self._status_at = 0.0

    @property
    def is_alone(self) -> bool:
        """True when no other process has the queue open."""
        fleet = self.ledger.fleet
        return fleet is None or len(fleet.members) <= 1

    def begin(self, now: float, wall: float, reader: TurnReader | None = None) -> None:
        """Begin a turn. A reader is given where not all live records are loaded."""
        self.ledger.begin(now, wall, reader)

    def catch_up(self, changes: Changes) -> None:
        """Take in what the store has and this process does not know."""
        takeover.catch_up(self.ledger, changes)

    def adopt(self, attempts: Iterable[Record], items: Iterable[Item]) -> None:
        """Go on for a scheduler that was dropped, with the attempts whose code still runs here. Other attempts have
        answered since: their outcomes are among `items`, which are yet to be taken in."""
        self.ledger.inherited.adopt(attempts, items)

    def begins(self, given: Iterable[int], posts: Iterable[Post]) -> None:
        """Note the attempts that this process is about to begin, and those whose outcome is in a post it has left."""
        outcomes = (item for post in posts for item in post.items if isinstance(item, Outcome))
        self.ledger.inherited.begin((*given, *(outcome.token for outcome in outcomes)))

    def greet(self, items: Iterable[Item], posts: Iterable[Post]) -> None:
        """Take in who the processes are and what they can run, before anything is decided with that."""
        ledger = self.ledger
        mine = ledger.turn.worker
        said = [(post.worker, post.items) for post in posts]
        # What this process had left in a post, before it took over, is older than its items.
        before, others = ([one for one in said if (one[0] == mine) is is_mine] for is_mine in (True, False))
        for worker, some in (*before, (mine, items), *others):
            if Hello not in map(type, some):
                continue
            ledger.turn.act_for(worker)
            for item in some:
                if type(item) is Hello:
                    takeover.greet(ledger, item)
        ledger.turn.act_for_itself()
        # The limits that this process declares say how far back stored starts have to be counted.
        if Declare in map(type, items):
            for item in items:
                if type(item) is Declare and item.is_quiet:
                    _declare(ledger, item)

    def keep_here(self, tasks: frozenset[str]) -> None:
        """Have this process run all units of these short tasks itself, if it can run them."""
        fleet = self.ledger.fleet
        assert fleet is not None
        fleet.keep(tasks, fleet.members.get(self.ledger.turn.worker))

    def finish(self) -> Plan:
        """The plan of this turn, complete with what has to be written besides records."""
        return self.ledger.finish()

    def ask_with(self, questions: Questions) -> None:
        """Take in which callbacks the application has registered."""
        if questions != self.ledger.ready.questions:
            self.ledger.ask_with(questions)

    def needs(self, items: Sequence[Item]) -> ReadRequest:
        """What has to be read before these items can be decided."""
        ledger = self.ledger
        some: list[Item] = []
        if not LOOKS_UP.isdisjoint(map(type, items)):
            some = [item for item in items if type(item) in LOOKS_UP and not _is_plain(item)]
        if not some and not ledger.waiting_submits and not ledger.schedules.due():
            return NOTHING
        wanted = ReadRequest()
        occurrences.add_needs(ledger, wanted)
        for item in (*some, *ledger.waiting_submits):
            if isinstance(item, Revive):
                outcome.add_needs(ledger, item, wanted)
            elif isinstance(item, Purge):
                wanted.ids.update(item.ids)
            elif isinstance(item, Edit):
                wanted.ids.add(item.id)
            elif isinstance(item, RunSchedule):
                occurrences.add_needs_of_run(ledger, item, wanted)
            else:
                submit = item.submit if isinstance(item, Submission) else item
                assert isinstance(submit, Submit)
                admission.add_needs(ledger, submit, wanted)
        return ledger.lookups.unread(wanted)

    def absorb(self, wanted: ReadRequest, found: ReadResult) -> None:
        """Take in what the store had of a request."""
        self.ledger.lookups.absorb(wanted, found)

    def take_posts(self, posts: Iterable[Post]) -> None:
        """Take in the items that other processes left."""
        ledger = self.ledger
        assert ledger.fleet is not None
        for post in posts:
            ledger.turn.act_for(post.worker)
            if post.worker:
                ledger.fleet.heard_of(post.worker, ledger.turn.now)
            for place, item in enumerate(post.items if post.worker else ()):
                if type(item) in REQUESTS and not (type(item) is Submit and not item.is_answered):
                    ledger.answers.expect(post, place)
            self._take(post.items)
        ledger.turn.act_for_itself()
        ledger.answers.keep(ledger.waiting_submits)

    def waiting_here(self) -> list[Submit]:
        """The submissions of this process that wait for room in the queue."""
        ledger = self.ledger
        return [one for one in ledger.waiting_submits if not ledger.answers.is_expected(one)]

    def take_in(self, items: Sequence[Item]) -> None:
        """Take in the items of this process."""
        self._take(items)
        if self.ledger.waiting_submits:
            admission.take_waiting(self.ledger)
        self.ledger.grants.recall_starts()
        self.ledger.forget()

    def _take(self, items: Sequence[Item]) -> None:
        ledger = self.ledger
        results: list[Outcome] = []
        for item in items:
            if type(item) is Outcome and item.failure is None:
                results.append(item)
                continue
            if results:
                outcome.take_results(ledger, results)
                results = []
            if type(item) is Outcome:
                outcome.take(ledger, item)
            else:
                _take_item(ledger, item)
        if results:
            outcome.take_results(ledger, results)

    def plan(self, may_start: bool, allowance: Allowance) -> Plan:
        """Act on what time has brought, start what may start, and choose when to take the next turn."""
        ledger = self.ledger
        now = ledger.turn.now
        if ledger.fleet is not None:
            takeover.find_lanes(ledger)
            takeover.take_back_unread(ledger, ledger.fleet)
            may_start = any(ledger.fleet.serving())
        for record in ledger.timers.due():
            ledger.counters.note_progress()
            ledger.place(record)
        watch.check(ledger)
        occurrences.submit_due(ledger)
        ledger.grants.recall_starts()
        for service in ledger.ready.due(now):
            if service.breaker is not None:
                ledger.notices.circuit(service, service.breaker.expire(now))
            ledger.notices.recovered(service)
        if may_start:
            self._start(allowance)
        ledger.forget()
        admission.emit_depth(ledger)
        self._emit_status()
        plan = ledger.turn.plan
        plan.is_whole = True
        plan.wake_at = self._wakes_at(may_start)
        plan.waits_for_wall = min(ledger.timers.next_by_wall(), ledger.schedules.next_by_wall()) != math.inf
        return plan

    def _start(self, allowance: Allowance) -> None:
        ledger = self.ledger
        gates = ledger.gates
        if gates is not None:
            gates.begin(allowance, ledger.turn.now)
        ledger.ready.begin()
        grant = partial(start, ledger)
        ledger.ready.choose(ledger.turn.now, grant)
        while ledger.waiting_submits:
            waiting = len(ledger.waiting_submits)
            admission.take_waiting(ledger)
            if len(ledger.waiting_submits) == waiting:
                break
            ledger.ready.choose(ledger.turn.now, grant)
        if gates is not None:
            self._ask(gates.wanted(), allowance.again - gates.again_left)
        for service, blocked in ledger.ready.limited:
            ledger.notices.limited(service, blocked)
        ledger.ready.limited.clear()
        ledger.drop_idle_lanes()

    def _ask(self, wanted: list[Record], again: int) -> None:
        """Have callbacks called about these units, each in a process that has them: in this one, if it can."""
        ledger, plan = self.ledger, self.ledger.turn.plan
        if ledger.fleet is None:
            self._ask_by(plan, wanted, again)
            return
        by_worker: dict[str, list[Record]] = {}
        unasked: list[str] = []
        for record in wanted:
            task = record.spec.task
            judge = ledger.fleet.judge(task, ledger.lanes.questions_of(task).kinds, ledger.turn.worker)
            if judge is None:
                unasked.append(record.id)
            else:
                by_worker.setdefault(judge, []).append(record)
        for worker, records in by_worker.items():
            if worker == ledger.turn.worker:
                self._ask_by(plan, records, min(again, len(records)))
            else:
                self._ask_by(plan.part(worker), records, min(again, len(records)))
                ledger.asked_of.update(dict.fromkeys((record.id for record in records), worker))
                ledger.fleet.given(worker, ledger.turn.now)
        takeover.ask_anew(ledger, unasked)

    def _ask_by(self, plan: Plan, records: list[Record], again: int) -> None:
        ledger = self.ledger
        plan.ask, plan.again = records, again
        if any(ledger.lanes.questions_of(task).score for task in {record.spec.task for record in records}):
            plan.depth = ledger.counters.pending
            plan.pressure = {
                name: service.pressure(ledger.turn.now)
                for name, service in ledger.ready.services.items()
                if not name.startswith("#")
            }

    def _wakes_at(self, may_start: bool) -> float:
        ledger = self.ledger
        times = [watch.wakes_at(ledger), ledger.ready.wakes_at(), ledger.timers.next_at()]
        times.append(ledger.schedules.next_at())
        if ledger.fleet is not None:
            times.append(ledger.fleet.wakes_at())
        if ledger.gates is not None and may_start:
            times.append(ledger.gates.wakes_at(ledger.turn.now))
        if ledger.counters.running or ledger.counters.has_moved:
            times.append(self._status_at)
        if ledger.ready.has_more and may_start:
            times.append(ledger.turn.now)
        return min(times)

    def _emit_status(self) -> None:
        ledger, counters, now = self.ledger, self.ledger.counters, self.ledger.turn.now
        if now >= self._status_at and (counters.running or counters.moved_at == now):
            self._status_at = now + ledger.lanes.settings.status_interval
            counts: dict[str, Any] = {state.value: amount for state, amount in counters.counts.items()}
            ledger.turn.emit("queue_status", **counts)

    def declare(self, limits: Limits) -> None:
        """Declare a service, or change its limits."""
        _declare(self.ledger, Declare(limits, is_quiet=True))


def _is_plain(item: Item) -> bool:
    return type(item) is Submit and item.is_plain


# what each kind of item does -------------------------------------------------------------------------------


def _take_item(ledger: Ledger, item: Item) -> None:
    request = REQUESTS.get(type(item))
    if request is None:
        REPORTS[type(item)](ledger, item)
        return
    answer = request(ledger, item)
    if answer is NO_ANSWER:
        return
    if ledger.turn.origin == ledger.turn.worker or ledger.answers.is_expected(item):
        ledger.answers.reply(item, answer)


def _declare(ledger: Ledger, item: Declare) -> object:
    service = ledger.ready.services.declare(item.limits)
    if service is not None:
        ledger.notices.changed(service)
    if item.is_quiet:
        return NO_ANSWER
    ledger.turn.emit("service_status", service=item.limits.name)
    return None


def _adjust(ledger: Ledger, item: Adjust) -> UnknownService | None:
    services = ledger.ready.services
    declared = {one.name for one in services.values() if one.name[:1] != "#" and not services.is_key(one)}
    if item.service not in declared:
        return UnknownService(item.service, sorted(declared))
    service = services[item.service]
    services.adjust(service, adjusted(service.limits, item.limits, item.quantities))
    ledger.notices.changed(service)
    ledger.turn.emit("service_status", service=service.name, limits=str(service.limits))
    return None


def _pause(ledger: Ledger, item: Pause) -> bool:
    found = ledger.ready.services.find(item.name)
    for service in found.members if isinstance(found, Group) else filter(None, (found,)):
        service.is_paused = item.paused
        ledger.notices.changed(service)
        ledger.ready.touch(service)
        ledger.notices.availability(service, is_always=True, paused=item.paused)
    if found is None:
        ledger.ready.pause_queue(item.name, item.paused)
        ledger.turn.plan.queues[item.name] = item.paused
    return True


def _take_verdicts(ledger: Ledger, item: Verdicts) -> None:
    if ledger.gates is not None:
        for verdict in item.verdicts:
            ledger.asked_of.pop(verdict.id, None)
        for record in ledger.gates.answered(item.verdicts):
            if ledger.working.records.get(record.id) is record:
                outcome.skip(ledger, record)


def _observe(ledger: Ledger, item: Observe) -> None:
    lane = ledger.capacity.lane_of(item.token)
    if lane is not None:
        ledger.grants.observe(lane, item.service, item.left)


def _emit(ledger: Ledger, item: Tell) -> None:
    record = None if item.id is None else ledger.working.records.get(item.id)
    if record is None or (item.token is not None and item.token != record.token):
        if item.id is None:
            ledger.turn.emit(item.type, **(item.data or {}))
        return
    data = item.data or {}
    if item.type == "progress":
        record = replace(record, progress=Progress(data.get("fraction"), data.get("text")))
        ledger.working.write(record)
    ledger.turn.emit(item.type, record, **data)


REQUESTS: dict[type, Callable[[Ledger, Any], object]] = {
    Submit: admission.take,
    Withdraw: admission.withdraw,
    Cancel: outcome.cancel,
    Revive: outcome.revive,
    Edit: editing.edit,
    Purge: outcome.purge,
    Configure: lambda ledger, item: ledger.turn.plan.config.update(item.values),
    Declare: _declare,
    Adjust: _adjust,
    Pause: _pause,
    PutSchedule: occurrences.put,
    Unschedule: occurrences.remove,
    PauseSchedule: occurrences.pause,
    RunSchedule: occurrences.run,
    Hello: lambda ledger, item: None,  # taken in by `greet` already
}
"""The items that a process waits for the answer to: what they do returns the answer."""

REPORTS: dict[type, Callable[[Ledger, Any], object]] = {
    Entered: lambda ledger, item: ledger.grants.entered(item.entries),
    Verdicts: _take_verdicts,
    Ended: outcome.ended,
    Charge: lambda ledger, item: ledger.grants.charge(item.token, item.amounts),
    Observe: _observe,
    Tell: _emit,
    Serve: lambda ledger, item: ledger.ready.serve(item.queues),
    Lost: lambda ledger, item: takeover.lose(ledger, item.worker),
    Missed: lambda ledger, item: takeover.ask_again(ledger, ledger.turn.origin),
    Submission: admission.take_submission,
    DeclareSchedules: occurrences.declare,
    Look: lambda ledger, item: None,  # the turn has taken what it announces
}
"""The items that are not answered, apart from `Outcome`."""
