"""The decisions of a turn: limits, order, pauses, circuits, time, and what is told and forgotten."""

import math
from collections.abc import Sequence

import pytest

from runcue.core.limits.service import Limits
from runcue.core.model.events import draft_of
from runcue.core.model.failure import Failure
from runcue.core.model.parse import Rate
from runcue.core.model.retry import Retry
from runcue.core.model.settings import Rule
from runcue.core.schedule.gates import Questions
from runcue.core.schedule.outcome import SHORTEST_PAUSE
from runcue.core.schedule.plan import (
    Cancel,
    Declare,
    Entered,
    Item,
    Outcome,
    Pause,
    Plan,
    Revive,
    Serve,
    Tell,
)
from runcue.core.schedule.scheduler import REPORTS, REQUESTS
from tests.core.bench_of_core import SLOW_RETRY, START, Bench, costs, limits, sells

ONE_AT_A_TIME = limits(concurrent=1)


def start_order(bench: Bench) -> list[str]:
    """Let everything run, one after the other as room allows, and tell in which order it started."""
    order = [*bench.running]
    while running := bench.running:
        bench.turn(*[bench.success(work_id) for work_id in running])
        order += bench.started
    return order


def most_in_any_window(times: Sequence[float], per: float) -> int:
    return max(sum(0 <= other - first < per for other in times) for first in times)


# --- Concurrency ----------------------------------------------------------------------------------


def test_no_more_run_than_the_service_allows() -> None:
    bench = Bench(limits(concurrent=2))
    bench.submit("a", "b", "c")
    assert bench.started == ["a", "b"]


def test_the_end_of_one_is_the_start_of_the_next_in_the_same_turn() -> None:
    bench = Bench(ONE_AT_A_TIME)
    bench.submit("a", "b")
    bench.finish("a")
    assert bench.started == ["b"]


def test_a_start_is_recorded_with_its_time_its_attempt_and_a_fresh_token() -> None:
    bench = Bench()
    bench.submit("a", "b")
    first, second = bench.plan.start
    assert (first.state, first.started_at, first.attempt) == ("running", START, 1)
    assert first.token != second.token
    assert bench.plan.records["a"] is first


def test_nothing_starts_while_nothing_may() -> None:
    bench = Bench()
    bench.may_start = False
    bench.submit("a")
    assert (bench.started, bench.state("a")) == ([], "pending")
    bench.may_start = True
    bench.turn()
    assert bench.started == ["a"]


def test_work_without_services_is_limited_by_nothing() -> None:
    bench = Bench()
    bench.submit(*"abc", services=())
    assert bench.started == ["a", "b", "c"]


def test_a_blocked_service_blocks_nobody_else() -> None:
    bench = Bench(limits("full", concurrent=1), limits("free"))
    bench.submit("a", "b", services=["full"])
    bench.submit("c", services=["free"])
    assert bench.running == ["a", "c"]


def test_what_a_task_takes_up_by_its_executor_limits_it_too() -> None:
    bench = Bench(
        limits(), limits("#threads", concurrent=1), rules={"task": Rule(Retry.of(None), ("#threads",))}
    )
    bench.submit("a", "b")
    assert bench.running == ["a"]


# --- Several services -----------------------------------------------------------------------------


def test_work_takes_all_of_its_services_or_none() -> None:
    bench = Bench(limits("one", concurrent=1), limits("two", concurrent=1))
    bench.submit("a", services=["one"])
    bench.submit("both", services=["one", "two"])
    assert bench.running == ["a"]
    bench.finish("a")
    assert bench.running == ["both"]
    bench.submit("b", services=["two"])
    assert bench.started == []


def test_services_named_in_any_order_never_lock_each_other_out() -> None:  # LM6
    bench = Bench(limits("one", concurrent=1), limits("two", concurrent=1))
    for number in range(20):
        bench.submit(services=["one", "two"] if number % 2 else ["two", "one"])
    assert len(start_order(bench)) == 20


def test_a_slot_is_kept_for_the_oldest_work_that_lacks_only_a_slot_elsewhere() -> None:
    bench = Bench(limits("one", concurrent=1), limits("two", concurrent=1))
    bench.submit("runs", services=["two"])
    bench.submit("both", services=["one", "two"])
    bench.submit("a", services=["one"])
    assert bench.running == ["runs"]
    bench.finish("runs")
    assert bench.started == ["both"]
    bench.finish("both")
    assert bench.started == ["a"]


def test_a_kept_slot_is_given_up_when_the_work_it_was_kept_for_goes_away() -> None:
    bench = Bench(limits("one", concurrent=1), limits("two", concurrent=1))
    bench.submit("runs", services=["two"])
    bench.submit("both", services=["one", "two"])
    bench.submit("a", services=["one"])
    bench.cancel("both")
    assert bench.started == ["a"]


def test_a_slot_is_not_kept_against_work_that_comes_first_anyway() -> None:
    bench = Bench(limits("one", concurrent=1), limits("two", concurrent=1))
    bench.submit("runs", services=["two"])
    bench.submit("both", services=["one", "two"])
    bench.submit("urgent", services=["one"], priority=5)
    assert bench.started == ["urgent"]


@pytest.mark.parametrize("lasting", ["pause", "throttle"])
def test_no_slot_is_kept_for_work_whose_other_service_is_away_for_longer(lasting: str) -> None:
    bench = Bench(limits("one", concurrent=1), limits("two", concurrent=1))
    bench.submit("runs", services=["two"])
    bench.submit("both", services=["one", "two"])
    bench.submit("a", services=["one"])
    if lasting == "pause":
        bench.pause("two")
    else:
        bench.fail("runs", "throttled", after=60)
    assert bench.started == ["a"]


def test_no_slot_is_kept_when_one_of_the_other_services_is_taken_meanwhile() -> None:
    bench = Bench(*[limits(name, concurrent=1) for name in ("one", "two", "three")])
    bench.submit("runs", services=["two"])
    bench.submit("all", services=["one", "two", "three"])
    bench.submit("a", services=["one"])
    assert bench.running == ["runs"]
    bench.submit("urgent", services=["three"], priority=5)
    assert bench.running == ["runs", "a", "urgent"]


def test_no_slot_is_kept_once_the_other_service_has_used_up_its_rate() -> None:
    bench = Bench(limits("one", concurrent=1), limits("two", concurrent=1, rate=(2, 60)))
    bench.submit("first", services=["two"])
    bench.submit("second", services=["two"])
    bench.submit("both", services=["one", "two"])
    bench.submit("a", services=["one"])
    assert bench.running == ["first"]
    bench.finish("first")
    assert bench.started == ["second", "a"]


def test_work_kept_back_for_older_work_starts_as_soon_as_its_rate_has_room_for_both() -> None:
    bench = Bench(limits("slot", concurrent=1), limits("rated", rate=(2, 1.5)))
    bench.submit("runs", services=["slot", "rated"])
    bench.after(1)
    bench.submit("both", services=["slot", "rated"])
    bench.submit("a", services=["rated"])
    assert bench.running == ["runs"]
    while "a" not in bench.running:
        assert bench.now < START + 1.5
        bench.wake()
    assert bench.now == START + 1.5


def test_an_endless_stream_of_single_work_does_not_starve_work_that_needs_both() -> None:
    bench = Bench(limits("one", concurrent=2), limits("two", concurrent=2))
    for name in ("one", "two"):
        bench.submit(None, None, None, services=[name])
    bench.submit("both", services=["one", "two"])
    for number in range(20):
        bench.after(
            1, bench.success(bench.running[0]), bench.submission(None, services=[("one", "two")[number % 2]])
        )
        if bench.state("both") == "running":
            break
    assert bench.state("both") == "running"


# --- Rates ----------------------------------------------------------------------------------------


def test_a_rate_allows_a_burst_and_then_waits_for_the_window() -> None:
    bench = Bench(limits(rate=(2, 10)))
    bench.submit("a", "b", "c")
    assert bench.started == ["a", "b"]
    bench.turn()
    assert bench.plan.wake_at <= START + 10
    bench.after(9.99)
    assert bench.started == []
    bench.after(0.01)
    assert bench.started == ["c"]


def test_a_rate_counts_starts_and_not_what_runs() -> None:
    bench = Bench(limits(rate=(2, 10)))
    bench.submit("a", "b", "c")
    bench.finish("a")
    assert bench.started == []


def test_every_rate_of_a_service_holds_at_once() -> None:
    bench = Bench(Limits("api", rates=(Rate(2, 1), Rate(3, 60))))
    bench.submit(*"abcd")
    assert bench.running == ["a", "b"]
    bench.after(1)
    assert bench.started == ["c"]
    bench.after(1)
    assert bench.started == []
    bench.after(58)
    assert bench.started == ["d"]


def test_no_window_of_any_position_is_ever_exceeded() -> None:  # LM1
    bench = Bench(limits(rate=(5, 10)), retry=Retry(max_attempts=9, base_delay=0.3))
    bench.submit(*[None] * 40)
    times = []
    while bench.now < START + 100:
        times += [bench.now] * len(bench.started)
        bench.turn(*[bench.failure(work_id) for work_id in bench.running[::2]])
        times += [bench.now] * len(bench.started)
        bench.wake() if bench.plan.wake_at > bench.now else bench.after(0.5)
    assert most_in_any_window(times, 10) == 5
    assert len(times) >= 50


def test_a_start_counts_from_its_entry_into_the_handler() -> None:
    bench = Bench(limits(rate=(1, 10)))
    bench.enters_at_once = False
    bench.submit("a", "b")
    bench.after(8)
    assert bench.started == []
    bench.enter("a")
    bench.after(9.9)
    assert bench.started == []
    bench.after(0.1)
    assert bench.started == ["b"]


def test_a_start_that_was_not_yet_entered_counts_as_now() -> None:
    bench = Bench(limits(rate=(1, 10)))
    bench.enters_at_once = False
    bench.submit("a", "b")
    bench.after(100)
    assert bench.started == []


def test_a_grant_that_was_never_entered_is_given_back() -> None:
    bench = Bench(limits(rate=(1, 10)))
    bench.enters_at_once = False
    bench.submit("a", "b")
    bench.fail("a")
    assert bench.started == ["b"]


@pytest.mark.parametrize("kind", ["error", "snoozed", "throttled"])
def test_a_grant_that_was_entered_is_never_given_back(kind: str) -> None:
    bench = Bench(limits(rate=(1, 10)))
    bench.submit("a", "b")
    bench.fail("a", kind, after=0)  # type: ignore[arg-type]
    assert bench.started == []


def test_waiting_for_limits_burns_no_attempt() -> None:  # LM15
    bench = Bench(limits(rate=(1, 10), circuit_threshold=2, circuit_timeout=5), retry=SLOW_RETRY)
    bench.submit("a", "b", "c")
    for _ in range(12):
        bench.after(5)
    assert [bench.record(work_id).attempt for work_id in "abc"] == [1, 1, 1]
    assert bench.running == ["a", "b", "c"]


def test_a_service_that_lets_nothing_start_because_of_its_rate_says_so_at_most_once_a_second() -> None:
    bench = Bench(limits(rate=(1, 10)))
    bench.submit("a", "b")
    for number in range(10):
        bench.now += 0.25
        bench.submit(queue=f"queue {number}")
    facts = bench.facts("service_rate_limited")
    assert len(facts) == 3
    assert facts[-1] == {
        "service": "api", "until": START + 10, "current_rate": 1, "limit": 1, "details": "1/1 used",
    }  # fmt: skip


def test_a_service_that_lacks_some_of_a_quantity_says_how_much_of_it_is_used() -> None:
    bench = Bench(sells(tokens=(100, 60)))
    bench.submit("a", cost=costs(tokens=80))
    bench.submit("b", cost=costs(tokens=30))
    [fact] = bench.facts("service_rate_limited")
    assert (fact["current_rate"], fact["limit"]) == (80, 100)


# --- Limits that change ---------------------------------------------------------------------------


def test_a_raised_cap_lets_more_start_at_once() -> None:
    bench = Bench(ONE_AT_A_TIME)
    bench.submit("a", "b", "c")
    bench.declare(limits(concurrent=3))
    assert bench.started == ["b", "c"]


def test_a_lowered_cap_stops_nothing_but_lets_nothing_start_until_enough_ended() -> None:
    bench = Bench(limits(concurrent=3))
    bench.submit(*"abcd")
    bench.declare(limits(concurrent=1))
    assert bench.running == ["a", "b", "c"]
    bench.turn(bench.success("a"), bench.success("b"))
    assert bench.started == []
    bench.finish("c")
    assert bench.started == ["d"]


def test_what_was_started_before_a_rate_changed_goes_on_counting() -> None:
    bench = Bench(limits(rate=(2, 10)))
    bench.submit("a", "b", "c")
    bench.turn()
    bench.declare(limits(rate=(2, 5)))
    assert bench.started == []
    bench.after(5)
    assert bench.started == ["c"]


def test_a_start_granted_before_a_rate_was_declared_does_not_widen_it() -> None:
    bench = Bench(limits("rated", rate=(9, 60)), limits("free"))
    bench.enters_at_once = False
    bench.submit("a", services=["rated", "free"])
    bench.declare(limits("free", rate=(1, 60)))
    bench.enter("a")
    bench.submit("b", "c", services=["free"])
    assert bench.started == ["b"]


def test_a_rate_taken_away_and_declared_again_is_not_widened_by_a_grant_in_between() -> None:
    bench = Bench(limits(rate=(1, 60)))
    bench.enters_at_once = False
    bench.submit("a")
    bench.declare(limits())
    bench.declare(limits(rate=(1, 60)))
    bench.submit("b", "c")
    assert bench.started == []
    bench.enter("a")
    assert bench.started == []
    bench.after(60)
    assert bench.started == ["b"]


def test_a_service_may_be_declared_while_others_run() -> None:
    bench = Bench()
    bench.submit("a")
    bench.turn(Declare(limits("late", concurrent=1)), bench.submission("b", "c", services=["late"]))
    assert bench.running == ["a", "b"]


def test_declaring_and_changing_a_service_is_told() -> None:
    bench = Bench()
    bench.declare(limits("late", concurrent=1))
    bench.declare(limits("late", concurrent=2))
    assert [fact["service"] for fact in bench.facts("service_status")] == ["late", "late"]


# --- Pauses ---------------------------------------------------------------------------------------


def test_a_paused_service_starts_nothing_and_goes_on_when_resumed() -> None:
    bench = Bench(limits("api"), limits("other"))
    assert bench.pause("api") is True
    bench.submit("a", "b")
    bench.submit("c", services=["other"])
    assert bench.running == ["c"]
    assert bench.resume("api") is True
    assert bench.started == ["a", "b"]


def test_pausing_a_service_stops_nothing_that_runs() -> None:
    bench = Bench()
    bench.submit("a")
    bench.pause("api")
    bench.finish("a")
    assert bench.state("a") == "completed"


def test_pausing_and_resuming_a_service_is_told() -> None:
    bench = Bench()
    bench.pause("api")
    bench.resume("api")
    assert bench.facts("service_status") == [
        {"service": "api", "paused": True, "available": False, "reason": "paused", "until": None},
        {"service": "api", "paused": False, "available": True, "reason": None, "until": None},
    ]


def availability(bench: Bench) -> list[tuple[bool, str | None]]:
    return [(fact["available"], fact["reason"]) for fact in bench.facts("service_status")]


def test_a_service_that_asks_to_be_left_alone_is_told_to_be_unavailable_until_that_is_over() -> None:
    bench = Bench(limits(rate=(5, 60.0)))
    bench.submit("a", "b")
    bench.fail("a", "throttled", after=10.0)
    bench.fail("b", "throttled", after=30.0)
    assert availability(bench) == [(False, "throttled")]
    [limited, _] = bench.facts("service_rate_limited")
    assert (limited["current_rate"], limited["limit"], limited["until"]) == (2, 5, START + 10)
    bench.after(10.0)
    assert availability(bench) == [(False, "throttled")]  # it asked again since
    bench.after(20.0)
    assert availability(bench) == [(False, "throttled"), (True, None)]


def test_a_service_is_told_to_be_unavailable_while_its_circuit_is_not_closed() -> None:
    bench = Bench(limits(circuit_threshold=1, circuit_timeout=10.0))
    bench.submit("a")
    bench.fail("a")
    assert availability(bench) == [(False, "circuit")]
    bench.submit("b")
    bench.after(10.0)
    bench.fail("b")  # the probe
    assert availability(bench) == [(False, "circuit")]
    bench.submit("c")
    bench.after(20.0)
    bench.finish("c")
    assert availability(bench) == [(False, "circuit"), (True, None)]


def test_a_service_that_is_unavailable_for_two_reasons_is_available_when_both_are_over() -> None:
    bench = Bench(limits(circuit_threshold=1, circuit_timeout=10.0))
    bench.submit("a", "b")
    bench.fail("a")
    bench.pause("api")
    bench.resume("api")
    assert availability(bench) == [(False, "circuit"), (False, "paused"), (False, "circuit")]


def test_a_paused_queue_starts_nothing_and_goes_on_when_resumed() -> None:
    bench = Bench()
    bench.submit("early", queue="nightly")
    bench.pause("nightly")
    bench.submit("a", queue="nightly")
    bench.submit("b")
    assert bench.running == ["early", "b"]
    bench.resume("nightly")
    assert bench.started == ["a"]


def test_a_queue_may_be_paused_before_it_has_any_work() -> None:
    bench = Bench()
    bench.pause("nightly")
    bench.submit("a", queue="nightly")
    assert bench.running == []


def test_only_work_of_the_queues_that_are_served_starts() -> None:
    bench = Bench()
    bench.scheduler.ledger.ready.serve(frozenset({"mine"}))
    bench.submit("a", queue="mine")
    bench.submit("b", queue="other")
    assert bench.running == ["a"]
    bench.scheduler.ledger.ready.serve(None)
    bench.turn()
    assert bench.started == ["b"]


# --- Order ----------------------------------------------------------------------------------------


def test_equal_work_starts_in_order_of_submission() -> None:
    bench = Bench(ONE_AT_A_TIME)
    bench.submit(*"cab")
    assert start_order(bench) == ["c", "a", "b"]


def test_a_higher_priority_starts_first() -> None:
    bench = Bench(ONE_AT_A_TIME)
    bench.submit("runs")
    bench.submit(bench.spec("low", priority=-1), bench.spec("none"), bench.spec("high", priority=0.5))
    assert start_order(bench) == ["runs", "high", "none", "low"]


def test_the_best_of_several_submitted_in_one_turn_goes_first() -> None:
    bench = Bench(ONE_AT_A_TIME)
    bench.turn(*[bench.submission(str(priority), priority=priority) for priority in (1, 3, 2)])
    assert bench.started == ["3"]


@pytest.mark.parametrize(("waited", "first"), [(119, "urgent"), (121, "old")])
def test_waiting_is_worth_a_point_of_priority_for_each_step(waited: float, first: str) -> None:
    bench = Bench(ONE_AT_A_TIME, age_step=60)
    bench.submit("runs", "old")
    bench.now += waited
    bench.submit("urgent", priority=2)
    bench.finish("runs")
    assert bench.started == [first]


def test_a_step_can_be_chosen() -> None:
    bench = Bench(ONE_AT_A_TIME, age_step=1)
    bench.submit("runs", "old")
    bench.now += 3
    bench.submit("urgent", priority=2)
    bench.finish("runs")
    assert bench.started == ["old"]


def test_without_a_step_priority_is_strict_and_waiting_worth_nothing() -> None:
    bench = Bench(ONE_AT_A_TIME, age_step=None)
    bench.submit("runs", "old")
    bench.now += 86400 * 365
    bench.submit("urgent", priority=1)
    bench.finish("runs")
    assert bench.started == ["urgent"]


def test_an_endless_stream_of_urgent_work_delays_the_rest_by_no_more_than_its_priority() -> None:  # SC6
    bench = Bench(ONE_AT_A_TIME, age_step=60)
    bench.submit("runs")
    bench.submit("low")
    while bench.state("low") == "pending":
        bench.after(10, bench.success(bench.running[0]), bench.submission(None, priority=3))
        assert bench.now <= START + 3 * 60 + 10


def test_equal_priority_goes_by_the_time_at_which_it_should_run() -> None:
    bench = Bench(ONE_AT_A_TIME)
    bench.submit("runs")
    bench.submit(
        bench.spec("later", run_at=START + 20),
        bench.spec("sooner", run_at=START + 10),
        bench.spec("delayed", delay=15),
    )
    bench.after(30)
    assert start_order(bench)[1:] == ["sooner", "delayed", "later"]


def test_order_holds_across_tasks_and_queues_that_share_a_service() -> None:
    rules = {name: Rule(Retry.of(None)) for name in "xy"}
    bench = Bench(ONE_AT_A_TIME, rules=rules)
    bench.submit("runs", task="x")
    bench.submit(
        bench.spec("1", task="x", priority=9),
        bench.spec("2", task="y", priority=8),
        bench.spec("3", task="x", queue="q", priority=7),
        bench.spec("4", task="x", priority=6),
    )
    assert start_order(bench)[1:] == ["1", "2", "3", "4"]


def test_order_holds_across_lanes_when_several_slots_come_free_at_once() -> None:
    rules = {name: Rule(Retry.of(None)) for name in "xy"}
    bench = Bench(limits(concurrent=3), rules=rules)
    bench.pause("api")
    bench.submit(
        bench.spec("1", task="x", priority=9),
        bench.spec("2", task="y", priority=8),
        bench.spec("3", task="x", priority=7),
        bench.spec("4", task="x", priority=6),
    )
    bench.resume("api")
    assert bench.started == ["1", "2", "3"]


def test_order_holds_across_lanes_when_the_first_of_one_was_cancelled() -> None:
    rules = {name: Rule(Retry.of(None)) for name in "xy"}
    bench = Bench(ONE_AT_A_TIME, rules=rules)
    bench.submit("runs", task="x")
    bench.submit(
        bench.spec("1", task="x", priority=9),
        bench.spec("2", task="y", priority=8),
        bench.spec("3", task="x", priority=7),
    )
    bench.cancel("1")
    bench.finish("runs")
    assert bench.started == ["2"]


def test_work_released_by_others_keeps_the_order_of_submission() -> None:
    bench = Bench(ONE_AT_A_TIME)
    bench.submit("a")
    bench.submit("b", needs=["a"])
    bench.submit("c")
    assert start_order(bench) == ["a", "b", "c"]


# --- Time (TM1, TM2) ------------------------------------------------------------------------------


def test_delayed_work_starts_when_its_delay_is_over() -> None:
    bench = Bench()
    bench.submit("a", delay=5)
    assert (bench.started, bench.plan.wake_at) == ([], START + 5)
    bench.after(5)
    assert bench.started == ["a"]


def test_scheduled_work_starts_when_the_wall_clock_says_so() -> None:
    bench = Bench()
    bench.wall = 50_000.0
    bench.submit("a", run_at=50_000.5)
    assert bench.plan.wake_at == START + 0.5
    bench.after(0.5)
    assert bench.started == ["a"]


def test_while_a_unit_waits_for_the_wall_clock_the_plan_says_so() -> None:
    bench = Bench()
    bench.submit("a", run_at=START + 3600)
    assert bench.plan.wake_at == START + 3600
    assert bench.plan.waits_for_wall
    bench.wall += 3600
    bench.turn()
    assert bench.started == ["a"]


def test_a_wall_clock_set_forward_starts_scheduled_work_once_and_fires_nothing_else() -> None:
    bench = Bench(limits(rate=(2, 10)), limits("other"), retry=SLOW_RETRY, pending_timeout=60)
    bench.submit("scheduled", run_at=START + 3600, services=["other"])
    bench.submit("retried", "runs", "waits")
    bench.submit("delayed", delay=5, services=["other"])
    bench.fail("retried")
    bench.wall += 86400 * 365 * 10
    bench.turn()
    assert bench.started == ["scheduled"]
    bench.turn()
    assert bench.started == []


def test_a_wall_clock_set_back_delays_neither_retries_nor_delays_nor_windows() -> None:
    bench = Bench(limits(rate=(3, 10)), retry=SLOW_RETRY)
    bench.submit("scheduled", run_at=START)
    bench.submit("retried")
    bench.fail("scheduled")
    bench.fail("retried")
    bench.submit("delayed", delay=5)
    bench.wall -= 3600
    bench.after(5)
    assert bench.started == ["delayed"]
    bench.after(5)
    assert bench.started == ["scheduled", "retried"]


def test_work_that_was_due_stays_due_when_the_wall_clock_is_set_back() -> None:
    bench = Bench(ONE_AT_A_TIME)
    bench.submit("runs")
    bench.submit("a", run_at=START + 1)
    bench.after(1)
    bench.wall -= 3600
    bench.finish("runs")
    assert bench.started == ["a"]


def test_cancelled_work_is_not_started_when_its_time_comes() -> None:
    bench = Bench()
    bench.submit("a", delay=5)
    bench.submit("b", run_at=START + 5)
    bench.cancel("a")
    bench.cancel("b")
    bench.after(5)
    assert bench.started == []


def test_work_revived_before_its_first_time_came_starts_once() -> None:
    bench = Bench()
    bench.submit("a", delay=5)
    bench.cancel("a")
    bench.revive("a")
    bench.after(5)
    assert bench.started == ["a"]


def test_with_nothing_to_do_there_is_nothing_to_wake_for() -> None:
    bench = Bench()
    bench.turn()
    assert bench.plan.wake_at == math.inf


# --- Circuits -------------------------------------------------------------------------------------

BREAKER = limits(circuit_threshold=2, circuit_timeout=30)


def tripped_bench(*more: Limits, retry: Retry | None = None) -> Bench:
    """A bench whose circuit has just opened, with `a`, `b`, `c` waiting."""
    bench = Bench(BREAKER, *more, retry=retry)
    bench.submit("x", "y")
    bench.fail("x")
    bench.fail("y")
    bench.submit("a", "b", "c")
    return bench


def test_failures_in_a_row_open_the_circuit_and_nothing_starts() -> None:
    bench = tripped_bench()
    assert bench.running == []
    assert bench.facts("circuit_opened") == [{"service": "api", "failures": 2}]
    assert bench.plan.wake_at == START + 30


def test_a_success_in_between_keeps_the_circuit_closed() -> None:
    bench = Bench(BREAKER)
    bench.submit("x", "y", "z")
    bench.fail("x")
    bench.finish("y")
    bench.fail("z")
    assert bench.facts("circuit_opened") == []


@pytest.mark.parametrize("kind", ["permanent", "throttled", "snoozed"])
def test_failures_that_say_nothing_about_the_service_do_not_count(kind: str) -> None:
    bench = Bench(BREAKER)
    bench.submit("x", "y", "z")
    for work_id in "xyz":
        bench.fail(work_id, kind, after=1000)  # type: ignore[arg-type]
    assert bench.facts("circuit_opened") == []


def test_cancelling_does_not_count_for_the_circuit() -> None:
    bench = Bench(BREAKER)
    bench.submit("x", "y", "z")
    for work_id in "xyz":
        bench.cancel(work_id)
    assert bench.facts("circuit_opened") == []


def test_timeouts_count_for_the_circuit() -> None:
    bench = Bench(BREAKER)
    bench.submit("x", "y")
    bench.time_out("x")
    bench.time_out("y")
    assert len(bench.facts("circuit_opened")) == 1


def test_after_its_time_exactly_one_probe_starts_the_best_that_waits() -> None:
    bench = tripped_bench()
    bench.submit("best", priority=5)
    bench.after(30)
    assert bench.started == ["best"]
    assert len(bench.facts("circuit_half_open")) == 1
    bench.after(1)
    assert bench.started == []


def test_a_probe_that_succeeds_closes_the_circuit_and_capacity_ramps_up() -> None:
    bench = tripped_bench()
    bench.submit(*[None] * 10)
    bench.after(30)
    bench.finish("a")
    assert len(bench.facts("circuit_closed")) == 1
    widths = [len(bench.running)]
    for _ in range(2):
        bench.turn(*[bench.success(work_id) for work_id in bench.running])
        widths.append(len(bench.running))
    assert widths == [1, 2, 4]


def test_a_probe_that_fails_opens_the_circuit_for_longer() -> None:
    bench = tripped_bench()
    bench.after(30)
    bench.fail("a")
    assert len(bench.facts("circuit_opened")) == 2
    bench.after(59.9)
    assert bench.started == []
    bench.after(0.1)
    assert bench.started == ["b"]


def test_a_probe_that_does_not_come_back_in_time_counts_as_failed() -> None:
    bench = tripped_bench()
    bench.after(30)
    bench.after(30)
    assert len(bench.facts("circuit_opened")) == 2
    bench.finish("a")
    assert (bench.state("a"), bench.facts("circuit_closed")) == ("completed", [])


def test_a_probe_that_the_service_refused_closes_the_circuit() -> None:
    bench = tripped_bench()
    bench.after(30)
    bench.turn(Outcome("a", bench.tokens["a"], failure=Failure("permanent", "404", is_answer=True)))
    assert bench.state("a") == "failed"
    assert len(bench.facts("circuit_closed")) == 1


@pytest.mark.parametrize("loss", ["cancel", "snoozed", "throttled", "permanent"])
def test_a_probe_that_proves_nothing_returns_its_place(loss: str) -> None:
    bench = tripped_bench()
    bench.after(30)
    assert bench.started == ["a"]
    if loss == "cancel":
        bench.cancel("a")
        bench.turn()
        assert bench.running == [], "its code still runs: another probe would be the second one"
        bench.end("a")
    else:
        bench.fail("a", loss, after=0)  # type: ignore[arg-type]
    bench.after(SHORTEST_PAUSE)
    assert len(bench.running) == 1
    assert len(bench.facts("circuit_opened")) == 1


def test_results_of_calls_from_before_the_trip_are_ignored() -> None:
    bench = Bench(BREAKER)
    bench.submit(*"wxyz")
    bench.fail("x")
    bench.fail("y")
    bench.finish("w")
    assert bench.facts("circuit_closed") == []
    bench.submit("a")
    bench.after(30)
    bench.fail("z")
    assert len(bench.facts("circuit_opened")) == 1


def test_a_service_may_get_or_lose_its_circuit_while_work_runs() -> None:
    bench = tripped_bench()
    bench.declare(limits())
    assert bench.started == ["a", "b", "c"]
    bench.declare(BREAKER)
    bench.turn(*[bench.failure(work_id) for work_id in "abc"])
    assert len(bench.facts("circuit_opened")) == 1
    bench.submit("d", "e")
    bench.declare(limits())
    bench.turn(*[bench.failure(work_id) for work_id in "de"])
    assert len(bench.facts("circuit_opened")) == 1


def test_each_service_has_its_own_circuit() -> None:
    bench = tripped_bench(limits("other", circuit_threshold=2))
    bench.submit("d", services=["other"])
    assert bench.running == ["d"]


def test_the_deadline_of_a_probe_is_kept_although_its_service_has_other_times_to_wake() -> None:
    bench = Bench(limits(circuit_threshold=1, circuit_timeout=30, rate=(2, 5)))
    bench.submit("x")
    bench.fail("x")
    bench.submit("a", "b")
    bench.after(30)
    while bench.now < START + 60:
        bench.wake()
    assert len(bench.facts("circuit_opened")) == 2


# --- Forgetting -----------------------------------------------------------------------------------


def test_only_so_many_finished_works_are_kept_the_last_ones() -> None:
    bench = Bench(keep_finished=2)
    bench.submit(*"abcd")
    bench.turn(*[bench.success(work_id) for work_id in "abcd"])
    assert bench.plan.forget == ["a", "b"]
    assert set(bench.states()) == {"c", "d"}


def test_without_a_bound_nothing_is_forgotten() -> None:
    bench = Bench(keep_finished=None)
    bench.submit(*"abcd")
    bench.turn(*[bench.failure(work_id) for work_id in "abcd"])
    bench.revive("a")
    bench.finish("a")
    assert [plan.forget for plan in bench.plans if plan.forget] == []


def test_live_work_is_never_forgotten_not_even_after_it_was_revived() -> None:
    bench = Bench(keep_finished=2)
    bench.submit(*"abc")
    bench.turn(bench.failure("a"), bench.success("b"))
    bench.revive("a")
    bench.finish("c")
    assert bench.states() == {"a": "running", "b": "completed", "c": "completed"}
    bench.finish("a")
    assert bench.states() == {"a": "completed", "c": "completed"}


def test_what_was_revived_does_not_push_others_out() -> None:
    bench = Bench(keep_finished=3)
    bench.submit(*"abcd")
    bench.turn(bench.success("a"), bench.failure("b"), bench.failure("c"))
    bench.revive("b")
    bench.revive("c")
    bench.finish("d")
    assert bench.states() == {"a": "completed", "b": "running", "c": "running", "d": "completed"}


def test_what_is_beyond_keep_finished_is_forgotten_when_a_turn_only_takes_the_inbox_in() -> None:
    bench = Bench(keep_finished=1)
    bench.may_start = False
    bench.submit("a", "b", "c")
    scheduler = bench.scheduler
    scheduler.begin(bench.now, bench.wall)
    scheduler.take_in([Cancel("a"), Cancel("b"), Cancel("c")])
    assert scheduler.ledger.turn.plan.forget == ["a", "b"]


def test_lanes_and_queues_that_have_no_work_any_more_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runcue.core.schedule.ready.FEW_LANES", 100)
    bench = Bench(limits("one"))
    bench.submit("stays", services=["one"], queue="kept", delay=1e6)
    bench.submit("runs", services=["one"], queue="running")
    for number in range(300):
        [work_id] = bench.submit(services=["one"], queue=f"q{number}")
        bench.finish(work_id)
    ready = bench.scheduler.ledger.ready
    assert len(ready.lanes) <= 102
    assert len(ready.queues) <= 102
    bench.fail("runs", "snoozed", after=1)
    bench.after(1)
    assert bench.started == ["runs"]
    bench.after(1e6)
    assert "stays" in bench.started


def test_what_waits_keeps_its_lane_when_idle_lanes_are_dropped() -> None:
    bench = Bench(limits("one", concurrent=1), limits("two"))
    bench.pause("paused")
    bench.submit("runs", services=["one"])
    bench.submit("waits", services=["one"], queue="q0")
    bench.submit("held", services=["two"], queue="paused")
    bench.submit(*[bench.spec(services=["two"], queue=f"q{number}") for number in range(1500)])
    for work_id in [work_id for work_id in bench.running if work_id != "runs"]:
        bench.finish(work_id)
    bench.submit(services=["two"])
    assert len(bench.scheduler.ledger.ready.lanes) < 1500
    bench.finish("runs")
    assert bench.started == ["waits"]
    bench.resume("paused")
    assert bench.started == ["held"]


def test_a_queue_that_was_dropped_while_it_was_paused_is_still_paused() -> None:
    bench = Bench(limits("one"))
    bench.pause("paused")
    bench.submit("gone", services=["one"], queue="paused")
    bench.cancel("gone")
    for number in range(1500):
        [work_id] = bench.submit(services=["one"], queue=f"q{number}")
        bench.finish(work_id)
    assert "paused" not in bench.scheduler.ledger.ready.queues
    bench.submit("a", services=["one"], queue="paused")
    assert bench.started == []
    bench.resume("paused")
    assert bench.started == ["a"]


def test_a_lane_whose_work_is_asked_about_or_waits_to_be_asked_is_not_dropped() -> None:
    bench = Bench(limits("one"), questions=Questions(ready=True))
    bench.submit("asked", services=["one"], queue="a")
    bench.submit("waiting", services=["one"], queue="b")
    bench.answer("waiting", ready=False)
    bench.pause("c")
    bench.submit("curious", services=["one"], queue="c")
    for number in range(1500):
        [work_id] = bench.submit(services=["one"], queue=f"q{number}")
        bench.answer(work_id)
        bench.finish(work_id)
    ready = bench.scheduler.ledger.ready
    assert {"a", "b", "c"} < ready.queues.keys()
    assert len(ready.lanes) <= 1003
    bench.cancel("waiting")
    bench.answer("asked")
    assert bench.started == ["asked"]
    bench.resume("c")
    assert "curious" in bench.asked


def test_work_revived_in_the_turn_that_would_forget_it_is_kept() -> None:
    bench = Bench(keep_finished=1)
    bench.submit(*"abc")
    bench.fail("a")
    bench.turn(bench.success("b"), Revive("a"))
    assert (bench.state("a"), bench.plan.forget) == ("running", [])
    bench.finish("a")
    assert bench.states() == {"a": "completed", "c": "running"}


# --- What is told ---------------------------------------------------------------------------------


def test_how_much_is_pending_and_running_is_told_every_second_while_busy() -> None:
    bench = Bench(ONE_AT_A_TIME)
    bench.submit("a", "b")
    assert bench.facts("queue_status") == [
        {"pending": 1, "running": 1, "completed": 0, "failed": 0, "cancelled": 0}
    ]
    assert bench.plan.wake_at == START + 1
    bench.after(0.5)
    assert len(bench.facts("queue_status")) == 1
    bench.wake()
    assert len(bench.facts("queue_status")) == 2


def test_an_idle_queue_tells_nothing() -> None:
    bench = Bench()
    bench.submit("a")
    bench.finish("a")
    count = len(bench.facts("queue_status"))
    bench.after(10)
    assert (len(bench.facts("queue_status")), bench.plan.events) == (count, [])


def test_what_the_shell_wants_told_is_told_in_order_about_live_work() -> None:
    bench = Bench()
    bench.submit("a")
    bench.turn(Tell("progress", "a", {"fraction": 0.5}), Tell("callback_failed", None, {"name": "is_ready"}),
               Tell("remark", "a"))  # fmt: skip
    words = [draft_of(one) for one in bench.plan.events]
    happened = [(one.type, one.record and one.record.id, one.data) for one in words]
    assert happened == [
        ("progress", "a", {"fraction": 0.5}), ("callback_failed", None, {"name": "is_ready"}), ("remark", "a", None),
    ]  # fmt: skip


def test_progress_of_work_that_is_over_is_not_told() -> None:
    bench = Bench()
    bench.submit("a")
    bench.finish("a")
    bench.turn(Tell("progress", "a"))
    assert bench.told("progress") == []


def test_counts_follow_every_move() -> None:
    bench = Bench(limits(concurrent=3), retry=SLOW_RETRY)
    bench.submit(*"abcde")
    bench.turn(bench.success("a"), bench.failure("b"), bench.failure("c", "permanent"))
    bench.cancel("d")
    ledger = bench.scheduler.ledger
    assert (ledger.counters.pending, ledger.counters.running) == (1, 1)
    assert {state.value: number for state, number in ledger.counters.counts.items()} == {
        "pending": 1, "running": 1, "completed": 1, "failed": 1, "cancelled": 1
    }  # fmt: skip


def test_the_same_items_at_the_same_times_give_the_same_plans() -> None:
    def trace() -> list[str]:
        bench = Bench(limits(concurrent=2, rate=(3, 10)), limits("other", concurrent=1), retry=3)
        bench.submit(*[f"w{number}" for number in range(8)], services=["api", "other"])
        for number in range(20):
            bench.after(
                1,
                *[bench.failure(work_id) for work_id in bench.running],
                Entered([(number, bench.now, bench.now)]),
            )
            bench.turn(Pause("other", bool(number % 3)))
        return [f"{plan} {plan.events}" for plan in bench.plans]

    assert trace() == trace()


def test_a_plan_says_what_it_holds() -> None:
    bench = Bench()
    bench.submit("a")
    assert repr(bench.plan) == f"<Plan records=1 start=1 events=3 replies=1 wake_at={START + 1}>"
    assert repr(Plan()) == "<Plan wake_at=inf>"


def test_a_place_is_kept_for_nobody_whose_queue_is_paused() -> None:
    bench = Bench(limits("cap", concurrent=1), limits("both", concurrent=1))
    bench.submit("a", services=["cap"])
    bench.submit("b", services=["cap", "both"], queue="nightly")
    bench.submit("c", services=["both"])
    assert bench.running == ["a"]
    bench.turn(Pause("nightly", True))
    assert bench.started == ["c"]


def test_only_work_of_the_queues_that_are_served_is_started() -> None:
    bench = Bench()
    bench.turn(
        Serve(frozenset({"slow"})), bench.submission("a", queue="fast"), bench.submission("b", queue="slow")
    )
    assert bench.started == ["b"]
    bench.turn(Serve(None))
    assert bench.started == ["a"]


def test_every_kind_of_item_is_taken() -> None:
    assert {*REQUESTS, *REPORTS, Outcome} == set(Item.__args__)
    assert not REQUESTS.keys() & REPORTS.keys()
