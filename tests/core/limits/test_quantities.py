"""Work that costs some of a quantity: what starts, what waits behind it, what is refused, what the far side says."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runcue.core.limits.service import Limits
from runcue.core.model.retry import Retry
from runcue.core.model.settings import Rule
from runcue.core.schedule.gates import Questions
from runcue.core.schedule.plan import Cancel, Entered, Verdicts
from runcue.errors import SubmitError
from tests.core.bench_of_core import START, Bench, costs, limits, sells
from tests.core.library import two
from tests.sample import fewer

MINUTE = 60.0
ANY = Rule(Retry())
TASKS = {"task": ANY, "small": ANY, "free": ANY, "other": ANY}


def bench_of(*services: Limits) -> Bench:
    """A bench with several tasks, so that work of one need not be in the lane of another."""
    return Bench(*services, rules=TASKS)


def submit(
    bench: Bench, work_id: str, task: str = "task", services: tuple[str, ...] = ("api",), **amounts: float
) -> None:
    bench.submit(work_id, task=task, services=services, cost=costs(**amounts))


def sleep(bench: Bench) -> None:
    """Sleep until something starts, and no longer than the bench itself wants to."""
    for _ in range(200):
        bench.wake()
        if bench.started:
            return
    raise AssertionError("nothing ever starts")


# --- Starting -------------------------------------------------------------------------------------


def test_work_starts_while_there_is_enough_left_and_goes_on_when_the_window_has_passed() -> None:
    bench = Bench(sells(tokens=(100, MINUTE)))
    for name in ("a", "b", "c"):
        submit(bench, name, tokens=40)
    assert bench.running == ["a", "b"]
    why = bench.why("c")
    assert (why.reason, why.service) == ("rate", "api")
    assert why.details == "needs 40 of 100 tokens, 20 left"
    bench.turn()
    assert bench.why("c").until == START + MINUTE
    sleep(bench)
    assert (bench.started, bench.now) == (["c"], START + MINUTE)


def test_a_start_that_was_not_entered_counts_until_it_is() -> None:
    bench = Bench(sells(tokens=(100, MINUTE)))
    bench.enters_at_once = False
    submit(bench, "a", tokens=60)
    submit(bench, "b", tokens=60)
    assert bench.why("b").until is None
    assert bench.after(10 * MINUTE).start == []
    bench.enter("a")
    assert bench.why("b").until == bench.now + MINUTE
    sleep(bench)
    assert bench.started == ["b"]


def test_a_start_that_never_came_to_its_handler_gives_back_what_it_reserved() -> None:
    bench = Bench(sells(tokens=(100, MINUTE)))
    bench.enters_at_once = False
    submit(bench, "a", tokens=60)
    submit(bench, "b", tokens=60)
    bench.fail("a", "late")
    assert bench.started == ["a"]
    assert bench.cancel("a") is True
    bench.end("a")
    assert bench.started == ["b"]


@pytest.mark.parametrize("used", [10, 60, 95])
def test_what_was_really_used_counts_from_the_start_on(used: int) -> None:
    bench = Bench(sells(tokens=(100, MINUTE)))
    submit(bench, "a", tokens=60)
    bench.after(10)
    bench.charge("a", tokens=used)
    submit(bench, "b", tokens=100 - used)
    submit(bench, "c", tokens=used)
    assert bench.running == ["a", "b"]
    sleep(bench)
    assert (bench.started, bench.now) == (["c"], START + MINUTE)


def test_what_was_used_counts_whether_the_attempt_fails_or_not() -> None:
    bench = Bench(sells(tokens=(100, MINUTE)))
    submit(bench, "a", tokens=10)
    bench.turn()
    bench.charge("a", tokens=95)
    bench.fail("a", "permanent")
    submit(bench, "b", tokens=10)
    assert bench.running == []
    sleep(bench)
    assert (bench.started, bench.now) == (["b"], START + MINUTE)


def test_each_attempt_costs_anew() -> None:
    bench = Bench(sells(tokens=(100, MINUTE)), retry=Retry(2, base_delay=0, jitter=False))
    submit(bench, "a", tokens=60)
    bench.turn()
    bench.fail("a")
    assert bench.started == []
    assert bench.why("a").reason == "rate"
    bench.now += MINUTE
    bench.turn()
    assert bench.started == ["a"]


def test_charging_for_an_attempt_that_is_over_or_costs_nothing_does_nothing() -> None:
    bench = Bench(sells(tokens=(100, MINUTE)), limits("plain"))
    submit(bench, "a", tokens=60)
    submit(bench, "b", services=("plain",))
    bench.turn()
    bench.charge("b", tokens=1000)
    bench.finish("a")
    bench.charge("a", tokens=1000)
    submit(bench, "c", tokens=40)
    assert bench.started == ["c"]


def test_work_that_costs_nothing_may_still_be_charged_for() -> None:
    bench = Bench(sells(tokens=(100, MINUTE)))
    bench.submit("a")
    bench.turn()
    bench.charge("a", tokens=70)
    submit(bench, "b", tokens=31)
    assert bench.started == []
    submit(bench, "c", task="task")
    assert bench.started == []  # the same lane: behind it


# --- Several of them ------------------------------------------------------------------------------


def test_each_quantity_and_each_rate_of_it_holds() -> None:
    bench = Bench(sells(tokens=[(100, 1.0), (150, MINUTE)], images=(2, MINUTE)), rules=TASKS)
    submit(bench, "a", tokens=100, images=1)
    submit(bench, "b", tokens=50)
    assert bench.running == ["a"]
    bench.turn()
    sleep(bench)
    assert (bench.started, bench.now) == (["b"], START + 1)
    submit(bench, "c", task="other", images=1)
    assert bench.started == ["c"]
    submit(bench, "d", task="other", images=1)
    submit(bench, "e", task="small", tokens=1)
    assert bench.started == []
    assert bench.why("d").details == "needs 1 of 2 images, 0 left"


def test_work_of_several_services_takes_from_all_of_them_or_from_none() -> None:
    bench = Bench(sells("one", tokens=(100, MINUTE)), sells("two", tokens=(50, MINUTE)), rules=TASKS)
    both = ("one", "two")
    submit(bench, "a", services=both, tokens=40)
    submit(bench, "b", services=both, tokens=40)
    assert bench.running == ["a"]
    submit(bench, "c", services=("one",), tokens=60)
    assert bench.started == ["c"]
    bench.turn()
    services = bench.scheduler.ledger.ready.services
    assert [meter.room(bench.now) for name in both for meter in services[name].meters] == [0, 10]


def test_a_quantity_that_only_one_of_the_services_sells_is_taken_from_that_one() -> None:
    bench = Bench(sells("one", tokens=(100, MINUTE)), limits("two", concurrent=5, rate=(10, MINUTE)))
    submit(bench, "a", services=("two", "one"), tokens=100)
    submit(bench, "b", services=("two", "one"), tokens=100)
    assert bench.running == ["a"]


# --- The order ------------------------------------------------------------------------------------


def test_big_work_is_not_overtaken_by_younger_small_work_of_another_lane() -> None:
    bench = bench_of(sells(tokens=(100, MINUTE)))
    submit(bench, "first", tokens=50)
    submit(bench, "big", tokens=80)
    for number in range(20):
        submit(bench, f"small{number}", "small", tokens=5)
        bench.after(1)
    assert bench.running == ["first"]
    why = bench.why("small0")
    assert (why.reason, why.service) == ("rate", "api")
    bench.now = START + MINUTE
    bench.turn()
    assert bench.started == ["big", "small0", "small1", "small2", "small3"]


def test_older_small_work_goes_before_big_work() -> None:
    bench = bench_of(sells(tokens=(100, MINUTE)))
    submit(bench, "first", tokens=95)
    submit(bench, "small", "small", tokens=10)
    submit(bench, "big", tokens=80)
    bench.after(MINUTE)
    assert bench.started == ["small", "big"]


def test_work_without_cost_passes() -> None:
    bench = bench_of(sells(tokens=(100, MINUTE)))
    submit(bench, "first", tokens=100)
    submit(bench, "big", tokens=80)
    submit(bench, "free", "free")
    assert bench.started == ["free"]


def test_work_without_cost_that_waits_for_a_place_passes_those_who_wait_for_a_quantity() -> None:
    bench = bench_of(sells(tokens=(100, MINUTE), concurrent=1))
    submit(bench, "first", tokens=100)
    submit(bench, "big", tokens=80)
    submit(bench, "free1", "free")
    submit(bench, "free2", "free")
    bench.finish("first")
    assert bench.started == ["free1"]
    bench.finish("free1")
    assert bench.started == ["free2"]
    bench.finish("free2")
    assert bench.started == []
    sleep(bench)
    assert (bench.started, bench.now) == (["big"], START + MINUTE)


def test_work_that_costs_what_this_service_does_not_sell_passes() -> None:
    bench = bench_of(sells(tokens=(100, MINUTE)), sells("other", images=(5, MINUTE)))
    submit(bench, "first", tokens=100)
    submit(bench, "big", tokens=80)
    submit(bench, "image", "other", ("api", "other"), images=1)
    assert bench.started == ["image"]


def test_when_the_one_that_waited_for_much_goes_away_the_others_go_on_at_once() -> None:
    bench = bench_of(sells(tokens=(100, MINUTE)))
    submit(bench, "first", tokens=50)
    submit(bench, "big", tokens=80)
    submit(bench, "small", "small", tokens=5)
    assert bench.cancel("big") is True
    assert bench.started == ["small"]


def test_work_with_a_higher_priority_that_costs_less_goes_before_the_one_that_waits_in_its_lane() -> None:
    bench = Bench(sells(tokens=(100, MINUTE)))
    submit(bench, "first", tokens=50)
    submit(bench, "big", tokens=80)
    bench.submit("urgent", cost=costs(tokens=20), priority=5)
    assert bench.started == ["urgent"]


def test_work_of_two_services_is_not_starved_of_a_quantity_by_younger_work_while_it_waits_for_a_place() -> (
    None
):
    bench = bench_of(limits("gpu", concurrent=1), sells(tokens=(100, MINUTE)))
    bench.submit("runs", services=["gpu"], task="other")
    submit(bench, "both", services=("gpu", "api"), tokens=60)
    for number in range(10):
        submit(bench, f"small{number}", "small", tokens=10)
    assert bench.running == ["runs", "small0", "small1", "small2", "small3"]
    bench.finish("runs")
    assert bench.started == ["both"]


def test_a_place_is_not_kept_for_work_that_lacks_a_quantity_as_well() -> None:
    bench = bench_of(limits("gpu", concurrent=1), sells(tokens=(100, MINUTE), concurrent=2))
    bench.submit("runs", services=["gpu"], task="other")
    submit(bench, "first", "small", tokens=90)
    submit(bench, "both", services=("gpu", "api"), tokens=60)
    submit(bench, "free", "free")
    assert bench.started == ["free"]


# --- What never fits ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("services", "cost"),
    [
        ([sells(tokens=(100, MINUTE))], {"tokens": 101}),
        ([sells(tokens=[(1000, MINUTE), (100, 1.0)])], {"tokens": 101}),
        ([sells(tokens=(1000, MINUTE)), sells("two", tokens=(100, 1.0))], {"tokens": 101}),
        ([sells(tokens=(1000, MINUTE), images=(5, 1.0))], {"tokens": 1, "images": 6}),
    ],
    ids=["one rate", "the tighter of two rates", "the tighter of two services", "another quantity"],
)
def test_a_cost_that_can_never_fit_is_refused_and_nothing_of_its_submission_is_taken(
    services: list[Limits], cost: dict[str, float]
) -> None:
    bench = bench_of(*services)
    names = [service.name for service in services]
    fine = bench.spec("fine", services=names, cost=())
    with pytest.raises(SubmitError, match="ever allows") as refusal:
        bench.submit(fine, bench.spec("big", services=names, cost=costs(**cost)))
    assert "Split the work, or raise the limit." in str(refusal.value)
    assert bench.store.records == {}


def test_a_cost_that_just_fits_is_taken() -> None:
    bench = Bench(sells(tokens=(100, MINUTE)))
    submit(bench, "a", tokens=100)
    assert bench.started == ["a"]


def test_a_cost_of_something_that_nobody_sells_is_refused() -> None:
    bench = Bench(sells(tokens=(100, MINUTE)))
    with pytest.raises(
        SubmitError, match=r"costs images, and none of its services \(api\) has a limit of that"
    ):
        submit(bench, "a", images=1)


def test_a_limit_that_was_lowered_leaves_those_waiting_who_cost_more_and_says_so() -> None:
    bench = Bench(sells(tokens=(100, MINUTE)))
    submit(bench, "first", tokens=100)
    submit(bench, "big", tokens=80)
    bench.declare(sells(tokens=(50, MINUTE)))
    why = bench.why("big")
    assert (why.reason, why.until, why.service) == ("rate", None, "api")
    assert why.details == "needs 80 tokens and there are never more than 50: raise the limit or cancel it"
    bench.after(2 * MINUTE)
    assert bench.started == []
    bench.declare(sells(tokens=(80, MINUTE)))
    assert bench.started == ["big"]


def test_work_that_no_longer_ever_fits_keeps_nobody_in_other_lanes_waiting() -> None:
    bench = bench_of(sells(tokens=(100, MINUTE), concurrent=3))
    submit(bench, "first", tokens=100)
    submit(bench, "big", tokens=80)
    submit(bench, "small", "small", tokens=10)
    bench.declare(sells(tokens=(50, MINUTE), concurrent=3))
    submit(bench, "later", "other", tokens=20)
    bench.turn()
    sleep(bench)
    assert (bench.started, bench.now) == (["small", "later"], START + MINUTE)
    bench.finish("small")
    bench.declare(sells(tokens=(100, MINUTE), concurrent=3))
    submit(bench, "last", "small", tokens=10)
    assert bench.started == []  # it is the oldest that may start some day again
    assert bench.why("last").reason == "rate"
    bench.now += MINUTE
    bench.turn()
    assert bench.started == ["big"]


def test_others_go_on_in_the_moment_in_which_it_is_seen_that_one_never_fits() -> None:
    bench = bench_of(sells(tokens=(100, MINUTE)))
    submit(bench, "first", tokens=30)
    submit(bench, "big", tokens=80)
    submit(bench, "small", "small", tokens=10)
    assert bench.started == []
    bench.declare(sells(tokens=(50, MINUTE)))
    assert bench.started == ["small"]


def test_when_the_one_that_never_fits_is_cancelled_its_own_lane_goes_on() -> None:
    bench = Bench(sells(tokens=(100, MINUTE)))
    submit(bench, "first", tokens=60)
    submit(bench, "big", tokens=80)
    submit(bench, "small", tokens=10)
    bench.declare(sells(tokens=(75, MINUTE)))
    assert bench.started == []
    bench.cancel("big")
    assert bench.started == ["small"]


# --- What the far side says -----------------------------------------------------------------------


def test_no_more_calls_than_the_far_side_said_start_until_it_takes_more() -> None:
    bench = Bench(limits(concurrent=100))
    bench.submit("a")
    bench.observe("a", ("", 2, 30))
    bench.submit("b", "c", "d", "e")
    assert bench.started == ["b", "c"]
    why = bench.why("d")
    assert (why.reason, why.until, why.details) == (
        "rate",
        START + 30,
        "0 calls left, as the service said itself",
    )
    sleep(bench)
    assert (bench.started, bench.now) == (["d", "e"], START + 30)
    assert bench.scheduler.ledger.ready.services["api"].budgets == {}


def test_calls_that_were_granted_and_not_made_yet_are_taken_off_what_it_said() -> None:
    bench = Bench(limits(rate=(100, MINUTE)))
    bench.submit("a")
    bench.turn()
    bench.enters_at_once = False
    bench.submit("b")
    bench.observe("a", ("", 2, 30))
    bench.submit("c", "d")
    assert bench.started == ["c"]


def test_no_more_of_a_quantity_than_the_far_side_said_is_used_until_it_takes_more() -> None:
    bench = Bench(sells(tokens=(1000, MINUTE)))
    submit(bench, "a", tokens=10)
    bench.observe("a", ("tokens", 100, 30))
    for name in ("b", "c"):
        submit(bench, name, tokens=60)
    assert bench.running == ["a", "b"]
    why = bench.why("c")
    assert (why.until, why.details) == (START + 30, "40 tokens left, as the service said itself")
    sleep(bench)
    assert (bench.started, bench.now) == (["c"], START + 30)


def test_what_the_far_side_said_outlives_other_limits() -> None:
    bench = Bench(limits(concurrent=10), sells("meter", tokens=(1000, MINUTE)))
    both = ("api", "meter")
    submit(bench, "a", services=both, tokens=10)
    bench.observe("a", ("tokens", 100, 30), ("", 2, 30))
    bench.declare(limits(concurrent=20))
    submit(bench, "b", services=both, tokens=60)
    submit(bench, "c", services=both, tokens=60)
    assert bench.running == ["a", "b"]
    submit(bench, "d", services=("api",))
    assert bench.running == ["a", "b", "d"]
    submit(bench, "e", services=("api",))
    assert bench.running == ["a", "b", "d"]


def test_the_last_word_of_the_far_side_counts() -> None:
    bench = Bench()
    bench.submit("a")
    bench.observe("a", ("", 0, 30))
    bench.submit("b")
    assert bench.started == []
    bench.observe("a", ("", 5, 20))
    assert bench.started == ["b"]


@pytest.mark.parametrize("named", [None, "two", "three"])
def test_what_was_said_is_about_the_service_that_is_named_or_else_the_first(named: str | None) -> None:
    bench = Bench(limits("one"), limits("two"))
    bench.submit("a", services=["one", "two"])
    bench.observe("a", ("", 0, 30), service=named)
    services = bench.scheduler.ledger.ready.services
    assert [name for name in ("one", "two") if services[name].budgets] == ["two" if named == "two" else "one"]


def test_what_was_said_to_an_attempt_that_is_over_or_uses_no_service_is_nobodys() -> None:
    bench = Bench(limits(), limits("#threads"), rules={"task": Rule(Retry(), ("#threads",))})
    bench.submit("a")
    bench.submit("b", services=[])
    bench.finish("a")
    bench.observe("a", ("", 0, 30))
    bench.observe("b", ("", 0, 30))
    assert [one.budgets for one in bench.scheduler.ledger.ready.services.values()] == [{}, {}]


# --- With callbacks -------------------------------------------------------------------------------


def test_what_the_best_by_score_costs_decides_whether_it_starts_even_after_a_better_one_went_away() -> None:
    bench = Bench(sells(tokens=(100, MINUTE)), questions=Questions(score=True))
    submit(bench, "first", tokens=60)
    bench.answer("first", score=1.0)
    assert bench.running == ["first"]
    submit(bench, "best", tokens=5)
    submit(bench, "big", tokens=80)
    bench.turn(Verdicts([bench.verdict("big", score=2.0)]), Cancel("best", False))
    assert bench.started == []
    lane = bench.scheduler.ledger.lanes.lane_of(bench.record("big").spec)
    assert lane.cost() == costs(tokens=80)
    bench.after(0.01)
    assert bench.running == ["first"]


def test_a_candidate_that_is_outdated_costs_nothing() -> None:
    bench = Bench(sells(tokens=(100, MINUTE)), questions=Questions(score=True))
    bench.may_start = False
    submit(bench, "a", tokens=60)
    lane = bench.scheduler.ledger.lanes.lane_of(bench.record("a").spec)
    record = bench.record("a")
    lane.candidates.append((0.0, 0, 0, record, bench.now))
    assert lane.cost() == costs(tokens=60)  # that of the one in line
    assert lane.candidates == []


# --- Several processes ----------------------------------------------------------------------------


def test_all_processes_together_use_no_more_than_is_allowed() -> None:
    shared, one, other = two(sells(tokens=(100, MINUTE)), rules=TASKS, serving=("one",))
    submit(one, "a", tokens=60)
    assert one.started == ["a"]
    other.may_start = True
    other.post(other.submission("b", task="small", cost=costs(tokens=60)))
    one.turn()
    assert one.started == other.started == []
    one.charge("a", tokens=20)
    other.read()
    assert other.started == ["b"]
    shared.now += MINUTE + 1
    submit(other, "c", tokens=100)
    assert other.state("c") == "running"


def test_what_was_returned_unused_others_may_use() -> None:
    _, one, other = two(sells(tokens=(100, MINUTE)), rules=TASKS, serving=("one",))
    one.enters_at_once = False
    submit(one, "a", tokens=60)
    other.may_start, one.queues = True, ("none",)
    other.post(other.submission("b", task="small", cost=costs(tokens=60)))
    one.turn()
    assert one.started == other.started == []
    one.fail("a", "late")
    other.read()
    assert len(other.started) == 1


def test_who_takes_over_counts_what_runs_at_what_it_was_expected_to_use_until_it_is_charged() -> None:
    _, one, other = two(sells(tokens=(100, MINUTE)), rules=TASKS, serving=("one",))
    submit(one, "a", tokens=60)
    submit(other, "b", "small", tokens=30)
    one.turn()
    assert one.started == ["b"]
    meter = one.scheduler.ledger.ready.services["api"].meters[0]
    assert meter.room(one.now) == 10
    one.charge("a", tokens=20)
    assert meter.room(one.now) == 50
    one.charge("a", tokens=65)
    assert meter.room(one.now) == 5


def test_a_start_whose_entry_is_told_twice_or_to_nobody_counts_once() -> None:
    bench = Bench(sells(tokens=(100, MINUTE)))
    submit(bench, "a", tokens=60)
    entered = Entered([(bench.tokens["a"], bench.now, bench.now), (999, bench.now, bench.now)])
    bench.turn(entered)
    bench.turn(entered)
    assert bench.scheduler.ledger.ready.services["api"].meters[0].room(bench.now) == 40


# --- All of it ------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["submit"] * 5 + ["end", "end", "charge", "wait", "wait", "cancel", "declare"]),
        st.integers(0, 5),
        st.integers(0, 60),
    ),
    min_size=15,
    max_size=60,
)


@pytest.mark.no_cover
@settings(max_examples=fewer(100, 30))
@given(steps=STEPS)
def test_no_window_is_exceeded_and_nothing_waits_for_ever(
    steps: list[tuple[str, int, int]],
) -> None:
    bench, limit = bench_of(sells(tokens=(100, 10.0), concurrent=3), sells("b", tokens=(60, 5.0))), 100
    starts: dict[int, tuple[float, float]] = {}
    tasks = ["task", "small", "free", "other"]
    made = 0
    for step, number, amount in steps:
        if step == "submit":
            made += 1
            services = (("api",), ("b",), ("api", "b"))[number % 3]
            cost = {} if number > 3 else {"tokens": float(min(amount, limit))}
            submit(bench, f"{made}", tasks[number % 4], services, **cost)
        elif step == "end" and bench.running:
            bench.finish(bench.running[number % len(bench.running)])
        elif step == "charge" and bench.running:
            work_id = bench.running[number % len(bench.running)]
            began, _ = starts.get(bench.tokens[work_id], (-1.0, 0.0))
            starts[bench.tokens[work_id]] = began, 0.0
            bench.charge(work_id, tokens=0)
        elif step == "cancel":
            pending = [one for one, state in bench.states().items() if state == "pending"]
            if pending:
                bench.cancel(pending[number % len(pending)])
        elif step == "declare":
            limit = 60 + 8 * number
            bench.declare(sells(tokens=(limit, 10.0), concurrent=3))
        else:
            bench.after(number / 2)
        for record in bench.plan.start:
            if "api" in record.spec.services:
                starts[record.token] = bench.now, sum(amount for _, amount in record.spec.cost)
    for first, _ in starts.values():
        assert sum(amount for at, amount in starts.values() if 0 <= at - first < 10) <= 100
    for _ in range(4 * made + 20):  # whatever there is comes to its end
        if bench.running:
            bench.finish(bench.running[0])
        else:
            bench.after(5)
    assert all(state != "pending" for state in bench.states().values())
