"""Services with keys (`per=`): limits for each key, one for all of them, and turns between them."""

from collections import deque
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runcue.core.limits.service import Limits
from runcue.core.model.parse import Rate
from runcue.core.model.retry import Retry
from runcue.core.model.settings import Rule
from runcue.core.model.state import Adaptive, Quantity, base_name, key_name
from tests.core.bench_of_core import START, Bench, costs, limits, sells
from tests.core.library import Process, two
from tests.sample import fewer

ANY = Rule(Retry())
TASKS = {"task": ANY, "other": ANY, "plain": ANY}


def keyed(each: Limits | None = None, *, total: int | None = None, rate: tuple[int, float] | None = None,
          name: str = "api", **options: Any) -> Limits:  # fmt: skip
    """A service with keys: what each has, and what all together have."""
    return limits(name, rate=rate, concurrent=total, each=each or limits(name, concurrent=1), **options)


def uses(key: str, *more: str) -> tuple[str, ...]:
    """The services of work that belongs to a key."""
    return (key_name("api", key), "api", *more)


def bench_of(*services: Limits, **options: Any) -> Bench:
    return Bench(*services, rules=TASKS, status_interval=1e9, **options)


def submit(bench: Bench, key: str, *ids: str, **fields: Any) -> Any:
    """Submit work of a key."""
    return bench.submit(*ids, services=uses(key), **fields)


def keys_of(bench: Bench, ids: list[str]) -> list[str]:
    """The keys that these works belong to."""
    return [bench.record(work_id).spec.services[0][4:-1] for work_id in ids]


# --- Each key has its own -------------------------------------------------------------------------


def test_the_name_of_a_keys_part_says_whose_it_is() -> None:
    assert key_name("api", "x[y]") == "api[x[y]]"
    assert [base_name(name) for name in ("api[x]", "api[x[y]]", "api", "[x]", "api[x", "ap]i[")] == [
        "api", "api", None, None, None, None,
    ]  # fmt: skip


def test_each_key_has_its_own_places() -> None:
    bench = bench_of(keyed(limits(concurrent=2)))
    submit(bench, "x", "x1", "x2", "x3")
    submit(bench, "y", "y1", "y2", "y3")
    assert bench.running == ["x1", "x2", "y1", "y2"]
    why = bench.why("x3")
    assert (why.reason, why.service) == ("concurrency", "api[x]")
    bench.finish("y1")
    assert bench.started == ["y3"]


def test_each_key_has_its_own_rate() -> None:
    bench = bench_of(keyed(limits(rate=(1, 60))))
    submit(bench, "x", "x1", "x2")
    bench.after(10)
    submit(bench, "y", "y1", "y2")
    assert bench.running == ["x1", "y1"]
    bench.turn()
    bench.wake()
    assert (bench.started, bench.now) == (["x2"], START + 60)
    bench.wake()
    assert (bench.started, bench.now) == (["y2"], START + 70)


def test_each_key_has_its_own_quantity() -> None:
    bench = bench_of(keyed(sells(tokens=(100, 60))))
    for key in "xy":
        submit(bench, key, f"{key}1", f"{key}2", cost=costs(tokens=60))
    assert bench.running == ["x1", "y1"]
    bench.turn()
    bench.charge("y1", tokens=10)
    assert bench.started == ["y2"]


def test_each_key_has_its_own_circuit() -> None:
    bench = bench_of(keyed(limits(circuit_threshold=1, circuit_timeout=60)))
    submit(bench, "x", "x1")
    bench.fail("x1")
    assert bench.facts("circuit_opened") == [{"service": "api[x]", "failures": 1}]
    submit(bench, "x", "x2")
    submit(bench, "y", "y1")
    assert (bench.running, bench.why("x2").reason) == (["y1"], "circuit")


def test_a_key_that_is_throttled_waits_alone() -> None:
    bench = bench_of(keyed())
    submit(bench, "x", "x1", "x2")
    bench.fail("x1", "throttled", after=30)
    submit(bench, "y", "y1")
    assert bench.running == ["y1"]
    why = bench.why("x2")
    assert (why.reason, why.until, why.service) == ("throttled", START + 30, "api[x]")
    bench.wake()
    assert (bench.started, bench.now) == (["x1"], START + 30)


def test_a_key_may_be_paused_and_the_service_with_all_its_keys() -> None:
    bench = bench_of(keyed())
    bench.pause("api[x]")
    submit(bench, "x", "x1")
    submit(bench, "y", "y1", "y2")
    assert bench.running == ["y1"]
    bench.pause("api")
    bench.resume("api[x]")
    bench.finish("y1")
    assert bench.running == []
    bench.resume("api")
    assert sorted(bench.started) == ["x1", "y2"]


def test_what_the_far_side_says_of_the_service_is_about_the_key_of_the_one_who_asked() -> None:
    bench = bench_of(keyed(limits(concurrent=9)))
    submit(bench, "x", "x1")
    bench.observe("x1", ("", 0, 30), service="api")
    submit(bench, "x", "x2")
    submit(bench, "y", "y1")
    assert bench.running == ["x1", "y1"]


# --- What all keys share --------------------------------------------------------------------------


def test_all_keys_together_have_no_more_places_than_the_total() -> None:
    bench = bench_of(keyed(limits(concurrent=2), total=3))
    for key in "abc":
        submit(bench, key, f"{key}1", f"{key}2")
    assert len(bench.running) == 3
    assert bench.why("c2").service == "api"


def test_a_key_whose_places_are_taken_does_not_keep_the_others_from_the_total() -> None:
    bench = bench_of(keyed(total=2))
    submit(bench, "x", *(f"x{number}" for number in range(50)))
    submit(bench, "y", "y1")
    assert bench.running == ["x0", "y1"]
    submit(bench, "z", "z1")
    bench.finish("y1")
    assert bench.started == ["z1"]


def test_all_keys_together_stay_under_the_rate_of_the_total() -> None:
    bench = bench_of(keyed(limits(concurrent=9), rate=(3, 60)))
    for key in "abc":
        submit(bench, key, f"{key}1", f"{key}2")
    assert len(bench.running) == 3
    bench.turn()
    bench.wake()
    assert (len(bench.running), bench.now) == (6, START + 60)


def test_all_keys_together_use_no_more_of_a_quantity_than_the_total() -> None:
    gate = Limits("api", quantities=(Quantity("tokens", (Rate(100, 60.0),)),), each=limits(concurrent=9))
    bench = bench_of(gate)
    for key in "abc":
        submit(bench, key, f"{key}1", cost=costs(tokens=40))
    assert bench.running == ["a1", "b1"]
    submit(bench, "d", "d1")
    assert bench.started == ["d1"]  # costs nothing
    bench.turn()
    bench.wake()
    assert (bench.started, bench.now) == (["c1"], START + 60)


def test_work_without_cost_that_waits_for_its_turn_passes_a_key_that_waits_for_a_quantity() -> None:
    gate = Limits("api", 1, quantities=(Quantity("tokens", (Rate(100, 60.0),)),), each=limits(concurrent=9))
    bench = bench_of(gate)
    submit(bench, "a", "a1", cost=costs(tokens=100))
    submit(bench, "b", "b1", cost=costs(tokens=100))
    submit(bench, "c", "c1", "c2")
    submit(bench, "d", "d1")
    started = []
    for work_id in ("a1", "c1", "d1"):
        bench.finish(work_id)
        started += bench.started
    assert started == ["c1", "d1", "c2"]


# --- Turns ----------------------------------------------------------------------------------------


def test_keys_take_turns_however_many_each_has() -> None:
    bench = bench_of(keyed(limits(concurrent=9), total=1))
    submit(bench, "x", *(f"x{number}" for number in range(5)))
    submit(bench, "y", "y0", "y1")
    submit(bench, "z", "z0")
    order = []
    for _ in range(8):
        order += keys_of(bench, bench.running)
        bench.finish(bench.running[0])
    assert order == list("xyzxyxxx")


def test_a_key_that_had_everything_while_it_was_alone_owes_nothing_for_it() -> None:
    bench = bench_of(keyed(limits(concurrent=99), total=99))
    submit(bench, "x", *(f"x{number}" for number in range(150)))
    assert len(bench.running) == 99
    submit(bench, "y", *(f"y{number}" for number in range(50)))
    order = []
    for work_id in bench.running[:20]:
        bench.finish(work_id)
        order += keys_of(bench, bench.started)
    assert order == list("yx" * 10) or order == list("xy" * 10)


def test_two_lanes_of_a_key_have_the_turns_of_one() -> None:
    bench = bench_of(keyed(limits(concurrent=9), total=1))
    submit(bench, "w", "first")
    submit(bench, "x", "x1", "x2", task="task")
    submit(bench, "x", "x3", "x4", task="other")
    submit(bench, "y", "y1", "y2")
    order = []
    for _ in range(6):
        bench.finish(bench.running[0])
        order += keys_of(bench, bench.started)
    assert order == list("xyxyxx")


def test_within_a_key_the_best_goes_first() -> None:
    bench = bench_of(keyed(total=1))
    submit(bench, "x", "x1")
    submit(bench, "x", "low", priority=-5)
    submit(bench, "y", "y1")
    submit(bench, "x", "high", priority=5)
    submit(bench, "x", "other", priority=1, task="other")
    order = []
    for _ in range(4):
        bench.finish(bench.running[0])
        order += bench.started
    assert order == ["y1", "high", "other", "low"]


def test_a_lane_that_was_offered_the_turn_of_its_key_leaves_it_to_better_work_that_came_back() -> None:
    bench = bench_of(keyed(limits(concurrent=1), total=3))
    submit(bench, "x", "low")
    submit(bench, "x", "high", "next", "last", task="other", priority=5)
    bench.fail("low", "late")
    assert bench.started == ["high"]
    bench.finish("high")
    assert bench.started == ["next"]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["submit"] * 4 + ["finish"] * 3 + ["cancel", "retry"]), st.sampled_from("abcd"),
        st.integers(0, 5),
    ),
    min_size=20,
    max_size=80,
)  # fmt: skip


@pytest.mark.no_cover
@settings(max_examples=fewer(150, 50))
@given(steps=STEPS, total=st.integers(1, 3), own=st.integers(1, 3))
@example([("submit", "a", 5)] * 3 + [("submit", "b", 0)] * 3 + [("finish", "a", 0)] * 9, 2, 2)
def test_nobody_gets_two_before_a_key_that_waits_gets_one(
    steps: list[tuple[str, str, int]], total: int, own: int
) -> None:
    bench = bench_of(keyed(limits(concurrent=own), total=total), retry=None)
    since: dict[str, dict[str, int]] = {key: {} for key in "abcd"}
    """Of each key that waits and could run: how often each other was served meanwhile."""

    def who_waits() -> set[str]:
        pending = [work_id for work_id, state in bench.states().items() if state == "pending"]
        running = keys_of(bench, bench.running)
        return {key for key in keys_of(bench, pending) if running.count(key) < own}

    waiting: set[str] = set()
    for step, key, number in steps:
        if step == "submit":
            task = ("task", "other")[number % 2]
            bench.submit(*[None] * (1 + number % 3), services=uses(key), task=task, priority=number)
        elif step == "finish" and bench.running:
            bench.finish(bench.running[number % len(bench.running)])
        elif step == "retry" and bench.running:
            bench.fail(bench.running[number % len(bench.running)], "late")
        elif step == "cancel":
            pending = [work_id for work_id, state in bench.states().items() if state == "pending"]
            if pending:
                gone = pending[number % len(pending)]
                since[keys_of(bench, [gone])[0]] = {}  # what its key has waited for is gone
                bench.cancel(gone)
        for served in keys_of(bench, bench.started):
            since[served] = {}
            for other in waiting - {served}:
                since[other][served] = since[other].get(served, 0) + 1
        waiting = who_waits()
        for one in "abcd":
            if one not in waiting:
                since[one] = {}
            assert all(times < 2 for times in since[one].values())
        assert len(bench.running) <= total
        assert not (len(bench.running) < total and waiting)


# --- With other services --------------------------------------------------------------------------


def test_a_service_that_keys_and_others_use_serves_both() -> None:
    bench = bench_of(keyed(limits(concurrent=9), total=9), limits("disk", concurrent=1))
    bench.submit("first", services=["disk"], task="plain")
    bench.submit("x1", services=uses("x", "disk"))
    bench.submit("y1", services=uses("y", "disk"))
    bench.submit("last", services=["disk"], task="plain")
    order = []
    for _ in range(3):
        bench.finish(bench.running[0])
        order += bench.started
    assert order == ["x1", "y1", "last"]


def test_keys_that_wait_for_another_service_take_turns_at_it() -> None:
    bench = bench_of(keyed(limits(concurrent=9), total=9), limits("disk", concurrent=1))
    for key, amount in (("x", 4), ("y", 2)):
        bench.submit(*(f"{key}{number}" for number in range(amount)), services=uses(key, "disk"))
    order = []
    for _ in range(6):
        order += keys_of(bench, bench.running)
        bench.finish(bench.running[0])
    assert order == list("xyxyxx")


# --- Declaring again ------------------------------------------------------------------------------


def test_new_limits_are_those_of_all_keys_at_once() -> None:
    bench = bench_of(keyed(total=9))
    submit(bench, "x", "x1", "x2", "x3")
    submit(bench, "y", "y1", "y2")
    assert bench.running == ["x1", "y1"]
    bench.declare(keyed(limits(concurrent=2), total=9))
    assert sorted(bench.started) == ["x2", "y2"]
    bench.declare(keyed(limits(concurrent=2), total=4))
    bench.declare(keyed(limits(concurrent=3), total=4))
    assert bench.started == []
    bench.declare(keyed(limits(concurrent=3), total=5))
    assert bench.started == ["x3"]


def test_a_total_may_come_and_go() -> None:
    bench = bench_of(keyed())
    submit(bench, "x", "x1")
    bench.declare(keyed(total=1))
    submit(bench, "y", "y1")
    assert bench.started == []
    bench.declare(keyed())
    assert bench.started == ["y1"]


# --- Letting go -----------------------------------------------------------------------------------


def run(bench: Bench, key: str, **fields: Any) -> None:
    """One work of a key comes and goes."""
    (work_id,) = bench.submit(None, services=uses(key), **fields)
    bench.finish(work_id)


def known(bench: Bench) -> list[str]:
    return [name for name in bench.scheduler.ledger.ready.services if "[" in name]


@pytest.mark.no_cover  # as large as it is in earnest; all that it does is done by the small ones too
def test_thousands_of_keys_do_not_stay_for_ever() -> None:
    bench = bench_of(keyed(limits(concurrent=1, circuit_threshold=3), total=10), keep_finished=10)
    for number in range(fewer(4000, 1500)):
        run(bench, f"{number}")
        bench.plans.clear()
        bench.tokens.clear()
        bench.scheduler.ledger.notices.take_changed()  # as when a turn is written
    ledger = bench.scheduler.ledger
    assert len(known(bench)) <= 1100
    assert len(ledger.ready.lanes) <= 1100
    kept = {
        name: len(value)
        for name, value in vars(ledger).items()
        if isinstance(value, (dict, list, set, deque))
    }
    assert {name: amount for name, amount in kept.items() if amount > 1100} == {}


FEW = 40
MANY = 50


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are let go of as soon as there are more than a few."""
    monkeypatch.setattr("runcue.core.schedule.ready.FEW_LANES", FEW)


def many(bench: Bench) -> None:
    """So many keys that it is time to let go of some."""
    for number in range(MANY):
        run(bench, f"many{number}")


@pytest.mark.parametrize(
    ("each", "happens"),
    [
        (limits(rate=(1, 9.0)), lambda bench: run(bench, "x")),
        (sells(tokens=(100, 9.0)), lambda bench: run(bench, "x", cost=costs(tokens=1))),
        (limits(concurrent=5), lambda bench: submit(bench, "x", "x1")),
        (limits(concurrent=5), lambda bench: bench.pause("api[x]")),
        (limits(circuit_threshold=3),
         lambda bench: (submit(bench, "x", "x1"), bench.fail("x1"))),
        (limits(concurrent=5), lambda bench: (submit(bench, "x", "x1"), bench.fail("x1", "throttled", after=9))),
        (limits(concurrent=5),
         lambda bench: (submit(bench, "x", "x1"), bench.observe("x1", ("", 5, 9)), bench.finish("x1"))),
    ],
    ids=["a rate", "a quantity", "a call", "a pause", "a failure", "a throttle", "a word of the far side"],
)  # fmt: skip
@pytest.mark.usefixtures("soon")
def test_what_a_key_has_to_remember_is_remembered(each: Limits, happens: Any) -> None:
    bench = bench_of(keyed(each))
    happens(bench)
    many(bench)
    assert "api[x]" in known(bench)
    assert len(known(bench)) < MANY or each.rates or each.quantities


@pytest.mark.parametrize(
    ("each", "happens"),
    [
        (limits(rate=(1, 9.0)), lambda bench: run(bench, "x")),
        (sells(tokens=(100, 9.0)), lambda bench: run(bench, "x", cost=costs(tokens=1))),
        (limits(concurrent=5),
         lambda bench: (submit(bench, "x", "x1"), bench.fail("x1", "throttled"), bench.cancel("x1"))),
        (limits(concurrent=5),
         lambda bench: (submit(bench, "x", "x1"), bench.observe("x1", ("", 5, 9)), bench.finish("x1"))),
        (limits(adaptive=Adaptive(1, 4, 9)),
         lambda bench: (submit(bench, "x", "x1"), bench.fail("x1", "throttled"), bench.cancel("x1"))),
        (limits(adaptive=Adaptive(1, 1, 9)), lambda bench: run(bench, "x")),
        (limits(concurrent=1),
         lambda bench: (submit(bench, "x", "x1", "x2"), bench.cancel("x2"), bench.finish("x1"))),
    ],
    ids=["a rate", "a quantity", "a throttle", "a word of the far side", "fewer places", "more places",
         "an empty line"],
)  # fmt: skip
@pytest.mark.usefixtures("soon")
def test_what_no_longer_matters_is_not(each: Limits, happens: Any) -> None:
    bench = bench_of(keyed(each))
    happens(bench)
    bench.after(2 * 3600)
    many(bench)
    assert "api[x]" not in known(bench)


@pytest.mark.usefixtures("soon")
def test_a_key_that_was_let_go_of_and_comes_again_is_like_a_new_one() -> None:
    bench = bench_of(keyed(total=2))
    many(bench)
    many(bench)
    submit(bench, "many0", "a", "b")
    assert bench.running == ["a"]
    submit(bench, "many1", "c")
    assert bench.running == ["a", "c"]


@pytest.mark.usefixtures("soon")
def test_a_service_whose_own_name_has_brackets_is_no_key_and_is_kept() -> None:
    bench = bench_of(keyed(), limits("gpu", concurrent=1), limits("gpu[0]", concurrent=1))
    many(bench)
    bench.submit("a", services=["gpu[0]"])
    assert bench.started == ["a"]


def test_how_often_the_keys_were_told_to_be_limited_is_not_kept_for_ever() -> None:
    bench = bench_of(keyed(limits(rate=(1, 5.0))))
    for number in range(50):
        submit(bench, f"{number}", f"a{number}", f"b{number}")
        bench.after(2)
    assert len(bench.facts("service_rate_limited")) >= 50
    assert len(bench.scheduler.ledger.notices._limited_at) < 10


# --- Several processes ----------------------------------------------------------------------------


def pair(*services: Limits) -> tuple[Process, Process]:
    _, one, other = two(*services, rules=TASKS, status_interval=1e9)
    return one, other


def test_a_key_has_its_limits_for_all_processes_together() -> None:
    one, other = pair(keyed(limits(concurrent=1), total=9))
    submit(one, "x", "x1")
    submit(other, "x", "x2")
    submit(other, "y", "y1")
    assert (one.started, other.started) == (["x1"], ["y1"])
    assert other.active["api[x]"] == 1
    one.may_start = False
    one.finish("x1")
    other.turn()
    assert other.started == ["x2"]


def test_a_key_that_others_used_before_it_is_known_here_is_not_as_new() -> None:
    one, other = pair(keyed(limits(rate=(1, 60))))
    other.may_start = False
    submit(one, "x", "x1")
    one.turn()
    one.may_start, other.may_start = False, True
    submit(other, "x", "x2")
    assert other.started == []


@pytest.mark.usefixtures("soon")
def test_keys_that_only_others_use_do_not_stay_for_ever_either() -> None:
    one, other = pair(keyed(limits(rate=(1, 1.0))))
    other.rules = {}
    for number in range(3 * MANY):
        run(one, f"{number}")
        one.now += 0.1
        other.turn()
    assert len(known(other)) < 2 * MANY


def test_that_a_key_was_throttled_or_paused_others_know() -> None:
    one, other = pair(keyed(limits(concurrent=3), total=9))
    submit(one, "x", "x1")
    one.fail("x1", "throttled", after=30)
    one.pause("api[y]")
    submit(other, "x", "x2")
    submit(other, "y", "y1")
    assert other.started == []
    assert other.why("x2").reason == "throttled"
    assert other.why("y1").reason == "paused"
    services = other.scheduler.ledger.ready.services
    assert services["api[x]"].limits == limits("api[x]", concurrent=3)
