"""Answers that come when their work has already moved on."""

from runcue.core.limits.service import Limits
from runcue.core.model.failure import Failure
from runcue.core.model.record import Spec, WorkState
from runcue.core.model.retry import Retry
from runcue.core.model.settings import Rule, Settings
from runcue.core.schedule.gates import Allowance
from runcue.core.schedule.plan import Cancel, Ended, Outcome, Submit
from runcue.core.schedule.scheduler import Scheduler

TIMEOUT = Failure("timeout", "timeout")


def started_scheduler() -> tuple[Scheduler, int]:
    """A scheduler with one work running on a service that takes one, and its token."""
    scheduler = Scheduler(Settings(), {"call": Rule(Retry(max_attempts=1))}, "tagtagta")
    scheduler.declare(Limits("api", 1))
    scheduler.begin(1.0, 1.0)
    scheduler.take_in(
        [Submit([Spec("a", "call", b"{}", ("api",)), Spec("b", "call", b"{}", ("api",))], True)]
    )
    return scheduler, scheduler.plan(True, Allowance()).start[0].token


def test_a_timeout_after_a_cancel_in_the_same_turn_keeps_the_slot_until_the_code_has_ended() -> None:
    scheduler, token = started_scheduler()
    scheduler.begin(2.0, 2.0)
    scheduler.take_in([Cancel("a"), Outcome("a", token, None, TIMEOUT, has_ended=False)])
    plan = scheduler.plan(True, Allowance())
    assert plan.records["a"].state is WorkState.CANCELLED
    assert plan.start == []
    scheduler.begin(3.0, 3.0)
    scheduler.take_in([Ended("a", token)])
    assert [record.id for record in scheduler.plan(True, Allowance()).start] == ["b"]


def test_work_that_becomes_due_at_the_very_moment_of_the_stall_limit_runs() -> None:
    scheduler = Scheduler(Settings(stall_timeout=60), {"call": Rule(Retry(max_attempts=1))}, "tagtagta")
    scheduler.begin(1.0, 1.0)
    scheduler.take_in([Submit([Spec("a", "call", b"{}", (), delay=60)], True)])
    assert scheduler.plan(True, Allowance()).start == []
    scheduler.begin(61.0, 61.0)
    assert [record.id for record in scheduler.plan(True, Allowance()).start] == ["a"]
