"""Units that were submitted from outside: accepted like all others, and what is refused is there to be seen."""

from typing import Any

import pytest

from runcue.core.model.record import WorkState, view
from runcue.core.model.retry import Retry
from runcue.core.model.settings import Rule
from runcue.core.schedule.plan import Cancel, Look, Post, Revive, Submission, Submit
from tests.core.bench_of_core import START, limits
from tests.core.library import Process, Shared, two


def outside(
    process: Process, id: str, *, at: float | None = None, is_settled: bool = True, **fields: Any
) -> Submission:
    """What a row becomes that somebody inserted."""
    submit = Submit([process.spec(id, **fields)], is_plain=False, at=process.now if at is None else at)
    return Submission(submit, is_settled)


def insert(shared: Shared, *items: Any) -> None:
    """Leave items for the next turn that come from no process."""
    shared.inbox.append(Post("", 0, list(items)))


def test_a_unit_from_outside_is_accepted_and_started() -> None:
    shared, one, _ = two(serving=("one",))
    insert(shared, outside(one, "a"), outside(one, "b"))
    one.turn()
    assert one.started == ["a", "b"]
    assert one.told("queued") == ["a", "b"]
    assert shared.letters.keys() <= {"two"}  # nobody is answered


def test_units_and_cancellations_from_outside_count_in_their_order() -> None:
    shared, one, _ = two(limits(concurrent=1), serving=())
    insert(shared, outside(one, "a"), outside(one, "b", needs=["a"]), Cancel("a"))
    one.turn()
    assert one.states() == {"a": "cancelled", "b": "failed"}
    insert(shared, Revive("a"), Look())
    one.turn()
    assert one.state("a") == "pending"


def test_what_it_waits_for_counts_from_when_it_was_submitted() -> None:
    shared, one, _ = two(serving=(), pending_timeout=10.0)
    insert(
        shared,
        outside(one, "a", at=START - 6),
        outside(one, "b", at=START + 60),
        outside(one, "c", delay=8.0),
    )
    one.turn()
    assert (one.record("a").created_at, one.record("a").since) == (START - 6, START - 6)
    assert one.record("b").created_at == START  # no clock is trusted that is ahead
    one.after(5)
    assert one.state("a") == "failed"
    assert one.state("b") == "pending"


def test_an_older_unit_from_outside_goes_before_a_younger_one_of_a_process() -> None:
    shared, one, _ = two(limits(concurrent=1), serving=())
    one.submit("young")
    insert(shared, outside(one, "old", at=START - 5))
    one.serve()
    assert one.started == ["old"]


# --- What the task says ---------------------------------------------------------------------------


def test_a_unit_without_services_gets_those_and_the_timeout_of_its_task() -> None:
    rules = {"task": Rule(Retry(max_attempts=1), services=("api",), timeout=7.0)}
    shared, one, _ = two(serving=("one",), rules=rules)
    insert(
        shared,
        outside(one, "a", services=(), is_settled=False),
        outside(one, "b", services=(), timeout=3.0, is_settled=False),
    )
    one.turn()
    assert (one.record("a").spec.services, one.record("a").spec.timeout) == (("api",), 7.0)
    assert one.record("b").spec.timeout == 3.0
    assert one.started == ["a", "b"]


def test_a_unit_of_an_unknown_task_waits_until_somebody_declares_it() -> None:
    shared, one, other = two(serving=("one", "two"))
    insert(shared, outside(one, "a", task="later", services=(), is_settled=False))
    one.turn()
    assert one.state("a") == "pending"
    assert one.why("a").reason == "unknown_task"
    assert view(one.record("a")).services == ()
    other.rules = {"task": Rule(Retry()), "later": Rule(Retry(), services=("api",))}
    other.turn()
    assert other.started == ["a"]


def test_a_unit_whose_services_came_with_its_task_throttles_them() -> None:
    shared, one, other = two(serving=("two",))
    insert(shared, outside(one, "a", task="later", services=(), is_settled=False))
    one.turn()
    other.rules = {"task": Rule(Retry()), "later": Rule(Retry(), services=("api",))}
    other.turn()
    other.fail("a", "throttled", after=5.0)
    other.submit("b")
    assert other.started == []
    other.after(5.0)
    assert sorted(other.started) == ["a", "b"]


def test_a_unit_of_an_unknown_task_does_not_start_without_the_services_that_its_task_would_choose() -> None:
    shared, one, other = two(serving=("one", "two"))
    insert(shared, outside(one, "a", task="later", services=(), is_settled=False))
    one.turn()
    other.rules = {"task": Rule(Retry()), "later": Rule(Retry())}
    other.turn()
    assert other.started == []
    assert other.state("a") == "pending"


def test_a_unit_whose_task_chooses_its_services_fails_unless_they_come_with_it() -> None:
    shared, one, _ = two(serving=("one",))
    insert(shared, outside(one, "a", services=(), is_settled=False), outside(one, "b"))
    one.turn()
    assert one.started == ["b"]
    assert str(one.error("a")).startswith("SubmitError: Task 'task' chooses the services of each unit")


# --- What is refused ------------------------------------------------------------------------------


def test_an_exact_repetition_is_dropped() -> None:
    shared, one, _ = two(serving=("one",))
    for _ in range(2):
        insert(shared, outside(one, "a", params=b'{"x":1,"y":2}'), outside(one, "k", key="k"))
        one.turn()
    one.finish("a")
    insert(shared, outside(one, "a", params=b'{"y": 2, "x": 1}'))
    one.turn()
    assert one.states() == {"a": "completed", "k": "running"}


def test_an_id_that_another_unit_has_fails_under_a_name_of_its_own() -> None:
    shared, one, _ = two(serving=("one",))
    insert(shared, outside(one, "a"), outside(one, "a", params=b'{"x":1}'), outside(one, "a", key="k"))
    one.turn()
    assert one.state("a") == "running"
    refused = {id: record for id, record in shared.records.items() if id != "a"}
    assert sorted(refused) == ["a~2", "a~3"]
    assert {record.state for record in refused.values()} == {WorkState.FAILED}
    assert str(refused["a~2"].error).startswith("DuplicateWork: Unit 'a' exists already.")
    assert one.told("failed") == ["a~2", "a~3"]


def test_a_unit_with_the_key_of_another_is_cancelled_and_says_whose_key_it_is() -> None:
    shared, one, _ = two(serving=("one",))
    one.submit("a", key="k")
    insert(shared, outside(one, "b", key="k"))
    one.turn()
    assert (one.state("b"), one.error("b")) == ("cancelled", "duplicate of a")
    one.finish("a")
    insert(shared, outside(one, "c", key="k"))  # the key is still that of "a"
    one.turn()
    assert one.error("c") == "duplicate of a"


def test_a_key_with_other_params_and_a_cycle_fail() -> None:
    shared, one, _ = two(serving=("one",))
    one.submit("a", key="k")
    insert(
        shared,
        outside(one, "b", key="k", params=b'{"x":1}'),
        outside(one, "c", needs=["d"]),
        outside(one, "d", needs=["c"]),
    )
    one.turn()
    assert str(one.error("b")).startswith("DuplicateWork: ")
    assert str(one.error("d")).startswith("DependencyCycle: ")
    assert one.error("c") == "prerequisite_failed"


@pytest.mark.parametrize(
    ("policy", "states"),
    [
        ("reject", ["pending", "failed"]),
        ("drop_oldest", ["failed", "pending"]),
        ("block", ["pending", "pending"]),
    ],
)
def test_a_full_queue_refuses_or_drops_and_makes_nobody_wait(policy: str, states: list[str]) -> None:
    shared, one, _ = two(serving=(), max_queued=1, reject_policy=policy)
    insert(shared, outside(one, "a"), outside(one, "b"))
    one.turn()
    assert [one.state("a"), one.state("b")] == states


def test_a_refused_unit_holds_nothing_and_counts_as_failed() -> None:
    shared, one, _ = two(serving=(), max_queued=1)
    insert(shared, outside(one, "a"), outside(one, "b", needs=["a"]), outside(one, "c", key="k"))
    one.turn()
    assert (shared.head.pending, shared.head.failed, shared.head.blocked) == (1, 2, 0)
    one.serve()
    assert one.started == ["a"]
    one.submit("d", key="k")  # a refused unit keeps no key
    assert one.state("d") == "running"


def test_a_cost_that_no_service_allows_fails() -> None:
    shared, one, _ = two(serving=("one",))
    spec = one.spec("a", cost=(("tokens", 5.0),))
    insert(shared, Submission(Submit([spec], is_plain=False, has_cost=True)))
    one.turn()
    assert str(one.error("a")).startswith("SubmitError: Task 'task' costs tokens")
