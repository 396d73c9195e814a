"""A bench to try the scheduler on: it plays the shell, the store and the world, and keeps the time.

A turn is `bench.turn(items…)`; the verbs below (`submit`, `finish`, `fail`, `cancel`, …) each make one. What was
decided is read from `bench.plan`, from the records the store keeps and from what was told.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from runcue.core.limits.meter import Cost
from runcue.core.limits.service import Limits
from runcue.core.model.events import draft_of
from runcue.core.model.failure import Failure, Kind
from runcue.core.model.group import GroupCounts
from runcue.core.model.parse import Rate
from runcue.core.model.record import Extras, Record, Spec, WorkState
from runcue.core.model.retry import Retry
from runcue.core.model.schedule import Schedule
from runcue.core.model.settings import Rule, Settings
from runcue.core.model.state import Quantity
from runcue.core.schedule.gates import Allowance, Questions, Verdict
from runcue.core.schedule.plan import (
    Cancel,
    Charge,
    Declare,
    Edit,
    Ended,
    Entered,
    Item,
    Observe,
    Outcome,
    Pause,
    Plan,
    Purge,
    ReadRequest,
    ReadResult,
    Revive,
    Submit,
    Tell,
    Verdicts,
    Withdraw,
)
from runcue.core.schedule.scheduler import Scheduler
from runcue.core.views.explain import Explanation, explain
from runcue.host.calendar import SystemCalendar

TAG = "thisproc"
START = 1_000.0
SLOW_RETRY = Retry(max_attempts=3, backoff="fixed", base_delay=10, jitter=False)


def limits(name: str = "api", *, rate: tuple[int, float] | None = None, **options: Any) -> Limits:
    """A service's limits, with one rate as (starts, seconds)."""
    return Limits(name, rates=() if rate is None else (Rate(*rate),), **options)


def sells(name: str = "api", *, rate: tuple[int, float] | None = None, **amounts: Any) -> Limits:
    """A service with quantities, each with a rate as (amount, seconds) or a list of them; other options as above."""
    options = {key: amounts.pop(key) for key in list(amounts) if key in Limits.__struct_fields__}
    quantities = [
        Quantity(key, tuple(Rate(*one) for one in (given if isinstance(given, list) else [given])))
        for key, given in amounts.items()
    ]
    return limits(name, rate=rate, quantities=tuple(quantities), **options)


def costs(**amounts: float) -> Cost:
    """What a start is expected to use of each quantity."""
    return tuple(amounts.items())


class FakeStore:
    """A store in a dict: the latest record of each work, and the final states of what is kept no longer."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.forgotten: dict[str, WorkState] = {}
        self.groups_kept: dict[str, GroupCounts] = {}
        self.schedules: dict[str, Schedule] = {}
        self._by_key: dict[str, str] = {}

    def commit(self, plan: Plan) -> None:
        for name, schedule in plan.schedules.items():
            self.schedules.pop(name, None)
            if schedule is not None:
                self.schedules[name] = schedule
        for name, counts in plan.groups.items():
            self.groups_kept.pop(name, None)
            if counts is not None:
                self.groups_kept[name] = counts
        for work_id in plan.purged:  # their ids and keys may belong to new work
            purged = self.records.pop(work_id)
            key = purged.spec.idempotency_key
            if key is not None and self._by_key[key] == work_id:
                del self._by_key[key]
            if not purged.spec.is_named:
                self.forgotten[work_id] = purged.state
        for record in plan.records.values():
            self.records[record.id] = record
            key = record.spec.idempotency_key
            if key is not None:
                owner = self.records.get(self._by_key.get(key, ""), record)
                self._by_key[key] = max(owner, record, key=lambda either: either.seq).id
        for work_id in plan.forget:
            record = self.records.pop(work_id)
            if record.spec.is_named or record.state is not WorkState.COMPLETED:
                self.forgotten[work_id] = record.state

    def find(self, request: ReadRequest) -> ReadResult:
        owners = {key: self._by_key[key] for key in request.keys if key in self._by_key}
        return ReadResult(
            records={work_id: self.records[work_id] for work_id in request.ids if work_id in self.records},
            keys={key: self.records[owner] for key, owner in owners.items() if owner in self.records},
            unique_keys={
                key: newest for key in request.unique_keys if (newest := self._newest(key)) is not None
            },
            dependents={need: self._failed_dependents(need) for need in request.dependents_of},
            forgotten={work_id: self.forgotten[work_id] for work_id in request.ids & self.forgotten.keys()},
        )

    def _newest(self, unique_key: str) -> Record | None:
        same = [record for record in self.records.values() if record.spec.unique_key == unique_key]
        return max(same, key=lambda record: record.seq, default=None)

    def _failed_dependents(self, need: str) -> list[Record]:
        return [
            record
            for record in self.records.values()
            if need in record.spec.depends_on and record.state is WorkState.FAILED
        ]


class Bench:
    """One scheduler with its store and its clocks. Everything started enters its handler at once."""

    def __init__(
        self,
        *services: Limits,
        retry: Retry | int | None = None,
        rules: dict[str, Rule] | None = None,
        questions: Questions | None = None,
        allowance: Allowance | None = None,
        **settings: Any,
    ) -> None:
        self.now = START
        self.wall = START
        self.may_start = True
        self.enters_at_once = True
        self.allowance = allowance or Allowance()
        self.rules = rules or {"task": Rule(Retry.of(retry))}
        self.scheduler = Scheduler(Settings(**settings), self.rules, TAG, calendar=SystemCalendar())
        for service in services or (limits(),):
            self.scheduler.declare(service)
        if questions is not None:
            self.scheduler.ask_with(questions)
        self.store = FakeStore()
        self.plan = Plan()
        self.plans: list[Plan] = []
        self.tokens: dict[str, int] = {}
        self._entered: list[Item] = []
        self._made = 0

    # turns ------------------------------------------------------------------------------------------------

    def turn(self, *items: Item) -> Plan:
        """One whole turn at this moment."""
        inbox = [*self._entered, *items]
        scheduler = self.scheduler
        scheduler.begin(self.now, self.wall)
        while request := scheduler.needs(inbox):
            scheduler.absorb(request, self.store.find(request))
        scheduler.take_in(inbox)
        scheduler.plan(self.may_start, self.allowance)
        self.plan = plan = scheduler.finish()
        self.plans.append(plan)
        self.store.commit(plan)
        self.tokens.update((record.id, record.token) for record in plan.start)
        self._entered = [
            Entered([(record.token, self.now, self.now)]) for record in plan.start if self.enters_at_once
        ]
        return plan

    def after(self, seconds: float, *items: Item) -> Plan:
        """Let time pass, on both clocks, and make a turn."""
        self.now += seconds
        self.wall += seconds
        return self.turn(*items)

    def wake(self) -> Plan:
        """Sleep until the scheduler wants to look again, and make that turn."""
        return self.after(self.plan.wake_at - self.now)

    def reply(self, item: Item) -> Any:
        """Make a turn for one item and give what it was answered with; a refusal is raised."""
        self.turn(item)
        return self.answer_to(item)

    def answer_to(self, item: Item) -> Any:
        """What the last turn answered to an item; None when it did not yet."""
        answer = next((answer for asked, answer in self.plan.replies if asked is item), None)
        if isinstance(answer, Exception):
            raise answer
        return answer

    # verbs ------------------------------------------------------------------------------------------------

    def spec(
        self,
        id: str | None = None,
        /,
        *,
        services: Sequence[str] = ("api",),
        needs: Iterable[str] = (),
        key: str | None = None,
        task: str = "task",
        params: bytes = b"{}",
        **fields: Any,
    ) -> Spec:
        """What the edge makes of a submission."""
        self._made += 1
        return Spec(
            id=id or f"{self._made:011}{TAG}{self._made:08}",
            task=task,
            params=params,
            services=tuple(services),
            depends_on=tuple(needs),
            idempotency_key=key,
            is_named=id is not None,
            **fields,
        )

    def expiring(self, id: str, seconds: float, **fields: Any) -> Spec:
        """A submission that has to start within so many seconds."""
        return self.spec(id, extras=Extras(expires=seconds), **fields)

    def submission(self, *ids: str | Spec | None, may_wait: bool = False, **fields: Any) -> Submit:
        """A submission of several works that are alike, or of specs."""
        specs = [spec if isinstance(spec, Spec) else self.spec(spec, **fields) for spec in ids]
        is_plain = not any(
            spec.is_named
            or spec.depends_on
            or spec.idempotency_key
            or spec.unique_key
            or spec.group
            or spec.tags
            for spec in specs
        )
        return Submit(specs, is_plain, may_wait, has_cost=any(spec.cost for spec in specs))

    def submit(self, *ids: str | Spec | None, **fields: Any) -> Any:
        """Submit work and give the ids it was answered with."""
        return self.reply(self.submission(*(ids or (None,)), **fields))

    def success(self, work_id: str, result: Any = None) -> Outcome:
        """The latest attempt of that work returned."""
        return Outcome(work_id, self.tokens[work_id], result=result)

    def failure(self, work_id: str, kind: Kind = "error", *, after: float | None = None,
                service: str | None = None, message: str = "boom", has_ended: bool = True) -> Outcome:  # fmt: skip
        """The latest attempt of that work raised."""
        failure = Failure(kind, message, "Traceback …", after, service)
        return Outcome(work_id, self.tokens[work_id], failure=failure, has_ended=has_ended)

    def finish(self, work_id: str, result: Any = None) -> Plan:
        return self.turn(self.success(work_id, result))

    def fail(self, work_id: str, kind: Kind = "error", **options: Any) -> Plan:
        return self.turn(self.failure(work_id, kind, **options))

    def time_out(self, work_id: str) -> Plan:
        """The latest attempt ran out of time, and its code cannot be stopped."""
        return self.fail(work_id, "timeout", message="timeout", has_ended=False)

    def end(self, work_id: str, *, has_answer: bool = False) -> Plan:
        """The code of the latest attempt has really ended."""
        return self.turn(Ended(work_id, self.tokens[work_id], has_answer))

    def enter(self, work_id: str) -> Plan:
        """The latest attempt of that work enters its handler now."""
        return self.turn(Entered([(self.tokens[work_id], self.now, self.now)]))

    def charge(self, work_id: str, **amounts: float) -> Plan:
        """The latest attempt of that work says what it has really used."""
        return self.turn(Charge(self.tokens[work_id], amounts))

    def observe(self, work_id: str, *left: tuple[str, float, float], service: str | None = None) -> Plan:
        """The far side told the latest attempt of that work how much it will still take, and for how long."""
        return self.turn(Observe(self.tokens[work_id], service, left))

    def cancel(self, work_id: str, *, cascade: bool = False) -> Any:
        return self.reply(Cancel(work_id, cascade))

    def progress(self, work_id: str, fraction: float | None = None, text: str | None = None) -> Plan:
        """The latest attempt of that work reports how far it is."""
        data = {"fraction": fraction, "text": text}
        return self.turn(Tell("progress", work_id, data, self.tokens[work_id]))

    def revive(self, work_id: str, *, cascade: bool = False) -> Any:
        return self.reply(Revive(work_id, cascade))

    def edit(self, work_id: str, **changes: Any) -> Any:
        return self.reply(Edit(work_id, **changes))

    def purge(self, *work_ids: str) -> Any:
        return self.reply(Purge([*work_ids]))

    def pause(self, name: str) -> Any:
        return self.reply(Pause(name, True))

    def resume(self, name: str) -> Any:
        return self.reply(Pause(name, False))

    def declare(self, service: Limits) -> Any:
        return self.reply(Declare(service))

    def withdraw(self, submit: Submit) -> Any:
        return self.reply(Withdraw(submit))

    def verdict(self, work_id: str, **said: Any) -> Verdict:
        return Verdict(work_id, self.now, **said)

    def answer(self, *work_ids: str, **said: Any) -> Plan:
        """The callbacks say the same about each of these."""
        return self.turn(Verdicts([self.verdict(work_id, **said) for work_id in work_ids]))

    # what came of it --------------------------------------------------------------------------------------

    def record(self, work_id: str) -> Record:
        return self.store.records[work_id]

    def state(self, work_id: str) -> str:
        return self.store.records[work_id].state.value

    def states(self) -> dict[str, str]:
        return {record.id: record.state.value for record in self.store.records.values()}

    def error(self, work_id: str) -> str | None:
        return self.store.records[work_id].error

    @property
    def started(self) -> list[str]:
        """The ids that the last turn starts, in order."""
        return [record.id for record in self.plan.start]

    @property
    def asked(self) -> list[str]:
        """The ids that the last turn asks about."""
        return [record.id for record in self.plan.ask]

    @property
    def running(self) -> list[str]:
        return [record.id for record in self.store.records.values() if record.state is WorkState.RUNNING]

    def told(self, type: str) -> list[str | None]:
        """The ids of everything of that type that was ever told."""
        return [
            event.record.id if event.record else None
            for plan in self.plans
            for event in map(draft_of, plan.events)
            if event.type == type
        ]

    def facts(self, type: str) -> list[dict[str, Any]]:
        """What else belonged to each of those."""
        return [
            (event.data or {}) | ({"exception": plan.errors[place]} if place in plan.errors else {})
            for plan in self.plans
            for place, event in enumerate(map(draft_of, plan.events))
            if event.type == type
        ]

    def why(self, work_id: str, *, is_started: bool = True) -> Explanation:
        """Why that work waits, right now."""
        return explain(self.scheduler.ledger, self.record(work_id), self.now, self.wall, is_started)
