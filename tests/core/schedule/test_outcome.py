"""What becomes of work: results, failures, retries, throttling, cancelling, reviving, and its dependents."""

from itertools import pairwise
from typing import Any

import pytest

from runcue.core.ledger.working_set import WorkingSet
from runcue.core.limits.service import FIRST_THROTTLE
from runcue.core.model.events import draft_of
from runcue.core.model.failure import Failure, Kind
from runcue.core.model.record import Attempt, Record
from runcue.core.model.retry import Retry
from runcue.core.schedule.gates import Questions
from runcue.core.schedule.outcome import SHORTEST_PAUSE, STOPPED
from runcue.core.schedule.plan import (
    Cancel,
    Ended,
    Entered,
    Outcome,
    Pause,
    Plan,
    ReadRequest,
    Revive,
    Verdicts,
)
from runcue.errors import DependencyCycle, DuplicateWork, RateLimited, WorkNotFound
from runcue.host.clock import SystemClock
from runcue.stores.memory import MemoryStore
from tests.core.bench_of_core import SLOW_RETRY, START, Bench, limits


def chain_bench(*ids: str, **options: Any) -> Bench:
    """A bench with works that each need the one before."""
    bench = Bench(**options)
    specs = [bench.spec(here, needs=[before]) for before, here in pairwise(ids)]
    bench.submit(bench.spec(ids[0]), *specs)
    return bench


def diamond_bench(**options: Any) -> Bench:
    """`a` with two dependents, `b` and `c`, and `d` that needs both of them."""
    bench = Bench(**options)
    specs = [bench.spec(here, needs=needs) for here, needs in (("b", "a"), ("c", "a"), ("d", "bc"))]
    bench.submit(bench.spec("a"), *specs)
    return bench


# --- Success --------------------------------------------------------------------------------------


def test_a_result_completes_the_work_and_is_kept() -> None:
    bench = Bench()
    bench.submit("a")
    bench.now += 2
    bench.finish("a", {"pages": 3})
    record = bench.record("a")
    assert (record.state.value, record.result, record.completed_at) == ("completed", {"pages": 3}, START + 2)
    assert (bench.told("completed"), draft_of(bench.plan.events[0]).record) == (["a"], record)


def test_a_success_after_a_failure_leaves_no_error_but_keeps_the_history() -> None:
    bench = Bench(retry=SLOW_RETRY)
    bench.submit("a")
    bench.fail("a")
    bench.after(10)
    bench.finish("a")
    record = bench.record("a")
    assert (record.error, record.traceback, record.attempt) == (None, None, 2)
    assert [line.error for line in record.history] == ["boom"]


# --- Failure and retry ----------------------------------------------------------------------------


def test_without_a_policy_there_is_one_attempt() -> None:
    bench = Bench()
    bench.submit("a")
    bench.fail("a")
    assert (bench.state("a"), bench.error("a"), bench.record("a").completed_at) == ("failed", "boom", START)


def test_a_failed_attempt_goes_back_to_pending_and_names_the_time_of_the_next() -> None:
    bench = Bench(retry=SLOW_RETRY)
    bench.submit("a")
    bench.fail("a")
    record = bench.record("a")
    assert (record.state.value, record.next_retry_at, record.error) == ("pending", START + 10, "boom")
    assert bench.plan.wake_at == START + 10


def test_the_next_attempt_starts_when_its_time_has_come_and_not_before() -> None:
    bench = Bench(retry=SLOW_RETRY)
    bench.submit("a")
    bench.fail("a")
    bench.after(9.9)
    assert bench.started == []
    bench.after(0.1)
    assert bench.started == ["a"]
    assert (bench.record("a").attempt, bench.record("a").next_retry_at) == (2, None)


def test_delays_grow_as_the_policy_says() -> None:
    bench = Bench(retry=Retry(max_attempts=4, base_delay=1, jitter=False))
    bench.submit("a")
    delays = []
    for _ in range(3):
        bench.fail("a")
        delays.append((bench.record("a").next_retry_at or 0) - bench.now)
        bench.wake()
    assert delays == [1, 2, 4]


def test_work_fails_for_good_after_its_last_attempt() -> None:
    bench = Bench(retry=SLOW_RETRY)
    bench.submit("a")
    for _ in range(3):
        bench.fail("a")
        bench.after(10)
    record = bench.record("a")
    assert (record.state.value, record.attempt, record.failures, record.next_retry_at) == (
        "failed",
        3,
        3,
        None,
    )


def test_the_history_has_a_line_for_each_failed_attempt() -> None:
    bench = Bench(retry=Retry(max_attempts=2, backoff="fixed", base_delay=10, jitter=False))
    bench.submit("a")
    bench.now += 1
    bench.fail("a", message="first")
    bench.after(10)
    bench.now += 2
    bench.fail("a", message="second")
    assert bench.record("a").history == (
        Attempt(1, START, 1.0, "first"),
        Attempt(2, START + 11, 2.0, "second"),
    )
    assert bench.record("a").traceback == "Traceback …"


def test_the_history_keeps_the_last_hundred_attempts() -> None:
    bench = Bench(retry=Retry(max_attempts=1000, base_delay=0, jitter=False))
    bench.submit("a")
    for _ in range(120):
        bench.fail("a")
    numbers = [line.number for line in bench.record("a").history]
    assert numbers == list(range(21, 121))


def test_every_failed_attempt_is_told_and_whether_another_will_follow() -> None:
    bench = Bench(retry=Retry(max_attempts=2, backoff="fixed", base_delay=10, jitter=False))
    bench.submit("a")
    error = ValueError("boom")
    failure = bench.failure("a")
    failure.error = error
    bench.now += 1
    bench.turn(failure)
    assert [draft_of(event).type for event in bench.plan.events[:2]] == ["failed", "retrying"]
    assert bench.facts("failed") == [{"will_retry": True, "duration": 1.0, "exception": error}]
    assert bench.facts("retrying") == [{"attempt": 2, "next_retry_at": bench.now + 10}]
    bench.after(10)
    bench.fail("a")
    assert bench.facts("failed")[1]["will_retry"] is False
    assert len(bench.told("retrying")) == 1


def test_a_permanent_failure_is_not_retried() -> None:
    bench = Bench(retry=SLOW_RETRY)
    bench.submit("a")
    bench.fail("a", "permanent")
    assert bench.state("a") == "failed"


def test_retry_later_counts_the_attempt_and_sets_the_time_of_the_next() -> None:
    bench = Bench(retry=SLOW_RETRY)
    bench.submit("a")
    bench.fail("a", after=77)
    assert (bench.record("a").next_retry_at, bench.record("a").failures) == (START + 77, 1)


def test_retry_later_gives_no_more_attempts_than_the_policy() -> None:
    bench = Bench()
    bench.submit("a")
    bench.fail("a", after=77)
    assert bench.state("a") == "failed"


def test_a_snooze_runs_again_later_under_the_same_number_and_counts_no_attempt() -> None:
    bench = Bench()
    bench.submit("a")
    for _ in range(5):
        bench.fail("a", "snoozed", after=30)
        assert (bench.state("a"), bench.record("a").next_retry_at) == ("pending", bench.now + 30)
        bench.after(30)
        assert bench.record("a").attempt == 1
    assert (bench.record("a").failures, bench.record("a").history) == (0, ())


@pytest.mark.parametrize("after", [None, 0.0, 0.001])
@pytest.mark.parametrize("kind", ["snoozed", "throttled"])
def test_work_that_asks_to_run_again_at_once_does_so_after_a_moment_and_does_not_spin(
    kind: Kind, after: float | None
) -> None:
    bench = Bench()
    bench.submit("a")
    bench.fail("a", kind, after=after)
    assert bench.started == []
    bench.after(SHORTEST_PAUSE if after is not None or kind == "snoozed" else FIRST_THROTTLE)
    assert bench.started == ["a"]


def test_attempts_are_numbered_by_the_starts_that_count() -> None:
    bench = Bench(retry=Retry(max_attempts=5, base_delay=0, jitter=False))
    bench.submit("a")
    numbers = [bench.record("a").attempt]
    for kind in ("snoozed", "error", "snoozed", "throttled", "error"):
        bench.fail("a", kind, after=0)
        bench.after(SHORTEST_PAUSE)
        numbers.append(bench.record("a").attempt)
    assert numbers == [1, 1, 2, 2, 2, 3]


def test_services_are_released_while_work_waits_for_its_retry() -> None:
    bench = Bench(limits(concurrent=1), retry=SLOW_RETRY)
    bench.submit("a", "b")
    bench.fail("a")
    assert bench.started == ["b"]


def test_a_retry_keeps_its_place_by_its_original_age() -> None:
    bench = Bench(limits(concurrent=1), retry=Retry(max_attempts=2, base_delay=1, jitter=False))
    bench.submit("old")
    bench.fail("old")
    bench.submit("runs")
    bench.submit("new")
    bench.after(1)
    bench.finish("runs")
    assert bench.started == ["old"]


def test_retries_of_works_that_failed_together_are_spread_out() -> None:  # LM14
    bench = Bench(retry=Retry(max_attempts=2, base_delay=20))
    ids = bench.submit(*[None] * 1000)
    bench.turn(*[bench.failure(work_id) for work_id in ids])
    times = sorted(bench.record(work_id).next_retry_at or 0 for work_id in ids)
    mean = len(times) / 10
    busiest = max(sum(start <= time < start + 1 for time in times) for start in times)
    assert times[0] >= bench.now + 10
    assert times[-1] <= bench.now + 20
    assert busiest <= 2 * mean


# --- Throttling -----------------------------------------------------------------------------------


def test_rate_limited_pauses_the_whole_service_for_that_time() -> None:
    bench = Bench()
    bench.submit("a")
    bench.fail("a", "throttled", after=12)
    bench.submit("b")
    assert bench.running == []
    assert bench.facts("service_rate_limited") == [
        {"service": "api", "until": START + 12, "current_rate": None, "limit": None, "details": "boom"}
    ]
    bench.after(11.9)
    assert bench.started == []
    bench.after(0.1)
    assert bench.started == ["a", "b"]


def test_rate_limited_wakes_the_scheduler_when_the_pause_is_over() -> None:
    bench = Bench()
    bench.submit("a")
    bench.fail("a", "throttled", after=12)
    assert bench.plan.wake_at == START + 12


def test_a_throttled_start_burns_no_attempt() -> None:
    bench = Bench()
    bench.submit("a")
    bench.fail("a", "throttled", after=1)
    assert (bench.record("a").failures, bench.record("a").spent, bench.state("a")) == (0, 0, "pending")


def test_rate_limited_pauses_the_first_service_when_none_is_named() -> None:
    bench = Bench(limits("one"), limits("two"))
    bench.submit("a", services=["one", "two"])
    bench.fail("a", "throttled", after=5)
    bench.submit("b", services=["one"])
    bench.submit("c", services=["two"])
    assert bench.running == ["c"]


@pytest.mark.parametrize(("named", "paused"), [("two", "two"), ("unheard of", "one")])
def test_rate_limited_pauses_the_service_it_names_if_there_is_one(named: str, paused: str) -> None:
    bench = Bench(limits("one"), limits("two"))
    bench.submit("a", services=["one", "two"])
    bench.fail("a", "throttled", after=5, service=named)
    bench.submit("b", services=[paused])
    assert bench.running == []


def test_naming_a_service_it_does_not_use_delays_the_work_all_the_same() -> None:
    bench = Bench(limits("own"), limits("foreign"))
    bench.submit("a", services=["own"])
    bench.fail("a", "throttled", after=5, service="foreign")
    assert bench.started == []
    bench.after(5)
    assert bench.started == ["a"]


def test_without_a_time_the_pause_starts_at_a_second_and_doubles_to_a_minute() -> None:
    bench = Bench(throttle_timeout=10_000)
    bench.submit("a")
    pauses = []
    for _ in range(9):
        bench.fail("a", "throttled")
        pauses.append(bench.plan.wake_at - bench.now)
        bench.wake()
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_the_success_of_a_start_after_the_pause_ends_the_doubling() -> None:
    bench = Bench()
    bench.submit("a")
    bench.fail("a", "throttled")
    bench.wake()
    bench.fail("a", "throttled")
    bench.submit("b")
    bench.wake()
    assert bench.started == ["a", "b"]
    bench.finish("b")
    bench.fail("a", "throttled")
    assert bench.plan.wake_at == bench.now + 1


def test_the_success_of_a_start_before_the_pause_does_not_end_the_doubling() -> None:
    bench = Bench()
    bench.submit("a", "b", "c")
    bench.fail("a", "throttled")
    bench.finish("b")
    bench.wake()
    bench.finish("c")
    bench.fail("a", "throttled")
    assert bench.plan.wake_at == bench.now + 2


def test_a_burst_that_was_in_flight_together_doubles_only_once() -> None:
    bench = Bench()
    bench.submit("a", "b", "c")
    bench.turn(*[bench.failure(work_id, "throttled") for work_id in "abc"])
    assert bench.plan.wake_at == START + 1


def test_work_without_a_service_waits_on_its_own() -> None:
    bench = Bench()
    bench.submit("a", "b", services=())
    bench.turn(bench.failure("a", "throttled"), bench.failure("b", "throttled", after=7))
    bench.after(1)
    assert bench.started == ["a"]
    bench.after(6)
    assert bench.started == ["b"]


def test_work_without_a_service_waits_twice_as_long_each_time_up_to_a_minute() -> None:
    bench = Bench(throttle_timeout=10_000)
    bench.submit("a", services=())
    pauses = []
    for _ in range(9):
        bench.fail("a", "throttled")
        pauses.append((bench.record("a").next_retry_at or 0) - bench.now)
        bench.wake()
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_work_throttled_again_after_the_limit_fails_as_rate_limited() -> None:
    bench = Bench(throttle_timeout=25)
    bench.submit("a", services=())
    bench.submit("after", needs=["a"])
    bench.fail("a", "throttled", after=20)
    bench.after(20)
    error = RateLimited(10)
    outcome = bench.failure("a", "throttled", after=10)
    outcome.error = error
    bench.after(6, outcome)
    record = bench.record("a")
    assert (record.state.value, record.error, record.traceback) == ("failed", "rate_limited", "Traceback …")
    assert bench.error("after") == "prerequisite_failed"
    assert bench.facts("failed")[0] == {"will_retry": False, "duration": 6.0, "exception": error}
    assert record.history == (Attempt(1, START + 20, 6.0, "boom"),)


@pytest.mark.parametrize("services", [(), ("api",)])
def test_a_pause_beyond_the_limit_fails_the_work_when_the_limit_is_reached(services: tuple[str, ...]) -> None:
    bench = Bench(throttle_timeout=5)
    bench.submit("a", services=services)
    bench.submit("after", needs=["a"])
    bench.now += 1
    bench.fail("a", "throttled", after=100)
    assert bench.plan.wake_at == START + 6
    bench.after(4.9)
    assert bench.state("a") == "pending"
    bench.after(0.1)
    record = bench.record("a")
    assert (record.state.value, record.error, record.completed_at) == ("failed", "rate_limited", START + 6)
    assert record.history == (Attempt(1, START, None, "rate_limited"),)
    assert bench.error("after") == "prerequisite_failed"
    facts = bench.facts("failed")[0]
    assert isinstance(facts["exception"], RateLimited)
    assert (facts["will_retry"], facts["duration"]) == (False, None)


def test_a_pause_that_others_made_longer_counts_towards_the_limit() -> None:
    bench = Bench(throttle_timeout=5)
    bench.submit("a", "b")
    bench.fail("a", "throttled", after=3)
    bench.after(1, bench.failure("b", "throttled", after=100))
    bench.after(4)
    assert (bench.state("a"), bench.state("b")) == ("failed", "pending")
    bench.after(1)
    assert bench.error("b") == "rate_limited"


def test_a_pause_that_ends_with_the_limit_leaves_a_last_try() -> None:
    bench = Bench(throttle_timeout=5)
    bench.submit("a")
    bench.fail("a", "throttled", after=5)
    bench.after(5)
    assert bench.started == ["a"]


def test_work_whose_pause_is_over_may_wait_for_other_things_beyond_the_limit() -> None:
    bench = Bench(throttle_timeout=5)
    bench.submit("a")
    bench.turn(bench.failure("a", "throttled", after=2), Pause("api", True))
    bench.after(100)
    assert bench.state("a") == "pending"
    bench.resume("api")
    assert bench.started == ["a"]


@pytest.mark.parametrize("kind", ["snoozed", "error"])
def test_another_outcome_begins_the_throttled_time_anew(kind: str) -> None:
    bench = Bench(throttle_timeout=25, retry=Retry(max_attempts=3, base_delay=0, jitter=False))
    bench.submit("a")
    bench.fail("a", "throttled", after=20)
    bench.after(20)
    bench.fail("a", kind)  # type: ignore[arg-type]
    bench.fail("a", "throttled", after=20)
    bench.after(20)
    bench.fail("a", "throttled", after=20)
    assert bench.state("a") == "pending"


# --- Timeouts and late answers (HD4, HD5) ----------------------------------------------------------


def test_an_attempt_that_ran_out_of_time_fails_and_is_told_to_stop() -> None:
    bench = Bench()
    bench.submit("a")
    bench.time_out("a")
    assert (bench.state("a"), bench.error("a"), bench.plan.stop) == ("failed", "timeout", [bench.tokens["a"]])


def test_its_slot_stays_taken_until_its_code_has_really_ended() -> None:
    bench = Bench(limits(concurrent=1))
    bench.submit("a", "b")
    bench.time_out("a")
    bench.after(1000)
    assert bench.running == []
    bench.end("a")
    assert bench.started == ["b"]


def test_its_retry_waits_until_its_code_has_really_ended() -> None:
    bench = Bench(limits(concurrent=5), retry=SLOW_RETRY)
    bench.submit("a")
    bench.time_out("a")
    bench.after(1000)
    assert (bench.started, bench.state("a")) == ([], "pending")
    bench.end("a")
    assert bench.started == ["a"]


def test_code_that_ends_before_the_retry_is_due_leaves_the_retry_its_time() -> None:
    bench = Bench(retry=SLOW_RETRY)
    bench.submit("a")
    bench.time_out("a")
    bench.end("a")
    assert (bench.started, bench.plan.wake_at) == ([], START + 10)
    bench.after(10)
    assert bench.started == ["a"]


def test_the_answer_of_an_attempt_that_was_given_up_is_dropped_and_told() -> None:
    bench = Bench(retry=SLOW_RETRY)
    bench.submit("a")
    bench.time_out("a")
    bench.end("a", has_answer=True)
    assert bench.facts("stale_completion") == [{"work_id": "a", "task": "task"}]
    assert (bench.state("a"), bench.record("a").result) == ("pending", None)


def test_a_late_answer_of_work_that_has_ended_names_its_task() -> None:
    bench = Bench()
    bench.submit("a")
    bench.time_out("a")
    bench.end("a", has_answer=True)
    assert bench.facts("stale_completion") == [{"work_id": "a", "task": "task"}]


def test_a_late_answer_in_the_turn_in_which_its_work_ends_belongs_to_its_record() -> None:
    bench = Bench()
    bench.submit("a")
    bench.turn(Cancel("a"), bench.success("a"))
    assert bench.told("stale_completion") == ["a"]


def test_an_end_without_an_answer_is_not_worth_telling() -> None:
    bench = Bench()
    bench.submit("a")
    bench.time_out("a")
    bench.end("a")
    assert bench.told("stale_completion") == []


def test_a_late_result_changes_nothing_but_frees_the_slot() -> None:
    bench = Bench(limits(concurrent=1))
    bench.submit("a", "b")
    bench.time_out("a")
    bench.finish("a", "too late")
    assert (bench.state("a"), bench.record("a").result, bench.started) == ("failed", None, ["b"])
    assert bench.facts("stale_completion") == [{"work_id": "a", "task": "task"}]


def test_the_answer_of_an_earlier_attempt_does_not_end_the_running_one() -> None:
    bench = Bench(retry=Retry(max_attempts=2, base_delay=0, jitter=False))
    bench.submit("a")
    old = bench.success("a", "old")
    bench.fail("a")
    bench.turn(old)
    assert (bench.state("a"), bench.record("a").attempt) == ("running", 2)
    assert bench.told("stale_completion") == ["a"]


def test_two_answers_of_one_attempt_count_once() -> None:
    bench = Bench()
    bench.submit("a")
    bench.turn(bench.success("a", 1), bench.success("a", 2))
    assert (bench.record("a").result, bench.told("completed")) == (1, ["a"])


def test_an_answer_nobody_waits_for_is_dropped() -> None:
    bench = Bench()
    bench.turn(Outcome("never", 99), Ended("never", 98), Entered([(97, bench.now, bench.now)]))
    assert (bench.plan.records, bench.told("stale_completion")) == ({}, [None])


# --- Cancelling (DP6) -----------------------------------------------------------------------------


def test_cancelling_pending_work_ends_it() -> None:
    bench = Bench(limits(concurrent=1))
    bench.submit("a", "b")
    assert bench.cancel("b") is True
    record = bench.record("b")
    assert (record.state.value, record.error, record.completed_at) == ("cancelled", "cancelled", START)
    assert (bench.plan.stop, bench.told("cancelled")) == ([], ["b"])
    bench.finish("a")
    assert bench.started == []


def test_cancelling_running_work_signals_it_and_ends_it_whatever_it_returns() -> None:
    bench = Bench()
    bench.submit("a")
    assert bench.cancel("a") is True
    assert (bench.state("a"), bench.plan.stop) == ("cancelled", [bench.tokens["a"]])
    bench.finish("a", "done")
    assert (bench.state("a"), bench.record("a").result) == ("cancelled", None)
    assert bench.told("completed") == []


def test_the_slot_of_cancelled_work_is_free_only_when_its_code_has_ended() -> None:
    bench = Bench(limits(concurrent=1))
    bench.submit("a", "b")
    bench.cancel("a")
    assert bench.started == []
    bench.end("a")
    assert bench.started == ["b"]


@pytest.mark.parametrize("end", ["finish", "fail", "cancel"])
def test_cancelling_what_is_over_does_nothing(end: str) -> None:
    bench = Bench()
    bench.submit("a")
    getattr(bench, end)("a")
    before = bench.record("a")
    assert bench.cancel("a") is False
    assert bench.record("a") is before


def test_cancelling_an_unknown_id_never_touches_a_later_work_of_that_id() -> None:
    bench = Bench()
    assert bench.cancel("a") is False
    bench.submit("a")
    assert bench.state("a") == "running"


def test_the_reason_for_cancelling_is_kept_as_the_error() -> None:
    bench = Bench()
    bench.submit("a")
    bench.reply(Cancel("a", reason="the Cue was stopped"))
    assert bench.error("a") == "the Cue was stopped"


def test_of_a_result_and_a_cancellation_in_one_turn_the_first_counts() -> None:
    bench = Bench()
    bench.submit("a", "b")
    first, second = Cancel("a"), Cancel("b")
    bench.turn(bench.success("a"), first, second, bench.success("b"))
    assert (bench.answer_to(first), bench.answer_to(second)) == (False, True)
    assert bench.states() == {"a": "completed", "b": "cancelled"}


def test_work_that_waits_for_a_retry_can_be_cancelled() -> None:
    bench = Bench(retry=SLOW_RETRY)
    bench.submit("a")
    bench.fail("a")
    bench.cancel("a")
    bench.after(10)
    assert (bench.state("a"), bench.started) == ("cancelled", [])


def test_work_whose_last_attempt_still_runs_can_be_cancelled() -> None:
    bench = Bench(retry=SLOW_RETRY)
    bench.submit("a")
    bench.time_out("a")
    bench.cancel("a")
    bench.end("a")
    bench.after(10)
    assert (bench.state("a"), bench.started) == ("cancelled", [])


# --- Dependencies ---------------------------------------------------------------------------------


def test_work_waits_until_everything_it_depends_on_has_completed() -> None:
    bench = Bench()
    bench.submit("a", "b")
    bench.submit("c", needs=["a", "b"])
    bench.finish("a")
    assert bench.started == []
    bench.finish("b")
    assert bench.started == ["c"]


def test_a_dependent_starts_in_the_turn_in_which_its_dependency_completes() -> None:
    bench = chain_bench("a", "b")
    bench.finish("a")
    assert [draft_of(event).type for event in bench.plan.events[:2]] == ["completed", "started"]


@pytest.mark.parametrize("kept", [100, 0])
def test_a_dependency_that_completed_before_the_submit_holds_nobody_back(kept: int) -> None:
    bench = Bench(keep_finished=kept)
    bench.submit("a")
    made = bench.submit()[0]
    bench.turn(bench.success("a"), bench.success(made))
    bench.submit("b", needs=["a", made])
    assert bench.started == ["b"]


def test_a_dependency_may_be_submitted_later() -> None:
    bench = Bench()
    bench.submit("b", needs=["a"])
    assert bench.started == []
    bench.submit("a")
    bench.finish("a")
    assert bench.started == ["b"]


def test_a_dependency_may_be_in_another_queue() -> None:
    bench = Bench()
    bench.submit("a", queue="other")
    bench.submit("b", needs=["a"])
    bench.finish("a")
    assert bench.started == ["b"]


@pytest.mark.parametrize("kept", [100, 0])
@pytest.mark.parametrize(
    ("end", "error"), [("fail", "prerequisite_failed"), ("cancel", "prerequisite_cancelled")]
)
def test_a_dependency_that_was_lost_before_the_submit_fails_the_work_at_once(
    end: str, error: str, kept: int
) -> None:
    bench = Bench(keep_finished=kept)
    bench.submit("a")
    getattr(bench, end)("a")
    bench.submit("b", needs=["a"])
    assert bench.plan.records["b"].error == error


@pytest.mark.parametrize(
    ("end", "state", "error"),
    [("success", "running", None), ("failure", "failed", "prerequisite_failed")],
)
@pytest.mark.parametrize("id", ["a", None])
def test_a_dependency_that_ends_in_the_turn_of_the_submit_counts(
    id: str | None, end: str, state: str, error: str | None
) -> None:  # DP2
    bench = Bench()
    need = bench.submit(id)[0]
    bench.turn(getattr(bench, end)(need), bench.submission("b", needs=[need]))
    assert (bench.state("b"), bench.error("b")) == (state, error)


def test_a_dependency_that_is_cancelled_in_the_turn_of_the_submit_counts() -> None:
    bench = Bench()
    bench.submit("a")
    bench.turn(Cancel("a"), bench.submission("b", needs=["a"]))
    assert bench.error("b") == "prerequisite_cancelled"


def test_a_failed_attempt_that_is_retried_leaves_the_dependents_waiting() -> None:
    bench = chain_bench("a", "b", retry=SLOW_RETRY)
    bench.fail("a")
    assert bench.state("b") == "pending"


def test_a_failure_fails_all_dependents_however_deep_in_the_same_turn() -> None:
    bench = chain_bench("a", "b", "c", "d")
    bench.fail("a")
    assert bench.states() == dict.fromkeys("abcd", "failed")
    assert [bench.error(work_id) for work_id in "bcd"] == ["prerequisite_failed"] * 3


def test_a_cancellation_fails_the_dependents_as_prerequisite_cancelled() -> None:
    bench = chain_bench("a", "b", "c")
    bench.cancel("a")
    assert bench.states() == {"a": "cancelled", "b": "failed", "c": "failed"}
    assert (bench.error("b"), bench.error("c")) == ("prerequisite_cancelled", "prerequisite_failed")


def test_a_cancellation_with_cascade_cancels_the_dependents() -> None:
    bench = chain_bench("a", "b", "c")
    bench.cancel("a", cascade=True)
    assert bench.states() == dict.fromkeys("abc", "cancelled")
    assert bench.error("c") == "prerequisite_cancelled"


@pytest.mark.parametrize(("cascade", "type"), [(True, "cancelled"), (False, "failed")])
def test_in_a_diamond_each_dependent_ends_once(cascade: bool, type: str) -> None:  # DP7
    bench = diamond_bench()
    bench.cancel("a", cascade=cascade)
    assert sorted(filter(None, bench.told(type)))[-3:] == ["b", "c", "d"]
    assert len(bench.told("failed") + bench.told("cancelled")) == 4


def test_a_dependent_that_has_ended_leaves_its_other_dependencies_alone() -> None:
    bench = Bench()
    bench.submit("a", "b")
    bench.submit("c", needs=["a", "b"])
    bench.fail("a")
    bench.finish("b")
    assert bench.states() == {"a": "failed", "b": "completed", "c": "failed"}


def test_a_skipped_dependency_satisfies() -> None:
    bench = Bench(questions=Questions(stale=True))
    bench.submit("a")
    bench.submit("b", needs=["a"])
    bench.answer("a", stale=False)
    assert bench.asked == ["b"]


def test_a_long_chain_ends_without_recursion() -> None:  # DP1, SC5
    ids = [f"w{number}" for number in range(5000)]
    bench = chain_bench(*ids)
    bench.fail(ids[0])
    assert len(bench.told("failed")) == 5000


def test_a_long_chain_backwards_is_accepted_without_recursion() -> None:
    bench = Bench()
    ids = [f"w{number}" for number in range(5000)]
    bench.submit(
        bench.spec(ids[-1]), *[bench.spec(here, needs=[following]) for here, following in pairwise(ids)]
    )
    bench.finish(ids[-1])
    assert bench.started == [ids[-2]]


def test_a_wide_fan_out_and_fan_in_finishes() -> None:
    bench = Bench()
    width = 5_000
    leaves = [bench.spec(f"leaf {number}", needs=["root"]) for number in range(width)]
    bench.submit(bench.spec("root"), *leaves, bench.spec("end", needs=[leaf.id for leaf in leaves]))
    bench.finish("root")
    assert len(bench.started) == width
    bench.turn(*[bench.success(leaf.id) for leaf in leaves])
    assert bench.started == ["end"]


# --- Dependencies by callback ---------------------------------------------------------------------


def test_the_dependency_callback_decides_instead_of_completion() -> None:
    bench = Bench(questions=Questions(dependencies=True))
    bench.submit("b", needs=["elsewhere"])
    assert bench.asked == ["b"]
    bench.answer("b")
    assert bench.started == ["b"]


def test_a_completed_dependency_still_waits_for_the_dependency_callback() -> None:
    bench = Bench(questions=Questions(dependencies=True))
    bench.submit("a")
    bench.submit("b", needs=["a"])
    bench.answer("a")
    bench.answer("b", ready=False, why="dependency")
    bench.finish("a")
    assert (bench.started, bench.asked) == ([], ["b"])
    bench.answer("b")
    assert bench.started == ["b"]


def test_a_dependency_that_fails_fails_its_dependents_whatever_the_callback_says() -> None:
    bench = Bench(limits(concurrent=1), questions=Questions(dependencies=True))
    bench.submit("a")
    bench.answer("a")
    bench.submit("b", needs=["a"])
    bench.answer("b")
    bench.fail("a")
    assert bench.error("b") == "prerequisite_failed"


def running_dependent_bench() -> Bench:
    bench = Bench(questions=Questions(dependencies=True))
    bench.submit("a")
    bench.submit("b", needs=["a"])
    bench.answer("a", "b")
    assert bench.running == ["a", "b"]
    return bench


def test_a_dependent_that_the_callback_let_start_goes_on_when_its_dependency_fails() -> None:
    bench = running_dependent_bench()
    bench.fail("a")
    assert bench.state("b") == "running"


def test_a_dependent_that_started_before_its_dependency_failed_waits_for_that_no_more() -> None:
    bench = running_dependent_bench()
    bench.fail("a")
    assert bench.scheduler.ledger.counters.blocked == 0
    bench.scheduler.ask_with(Questions())  # nobody is left to say that it may start all the same
    bench.fail("b", "snoozed", after=5)
    bench.after(5)
    assert bench.started == ["b"]


def test_cancelling_with_cascade_also_stops_a_dependent_that_the_callback_let_start() -> None:
    bench = running_dependent_bench()
    bench.cancel("a", cascade=True)
    assert bench.states() == {"a": "cancelled", "b": "cancelled"}
    assert set(bench.plan.stop) == {bench.tokens["a"], bench.tokens["b"]}


# --- Reviving -------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["fail", "cancel"])
def test_failed_or_cancelled_work_can_be_revived(end: str) -> None:
    bench = Bench()
    bench.submit("a")
    getattr(bench, end)("a")
    bench.end("a")
    assert bench.revive("a") is True
    assert (bench.started, bench.told("queued")) == (["a"], ["a", "a"])


def test_revived_work_has_a_clean_record_a_fresh_budget_and_its_history() -> None:
    bench = Bench(retry=Retry(max_attempts=2, base_delay=0, jitter=False))
    bench.submit("a")
    bench.fail("a")
    bench.fail("a")
    bench.may_start = False
    bench.revive("a")
    record = bench.record("a")
    assert (record.state.value, record.error, record.traceback, record.failures) == ("pending", None, None, 0)
    assert (record.completed_at, record.started_at, len(record.history)) == (None, None, 2)
    bench.may_start = True
    bench.turn()
    assert bench.record("a").attempt == 3
    bench.fail("a")
    assert bench.state("a") == "running"
    bench.fail("a")
    assert (bench.state("a"), bench.record("a").attempt) == ("failed", 4)


@pytest.mark.parametrize("state", ["pending", "running", "completed"])
def test_work_that_is_well_is_not_revived(state: str) -> None:
    bench = Bench()
    bench.may_start = state != "pending"
    bench.submit("a")
    if state == "completed":
        bench.finish("a")
    assert bench.revive("a") is False
    assert bench.state("a") == state


def test_unknown_work_cannot_be_revived() -> None:
    with pytest.raises(WorkNotFound, match="No unit has this id"):
        Bench().revive("a")


def test_forgotten_work_cannot_be_revived() -> None:
    bench = Bench(keep_finished=0)
    bench.submit("a")
    bench.fail("a")
    with pytest.raises(WorkNotFound, match="keep_finished"):
        bench.revive("a")


def test_work_can_be_revived_in_the_turn_in_which_it_fails() -> None:
    bench = Bench()
    bench.submit("a")
    revive = Revive("a")
    bench.turn(bench.failure("a"), revive)
    assert (bench.answer_to(revive), bench.started) == (True, ["a"])


def test_work_revived_twice_in_one_turn_is_revived_once() -> None:
    bench = Bench()
    bench.submit("a")
    bench.fail("a")
    first, second = Revive("a"), Revive("a")
    bench.turn(first, second)
    assert (bench.answer_to(first), bench.answer_to(second)) == (True, False)


def test_work_revived_cancelled_and_revived_in_one_turn_stands_as_the_last_said() -> None:
    bench = Bench()
    bench.submit("a")
    bench.fail("a")
    bench.turn(Revive("a"), Cancel("a"), Revive("a"))
    assert bench.started == ["a"]
    assert sum(bench.scheduler.ledger.counters.counts.values()) == 1


def test_revived_work_never_overlaps_with_the_code_of_its_last_attempt() -> None:
    bench = Bench()
    bench.submit("cancelled", "late")
    bench.cancel("cancelled")
    bench.time_out("late")
    bench.revive("cancelled")
    bench.revive("late")
    bench.after(1000)
    assert bench.running == []
    bench.end("late")
    assert bench.started == ["late"]
    bench.finish("cancelled")
    assert bench.started == ["cancelled"]


def test_work_whose_dependency_completed_starts_again_when_revived() -> None:
    bench = chain_bench("a", "b")
    bench.finish("a")
    bench.fail("b")
    bench.revive("b")
    assert bench.started == ["b"]


@pytest.mark.parametrize("id", ["a", None])
def test_work_whose_dependency_is_still_lost_fails_again_when_revived(id: str | None) -> None:
    bench = Bench()
    need = bench.submit(id)[0]
    bench.submit("b", needs=[need])
    bench.fail(need)
    assert bench.revive("b") is True
    assert (bench.state("b"), bench.error("b")) == ("failed", "prerequisite_failed")


def test_dependents_stay_failed_when_their_dependency_is_revived() -> None:  # DP4
    bench = chain_bench("a", "b")
    bench.fail("a")
    bench.revive("a")
    bench.finish("a")
    assert bench.states() == {"a": "completed", "b": "failed"}


def test_reviving_with_cascade_brings_back_who_failed_with_it_in_their_order() -> None:
    bench = chain_bench("a", "b", "c")
    bench.fail("a")
    bench.revive("a", cascade=True)
    assert bench.states() == {"a": "running", "b": "pending", "c": "pending"}
    bench.finish("a")
    assert bench.started == ["b"]
    bench.finish("b")
    assert bench.started == ["c"]


def test_reviving_a_diamond_with_cascade_brings_each_back_once_and_fails_nobody() -> None:
    bench = diamond_bench()
    bench.fail("a")
    already = len(bench.told("failed"))
    bench.revive("a", cascade=True)
    assert bench.states() == {"a": "running", "b": "pending", "c": "pending", "d": "pending"}
    assert sorted(filter(None, bench.told("queued")[4:])) == ["a", "b", "c", "d"]
    assert len(bench.told("failed")) == already


def test_reviving_with_cascade_leaves_alone_who_failed_for_a_reason_of_its_own() -> None:
    bench = chain_bench("a", "b", "c", questions=Questions(dependencies=True))
    bench.answer("a", "b")
    bench.fail("b")
    bench.fail("a")
    bench.revive("a", cascade=True)
    assert (bench.state("b"), bench.error("b")) == ("failed", "boom")


def test_reviving_with_cascade_brings_back_who_failed_in_this_very_turn() -> None:
    bench = chain_bench("a", "b")
    bench.turn(bench.failure("a"), Revive("a", cascade=True))
    assert bench.states() == {"a": "running", "b": "pending"}


def test_reviving_a_ring_is_refused_and_changes_nothing() -> None:
    bench = Bench()
    bench.submit("a", needs=["b"])
    bench.cancel("a")
    bench.submit("b", needs=["a"])
    with pytest.raises(DependencyCycle):
        bench.revive("a", cascade=True)
    assert (bench.states(), bench.plan.records) == ({"a": "cancelled", "b": "failed"}, {})


def test_a_long_chain_is_revived_at_a_cost_that_grows_with_its_length_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0
    latest = WorkingSet.latest

    def counting(working: WorkingSet, work_id: str) -> Record | None:
        nonlocal looks
        looks += 1
        return latest(working, work_id)

    bench = chain_bench(*[str(number) for number in range(300)])
    bench.fail("0")
    monkeypatch.setattr(WorkingSet, "latest", counting)
    bench.revive("0", cascade=True)
    assert bench.scheduler.ledger.counters.pending == 299
    assert looks < 300 * 12


def test_new_dependents_are_named_in_the_plan_that_accepts_them() -> None:
    bench = chain_bench("a", "b", "c")
    assert [record.id for record in bench.plan.dependent] == ["b", "c"]
    bench.fail("a")
    assert bench.plan.dependent == []


def test_the_store_in_memory_finds_dependents_by_what_they_need() -> None:
    bench = Bench(keep_finished=2)
    store = MemoryStore(SystemClock())

    def keep(plan: Plan) -> None:
        store.take_turn(lambda turn: plan)

    def dependents(*ids: str) -> dict[str, list[str]]:
        found = store.read(ReadRequest(dependents_of=set(ids))).dependents
        return {need: [record.id for record in records] for need, records in found.items()}

    bench.submit(bench.spec("a"), bench.spec("b", needs="a"), bench.spec("c", needs="ab"))
    keep(bench.plan)
    assert dependents("a", "b", "c") == {"a": ["b", "c"], "b": ["c"], "c": []}
    keep(bench.fail("a"))
    assert bench.plan.forget == ["a"]
    assert dependents("a", "b") == {"a": ["b", "c"], "b": ["c"]}
    bench.submit("d")
    keep(bench.plan)
    keep(bench.finish("d"))
    assert bench.plan.forget == ["b"]
    assert dependents("a", "b") == {"a": ["c"], "b": ["c"]}
    bench.submit("e")
    keep(bench.plan)
    keep(bench.finish("e"))
    assert dependents("a", "b") == {"a": [], "b": []}


def test_work_whose_key_was_taken_over_cannot_be_revived() -> None:
    bench = Bench()
    bench.submit("old", key="k")
    bench.fail("old")
    bench.submit("new", key="k")
    with pytest.raises(DuplicateWork, match="'new'"):
        bench.revive("old")


def test_work_that_still_has_its_key_can_be_revived() -> None:
    bench = Bench()
    bench.submit("a", key="k")
    bench.fail("a")
    assert bench.revive("a") is True
    assert bench.submit("b", key="k") == ["a"]


def test_reviving_with_cascade_leaves_out_dependents_whose_key_was_taken_over() -> None:
    bench = Bench()
    bench.submit("a")
    bench.submit("old", needs=["a"], key="k")
    bench.fail("a")
    bench.submit("new", key="k")
    assert bench.revive("a", cascade=True) is True
    assert bench.states() == {"a": "running", "old": "failed", "new": "running"}


def test_revived_work_keeps_its_rank_and_goes_behind_its_equals() -> None:
    bench = Bench(limits(concurrent=1))
    bench.submit("a", "b", "runs", priority=1)
    bench.cancel("b")
    bench.revive("b")
    bench.finish("a")
    assert bench.started == ["runs"]


def test_a_verdict_that_skips_is_a_completion_that_was_never_started() -> None:
    bench = Bench(questions=Questions(stale=True))
    bench.submit("a")
    bench.turn(Verdicts([bench.verdict("a", stale=False)]))
    record = bench.record("a")
    assert (record.state.value, record.skipped, record.started_at, record.result) == (
        "completed",
        True,
        None,
        None,
    )
    assert (bench.told("skipped"), bench.told("completed"), bench.told("started")) == (["a"], [], [])


def test_a_start_that_was_stopped_reuses_its_number() -> None:
    bench = Bench()
    bench.submit("a")
    bench.turn(Cancel("a", reason=STOPPED))
    assert (bench.state("a"), bench.error("a")) == ("cancelled", "stopped")
    bench.end("a")
    bench.revive("a")
    assert (bench.started, bench.record("a").attempt) == (["a"], 1)


def test_a_failure_that_a_service_answered_with_proves_that_it_is_up() -> None:
    bench = Bench(limits(circuit_threshold=1, circuit_timeout=10))
    bench.submit("a")
    bench.turn(
        Outcome("a", bench.tokens["a"], {"exit_code": 3}, Failure("error", "exit code 3", is_answer=True))
    )
    assert (bench.state("a"), bench.record("a").result) == ("failed", {"exit_code": 3})
    bench.submit("b")
    assert bench.started == ["b"]
