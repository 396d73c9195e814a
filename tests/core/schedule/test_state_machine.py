"""Random lives of many works against a plain model: lists and loops that look at everything, every time.

The model knows nothing of lanes, heaps or parking. With works that need at most one service, the order of starts
must be the model's exactly; with several services, where a slot may be kept for older work, every start must be
allowed and everything left unstarted must be explained.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from runcue.core.ledger.ledger import STRICT_STEP
from runcue.core.limits.service import Limits
from runcue.core.model.failure import Failure
from runcue.core.model.parse import Rate
from runcue.core.model.record import Spec
from runcue.core.model.retry import Retry
from runcue.core.model.settings import Rule
from runcue.core.schedule.outcome import SHORTEST_PAUSE
from runcue.core.schedule.plan import Cancel, Declare, Ended, Entered, Item, Outcome, Pause, Plan, Revive
from runcue.errors import DependencyCycle, DuplicateWork, WorkNotFound
from tests.core.bench_of_core import Bench
from tests.sample import fewer

ATTEMPTS = 2
RETRY_AFTER = 2.0
THROTTLE_TIMEOUT = 5.0
RULES = {task: Rule(Retry(ATTEMPTS, "fixed", RETRY_AFTER, jitter=False)) for task in ("task", "other")}

NAMES = [f"w{number}" for number in range(10)]
PER = {"cap": None, "rate": 4.0, "both": 5.0, "free": None}
ONE_SERVICE = [(), ("cap",), ("rate",), ("both",), ("free",)]
SEVERAL = [("cap", "both"), ("both", "cap"), ("cap", "rate"), ("rate", "cap", "both")]

ids = st.sampled_from(NAMES)
picks = st.integers(0, 30)
amounts = st.integers(1, 3)
steps = st.sampled_from([0.0, 0.0, 0.5, 1.0, 3.0, None])
kinds = st.sampled_from(
    [
        "success",
        "success",
        "success",
        "error",
        "error",
        "permanent",
        "throttled",
        "throttled",
        "snoozed",
        "timeout",
    ]
)
specs = st.fixed_dictionaries(
    {
        "id": st.one_of(st.none(), st.none(), ids),
        "needs": st.one_of(st.just([]), st.lists(st.one_of(picks, ids), max_size=2)),
        "services": st.integers(0, 8),
        "task": st.sampled_from(["task", "other"]),
        "queue": st.sampled_from(["default", "default", "nightly"]),
        "priority": st.sampled_from([0, 0, 0, 1, -1, 0.05]),
        "delay": st.sampled_from([None, None, None, 3.0]),
    }
)
PLAIN: dict[str, Any] = {
    "id": None,
    "needs": [],
    "services": 0,
    "task": "task",
    "queue": "default",
    "priority": 0,
    "delay": None,
}


@dataclass
class Work:
    """What the model remembers of one work."""

    spec: Spec
    seq: int
    rank: float
    due_at: float
    state: str = "pending"
    attempt: int = 1
    spent: int = 0
    failures: int = 0
    error: str | None = None
    token: int = 0
    started_at: float = 0.0
    throttled_since: float | None = None
    patience_until: float | None = None

    @property
    def key(self) -> tuple[float, int]:
        return self.rank, self.seq


@dataclass
class Service:
    """What the model remembers of one service: every entry there ever was."""

    name: str
    cap: int | None
    limit: int | None
    per: float | None
    is_paused: bool = False
    throttled_at: float = -1.0
    throttled_until: float = 0.0
    streak: int = 0
    entries: list[float] = field(default_factory=list)
    has_changed: bool = False

    def limits(self) -> Limits:
        rates = () if self.limit is None or self.per is None else (Rate(self.limit, self.per),)
        return Limits(self.name, self.cap, rates)


class Model:
    """The obviously right scheduler: it looks at everything, every time."""

    def __init__(self, services: list[Service], keep: int, age_step: float | None) -> None:
        self.services = {service.name: service for service in services}
        self.keep = keep
        self.step = STRICT_STEP if age_step is None else age_step
        self.now = 0.0
        self.works: dict[str, Work] = {}
        self.ended_at: dict[str, int] = {}
        self.turn = 0
        self.forgotten: set[str] = set()
        self.slots: dict[int, Work] = {}
        self.unentered: set[int] = set()
        self.paused_queues: set[str] = set()
        self.seq = 0

    # looking ----------------------------------------------------------------------------------------------

    def pending(self) -> list[Work]:
        return sorted(
            (work for work in self.works.values() if work.state == "pending"), key=lambda work: work.key
        )

    def overdue(self) -> list[int]:
        """Attempts that no longer count although their code still runs."""
        return [token for token, work in sorted(self.slots.items()) if work.token != token]

    def has_lost(self) -> bool:
        return any(work.state in {"failed", "cancelled"} for work in self.works.values())

    def never_submitted(self) -> set[str]:
        return {need for work in self.pending() for need in work.spec.depends_on if need not in self.works}

    def has_code_running(self, work: Work) -> bool:
        return any(holder is work for holder in self.slots.values())

    def is_capped(self, service: Service) -> bool:
        active = sum(service.name in work.spec.services for work in self.slots.values())
        return service.cap is not None and active >= service.cap

    def has_room(self, service: Service, at: float) -> bool:
        return not self.is_capped(service) and self.is_open(service, at)

    def is_open(self, service: Service, at: float) -> bool:
        """True when nothing but its cap can keep work from starting there."""
        if service.is_paused or at < service.throttled_until:
            return False
        if service.limit is None or service.per is None:
            return True
        unentered = sum(service.name in self.slots[token].spec.services for token in self.unentered)
        return sum(at - entry < service.per for entry in service.entries) + unentered < service.limit

    def rooms(self, service: Service, at: float) -> int:
        """How many starts are possible there, as far as it matters whether that is one."""
        if not self.has_room(service, at):
            return 0
        active = sum(service.name in work.spec.services for work in self.slots.values())
        unentered = sum(service.name in self.slots[token].spec.services for token in self.unentered)
        left = [2]
        if service.cap is not None:
            left.append(service.cap - active)
        if service.limit is not None and service.per is not None:
            recent = sum(at - entry < service.per for entry in service.entries)
            left.append(service.limit - recent - unentered)
        return min(left)

    def wants_to_start(self, work: Work, at: float) -> bool:
        """True when nothing but its services keeps it from starting."""
        return (
            work.state == "pending"
            and work.due_at <= at
            and work.spec.queue not in self.paused_queues
            and not self.has_code_running(work)
            and all(
                self.works[need].state == "completed" for need in work.spec.depends_on if need in self.works
            )
            and all(need in self.works for need in work.spec.depends_on)
        )

    def may_start(self, work: Work, at: float) -> bool:
        return self.wants_to_start(work, at) and all(
            self.has_room(self.services[name], at) for name in work.spec.services
        )

    def is_kept_back(self, work: Work, at: float) -> bool:
        """True when the last place in one of its services is kept for older work that needs several."""
        return any(
            older.key < work.key
            and len(older.spec.services) > 1
            and any(name in older.spec.services and self.rooms(self.services[name], at) == 1
                    for name in work.spec.services)
            and self._lacks_one_slot(older, at)
            for older in self.pending()
            if self.wants_to_start(older, at)
        )  # fmt: skip

    def _lacks_one_slot(self, work: Work, at: float) -> bool:
        services = [self.services[name] for name in work.spec.services]
        full = [service for service in services if not self.has_room(service, at)]
        return len(full) == 1 and self.is_open(full[0], at)

    def next_start_at(self) -> float | None:
        """The first moment at which something may start although nothing else happens."""
        times = {work.due_at for work in self.pending()}
        for service in self.services.values():
            times.add(service.throttled_until)
            times.update(entry + service.per for entry in service.entries if service.per is not None)
        for at in sorted(time for time in times if time > self.now):
            if any(self.may_start(work, at) and not self.is_kept_back(work, at) for work in self.pending()):
                return at
        return None

    # moves ------------------------------------------------------------------------------------------------

    def expected_refusal(self, specs: list[Spec]) -> type[Exception] | None:
        given = [spec.id for spec in specs]
        if len(set(given)) < len(given) or any(work_id in self.works for work_id in given):
            return DuplicateWork
        return DependencyCycle if self._has_ring({spec.id: spec for spec in specs}) else None

    def _has_ring(self, fresh: dict[str, Spec]) -> bool:
        def needs(work_id: str) -> tuple[str, ...]:
            if work_id in fresh:
                return fresh[work_id].depends_on
            work = self.works.get(work_id)
            return work.spec.depends_on if work is not None and work.state in {"pending", "running"} else ()

        def reaches(here: str, goal: str, seen: set[str]) -> bool:
            seen.add(here)
            return any(
                need == goal or (need not in seen and reaches(need, goal, seen)) for need in needs(here)
            )

        return any(reaches(work_id, work_id, set()) for work_id in fresh)

    def submit(self, specs: list[Spec]) -> None:
        accepted = []
        for spec in specs:
            self.seq += 1
            due_at = self.now + (spec.delay or 0)
            work = Work(spec, self.seq, due_at - self.step * spec.priority, due_at)
            self.works[spec.id] = work
            accepted.append(work)
        for work in accepted:
            self.join(work)

    def join(self, work: Work) -> None:
        if work.state != "pending":
            return
        states = [self.works[need].state for need in work.spec.depends_on if need in self.works]
        for state in ("failed", "cancelled"):
            if state in states:
                self.end(work, "failed", f"prerequisite_{state}")
                return

    def start(self, work: Work, token: int) -> None:
        assert self.may_start(work, self.now), work
        work.state, work.token, work.attempt = "running", token, work.spent + 1
        work.started_at, work.patience_until = self.now, None
        self.slots[token] = work
        self.unentered.add(token)

    def enter(self, token: int) -> None:
        self.unentered.discard(token)
        for name in self.slots[token].spec.services:
            self.services[name].entries.append(self.now)

    def release(self, token: int) -> None:
        self.slots.pop(token, None)
        self.unentered.discard(token)

    def end(self, work: Work, state: str, error: str | None = None, cascade: bool = False) -> None:
        lost = [work]
        self.end_one(work, state, error)
        for done in lost if state != "completed" else []:
            for other in self.works.values():
                if done.spec.id in other.spec.depends_on and other.state == "pending":
                    if cascade:
                        self.end_one(other, "cancelled", "prerequisite_cancelled")
                    else:
                        self.end_one(other, "failed", f"prerequisite_{done.state}")
                    lost.append(other)

    def end_one(self, work: Work, state: str, error: str | None) -> None:
        if state == "cancelled" and work.token:  # the start that is cancelled has its number for itself
            work.spent = work.attempt
        work.state, work.error, work.token, work.patience_until = state, error, 0, None
        self.ended_at[work.spec.id] = self.turn

    def forget(self, forgotten: list[str]) -> None:
        """The oldest are forgotten, and no more than necessary; within one turn, any order will do."""
        assert len(forgotten) == max(0, len(self.ended_at) - self.keep)
        turns = [self.ended_at.pop(work_id) for work_id in forgotten]
        assert not turns or max(turns) <= min(self.ended_at.values(), default=self.turn)
        self.forgotten.update(forgotten)

    def outcome(self, work_id: str, token: int, kind: str, after: float | None) -> None:
        work = self.works[work_id]
        counts = work.token == token
        if kind != "timeout":  # after a timeout the code still runs, whether it counted or not
            self.release(token)
        if not counts:
            return
        work.token = 0
        if kind == "success":
            for name in work.spec.services:
                if work.started_at > self.services[name].throttled_at:
                    self.services[name].streak = 0
            work.spent = work.attempt
            self.end(work, "completed")
        elif kind == "throttled":
            self._throttled(work, after)
        elif kind == "snoozed":
            pause = max(after or 0, SHORTEST_PAUSE)
            work.state, work.due_at, work.throttled_since = "pending", self.now + pause, None
        else:
            work.failures += 1
            work.spent, work.throttled_since, work.error = work.attempt, None, "boom"
            if kind == "permanent" or work.failures >= ATTEMPTS:
                self.end(work, "failed", "boom")
            else:
                work.state = "pending"
                work.due_at = self.now + (RETRY_AFTER if after is None else after)

    def _throttled(self, work: Work, after: float | None) -> None:
        work.throttled_since = self.now if work.throttled_since is None else work.throttled_since
        put_off_for = self.now - work.throttled_since
        if work.spec.services:
            self._pause(work, after)
        if put_off_for >= THROTTLE_TIMEOUT:
            self.end(work, "failed", "rate_limited")
            return
        work.state, work.patience_until = "pending", work.throttled_since + THROTTLE_TIMEOUT
        if not work.spec.services:
            work.due_at = self.now + (min(1.0 + put_off_for, 60.0) if after is None else after)

    def _pause(self, work: Work, after: float | None) -> None:
        service = self.services[work.spec.services[0]]
        service.throttled_at = self.now
        if after is None and self.now < service.throttled_until:
            return
        if after is None:
            after = min(2.0**service.streak, 60.0)
            service.streak += 1
        service.throttled_until = max(service.throttled_until, self.now + after)

    def lose_patience(self) -> None:
        """Work that was put off fails at its limit if it still has to wait for that."""
        for work in self.pending():
            if work.patience_until is None or work.patience_until > self.now:
                continue
            work.patience_until = None
            services = [self.services[name] for name in work.spec.services]
            if work.due_at > self.now or any(service.throttled_until > self.now for service in services):
                self.end(work, "failed", "rate_limited")

    def cancel(self, work_id: str, cascade: bool) -> bool:
        work = self.works.get(work_id)
        if work is None or work.state not in {"pending", "running"}:
            return False
        self.end(work, "cancelled", "cancelled", cascade)
        return True

    def company(self, work_id: str, cascade: bool) -> list[Work]:
        """Everybody that is revived with that work: those that failed because it did, and so on."""
        found = [self.works[work_id]]
        for lost in found:
            found += [
                work
                for work in self.works.values()
                if cascade
                and lost.spec.id in work.spec.depends_on
                and (work.state, str(work.error)[:13]) == ("failed", "prerequisite_")
                and work.spec.id not in self.forgotten
                and work not in found
            ]
        return found

    def expected_revival(self, work_id: str, cascade: bool) -> bool | type[Exception]:
        if work_id not in self.works or work_id in self.forgotten:
            return WorkNotFound
        if self.works[work_id].state not in {"failed", "cancelled"}:
            return False
        company = {work.spec.id: work.spec for work in self.company(work_id, cascade)}
        ring = cascade and any(self._rings(company, here, here, set()) for here in company)
        return DependencyCycle if ring else True

    def _rings(self, specs: dict[str, Spec], here: str, goal: str, seen: set[str]) -> bool:
        seen.add(here)
        return any(
            need == goal or (need not in seen and self._rings(specs, need, goal, seen))
            for need in specs[here].depends_on
            if need in specs
        )

    def revive(self, work_id: str, cascade: bool, seqs: Callable[[str], int]) -> None:
        company = self.company(work_id, cascade)
        for work in company:
            del self.ended_at[work.spec.id]
            work.state, work.error, work.failures, work.throttled_since = "pending", None, 0, None
            work.seq = seqs(work.spec.id)
            work.due_at = min(work.due_at, max(self.now, work.rank + self.step * work.spec.priority))
        self.seq += len(company)
        for work in company:
            self.join(work)


class Machine(RuleBasedStateMachine):
    """Fills an inbox with random items; each turn gives them to the scheduler and to the model."""

    @initialize(
        caps=st.tuples(amounts, amounts),
        rates=st.tuples(amounts, amounts),
        keep=st.sampled_from([100, 100, 0, 2]),
        age_step=st.sampled_from([60.0, None]),
        has_several=st.booleans(),
    )
    def begin(
        self,
        caps: tuple[int, int],
        rates: tuple[int, int],
        keep: int,
        age_step: float | None,
        has_several: bool,
    ) -> None:
        services = [
            Service("cap", caps[0], None, None),
            Service("rate", None, rates[0], PER["rate"]),
            Service("both", caps[1], rates[1], PER["both"]),
            Service("free", None, None, None),
        ]
        self.model = Model(services, keep, age_step)
        self.bench = Bench(*[service.limits() for service in services], rules=RULES, keep_finished=keep,
                           age_step=age_step, throttle_timeout=THROTTLE_TIMEOUT)  # fmt: skip
        self.bench.enters_at_once = False
        self.has_several = has_several
        self.inbox: list[tuple[Item, Callable[[Plan], None]]] = []
        self.made = 0

    # what may happen (a step of None: nothing is decided yet, more comes into the same turn) --------------

    def name(self, pick: int | str) -> str:
        """A name that was picked by number means one that is in use."""
        if isinstance(pick, str) or not self.model.works:
            return str(pick)
        return list(self.model.works)[pick % len(self.model.works)]

    def pick_of(self, states: set[str], pick: int) -> str:
        works = [work_id for work_id, work in self.model.works.items() if work.state in states]
        return works[pick % len(works)] if works else NAMES[pick % len(NAMES)]

    def spec(self, given: dict[str, Any]) -> Spec:
        choices = ONE_SERVICE + (SEVERAL if self.has_several else [])
        work_id = given["id"]
        if work_id is None:
            self.made += 1
            work_id = f"made {self.made}"
        fields = {
            **given,
            "services": choices[given["services"] % len(choices)],
            "needs": [self.name(pick) for pick in given["needs"]],
        }
        del fields["id"]
        return self.bench.spec(work_id, **fields)

    @rule(given=st.lists(specs, min_size=1, max_size=4), step=steps)
    def submit(self, given: list[dict[str, Any]], step: float | None) -> None:
        chosen = [self.spec(fields) for fields in given]
        item = self.bench.submission(*chosen)

        def follow(plan: Plan) -> None:
            refusal = self.model.expected_refusal(chosen)
            answer = self.answer(plan, item)
            if refusal is None:
                assert answer == [spec.id for spec in chosen]
                self.model.submit(chosen)
            else:
                assert type(answer) is refusal

        self.take(item, follow, step)

    @precondition(lambda self: self.model.slots)
    @rule(pick=picks, kind=kinds, after=st.sampled_from([None, None, 1.5, 3.0, 10.0]), step=steps)
    def come_back(self, pick: int, kind: str, after: float | None, step: float | None) -> None:
        tokens = sorted(self.model.slots)
        token = tokens[pick % len(tokens)]
        work_id = self.model.slots[token].spec.id
        item = Outcome(work_id, token)
        if kind != "success":
            failure = Failure(kind, "boom", after=after)  # type: ignore[arg-type]
            item = Outcome(work_id, token, failure=failure, has_ended=kind != "timeout")
        self.take(item, lambda plan: self.model.outcome(work_id, token, kind, after), step)

    @precondition(lambda self: self.model.overdue())
    @rule(pick=picks, step=steps)
    def really_end(self, pick: int, step: float | None) -> None:
        overdue = self.model.overdue()
        token = overdue[pick % len(overdue)]
        item = Ended(self.model.slots[token].spec.id, token)
        self.take(item, lambda plan: self.model.release(token), step)

    @precondition(lambda self: len(self.model.works) > 2)
    @rule(pick=picks, cascade=st.booleans(), step=steps)
    def cancel(self, pick: int, cascade: bool, step: float | None) -> None:
        work_id = self.pick_of({"pending", "running"}, pick)
        item = Cancel(work_id, cascade)

        def follow(plan: Plan) -> None:
            assert self.answer(plan, item) is self.model.cancel(work_id, cascade)

        self.take(item, follow, step)

    @precondition(lambda self: self.model.has_lost())
    @rule(pick=picks, cascade=st.booleans(), step=steps)
    def revive(self, pick: int, cascade: bool, step: float | None) -> None:
        work_id = self.pick_of({"failed", "cancelled"}, pick)
        item = Revive(work_id, cascade)

        def follow(plan: Plan) -> None:
            expected = self.model.expected_revival(work_id, cascade)
            answer = self.answer(plan, item)
            assert answer is expected or type(answer) is expected
            if expected is True:
                self.model.revive(work_id, cascade, lambda revived: plan.records[revived].seq)

        self.take(item, follow, step)

    @precondition(lambda self: len(self.model.works) > 2)
    @rule(name=st.sampled_from(["cap", "rate", "both", "nightly"]), paused=st.booleans(), step=steps)
    def pause(self, name: str, paused: bool, step: float | None) -> None:
        def follow(plan: Plan) -> None:
            if name in self.model.services:
                self.model.services[name].is_paused = paused
            elif paused:
                self.model.paused_queues.add(name)
            else:
                self.model.paused_queues.discard(name)

        self.take(Pause(name, paused), follow, step)

    @precondition(lambda self: len(self.model.works) > 2)
    @rule(name=st.sampled_from(["cap", "rate", "both"]), cap=amounts, limit=amounts, step=steps)
    def change_limits(self, name: str, cap: int, limit: int, step: float | None) -> None:
        old = self.model.services[name]
        new = Service(name, old.cap and cap, old.limit and limit, old.per)

        def follow(plan: Plan) -> None:
            service = self.model.services[name]
            service.cap, service.limit, service.has_changed = new.cap, new.limit, True

        self.take(Declare(new.limits()), follow, step)

    @rule(enters=st.sampled_from(["none", "first", "all"]), step=st.sampled_from([0.0, 1.0, 10.0]))
    def enter_late(self, enters: str, step: float) -> None:
        self.make_turn(step, enters)

    @precondition(lambda self: not self.inbox and self.bench.plan.wake_at < self.bench.now + 1000)
    @rule()
    def sleep_until_woken(self) -> None:
        self.make_turn(max(0.0, self.bench.plan.wake_at - self.bench.now), "all")

    def take(self, item: Item, follow: Callable[[Plan], None], step: float | None) -> None:
        self.inbox.append((item, follow))
        if step is not None:
            self.make_turn(step, "all")

    # a turn, and what must be true after it ---------------------------------------------------------------

    @staticmethod
    def answer(plan: Plan, item: Item) -> Any:
        return next(answer for asked, answer in plan.replies if asked is item)

    def make_turn(self, step: float, enters: str) -> None:
        model, bench = self.model, self.bench
        model.turn += 1
        model.now = bench.now = bench.now + step
        bench.wall = bench.now
        waiting = sorted(model.unentered)
        entering = {"all": waiting, "none": [], "first": waiting[:1]}[enters]
        for token in entering:
            model.enter(token)
        plan = bench.turn(
            *[Entered([(token, bench.now, bench.now)]) for token in entering],
            *[item for item, _ in self.inbox],
        )
        for _, follow in self.inbox:
            follow(plan)
        self.inbox = []
        model.lose_patience()
        self.check_starts(plan)
        model.forget(plan.forget)
        self.check_records()
        self.check_limits()
        self.check_sleep(plan)

    def check_starts(self, plan: Plan) -> None:
        model = self.model
        for record in plan.start:
            best = next((work for work in model.pending() if model.may_start(work, model.now)), None)
            assert best is not None, record
            if not self.has_several:
                assert record.id == best.spec.id
            model.start(model.works[record.id], record.token)
        left = [work for work in model.pending() if model.may_start(work, model.now)]
        assert all(model.is_kept_back(work, model.now) for work in left), left
        assert self.has_several or not left

    def check_records(self) -> None:
        model, store = self.model, self.bench.store
        assert store.records.keys() | store.forgotten.keys() == model.works.keys()
        assert store.records.keys() & model.forgotten == set()
        for work_id, record in store.records.items():
            work = model.works[work_id]
            assert (record.state.value, record.attempt, record.failures) == (
                work.state,
                work.attempt,
                work.failures,
            )
            assert (record.token, record.seq, record.rank) == (work.token, work.seq, work.rank)
            if work.state != "pending":
                assert record.error == work.error
        ledger = self.bench.scheduler.ledger
        assert ledger.counters.pending == sum(work.state == "pending" for work in model.works.values())
        assert ledger.counters.running == sum(work.state == "running" for work in model.works.values())
        for state, number in ledger.counters.counts.items():
            assert number == sum(work.state == state for work in model.works.values())

    def check_limits(self) -> None:
        model = self.model
        for service in model.services.values():
            if service.has_changed:
                continue
            active = sum(service.name in work.spec.services for work in model.slots.values())
            assert service.cap is None or active <= service.cap
            if service.limit is not None and service.per is not None:
                for first in service.entries:
                    within = [entry for entry in service.entries if 0 <= entry - first < service.per]
                    assert len(within) <= service.limit

    def check_sleep(self, plan: Plan) -> None:
        next_start = self.model.next_start_at()
        assert next_start is None or plan.wake_at <= next_start
        ends = [work.patience_until for work in self.model.pending() if work.patience_until is not None]
        assert not ends or plan.wake_at <= min(ends)

    def teardown(self) -> None:
        """Whatever happened: when everything is let go and answers, all work comes to its end."""
        if not hasattr(self, "model"):
            return
        model = self.model
        for name in ("cap", "rate", "both", "nightly"):
            self.pause(name, paused=False, step=None)
        self.make_turn(0.0, "all")
        while missing := model.never_submitted():
            self.submit([{**PLAIN, "id": missing.pop()}], 0.0)
        for _ in range(1000):
            if not model.slots and not model.pending():
                return
            self.let_all_come_back()
            step = 0.0 if model.slots else min(max(0.0, self.bench.plan.wake_at - model.now), 60.0)
            self.make_turn(step, "all")
        raise AssertionError(f"left over: {model.pending()}")

    def let_all_come_back(self) -> None:
        for token, work in list(self.model.slots.items()):
            if work.token == token:
                follow = partial(self.succeeded, work.spec.id, token)
                self.take(Outcome(work.spec.id, token), follow, None)
            else:
                self.take(Ended(work.spec.id, token), partial(self.ended, token), None)

    def succeeded(self, work_id: str, token: int, plan: Plan) -> None:
        self.model.outcome(work_id, token, "success", None)

    def ended(self, token: int, plan: Plan) -> None:
        self.model.release(token)


Machine.TestCase.settings = settings(max_examples=fewer(100, 15), stateful_step_count=40, deadline=None)
# A failure takes its time to be made small.
TestAnyLife = pytest.mark.no_cover(pytest.mark.timeout(600)(Machine.TestCase))
