"""The checker finds every broken promise by the name of its rule, and nothing where there is none."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import runcue
from runcue.sim.check import RULES, Asked, Checker, Limits, Rules, Task, rules_of
from runcue.sim.config import Config, ServiceConfig, Workload
from runcue.sim.promise import Call
from runcue.sim.timetable import ScheduleConfig

BEGAN = 1_700_000_000.0
RETRY = runcue.Retry(max_attempts=2, backoff="fixed", base_delay=2, jitter=False)


SCHEDULES = {
    "s": ScheduleConfig(every=10.0, task="call"),
    "all": ScheduleConfig(every=10.0, task="call", missed="all", overlap="queue"),
    "minute": ScheduleConfig(cron="* * * * *", task="call", overlap="queue"),
}


def text_of(moment: float) -> str:
    """A moment as events of schedules have it."""
    return datetime.fromtimestamp(moment, UTC).isoformat()


class Tale:
    """A history told by hand: events with their numbers, and calls. Times are seconds since it began."""

    def __init__(self, **limits: Any) -> None:
        service = Limits(**limits)
        tasks = {"call": Task(("api",), RETRY), "other": Task(("api",), RETRY), "free": Task((), RETRY)}
        tasks["any"] = Task(("gpu_*",), RETRY)
        services = {"api": service, "gpu_a": service, "gpu_b": service}
        self.checker = Checker(Rules(services, tasks, 10.0, SCHEDULES))
        self.calls: list[Call] = []
        self.counts: dict[str, int] = {}
        self.now = 0.0
        self._seq = 0

    def tell(self, type: str, work: str | None = None, *, at: float | None = None, **more: Any) -> Tale:
        """The next event, at the same moment as the last unless told otherwise."""
        self.now = self.now if at is None else at
        self._seq = more.pop("seq", self._seq + 1)
        task = more.pop("task", "call") if work else None
        event = runcue.Event(type, self._seq, BEGAN + self.now, work, task, **more)
        self.checker(event)
        if event.final or type == "queued":
            state = {"queued": "pending", "skipped": "completed"}.get(type, type)
            self.counts[state] = self.counts.get(state, 0) + 1
            self.counts["pending"] -= type != "queued"
        return self

    def queued(self, *works: str, at: float | None = None, **asked: Any) -> Tale:
        """These were submitted and accepted."""
        for work in works:
            self.checker.submitted(Asked(work, **asked))
            self.tell("queued", work, at=at)
        return self

    def started(self, work: str, at: float | None = None, attempt: int = 1, **more: Any) -> Tale:
        """It was started, and its handler entered."""
        services = more.setdefault("services", ("api",))
        event = {"service": services[0], **({"task": more.pop("task")} if "task" in more else {})}
        self.tell("started", work, at=at, attempt=attempt, **event)
        self.calls.append(Call(work, attempt, "one", BEGAN + self.now, **more))
        return self

    def left(self, work: str, at: float, how: str = "ok") -> Tale:
        """Its handler is over."""
        call = [call for call in self.calls if call.work_id == work][-1]
        call.left_at, call.how, self.now = BEGAN + at, how, at
        return self

    def completed(self, work: str, at: float, attempt: int = 1) -> Tale:
        """Its handler returned, and that was kept."""
        return self.left(work, at).tell("completed", work, attempt=attempt, final=True)

    def failed(self, work: str, at: float, attempt: int = 1, again_at: float | None = None) -> Tale:
        """Its handler raised; it is tried again then, or was tried for the last time."""
        self.left(work, at, "error")
        self.tell("failed", work, attempt=attempt, error="OSError", final=again_at is None)
        if again_at is not None:
            self.tell("retrying", work, attempt=attempt + 1, data={"next_retry_at": BEGAN + again_at})
        return self

    def added(self, name: str, at: float = 0) -> Tale:
        """A schedule was added; nobody expects slots after the end of the history."""
        return self.tell("schedule_changed", at=at, data={"schedule": name, "change": "added"})

    def fired(self, name: str, slot: float, at: float | None = None, unit: str | None = None) -> Tale:
        """A schedule submitted the unit of a slot, which ends at once."""
        unit = f"{name}{slot}" if unit is None else unit
        self.checker.submitted(Asked(unit, has_time=True))
        said = {"schedule": name, "unit": unit, "slot": text_of(BEGAN + slot)}
        self.tell("schedule_fired", at=slot if at is None else at, data=said)
        return whole(self, unit, self.now, length=0.5)

    def skipped(self, name: str, slot: float, until: float, reason: str, at: float) -> Tale:
        """A schedule left slots out."""
        said = {"slot": text_of(BEGAN + slot), "until": text_of(BEGAN + until), "reason": reason}
        return self.tell("schedule_skipped", at=at, data={"schedule": name, **said})

    def over(self) -> Tale:
        """No slot is expected later than now."""
        self.checker.slots.ends_at = BEGAN + self.now
        return self

    def broken(self) -> list[str]:
        """The rules that were broken, in order."""
        return [one.rule for one in self.checker.finish(self.calls, self.counts, BEGAN + self.now + 60)]


def whole(tale: Tale, work: str, at: float, length: float = 1.0) -> Tale:
    """One work from its submission to its end."""
    return tale.queued(work, at=at).started(work).completed(work, at + length)


# --- a good and a bad history for each rule --------------------------------------------------------


def order(good: bool) -> Tale:
    return Tale().queued("a").tell("queue_status", seq=2 if good else 3)


def time_goes_on(good: bool) -> Tale:
    return Tale().queued("a", at=5).tell("queue_status", at=5 if good else 4)


def no_gap(good: bool) -> Tale:
    return Tale().queued("a").tell("queue_status" if good else "gap", data={"missed": 2})


def life(good: bool) -> Tale:
    tale = whole(Tale(), "a", at=0)
    if not good:
        tale.tell("completed", "a", attempt=1)
    return tale


def retried_by_hand(good: bool) -> Tale:
    tale = Tale().queued("a").started("a").failed("a", at=1)
    if good:
        tale.checker.retried("a")
    tale.counts = {}
    return tale.tell("queued", "a", at=2).started("a", attempt=2).completed("a", at=3, attempt=2)


def lost(good: bool) -> Tale:
    tale = Tale().queued("a")
    tale.checker.accepted("a" if good else "b", BEGAN)
    return tale


def lost_in_the_end(good: bool) -> Tale:
    tale = whole(Tale(), "a", at=0)
    tale.checker.stands({"a": "completed" if good else "running"})
    return tale


def counted(good: bool) -> Tale:
    tale = whole(Tale(), "a", at=0)
    tale.counts["failed"] = 0 if good else 1
    return tale


def cancelled(good: bool) -> Tale:
    tale = Tale().queued("a")
    tale.checker.cancelled("a", BEGAN)
    return tale.tell("cancelled", "a", final=True) if good else tale.started("a").completed("a", at=1)


def nobody_asked(good: bool) -> Tale:
    return Tale().queued("a") if good else Tale().queued("a").tell("queued", "b")


def result(good: bool) -> Tale:
    tale = Tale().queued("a").started("a")
    return tale.left("a", 1, "ok" if good else "cancelled").tell("completed", "a", attempt=1, final=True)


def late_result(good: bool) -> Tale:
    tale = Tale().queued("a").started("a").left("a", 1)
    return tale.tell("completed", "a", at=1 if good else 0.5, attempt=1, final=True)


def overlap(good: bool) -> Tale:
    tale = Tale().queued("a").started("a").failed("a", at=1, again_at=3).started("a", at=3, attempt=2)
    tale.calls[0].left_at = BEGAN + (1 if good else 3.5)
    return tale.completed("a", at=4, attempt=2)


def not_started(good: bool) -> Tale:
    tale = whole(Tale(), "a", at=0)
    if not good:
        tale.calls.insert(0, Call("a", 7, "one", BEGAN, ("api",), BEGAN, "error"))
    return tale


def never_accepted(good: bool) -> Tale:
    tale = whole(Tale(), "a", at=0)
    if not good:
        tale.calls.append(Call("ghost", 1, "one", BEGAN, ("api",), BEGAN, "ok"))
    return tale


def attempts(good: bool) -> Tale:
    number = 2 if good else 1
    tale = Tale().queued("a").started("a").failed("a", at=1, again_at=3)
    tale.tell("started", "a", at=3, attempt=number)
    return tale


def too_many_failures(good: bool) -> Tale:
    tale = Tale().queued("a").started("a").failed("a", at=1, again_at=3).started("a", at=3, attempt=2)
    return tale.failed("a", at=4, attempt=2, again_at=None if good else 6)


def robbed(good: bool) -> Tale:
    tale = Tale().queued("a").started("a").left("a", at=1, how="died")
    if good:
        tale.checker.died("one", BEGAN + 1)
    return tale.started("a", at=2, attempt=2).completed("a", at=3, attempt=2)


def three_crashes(good: bool) -> Tale:
    tale = Tale().queued("a")
    for number in range(1, 4):
        tale.started("a", at=number, attempt=number).left("a", at=number + 0.5, how="died")
        tale.checker.died("one", BEGAN + tale.now)
    if good:
        return tale.tell("failed", "a", error="worker_lost", final=True)
    return tale.started("a", at=5, attempt=4).completed("a", at=6, attempt=4)


def refused_at_first(good: bool) -> Tale:
    """One node was refused; another, which began the same attempt at that moment, died or did not."""
    tale = Tale().queued("a").started("a").left("a", at=0, how="refused").started("a")
    tale.calls[-1].node = "two"
    if good:
        tale.checker.died("two", BEGAN + 1)
    return tale.left("a", at=1, how="died").started("a", at=2, attempt=2).completed("a", at=3, attempt=2)


def retry(good: bool) -> Tale:
    return (
        Tale()
        .queued("a")
        .started("a")
        .failed("a", at=1, again_at=3)
        .started("a", at=3 if good else 2.9, attempt=2)
    )


def retry_by_policy(good: bool) -> Tale:
    return Tale().queued("a").started("a").failed("a", at=1, again_at=3 if good else 1.5)


def dependencies(good: bool) -> Tale:
    tale = Tale().queued("a").queued("b", depends_on=("a",)).started("a")
    return tale.completed("a", at=1).started("b") if good else tale.started("b", at=1)


def dependents_fail(good: bool) -> Tale:
    tale = Tale().queued("a").queued("b", depends_on=("a",)).started("a").failed("a", at=1)
    return tale.tell("failed", "b", at=1 if good else 2, error="prerequisite_failed", final=True)


def failed_before(good: bool) -> Tale:
    tale = Tale().queued("a").started("a").failed("a", at=1).queued("b", at=2, depends_on=("a",))
    return tale.tell("failed", "b", at=2 if good else 3, error="prerequisite_failed", final=True)


def keys(good: bool) -> Tale:
    tale = Tale().queued("a", key="k")
    if good:
        tale.tell("cancelled", "a", final=True)
    return tale.queued("b", key="k")


def opened(**limits: Any) -> Tale:
    tale = Tale(circuit_timeout=5.0, **limits).queued("a", "b", "c")
    return tale.started("a").tell("circuit_opened", at=1, service="api").failed("a", at=1)


def circuit(good: bool) -> Tale:
    tale = opened().started("b", at=6 if good else 3)
    return tale.tell("circuit_half_open", service="api") if good else tale


def circuit_says_so(good: bool) -> Tale:
    tale = opened().started("b", at=6)
    return tale.tell("circuit_half_open", service="api") if good else tale.tell("queue_status", at=7)


def one_probe(good: bool) -> Tale:
    tale = opened().started("b", at=6).tell("circuit_half_open", service="api")
    if good:
        tale.left("b", at=7, how="cancelled").tell("cancelled", "b", final=True)
    return tale.started("c", at=8)


def lost_probe(good: bool) -> Tale:
    tale = opened().started("b", at=6).tell("circuit_half_open", service="api")
    if good:
        tale.checker.died("one", BEGAN + 7)
        tale.left("b", at=7, how="died")
    return tale.started("c", at=8)


def longer_wait(good: bool) -> Tale:
    tale = opened().started("b", at=6).tell("circuit_half_open", service="api")
    tale.tell("circuit_opened", at=7, service="api").failed("b", at=7)
    return tale.started("c", at=17 if good else 13).tell("circuit_half_open", service="api")


def closes_after_a_probe(good: bool) -> Tale:
    tale = opened().started("b", at=6).tell("circuit_half_open", service="api").completed("b", at=7)
    return tale.tell("circuit_closed", service="api").tell(
        "circuit_closed" if not good else "queue_status", service="api"
    )


def half_open_after_open(good: bool) -> Tale:
    return opened().tell("queue_status" if good else "circuit_half_open", service="api")


def priority(good: bool) -> Tale:
    tale = Tale().queued("low").queued("high", priority=1)
    for work in ("high", "low") if good else ("low", "high"):
        tale.started(work)
    return tale


def priority_after_retry(good: bool) -> Tale:
    tale = Tale().queued("a").started("a").failed("a", at=1, again_at=3).queued("b", at=2)
    for work, number in (("a", 2), ("b", 1)) if good else (("b", 1), ("a", 2)):
        tale.started(work, at=4, attempt=number)
    return tale


def starvation(good: bool) -> Tale:
    tale = Tale().queued("old", at=0).queued("young", at=11, priority=1)
    for work in ("old", "young") if good else ("young", "old"):
        tale.started(work)
    return tale


def rate(good: bool) -> Tale:
    tale = Tale(rates=((2, 10.0),))
    for number, at in enumerate((0, 9, 10 if good else 9.9)):
        whole(tale, f"w{number}", at=at, length=0.1)
    return tale


def several_rates(good: bool) -> Tale:
    tale = Tale(rates=((2, 1.0), (3, 100.0)))
    for number in range(3 if good else 4):
        whole(tale, f"w{number}", at=10.0 * number)
    return tale


def concurrency(good: bool) -> Tale:
    tale = Tale(concurrent=2).queued("a", "b", "c").started("a").started("b").left("a", at=1)
    return tale.started("c", at=1 if good else 0.5)


def amount(good: bool) -> Tale:
    tale = Tale(quantities={"tokens": ((100, 10.0),)}).queued("a", "b", "c", cost={"tokens": 50})
    tale.started("a").completed("a", at=1).started("b").completed("b", at=2)
    return tale.started("c", at=10 if good else 9.9)


def charged_more(good: bool) -> Tale:
    tale = Tale(quantities={"tokens": ((100, 10.0),)}).queued("a", "b", cost={"tokens": 50})
    tale.started("a", charges=[("tokens", 20), ("tokens", 30 if good else 31)]).completed("a", at=1)
    return tale.started("b", at=2)


def failed_and_charged(good: bool) -> Tale:
    tale = Tale(quantities={"tokens": ((100, 10.0),)}).queued("a", "b", cost={"tokens": 50})
    tale.started("a", charges=[("tokens", 80)]).failed("a", at=1)
    return tale.started("b", at=10 if good else 2)


def charged_while_it_runs(good: bool) -> Tale:
    """What was charged is known for certain once there is an answer: until then the estimate may stand."""
    tale = Tale(quantities={"tokens": ((100, 10.0),)}).queued("a", "b", cost={"tokens": 50 if good else 51})
    return tale.started("a", charges=[("tokens", 80)]).started("b", at=1).completed("a", at=2)


def amount_of_a_key(good: bool) -> Tale:
    tale = Tale(per="account", each=Limits(quantities={"tokens": ((100, 10.0),)}))
    for work, account in (("a", "ann"), ("b", "bob" if good else "ann")):
        tale.queued(work, keys={"account": account}, cost={"tokens": 60})
        tale.started(work, services=(f"api[{account}]", "api"))
    return tale


def rate_of_a_key(good: bool) -> Tale:
    tale = Tale(per="account", each=Limits(rates=((1, 10.0),)))
    for work, account in (("a", "ann"), ("b", "bob" if good else "ann")):
        tale.queued(work, keys={"account": account}).started(work, services=(f"api[{account}]", "api"))
    return tale


def total(good: bool) -> Tale:
    tale = Tale(concurrent=2 if good else 1, per="account", each=Limits(concurrent=1))
    for work in ("ann", "bob"):
        tale.queued(work, keys={"account": work}).started(work, services=(f"api[{work}]", "api"))
    return tale


def circuit_of_a_key(good: bool) -> Tale:
    tale = Tale(per="account", each=Limits(circuit_timeout=5.0)).tell("circuit_opened", service="api[ann]")
    account = "bob" if good else "ann"
    return tale.queued("a", keys={"account": account}, at=1).started("a", services=(f"api[{account}]", "api"))


def member(good: bool) -> Tale:
    tale = Tale(concurrent=1)
    for work, name in (("a", "gpu_a"), ("b", "gpu_b" if good else "gpu_a")):
        tale.tell("queued", work, task="any").started(work, task="any", services=(name,))
    return tale


def circuit_of_a_member(good: bool) -> Tale:
    tale = (
        Tale(circuit_timeout=5.0)
        .tell("circuit_opened", service="gpu_a")
        .tell("queued", "a", at=1, task="any")
    )
    return tale.started("a", task="any", services=("gpu_b" if good else "gpu_a",))


def own_key(good: bool) -> Tale:
    tale = Tale(per="account", each=Limits(concurrent=1)).queued("a", keys={"account": "ann"})
    return tale.started("a", services=("api[ann]" if good else "api[bob]", "api"))


def own_members(good: bool) -> Tale:
    tale = Tale().tell("queued", "a", task="any")
    return tale.started("a", task="any", services=("gpu_b" if good else "api",))


def slot_once(good: bool) -> Tale:
    return Tale().added("s").fired("s", 10).fired("s", 20 if good else 10, at=20, unit="b").over()


def slots_in_order(good: bool) -> Tale:
    return Tale().added("s").fired("s", 10).fired("s", 20 if good else 30, at=30).over()


def slot_in_time(good: bool) -> Tale:
    return Tale().added("s").fired("s", 10, at=10 if good else 9).over()


def slot_forgotten(good: bool) -> Tale:
    tale = Tale().added("s").fired("s", 10)
    return (tale.fired("s", 20) if good else tale).tell("queue_status", at=31).over()


def slot_before_the_end(good: bool) -> Tale:
    tale = Tale().added("s").fired("s", 10)
    return tale.tell(
        "schedule_changed", at=15 if good else 31, data={"schedule": "s", "change": "paused"}
    ).over()


def slot_without_unit(good: bool) -> Tale:
    tale = Tale().added("s")
    if good:
        return tale.fired("s", 10).over()
    said = {"schedule": "s", "unit": "a", "slot": text_of(BEGAN + 10)}
    return tale.tell("schedule_fired", at=10, data=said).over()


def slot_left_out(good: bool) -> Tale:
    """For the unit before it, which takes long."""
    tale = Tale().added("s").fired("s", 10)
    tale.queued("long", at=12).started("long")
    tale.tell("schedule_fired", data={"schedule": "s", "unit": "long"})  # by hand
    if not good:
        tale.completed("long", at=19)
    tale.skipped("s", 20, 20, "overlap", at=20)
    return (tale.completed("long", at=25) if good else tale).over()


def slot_beside_its_unit(good: bool) -> Tale:
    tale = Tale().added("s").queued("long", at=2).started("long")
    tale.tell("schedule_fired", data={"schedule": "s", "unit": "long"})
    if good:
        tale.completed("long", at=9).fired("s", 10)
    else:
        tale.fired("s", 10).completed("long", at=12)
    return tale.over()


def slots_that_all_count(good: bool) -> Tale:
    name = "s" if good else "all"
    return Tale().added(name).skipped(name, 10, 30, "missed", at=40).fired(name, 40).over()


def schedule_as_it_was(good: bool) -> Tale:
    change = "resumed" if good else "changed"
    return Tale().added("s").tell("schedule_changed", at=5, data={"schedule": "s", "change": change}).over()


def slot_of_a_calendar(good: bool) -> Tale:
    """The history begins at 22:13:20."""
    return Tale().added("minute").fired("minute", 40).fired("minute", 100 if good else 110, at=110).over()


def slot_by_the_wall(good: bool) -> Tale:
    """An hour passes at once on the wall, and a slot of it counts."""
    tale = Tale().added("minute").fired("minute", 40)
    if good:
        tale.checker.slots.clock_set(BEGAN + 45, 3600.0)
    return tale.skipped("minute", 100, 3580, "missed", at=60).fired("minute", 3640, at=60).over()


GOOD_AND_BAD: dict[str, tuple[Callable[[bool], Tale], ...]] = {
    "order": (order, time_goes_on, no_gap),
    "life": (life, retried_by_hand),
    "lost": (lost, lost_in_the_end, counted, cancelled, nobody_asked),
    "result": (result, late_result),
    "overlap": (overlap, not_started, never_accepted),
    "attempts": (attempts, too_many_failures, robbed, refused_at_first, three_crashes),
    "retry": (retry, retry_by_policy),
    "dependencies": (dependencies, dependents_fail, failed_before),
    "keys": (keys,),
    "circuit": (
        circuit,
        circuit_says_so,
        one_probe,
        lost_probe,
        longer_wait,
        closes_after_a_probe,
        half_open_after_open,
        circuit_of_a_key,
        circuit_of_a_member,
    ),
    "priority": (priority, priority_after_retry),
    "starvation": (starvation,),
    "rate": (rate, several_rates, rate_of_a_key),
    "concurrency": (concurrency, total, member),
    "amount": (amount, charged_more, failed_and_charged, charged_while_it_runs, amount_of_a_key),
    "service": (own_key, own_members),
    "slots": (slot_once, slots_in_order, slot_in_time, slot_forgotten, slot_before_the_end, slot_without_unit,
              slot_left_out, slot_beside_its_unit, slots_that_all_count, schedule_as_it_was, slot_of_a_calendar,
              slot_by_the_wall),
}  # fmt: skip
CASES = [(rule, tale) for rule, tales in GOOD_AND_BAD.items() for tale in tales]


def test_every_rule_has_a_history_that_breaks_it() -> None:
    assert set(GOOD_AND_BAD) == set(RULES)


@pytest.mark.parametrize(("rule", "tale"), CASES, ids=[tale.__name__ for _, tale in CASES])
def test_a_broken_promise_is_found_by_the_name_of_its_rule(rule: str, tale: Callable[[bool], Tale]) -> None:
    assert rule in tale(False).broken()


@pytest.mark.parametrize(("rule", "tale"), CASES, ids=[tale.__name__ for _, tale in CASES])
def test_a_history_without_fault_passes(rule: str, tale: Callable[[bool], Tale]) -> None:
    good = tale(True)
    good.counts.setdefault("pending", 0)
    assert good.broken() == []


# --- what is not held against a queue --------------------------------------------------------------


def test_what_was_charged_beyond_the_estimate_is_no_violation_by_itself() -> None:
    tale = Tale(quantities={"tokens": ((100, 10.0),)}).queued("a", cost={"tokens": 50})
    assert tale.started("a", charges=[("tokens", 500)]).completed("a", at=1).broken() == []


@pytest.mark.parametrize("how", ["cancelled", "died"])
def test_what_was_charged_and_perhaps_never_heard_need_not_be_counted(how: str) -> None:
    tale = Tale(quantities={"tokens": ((100, 10.0),)}).queued("a", "b", cost={"tokens": 50})
    tale.started("a", charges=[("tokens", 80)]).left("a", at=1, how=how)
    assert tale.started("b", at=2).broken() == []


def test_what_a_process_charged_that_could_not_write_need_not_be_counted() -> None:
    tale = Tale(quantities={"tokens": ((100, 10.0),)}).queued("a", "b", cost={"tokens": 50})
    tale.started("a", charges=[("tokens", 80)], is_kept=False).completed("a", at=1)
    assert tale.started("b", at=2).broken() == []


def test_a_start_that_was_given_back_reuses_its_number() -> None:
    tale = Tale().queued("a").started("a").left("a", at=1, how="cancelled")
    assert tale.started("a", at=2).completed("a", at=3).broken() == []


def test_what_was_timed_out_may_be_overtaken_because_its_code_may_still_run() -> None:
    tale = Tale().queued("a").started("a").left("a", at=1, how="cancelled")
    tale.tell("failed", "a", attempt=1, error="timeout").tell(
        "retrying", "a", data={"next_retry_at": BEGAN + 3}
    )
    tale.queued("b", at=2).started("b", at=4).started("a", at=4, attempt=2)
    assert tale.broken() == []


def test_work_with_a_time_of_its_own_is_not_judged_by_its_place() -> None:
    assert Tale().queued("a", has_time=True).queued("b").started("b").started("a").broken() == []


def test_work_of_another_task_on_the_same_services_is_on_the_same_lane() -> None:
    tale = Tale().queued("a")
    tale.checker.submitted(Asked("b", priority=1))
    tale.tell("queued", "b", task="other").started("a").tell("started", "b", task="other", attempt=1)
    assert "priority" in tale.broken()


def test_whoever_lives_again_with_what_it_depends_on_may_be_told_of_first() -> None:
    tale = Tale().queued("a").queued("b", depends_on=("a",)).started("a").failed("a", at=1)
    tale.tell("failed", "b", error="prerequisite_failed", final=True)
    for work in ("a", "b"):
        tale.checker.retried(work)
    tale.tell("queued", "b", at=2).tell("queued", "a")
    tale.tell("circuit_opened", at=3, service="api")  # time goes on
    found = tale.checker.finish(tale.calls, tale.counts, BEGAN + 4)
    assert [one for one in found if one.rule == "dependencies"] == []


def test_whoever_lives_again_without_what_it_depends_on_must_fail_at_once() -> None:
    tale = Tale().queued("a").queued("b", depends_on=("a",)).started("a").failed("a", at=1)
    tale.tell("failed", "b", error="prerequisite_failed", final=True)
    tale.checker.retried("b")
    tale.tell("queued", "b", at=2)
    found = tale.checker.finish(tale.calls, tale.counts, BEGAN + 4)
    assert [one.work_ids for one in found if one.rule == "dependencies"] == [("b", "a")]


def test_who_was_queued_again_before_another_came_is_before_it() -> None:
    tale = Tale().queued("first").tell("cancelled", "first", final=True)
    tale.checker.retried("first")
    tale.tell("queued", "first").queued("second")
    tale.started("first", at=1).failed("first", at=2, again_at=4).started("first", at=5, attempt=2)
    assert [one.rule for one in tale.checker.finish(tale.calls, tale.counts, BEGAN + 5)
            if one.rule in {"priority", "starvation"}] == []  # fmt: skip


def test_skipped_work_is_complete_for_whoever_depends_on_it() -> None:
    tale = Tale().queued("a").queued("b", depends_on=("a",)).tell("skipped", "a", final=True)
    assert tale.started("b").completed("b", at=1).broken() == []


def test_after_a_change_of_limits_the_new_ones_count() -> None:
    for most, expected in ((2, []), (1, ["concurrency"])):
        tale = Tale(concurrent=1).queued("a", "b").started("a")
        tale.checker.changed("api", Limits(concurrent=most), BEGAN + 1)
        assert tale.started("b", at=2).broken() == expected


def test_where_a_change_of_limits_is_not_sure_both_are_allowed() -> None:
    tale = Tale(concurrent=2).queued("a", "b").started("a")
    tale.checker.changed("api", Limits(concurrent=1), BEGAN + 1, is_sure=False)
    assert tale.started("b", at=2).broken() == []


def test_a_violation_says_what_when_and_whom() -> None:
    tale = Tale(concurrent=1).queued("a", "b").started("a").started("b", at=1)
    violations = tale.checker.finish(tale.calls, tale.counts, BEGAN + 60)
    assert len(violations) == 1
    assert str(violations[0]) == "concurrency at 1700000001.000000: 2 calls of api at once, 1 are allowed"
    assert set(violations[0].work_ids) == {"a", "b"}


def test_the_rules_of_a_configuration_are_its_limits() -> None:
    services = {
        "api": ServiceConfig(concurrent=3, rates=["60/min", "5/s"], circuit_threshold=2, circuit_timeout=9),
        "db": ServiceConfig(),
    }
    config = Config(services=services, workload=Workload(uses={"ask": ["api", "db"]}), age_step=None)
    rules = rules_of(config)
    assert rules.services == {"api": Limits(((60, 60.0), (5, 1.0)), 3, 9), "db": Limits()}
    assert rules.tasks["ask"].uses == ("api", "db")
    assert rules.tasks["ask"].retry == config.retry.policy()
    assert rules.age_step is None
    assert isinstance(Checker(config), Checker)


@pytest.mark.parametrize(
    ("backoff", "expected"),
    [("exponential", [3, 6, 12]), ("linear", [3, 6, 9]), ("fixed", [3, 3, 3]), ("power", [3, 9, 27])],
)
def test_a_retry_is_held_to_the_delay_of_its_policy(backoff: str, expected: list[float]) -> None:
    policy = runcue.Retry(max_attempts=9, backoff=backoff, base_delay=3, jitter=False)  # type: ignore[arg-type]
    for failures, delay in enumerate(expected, 1):
        for waits in (delay - 1, delay, delay + 1):
            checker = Checker(Rules(tasks={"call": Task(retry=policy)}))
            told: list[tuple[str, int, dict[str, Any]]] = [("queued", 0, {})]
            for attempt in range(1, failures + 1):
                after = waits if attempt == failures else expected[attempt - 1]
                at = 100 * attempt
                told += [("started", at, {"attempt": attempt}), ("failed", at, {"attempt": attempt})]
                told += [("retrying", at, {"data": {"next_retry_at": at + after}})]
            for seq, (type, at, more) in enumerate(told, 1):
                checker(runcue.Event(type, seq, float(at), "a", "call", **more))
            found = checker.finish([], {"pending": 1}, 1000.0)
            assert [one.rule for one in found] == ([] if waits == delay else ["retry"])
