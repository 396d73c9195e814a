"""Time limits on waiting: dependencies, pending work, a queue that stands still."""

import math
from typing import Any

import pytest

from runcue.core.model.retry import Retry
from runcue.core.schedule.gates import Questions
from runcue.core.schedule.plan import Cancel, Verdicts
from tests.core.bench_of_core import SLOW_RETRY, START, Bench, limits


def paused_bench(**settings: Any) -> Bench:
    """A bench on which nothing starts."""
    bench = Bench(**settings)
    bench.pause("api")
    return bench


# --- Dependencies that do not come ----------------------------------------------------------------


def test_work_whose_dependencies_do_not_come_in_time_fails() -> None:
    bench = Bench()
    bench.submit("a", needs=["x"], dependency_timeout=30)
    assert bench.plan.wake_at == START + 30
    bench.after(29)
    assert bench.state("a") == "pending"
    bench.after(1)
    assert (bench.state("a"), bench.error("a")) == ("failed", "dependency_timeout")


def test_a_dependency_timeout_fails_the_dependents_too() -> None:
    bench = Bench()
    bench.submit("a", needs=["x"], dependency_timeout=30)
    bench.submit("b", needs=["a"])
    bench.after(30)
    assert bench.error("b") == "prerequisite_failed"


def test_one_dependency_of_several_that_does_not_come_is_enough() -> None:
    bench = Bench()
    bench.submit("x")
    bench.submit("a", needs=["x", "y"], dependency_timeout=30)
    bench.finish("x")
    bench.after(30)
    assert bench.error("a") == "dependency_timeout"


def test_work_whose_dependencies_came_in_time_may_wait_for_other_things() -> None:
    bench = Bench(limits(concurrent=1))
    bench.submit("x")
    bench.submit("a", needs=["x"], dependency_timeout=30)
    bench.submit("other", priority=5)
    bench.finish("x")
    assert bench.running == ["other"]
    bench.after(100)
    assert bench.state("a") == "pending"


def test_the_limit_says_nothing_about_work_that_runs() -> None:
    bench = Bench()
    bench.submit("x")
    bench.submit("a", needs=["x"], dependency_timeout=30)
    bench.finish("x")
    bench.after(100)
    assert bench.state("a") == "running"


def test_the_limit_is_forgotten_with_the_work() -> None:
    bench = Bench()
    bench.submit("a", needs=["x"], dependency_timeout=30)
    bench.cancel("a")
    assert bench.plan.wake_at == math.inf
    bench.after(30)
    assert bench.state("a") == "cancelled"


def test_revived_work_has_its_full_time_for_its_dependencies_again() -> None:
    bench = Bench()
    bench.submit("a", needs=["x"], dependency_timeout=30)
    bench.after(30)
    bench.revive("a")
    bench.after(29)
    assert bench.state("a") == "pending"
    bench.after(1)
    assert bench.error("a") == "dependency_timeout"


def callback_bench() -> Bench:
    return Bench(limits(concurrent=1), questions=Questions(dependencies=True, ready=True))


def test_a_dependency_that_the_callback_denies_times_out_although_it_completed() -> None:
    bench = callback_bench()
    bench.submit("x")
    bench.submit("a", needs=["x"], dependency_timeout=30)
    bench.answer("x")
    bench.finish("x")
    bench.answer("a", ready=False, why="dependency")
    bench.after(30)
    assert bench.error("a") == "dependency_timeout"


def test_a_dependency_that_the_callback_denied_times_out_even_while_it_is_asked_again() -> None:
    bench = callback_bench()
    bench.submit("a", needs=["x"], dependency_timeout=30)
    bench.answer("a", ready=False, why="dependency")
    bench.after(29)
    assert bench.asked == ["a"]
    bench.after(1)
    assert bench.error("a") == "dependency_timeout"


def test_a_dependency_that_the_callback_confirmed_does_not_time_out_although_it_never_came() -> None:
    bench = callback_bench()
    bench.submit("runs")
    bench.answer("runs")
    bench.submit("a", needs=["x"], dependency_timeout=30)
    bench.answer("a")
    bench.after(30)
    assert bench.state("a") == "pending"


def test_work_that_another_gate_holds_back_has_its_dependencies() -> None:
    bench = callback_bench()
    bench.submit("a", needs=["x"], dependency_timeout=30)
    bench.answer("a", ready=False, why="not_ready")
    bench.after(30)
    assert bench.state("a") == "pending"


def test_work_that_nobody_was_asked_about_goes_by_what_completed() -> None:
    bench = callback_bench()
    bench.may_start = False
    bench.submit("a", needs=["x"], dependency_timeout=30)
    bench.after(30)
    assert bench.error("a") == "dependency_timeout"


# --- Work that stays pending ----------------------------------------------------------------------


def test_work_pending_for_too_long_fails_with_a_timeout_error() -> None:
    bench = paused_bench(pending_timeout=60)
    bench.submit("a")
    assert bench.plan.wake_at == START + 60
    bench.after(60)
    assert bench.error("a") == "TimeoutError: Pending timeout after 60 s"
    exception = bench.facts("failed")[0]["exception"]
    assert isinstance(exception, TimeoutError)
    assert str(exception) == "Pending timeout after 60 s"


def test_a_pending_timeout_fails_the_dependents_too() -> None:
    bench = paused_bench(pending_timeout=60)
    bench.submit("a")
    bench.now += 1
    bench.submit("b", needs=["a"])
    bench.after(59)
    assert bench.error("b") == "prerequisite_failed"


def test_the_pending_time_that_is_told_counts_from_when_the_work_became_pending() -> None:
    bench = Bench(pending_timeout=20, pending_warn_after=15, retry=SLOW_RETRY)
    bench.submit("a")
    bench.now += 3
    bench.fail("a")
    bench.pause("api")
    bench.after(25)
    assert bench.facts("pending_warning") == [{"seconds": 15.0}]
    bench.after(5)
    assert bench.error("a") == "TimeoutError: Pending timeout after 20 s"


def test_work_that_fails_or_is_cancelled_while_it_is_pending_took_no_time() -> None:
    bench = Bench(pending_timeout=20, retry=SLOW_RETRY)
    bench.submit("a", "b", "c")
    for work_id in "ab":
        bench.fail(work_id)
    bench.pause("api")
    bench.cancel("a")
    bench.cancel("c")
    bench.after(30)
    assert bench.told("failed") == ["a", "b", "b"]
    assert bench.facts("failed")[2]["duration"] is None
    assert bench.facts("cancelled") == [{"duration": None}, {}]  # c was running: its own times tell


def test_the_pending_warning_is_told_once() -> None:
    bench = paused_bench(pending_warn_after=10)
    bench.submit("a")
    bench.after(10)
    bench.after(10)
    assert (bench.told("pending_warning"), bench.facts("pending_warning")) == (["a"], [{"seconds": 10.0}])


def test_work_that_started_in_time_is_neither_warned_about_nor_ended() -> None:
    bench = Bench(pending_warn_after=10, pending_timeout=60)
    bench.submit("a")
    bench.after(100)
    assert (bench.state("a"), bench.told("pending_warning")) == ("running", [])


def test_pending_time_counts_from_when_the_work_might_first_have_run() -> None:
    bench = paused_bench(pending_timeout=60)
    bench.submit("delayed", delay=30)
    bench.submit("scheduled", run_at=START + 30)
    bench.after(89)
    assert bench.states() == {"delayed": "pending", "scheduled": "pending"}
    bench.after(1)
    assert bench.states() == {"delayed": "failed", "scheduled": "failed"}


def test_the_pending_warning_is_not_told_again_when_another_limit_is_reached() -> None:
    bench = paused_bench(pending_warn_after=10)
    bench.submit("a", needs=["x"], dependency_timeout=30)
    for _ in range(4):
        bench.after(10)
    assert (bench.told("pending_warning"), bench.state("a")) == (["a"], "failed")


@pytest.mark.parametrize("seconds", [0.5, 20, -0.5, -20])
def test_pending_time_ends_although_the_wall_clock_was_set(seconds: float) -> None:
    bench = paused_bench(pending_timeout=60)
    bench.submit("scheduled", run_at=START + 30)
    bench.wall += seconds
    bench.after(90 + abs(seconds))
    assert bench.states() == {"scheduled": "failed"}


@pytest.mark.parametrize("seconds", [0.5, 20, -0.5, -20])
def test_the_pending_warning_is_told_once_although_the_wall_clock_was_set(seconds: float) -> None:
    bench = paused_bench(pending_warn_after=60)
    bench.submit("scheduled", run_at=START + 30)
    bench.wall += seconds
    for _ in range(3):
        bench.after(90 + abs(seconds))
    assert bench.told("pending_warning") == ["scheduled"]


def test_a_retry_has_its_own_pending_time_from_when_it_is_due() -> None:
    bench = Bench(pending_timeout=60, retry=SLOW_RETRY)
    bench.submit("a", delay=30)
    bench.after(30)
    bench.fail("a")
    bench.pause("api")
    bench.after(69)
    assert bench.state("a") == "pending"
    bench.after(1)
    assert bench.state("a") == "failed"


def test_revived_work_has_its_own_pending_time() -> None:
    bench = paused_bench(pending_timeout=60)
    bench.submit("a")
    bench.after(60)
    bench.revive("a")
    bench.after(59)
    assert bench.state("a") == "pending"
    bench.after(1)
    assert bench.state("a") == "failed"


def test_limits_of_work_that_passed_through_leave_nothing_behind() -> None:
    bench = Bench(pending_timeout=86400, pending_warn_after=3600, keep_finished=0)
    for _ in range(300):
        bench.finish(bench.submit()[0])
    assert len(bench.scheduler.ledger.timers._deadlines) < 200


def test_sweeping_out_old_limits_keeps_those_that_count() -> None:
    bench = Bench(limits("idle"), limits(), pending_timeout=100, keep_finished=0)
    bench.pause("idle")
    bench.submit("a", services=["idle"])
    for _ in range(300):
        bench.finish(bench.submit()[0])
    bench.after(100)
    assert bench.plan.records["a"].error == "TimeoutError: Pending timeout after 100 s"


# --- A queue that stands still --------------------------------------------------------------------


def test_a_queue_that_stands_still_fails_everything_pending() -> None:
    bench = paused_bench(stall_timeout=60)
    bench.submit("a", "b")
    assert bench.plan.wake_at == START + 60
    bench.after(59)
    assert bench.states() == {"a": "pending", "b": "pending"}
    bench.after(1)
    assert bench.error("a") == "TimeoutError: Stall timeout after 60 s without progress"
    assert bench.states() == {"a": "failed", "b": "failed"}
    assert isinstance(bench.facts("failed")[0]["exception"], TimeoutError)


def test_a_stalled_chain_ends_each_of_its_works_once() -> None:
    bench = paused_bench(stall_timeout=60)
    bench.submit("a")
    bench.submit("b", needs=["a"])
    bench.after(60)
    assert bench.told("failed") == ["a", "b"]
    assert bench.error("b") == "prerequisite_failed"


def test_the_stall_warning_is_told_once_for_each_standstill() -> None:
    bench = paused_bench(stall_warn_after=10)
    bench.submit("a", "b")
    assert bench.plan.wake_at == START + 10
    bench.after(10)
    bench.after(10)
    assert bench.facts("stall_warning") == [{"seconds": 10.0, "pending": 2}]
    bench.submit("c")
    bench.after(10)
    assert len(bench.facts("stall_warning")) == 2


def test_warning_and_timeout_may_come_in_one_turn() -> None:
    bench = paused_bench(stall_warn_after=10, stall_timeout=20)
    bench.submit("a")
    bench.after(100)
    assert (len(bench.facts("stall_warning")), bench.state("a")) == (1, "failed")


def test_a_queue_in_which_something_runs_does_not_stand_still() -> None:
    bench = Bench(limits(concurrent=1), stall_timeout=60)
    bench.submit("a", "b")
    bench.after(1000)
    assert bench.states() == {"a": "running", "b": "pending"}


@pytest.mark.parametrize("progress", ["submit", "cancel", "revive"])
def test_progress_begins_the_time_anew(progress: str) -> None:
    bench = paused_bench(stall_timeout=60)
    bench.submit("a", "b", "c")
    bench.cancel("c")
    bench.after(59)
    getattr(bench, progress)({"submit": "d", "cancel": "b", "revive": "c"}[progress])
    bench.after(59)
    assert bench.state("a") == "pending"
    bench.after(1)
    assert bench.state("a") == "failed"


def test_work_revived_after_a_long_silence_is_not_taken_for_stalled() -> None:
    bench = paused_bench(stall_timeout=60)
    bench.submit("a")
    bench.cancel("a")
    bench.after(1000)
    bench.revive("a")
    assert bench.state("a") == "pending"


def test_work_that_waits_for_a_time_of_its_own_does_not_stand_still() -> None:
    bench = Bench(
        stall_timeout=60, stall_warn_after=50, retry=Retry(max_attempts=2, base_delay=300, jitter=False)
    )
    bench.submit("retried")
    bench.fail("retried")
    bench.submit("delayed", delay=300)
    bench.submit("scheduled", run_at=START + 300)
    bench.after(100)
    bench.after(100)
    assert set(bench.states().values()) == {"pending"}
    assert bench.facts("stall_warning") == []
    assert bench.plan.wake_at > bench.now


def test_work_that_waits_for_a_time_of_its_own_survives_the_standstill_of_others() -> None:
    bench = paused_bench(stall_timeout=60)
    bench.submit("stuck")
    bench.submit("scheduled", run_at=START + 300)
    bench.after(60)
    assert bench.states() == {"stuck": "failed", "scheduled": "pending"}


def test_an_empty_queue_does_not_stand_still() -> None:
    bench = paused_bench(stall_timeout=60, stall_warn_after=5)
    bench.submit("a")
    bench.turn(Cancel("a"), Verdicts([]))
    assert bench.plan.wake_at == math.inf
    bench.after(1000)
    assert bench.facts("stall_warning") == []
