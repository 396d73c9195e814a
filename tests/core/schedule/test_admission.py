"""Whether submitted work is accepted: ids, idempotency keys, cycles, and room in the queue."""

from typing import Any

import pytest

from runcue.core.model.events import draft_of
from runcue.core.model.record import WorkState
from runcue.errors import DependencyCycle, DuplicateWork, QueueFull
from tests.core.bench_of_core import Bench, limits


def blocked_bench(**settings: Any) -> Bench:
    """A bench on which everything that is submitted stays pending."""
    bench = Bench(limits(concurrent=1), **settings)
    bench.pause("api")
    return bench


# --- Acceptance -----------------------------------------------------------------------------------


def test_a_submission_is_answered_with_its_ids_in_order() -> None:
    assert Bench().submit("b", "a", "c") == ["b", "a", "c"]


def test_plain_work_is_answered_with_the_ids_that_were_made_for_it() -> None:
    bench = Bench()
    submit = bench.submission(None, None)
    assert bench.reply(submit) == [spec.id for spec in submit.specs]


def test_accepted_work_is_recorded_as_pending_with_attempt_one_before_its_first_start() -> None:
    bench = blocked_bench()
    bench.submit("a")
    record = bench.plan.records["a"]
    assert (record.state, record.attempt, record.created_at) == (WorkState.PENDING, 1, bench.now)
    assert (record.started_at, record.completed_at, record.next_retry_at) == (None, None, None)


def test_accepted_work_is_told_as_queued_before_it_is_told_as_started() -> None:
    bench = Bench()
    bench.submit("a")
    assert [draft_of(event).type for event in bench.plan.events[:2]] == ["queued", "started"]


# --- Ids ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["", "finish", "fail", "cancel"])
def test_an_id_that_is_known_in_whatever_state_is_refused(verb: str) -> None:
    bench = Bench()
    bench.submit("a")
    if verb:
        getattr(bench, verb)("a")
    with pytest.raises(DuplicateWork, match="'a' exists already"):
        bench.submit("a")


def test_an_id_given_twice_in_one_submission_is_refused() -> None:
    bench = Bench()
    with pytest.raises(DuplicateWork):
        bench.submit("a", "a")
    assert bench.states() == {}


def test_an_id_given_in_two_submissions_of_one_turn_is_refused_the_second_time() -> None:
    bench = Bench()
    first, second = bench.submission("a"), bench.submission("a")
    bench.turn(first, second)
    assert bench.answer_to(first) == ["a"]
    with pytest.raises(DuplicateWork):
        bench.answer_to(second)


def test_an_id_is_taken_even_when_its_work_came_and_ended_in_this_very_turn() -> None:
    bench = Bench()
    bench.submit("lost")
    bench.fail("lost")
    first, second = bench.submission("a", needs=["lost"]), bench.submission("a")
    bench.turn(first, second)
    with pytest.raises(DuplicateWork):
        bench.answer_to(second)
    assert bench.error("a") == "prerequisite_failed"


def test_the_id_of_forgotten_work_stays_taken() -> None:
    bench = Bench(keep_finished=0)
    bench.submit("a")
    bench.finish("a")
    with pytest.raises(DuplicateWork):
        bench.submit("a")


def test_a_refused_submission_changes_nothing() -> None:
    bench = Bench()
    bench.submit("a")
    submit = bench.submission("b", "a", "c")
    with pytest.raises(DuplicateWork):
        bench.reply(submit)
    assert (bench.plan.records, bench.plan.start) == ({}, [])
    assert bench.states() == {"a": "running"}


# --- Idempotency keys -----------------------------------------------------------------------------


def test_a_key_whose_work_is_pending_gives_that_id_and_queues_nothing() -> None:
    bench = blocked_bench()
    first = bench.submit(key="k")
    assert bench.submit(key="k") == first
    assert bench.plan.records == {}


def test_a_key_whose_work_is_running_gives_that_id() -> None:
    bench = Bench()
    first = bench.submit(key="k")
    assert bench.running == first
    assert bench.submit(key="k") == first


def test_a_key_whose_work_completed_gives_that_id() -> None:
    bench = Bench()
    first = bench.submit(key="k")
    bench.finish(first[0])
    assert bench.submit(key="k") == first
    assert bench.plan.start == []


@pytest.mark.parametrize("end", ["fail", "cancel"])
def test_a_key_whose_work_failed_or_was_cancelled_goes_to_new_work(end: str) -> None:
    bench = Bench()
    bench.submit("old", key="k")
    getattr(bench, end)("old")
    assert bench.submit("new", key="k") == ["new"]
    assert bench.submit("newer", key="k") == ["new"]


@pytest.mark.parametrize(("end", "state"), [("fail", "failed"), ("cancel", "cancelled")])
def test_on_failed_reject_refuses_to_run_failed_or_cancelled_work_anew(end: str, state: str) -> None:
    bench = Bench()
    bench.submit("old", key="k")
    getattr(bench, end)("old")
    with pytest.raises(DuplicateWork, match=f"which is {state}") as refusal:
        bench.submit("new", key="k", on_failed="reject")
    assert (refusal.value.work_id, refusal.value.key) == ("old", "k")


def test_on_failed_return_gives_the_id_of_the_failed_work() -> None:
    bench = Bench()
    bench.submit("old", key="k")
    bench.fail("old")
    assert bench.submit("new", key="k", on_failed="return") == ["old"]


def test_on_failed_says_nothing_about_work_that_is_well() -> None:
    bench = Bench()
    bench.submit("old", key="k")
    assert bench.submit("new", key="k", on_failed="reject") == ["old"]


def test_a_key_with_other_params_is_refused() -> None:
    bench = Bench()
    bench.submit("old", key="k", params=b'{"page":1}')
    with pytest.raises(DuplicateWork, match="other params"):
        bench.submit("new", key="k", params=b'{"page":2}')


def test_a_key_with_another_task_is_refused_even_after_a_failure() -> None:
    bench = Bench(rules={**Bench().rules, "other": Bench().rules["task"]})
    bench.submit("old", key="k")
    bench.fail("old")
    with pytest.raises(DuplicateWork, match="another task"):
        bench.submit("new", key="k", task="other")


def test_params_are_compared_by_what_they_mean() -> None:
    bench = Bench()
    bench.submit("old", key="k", params=b'{"a":1,"b":2}')
    assert bench.submit("new", key="k", params=b'{"b":2,"a":1}') == ["old"]


def test_a_key_given_twice_in_one_submission_makes_one_work() -> None:
    bench = Bench()
    assert bench.submit("a", "b", key="k") == ["a", "a"]
    assert bench.states() == {"a": "running"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'{"n":1}', b'{"n":true}'),
        (b'{"n":1}', b'{"n":1.0}'),
        (b'{"n":0}', b'{"n":false}'),
        (b'{"a":{"n":[1]}}', b'{"a":{"n":[1.0]}}'),
        (b'{"n":[1,2]}', b'{"n":[2,1]}'),
    ],
)
def test_params_that_only_python_takes_for_equal_are_others(old: bytes, new: bytes) -> None:
    bench = Bench()
    bench.submit("old", key="k", params=old)
    with pytest.raises(DuplicateWork, match="other params"):
        bench.submit("new", key="k", params=new)


def test_the_order_of_keys_does_not_matter_at_any_depth() -> None:
    bench = Bench()
    bench.submit("old", key="k", params=b'{"a":{"x":1,"y":[{"p":1,"q":2}]},"b":2}')
    assert bench.submit("new", key="k", params=b'{"b":2,"a":{"y":[{"q":2,"p":1}],"x":1}}') == ["old"]


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize(("old", "new"), [(["x"], ["y"]), (["x"], ["x", "y"]), (["x"], []), ([], ["x"])])
def test_a_key_with_other_dependencies_is_refused(is_done: bool, old: list[str], new: list[str]) -> None:
    bench = Bench()
    bench.submit("x", "y")
    bench.submit("old", key="k", needs=old)
    if is_done:
        bench.finish("x")
        bench.finish("old")
    with pytest.raises(DuplicateWork, match="other depends_on") as caught:
        bench.submit("new", key="k", needs=new)
    assert (caught.value.work_id, caught.value.key) == ("old", "k")
    assert bench.states().keys() == {"x", "y", "old"}


def test_the_order_of_dependencies_does_not_matter() -> None:
    bench = Bench()
    bench.submit("old", key="k", needs=["x", "y"])
    assert bench.submit("new", key="k", needs=["y", "x"]) == ["old"]


def test_work_that_takes_over_a_key_may_have_other_dependencies() -> None:
    bench = Bench()
    bench.submit("x", key="x")
    bench.submit("old", key="k", needs=["x"])
    bench.fail("x")
    assert bench.submit("x2", key="x") == ["x2"]
    assert bench.submit("new", key="k", needs=["x2"]) == ["new"]


def test_the_id_of_failed_work_with_other_dependencies_is_not_returned() -> None:
    bench = Bench()
    bench.submit("old", key="k", needs=["x"])
    bench.cancel("old")
    with pytest.raises(DuplicateWork, match="other depends_on"):
        bench.submit("new", key="k", needs=["y"], on_failed="return")


def test_a_key_given_twice_in_one_submission_with_other_dependencies_is_refused() -> None:
    bench = Bench()
    with pytest.raises(DuplicateWork, match="other depends_on"):
        bench.submit(bench.spec("a", key="k"), bench.spec("b", key="k", needs=["x"]))
    assert bench.states() == {}


def test_a_key_given_twice_in_one_submission_with_other_params_is_refused() -> None:
    bench = Bench()
    one, two = bench.spec("a", key="k"), bench.spec("b", key="k", params=b'{"x":1}')
    with pytest.raises(DuplicateWork):
        bench.submit(one, two)
    assert bench.states() == {}


def test_many_submitters_of_one_key_in_one_turn_make_one_work() -> None:
    bench = Bench()
    submits = [bench.submission(None, key="k") for _ in range(64)]
    bench.turn(*submits)
    assert {tuple(bench.answer_to(submit)) for submit in submits} == {(submits[0].specs[0].id,)}
    assert len(bench.store.records) == 1


def test_a_key_taken_over_in_this_turn_belongs_to_the_new_work() -> None:
    bench = Bench()
    bench.submit("old", key="k")
    bench.fail("old")
    first, second = bench.submission("new", key="k"), bench.submission("newer", key="k")
    bench.turn(first, second)
    assert (bench.answer_to(first), bench.answer_to(second)) == (["new"], ["new"])


def test_a_key_whose_work_fails_in_this_turn_goes_to_the_work_submitted_after_that() -> None:
    bench = Bench()
    bench.submit("old", key="k")
    submit = bench.submission("new", key="k")
    bench.turn(bench.failure("old"), submit)
    assert bench.answer_to(submit) == ["new"]


def test_a_key_lives_as_long_as_its_record() -> None:
    bench = Bench(keep_finished=0)
    bench.submit("old", key="k")
    bench.finish("old")
    assert bench.submit("new", key="k") == ["new"]


# --- Cycles (DP1) ---------------------------------------------------------------------------------


def test_work_that_waits_for_itself_is_refused() -> None:
    with pytest.raises(DependencyCycle) as refusal:
        Bench().submit("a", needs=["a"])
    assert refusal.value.cycle == ("a", "a")


def test_a_ring_within_one_submission_is_refused_and_nothing_is_queued() -> None:
    bench = Bench()
    specs = [bench.spec("a", needs=["b"]), bench.spec("b", needs=["c"]), bench.spec("c", needs=["a"])]
    with pytest.raises(DependencyCycle) as refusal:
        bench.submit(bench.spec("free"), *specs)
    assert set(refusal.value.cycle) == {"a", "b", "c"}
    assert (bench.states(), bench.plan.events) == ({}, [])


def test_an_edge_that_closes_a_ring_later_is_refused_and_the_rest_stays_as_it_was() -> None:
    bench = Bench()
    bench.submit("a", needs=["b"])
    bench.submit("b", needs=["c"])
    with pytest.raises(DependencyCycle) as refusal:
        bench.submit("c", needs=["x", "a"])
    assert refusal.value.cycle == ("c", "a", "b", "c")
    assert bench.states() == {"a": "pending", "b": "pending"}
    assert bench.submit("c") == ["c"]
    assert bench.started == ["c"]


def test_a_graph_with_forward_references_and_no_ring_is_accepted_at_once() -> None:
    bench = Bench()
    bench.submit(bench.spec("c", needs=["a", "b"]), bench.spec("b", needs=["a"]), bench.spec("a"))
    assert bench.states() == {"c": "pending", "b": "pending", "a": "running"}


def test_an_id_needed_twice_is_needed_once() -> None:
    bench = Bench()
    bench.submit("a")
    bench.submit("b", needs=["a", "a"])
    bench.finish("a")
    assert bench.started == ["b"]


def test_what_runs_or_is_over_closes_no_ring() -> None:
    bench = Bench()
    bench.submit("a")
    bench.finish("a")
    bench.submit("b", needs=["a"])
    assert bench.started == ["b"]


# --- Room (DP11) ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("pending", "is_refused"), [(1, False), (2, True)])
def test_reject_refuses_exactly_what_would_pass_the_limit(pending: int, is_refused: bool) -> None:
    bench = blocked_bench(max_queued=2)
    bench.submit(*[None] * pending)
    if is_refused:
        with pytest.raises(QueueFull, match="2 pending, 1 more asked for, max_queued=2"):
            bench.submit("a")
    else:
        assert bench.submit("a") == ["a"]


def test_many_submitters_in_one_turn_are_refused_from_the_limit_on() -> None:
    bench = blocked_bench(max_queued=3)
    submits = [bench.submission(None) for _ in range(8)]
    bench.turn(*submits)
    answers = [answer for _, answer in bench.plan.replies]
    assert [isinstance(answer, QueueFull) for answer in answers] == [False] * 3 + [True] * 5


def test_running_work_takes_no_room_in_the_queue() -> None:
    bench = Bench(max_queued=1)
    bench.submit("a")
    assert bench.submit("b") == ["b"]
    assert bench.running == ["a", "b"]


def test_a_submission_that_does_not_fit_as_a_whole_is_refused_as_a_whole() -> None:
    bench = blocked_bench(max_queued=3)
    bench.submit("a", "b")
    with pytest.raises(QueueFull):
        bench.submit("c", "d")
    assert set(bench.states()) == {"a", "b"}


@pytest.mark.parametrize("policy", ["reject", "drop_oldest", "block"])
def test_a_submission_larger_than_the_queue_is_refused_whatever_the_policy(policy: str) -> None:
    bench = blocked_bench(max_queued=2, reject_policy=policy)
    bench.submit("a")
    with pytest.raises(QueueFull, match="smaller batches"):
        bench.submit(None, None, None, may_wait=True)
    assert bench.states() == {"a": "pending"}


def test_retries_may_lift_pending_above_the_limit() -> None:
    bench = Bench(limits(concurrent=2), max_queued=1, retry=3)
    bench.submit("a")
    bench.submit("b")
    bench.turn(bench.failure("a"), bench.failure("b"))
    assert bench.states() == {"a": "pending", "b": "pending"}
    with pytest.raises(QueueFull, match="2 pending"):
        bench.submit("c")


def test_a_known_key_is_answered_even_when_the_queue_is_over_full() -> None:
    bench = Bench(max_queued=1, retry=3)
    bench.submit("a", key="k")
    bench.submit("b")
    bench.turn(bench.failure("a"), bench.failure("b"))
    assert bench.submit("again", key="k") == ["a"]


def test_drop_oldest_fails_the_oldest_pending_work_and_says_so() -> None:
    bench = blocked_bench(max_queued=2, reject_policy="drop_oldest")
    bench.submit("a")
    bench.submit("b")
    assert bench.submit("c") == ["c"]
    assert bench.states() == {"a": "failed", "b": "pending", "c": "pending"}
    assert (bench.error("a"), bench.told("failed")) == ("dropped", ["a"])


def test_drop_oldest_drops_as_many_as_are_needed() -> None:
    bench = blocked_bench(max_queued=3, reject_policy="drop_oldest")
    bench.submit("a", "b", "c")
    bench.submit("d", "e")
    assert [work_id for work_id, state in bench.states().items() if state == "pending"] == ["c", "d", "e"]


def test_drop_oldest_never_drops_what_runs() -> None:
    bench = Bench(limits(concurrent=1), max_queued=1, reject_policy="drop_oldest")
    bench.submit("runs")
    bench.submit("b")
    bench.submit("c")
    assert bench.states() == {"runs": "running", "b": "failed", "c": "pending"}


def test_drop_oldest_goes_by_the_time_of_submission_also_for_work_that_was_tried() -> None:
    bench = Bench(limits("slow", concurrent=1), limits("fast"), max_queued=3, retry=3,
                  reject_policy="drop_oldest")  # fmt: skip
    bench.pause("slow")
    bench.submit("older", services=["slow"])
    bench.submit("tried", services=["fast"])
    bench.fail("tried")
    bench.submit("newer", services=["slow"])
    bench.submit("last", services=["slow"])
    assert bench.told("failed")[1:] == ["older"]
    bench.submit("very last", services=["slow"])
    assert bench.told("failed")[2:] == ["tried"]


def test_drop_oldest_can_drop_revived_work() -> None:
    bench = blocked_bench(max_queued=1, reject_policy="drop_oldest")
    bench.submit("a")
    bench.submit("b")
    bench.cancel("b")
    bench.revive("a")
    bench.submit("c")
    assert bench.states() == {"a": "failed", "b": "cancelled", "c": "pending"}


def test_dropping_passes_over_what_was_cancelled() -> None:
    bench = blocked_bench(max_queued=2, reject_policy="drop_oldest")
    bench.submit("a", "b")
    bench.cancel("a")
    bench.submit("c", "d")
    assert bench.states() == {"a": "cancelled", "b": "failed", "c": "pending", "d": "pending"}


def test_dropping_fails_the_dependents_of_what_was_dropped() -> None:
    bench = blocked_bench(max_queued=3, reject_policy="drop_oldest")
    bench.submit("a")
    bench.submit("b", needs=["a"])
    bench.submit("c")
    bench.submit("d")
    assert bench.states() == {"a": "failed", "b": "failed", "c": "pending", "d": "pending"}
    assert bench.error("b") == "prerequisite_failed"


def test_work_whose_own_dependency_is_dropped_to_make_room_for_it_fails_at_once() -> None:
    bench = blocked_bench(max_queued=1, reject_policy="drop_oldest")
    bench.submit("a")
    bench.submit("b", needs=["a"])
    assert bench.states() == {"a": "failed", "b": "failed"}
    assert (bench.error("a"), bench.error("b")) == ("dropped", "prerequisite_failed")


def test_what_passes_through_a_queue_that_drops_leaves_nothing_behind() -> None:
    bench = Bench(max_queued=10, reject_policy="drop_oldest", keep_finished=0)
    for _ in range(500):
        bench.finish(bench.submit()[0])
    assert len(bench.scheduler.ledger.ages._by_age) < 200


# --- Waiting for room -----------------------------------------------------------------------------


def test_block_keeps_a_submission_waiting_until_there_is_room() -> None:
    bench = Bench(limits(concurrent=1), max_queued=1, reject_policy="block")
    bench.submit("a")
    bench.submit("b")
    late = bench.submission("c", may_wait=True)
    bench.turn(late)
    assert (bench.plan.replies, "c" in bench.states()) == ([], False)
    bench.finish("a")
    assert bench.answer_to(late) == ["c"]
    assert bench.states() == {"a": "completed", "b": "running", "c": "pending"}


def test_block_refuses_at_once_where_nobody_may_wait() -> None:
    bench = blocked_bench(max_queued=1, reject_policy="block")
    bench.submit("a")
    with pytest.raises(QueueFull):
        bench.submit("b")


def test_what_waits_for_room_is_accepted_in_the_order_it_came() -> None:
    bench = blocked_bench(max_queued=2, reject_policy="block")
    bench.submit("a", "b")
    large, small = bench.submission("c", "d", may_wait=True), bench.submission("e", may_wait=True)
    bench.turn(large, small)
    bench.cancel("a")
    assert bench.plan.replies[1:] == []
    bench.cancel("b")
    assert (bench.answer_to(large), bench.answer_to(small)) == (["c", "d"], None)


def test_a_newcomer_does_not_overtake_what_waits_for_room() -> None:
    bench = blocked_bench(max_queued=2, reject_policy="block")
    bench.submit("a", "b")
    first, second = bench.submission("c", "d", may_wait=True), bench.submission("e", may_wait=True)
    bench.turn(first)
    bench.cancel("a")
    bench.turn(second)
    assert bench.answer_to(second) is None
    bench.cancel("b")
    assert bench.answer_to(first) == ["c", "d"]


def test_starting_work_makes_room_again_and_again_within_one_turn() -> None:
    bench = Bench(max_queued=1, reject_policy="block")
    bench.may_start = False
    bench.submit("a")
    waiting = [bench.submission(work_id, may_wait=True) for work_id in "bcd"]
    bench.turn(*waiting)
    bench.may_start = True
    bench.turn()
    assert bench.started == ["a", "b", "c", "d"]


def test_plain_work_may_wait_for_room_too() -> None:
    bench = blocked_bench(max_queued=1, reject_policy="block")
    bench.submit("a")
    late = bench.submission(None, may_wait=True)
    bench.turn(late)
    bench.cancel("a")
    assert bench.answer_to(late) == [late.specs[0].id]


def test_a_submission_that_gave_up_waiting_is_never_accepted() -> None:
    bench = blocked_bench(max_queued=1, reject_policy="block")
    bench.submit("a")
    late = bench.submission("b", may_wait=True)
    bench.turn(late)
    assert bench.withdraw(late) is True
    bench.cancel("a")
    assert bench.states() == {"a": "cancelled"}


def test_giving_up_comes_too_late_for_a_submission_that_was_accepted() -> None:
    bench = Bench(max_queued=1, reject_policy="block")
    submit = bench.submission("a", may_wait=True)
    bench.turn(submit)
    assert bench.withdraw(submit) is False
    assert bench.state("a") == "running"


def test_two_that_wait_for_room_with_one_key_become_one_work() -> None:
    bench = blocked_bench(max_queued=2, reject_policy="block")
    bench.submit("a", "b")
    one, two = (bench.submission(work_id, key="k", may_wait=True) for work_id in "cd")
    bench.turn(one, two)
    bench.cancel("a")
    bench.cancel("b")
    assert bench.answer_to(two) == ["c"]
    assert bench.states() == {"a": "cancelled", "b": "cancelled", "c": "pending"}


def test_what_waits_for_room_is_refused_when_its_id_was_taken_meanwhile() -> None:
    bench = blocked_bench(max_queued=1, reject_policy="block")
    bench.submit("a")
    one, two = (bench.submission("b", may_wait=True) for _ in range(2))
    bench.turn(one, two)
    bench.cancel("a")
    bench.cancel("b")
    with pytest.raises(DuplicateWork):
        bench.answer_to(two)


# --- How full it is -------------------------------------------------------------------------------


def test_backpressure_is_told_at_80_percent_when_full_and_when_it_is_over() -> None:
    bench = blocked_bench(max_queued=5)
    for _ in range(5):
        bench.submit()
    bench.resume("api")
    bench.turn(*[bench.success(work_id) for work_id in bench.running])
    facts = bench.facts("backpressure_active")
    assert facts[0] == {"depth": 4, "limit": 5, "active": True}
    assert facts[1] == {"depth": 5, "limit": 5, "active": True}
    assert facts[-1] == {"depth": 3, "limit": 5, "active": False}


def test_backpressure_is_not_told_again_while_nothing_about_it_changes() -> None:
    bench = blocked_bench(max_queued=5)
    bench.submit(None, None, None, None)
    bench.turn()
    bench.after(10)
    assert len(bench.facts("backpressure_active")) == 1


def test_without_a_limit_there_is_no_backpressure() -> None:
    bench = blocked_bench()
    bench.submit(*[None] * 100)
    assert bench.facts("backpressure_active") == []
