"""The decisions of one turn, in order. Pure: same records, same time, same answers → same plan.

begin      a turn starts at `now`
catch_up   what this process does not know: everything, where another one decided before
greet      processes that tell who they are
lacks      what the items in the inbox need that is not in mind; the shell reads it, `learn` takes it
take_posts what other processes left: submissions, outcomes, cancellations, verdicts, changes of limits
take_in    the same of this process
plan       what time brought; what to ask; what to start; when to look again
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from runcue.core.ledger.ledger import Ledger
from runcue.core.limits.service import Group, Limits
from runcue.core.model.record import Record
from runcue.core.model.settings import Rule, Settings
from runcue.core.model.state import adjusted
from runcue.core.schedule import admission, outcome, watch
from runcue.core.schedule import takeover as shared
from runcue.core.schedule.gates import Allowance, Questions
from runcue.core.schedule.plan import (
    Adjust,
    Cancel,
    Changes,
    Charge,
    Configure,
    Declare,
    Ended,
    Entered,
    Hello,
    Item,
    Lost,
    Missed,
    Observe,
    Outcome,
    Pause,
    Plan,
    Post,
    Purge,
    ReadRequest,
    ReadResult,
    Revive,
    Serve,
    Submit,
    Tell,
    TurnReader,
    Verdicts,
    Withdraw,
)
from runcue.core.schedule.starting import start
from runcue.errors import UnknownService

NOTHING = ReadRequest()
ANSWERED = frozenset({Submit, Withdraw, Cancel, Revive, Purge, Configure, Declare, Adjust, Pause, Hello})
"""Items that somebody waits for the answer to."""


class Scheduler:
    """Decides; a thin order of steps over the ledger and the parts that change it."""

    def __init__(
        self, settings: Settings, rules: dict[str, Rule], worker: str, is_whole: bool = True
    ) -> None:
        self.ledger = Ledger(settings, rules, worker, is_whole)
        self._status_at = 0.0
        self._takers: dict[type, Callable[[Any], None]] = {
            Submit: self._take_submit,
            Entered: self._take_entered,
            Verdicts: self._take_verdicts,
            Ended: self._take_ended,
            Cancel: self._take_cancel,
            Revive: self._take_revive,
            Purge: self._take_purge,
            Configure: self._take_configure,
            Withdraw: self._take_withdraw,
            Declare: self._take_declare,
            Adjust: self._take_adjust,
            Pause: self._take_pause,
            Tell: self._take_tell,
            Serve: self._take_serve,
            Lost: self._take_lost,
            Charge: self._take_charge,
            Observe: self._take_observe,
            Hello: self._take_hello,
            Missed: self._take_missed,
        }

    @property
    def is_alone(self) -> bool:
        """True when no other process has the queue open."""
        fleet = self.ledger.fleet
        return fleet is None or len(fleet.members) <= 1

    def begin(self, now: float, wall: float, reader: TurnReader | None = None) -> None:
        """A turn begins. A library is given where not all work is in mind."""
        self.ledger.begin(now, wall, reader)

    def catch_up(self, changes: Changes) -> None:
        """Take in what this process does not know yet."""
        shared.catch_up(self.ledger, changes)

    def adopt(self, attempts: Iterable[Record], items: Iterable[Item]) -> None:
        """Go on for a scheduler that was forgotten: the code of these attempts still runs here, counted or not.

        Among `items`, which are yet to be taken in, are the answers of others.
        """
        self.ledger.inherited.adopt(attempts, items)

    def begins(self, given: Iterable[int], posts: Iterable[Post]) -> None:
        """This process is about to begin these attempts, which were decided before. Of others, which have ended, it
        may have left the outcome for whoever decides."""
        outcomes = (item for post in posts for item in post.items if isinstance(item, Outcome))
        self.ledger.inherited.begin((*given, *(outcome.token for outcome in outcomes)))

    def greet(self, items: Iterable[Item], posts: Iterable[Post]) -> None:
        """Processes tell who they are and what they can run: known before anything is decided by it."""
        ledger = self.ledger
        for worker, some in ((ledger.turn.worker, items), *((post.worker, post.items) for post in posts)):
            ledger.turn.act_for(worker)
            for item in some:
                if type(item) is Hello:
                    shared.greet(ledger, item)
        ledger.turn.act_for_itself()

    def keep_here(self, tasks: frozenset[str]) -> None:
        """Units of these tasks are so short that this process runs them itself, if it runs any of them."""
        fleet = self.ledger.fleet
        assert fleet is not None
        fleet.keep(tasks, fleet.members.get(self.ledger.turn.worker))

    def finish(self) -> Plan:
        """The plan of this turn, with what has to be written besides records."""
        return self.ledger.finish()

    def ask_with(self, questions: Questions) -> None:
        """These callbacks are registered now."""
        if questions != self.ledger.ready.questions:
            self.ledger.ask_with(questions)

    def needs(self, items: Sequence[Item]) -> ReadRequest:
        """What has to be read before these items can be decided."""
        ledger = self.ledger
        gates = [
            item
            for item in items
            if type(item) is Revive or type(item) is Purge or (type(item) is Submit and not item.is_plain)
        ]
        if not gates and not ledger.waiting_submits:
            return NOTHING
        wanted = ReadRequest()
        for item in (*gates, *ledger.waiting_submits):
            if isinstance(item, Revive):
                _merge(wanted, outcome.revive_needs(ledger, item))
            elif isinstance(item, Purge):
                wanted.ids.update(item.ids)
            else:
                _merge(wanted, admission.needs(ledger, item))
        return ledger.lookups.unread(wanted)

    def absorb(self, wanted: ReadRequest, found: ReadResult) -> None:
        """This is what the store had of that."""
        self.ledger.lookups.absorb(wanted, found)

    def take_posts(self, posts: Iterable[Post]) -> None:
        """Work through what other processes left, as through one's own inbox."""
        ledger = self.ledger
        assert ledger.fleet is not None
        for post in posts:
            ledger.turn.act_for(post.worker)
            ledger.fleet.heard_of(post.worker, ledger.turn.now)
            for place, item in enumerate(post.items):
                if type(item) in ANSWERED and not (type(item) is Submit and not item.is_answered):
                    ledger.answers.expect(post, place)
            self._take(post.items)
        ledger.turn.act_for_itself()
        ledger.answers.keep(ledger.waiting_submits)

    def waiting_here(self) -> list[Submit]:
        """Submissions of this process that wait for room."""
        ledger = self.ledger
        return [one for one in ledger.waiting_submits if not ledger.answers.is_expected(one)]

    def take_in(self, items: Sequence[Item]) -> None:
        """Work through the inbox."""
        self._take(items)
        if self.ledger.waiting_submits:
            admission.take_waiting(self.ledger)
        self.ledger.grants.recall_starts()
        self.ledger.forget()

    def _take(self, items: Sequence[Item]) -> None:
        ledger, takers = self.ledger, self._takers
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
                takers[type(item)](item)
        if results:
            outcome.take_results(ledger, results)

    def plan(self, may_start: bool, allowance: Allowance) -> Plan:
        """Everything else that is to happen now, and when to look again."""
        ledger = self.ledger
        now = ledger.turn.now
        if ledger.fleet is not None:
            shared.find_lanes(ledger)
            shared.take_back_unread(ledger, ledger.fleet)
            may_start = any(ledger.fleet.serving())
        for record in ledger.timers.due():
            ledger.counters.note_progress()
            ledger.place(record)
        watch.check(ledger)
        ledger.grants.recall_starts()
        for service in ledger.ready.due(now):
            if service.breaker is not None:
                ledger.notices.circuit(service, service.breaker.expire(now))
            ledger.notices.recovered(service)
        if may_start:
            self._start(allowance)
        ledger.forget()
        admission.tell_depth(ledger)
        self._emit_status()
        plan = ledger.turn.plan
        plan.is_whole = True
        plan.wake_at = self._wakes_at(may_start)
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
        """Have these asked about, each by a process that has the callbacks: this one, if it has them."""
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
        shared.ask_anew(ledger, unasked)

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

    # one for each kind of item ----------------------------------------------------------------------------

    def _take_submit(self, item: Submit) -> None:
        answer = admission.take(self.ledger, item)
        if answer is not None:
            self._reply(item, answer)

    def _take_entered(self, item: Entered) -> None:
        self.ledger.grants.entered(item.entries)

    def _take_verdicts(self, item: Verdicts) -> None:
        ledger = self.ledger
        if ledger.gates is not None:
            for verdict in item.verdicts:
                ledger.asked_of.pop(verdict.id, None)
            for record in ledger.gates.answered(item.verdicts):
                if ledger.working.records.get(record.id) is record:
                    outcome.skip(ledger, record)

    def _take_ended(self, item: Ended) -> None:
        outcome.ended(self.ledger, item)

    def _take_cancel(self, item: Cancel) -> None:
        self._reply(item, outcome.cancel(self.ledger, item))

    def _take_revive(self, item: Revive) -> None:
        self._reply(item, outcome.revive(self.ledger, item))

    def _take_purge(self, item: Purge) -> None:
        self._reply(item, outcome.purge(self.ledger, item))

    def _take_configure(self, item: Configure) -> None:
        self.ledger.turn.plan.config.update(item.values)
        self._reply(item, None)

    def _take_withdraw(self, item: Withdraw) -> None:
        ledger, waiting = self.ledger, self.ledger.waiting_submits
        worker, ref = ledger.turn.origin, item.ref
        found = [one for one in waiting
                 if one is item.submit or (ref is not None and ledger.answers.is_at(one, worker, ref))]  # fmt: skip
        for submit in found:
            waiting.remove(submit)
            ledger.answers.drop(submit)
        self._reply(item, bool(found))

    def _take_declare(self, item: Declare) -> None:
        self.declare(item.limits)
        if not item.is_quiet:
            self.ledger.turn.emit("service_status", service=item.limits.name)
            self._reply(item, None)

    def declare(self, limits: Limits) -> None:
        """A service exists with these limits from now on."""
        service = self.ledger.ready.services.declare(limits)
        if service is not None:
            self.ledger.notices.changed(service)

    def _take_adjust(self, item: Adjust) -> None:
        services = self.ledger.ready.services
        declared = {one.name for one in services.values() if one.name[:1] != "#" and not services.is_key(one)}
        if item.service not in declared:
            self._reply(item, UnknownService(item.service, sorted(declared)))
            return
        service = services[item.service]
        services.adjust(service, adjusted(service.limits, item.limits, item.quantities))
        self.ledger.notices.changed(service)
        self.ledger.turn.emit("service_status", service=service.name, limits=str(service.limits))
        self._reply(item, None)

    def _take_pause(self, item: Pause) -> None:
        ledger = self.ledger
        found = ledger.ready.services.find(item.name)
        for service in found.members if isinstance(found, Group) else filter(None, (found,)):
            service.is_paused = item.paused
            ledger.notices.changed(service)
            ledger.ready.touch(service)
            ledger.notices.availability(service, is_always=True, paused=item.paused)
        if found is None:
            ledger.ready.pause_queue(item.name, item.paused)
            ledger.turn.plan.queues[item.name] = item.paused
        self._reply(item, True)

    def _take_serve(self, item: Serve) -> None:
        self.ledger.ready.serve(item.queues)

    def _take_hello(self, item: Hello) -> None:
        """It was greeted before everything else."""
        self._reply(item, None)

    def _take_lost(self, item: Lost) -> None:
        shared.lose(self.ledger, item.worker)

    def _take_missed(self, item: Missed) -> None:
        shared.ask_again(self.ledger, self.ledger.turn.origin)

    def _take_charge(self, item: Charge) -> None:
        self.ledger.grants.charge(item.token, item.amounts)

    def _take_observe(self, item: Observe) -> None:
        lane = self.ledger.capacity.lane_of(item.token)
        if lane is not None:
            self.ledger.grants.observe(lane, item.service, item.left)

    def _take_tell(self, item: Tell) -> None:
        record = None if item.id is None else self.ledger.working.records.get(item.id)
        is_over = record is None or (item.token is not None and item.token != record.token)
        if item.id is None or not is_over:
            self.ledger.turn.emit(item.type, record, **(item.data or {}))

    def _reply(self, item: Item, answer: Any) -> None:
        ledger = self.ledger
        if ledger.turn.origin == ledger.turn.worker or ledger.answers.is_expected(item):
            ledger.answers.reply(item, answer)


def _merge(wanted: ReadRequest, more: ReadRequest) -> None:
    wanted.ids |= more.ids
    wanted.keys |= more.keys
    wanted.dependents_of |= more.dependents_of
