"""Failed work is deleted as if it had never been, and only failed work is.

The two ends of that are tried beside each other here: what a ledger in memory keeps of final work (kept.py), and what
several processes that share a queue find afterwards.
"""

import pytest

from runcue.core.ledger.retention import FinishedRetention
from runcue.core.model.record import Record, WorkState
from runcue.core.schedule.plan import Cancel, Configure, Plan, Purge, Revive
from runcue.core.schedule.scheduler import NOTHING
from runcue.errors import DuplicateWork, WorkNotFound
from tests.core.bench_of_core import SLOW_RETRY, Bench
from tests.core.library import two


def failed_bench(*ids: str, **options: object) -> Bench:
    """A bench whose works have all failed."""
    bench = Bench(**options)  # type: ignore[arg-type]
    bench.submit(*ids)
    bench.turn(*[bench.failure(work_id) for work_id in ids])
    return bench


def count(bench: Bench) -> dict[str, int]:
    """How many there are of what is not none."""
    return {state.value: amount for state, amount in bench.scheduler.ledger.counters.counts.items() if amount}


# --- What goes, and what stays ----------------------------------------------------------------------


def test_failed_work_goes_without_a_trace() -> None:
    bench = failed_bench("a", "b")
    assert bench.purge("a") == 1
    assert bench.states() == {"b": "failed"}
    assert bench.store.forgotten == {}
    assert count(bench) == {"failed": 1}
    assert (bench.plan.purged, bench.plan.forget, bench.plan.writes) == (["a"], [], True)


def test_several_go_at_once_and_those_that_are_not_there_are_not_counted() -> None:
    bench = failed_bench("a", "b", "c")
    assert bench.purge("c", "nobody", "a") == 2
    assert bench.states() == {"b": "failed"}


def test_only_failed_work_goes() -> None:
    bench = Bench(retry=SLOW_RETRY)
    bench.submit("completed", "cancelled", "retrying", "running")
    bench.finish("completed")
    bench.cancel("cancelled")
    bench.fail("retrying")
    bench.submit("pending", needs=["running"])
    before = bench.states()
    assert set(before.values()) == {"completed", "cancelled", "pending", "running"}
    assert bench.purge(*before, "nobody") == 0
    assert bench.states() == before
    assert (bench.plan.purged, bench.plan.writes) == ([], False)
    assert bench.record("retrying").failures == 1


def test_nothing_is_told_of_it_and_nothing_is_started() -> None:
    bench = failed_bench("a")
    bench.purge("a")
    assert (bench.plan.events, bench.plan.start, bench.plan.records) == ([], [], {})


def test_work_that_fails_in_the_same_turn_stays_until_somebody_can_know_of_it() -> None:
    bench = Bench()
    bench.submit("a")
    purge = Purge(["a"])
    bench.turn(bench.failure("a"), purge)
    assert (bench.answer_to(purge), bench.state("a")) == (0, "failed")
    assert bench.purge("a") == 1


def test_the_second_of_two_in_one_turn_finds_nothing() -> None:
    bench = failed_bench("a")
    first, second, third = Purge(["a"]), Purge(["a"]), Purge(["a", "a"])
    bench.turn(first, second, third)
    assert [bench.answer_to(item) for item in (first, second, third)] == [1, 0, 0]
    assert bench.plan.purged == ["a"]


def test_an_id_that_is_named_twice_goes_once() -> None:
    bench = failed_bench("a")
    assert bench.purge("a", "a") == 1
    assert count(bench) == {}


def test_what_has_to_be_read_is_what_is_named() -> None:
    bench = failed_bench("a")
    bench.scheduler.begin(bench.now, bench.wall)
    purge = Purge(["a", "b"])
    request = bench.scheduler.needs([purge, Cancel("c")])
    assert (request.ids, request.keys, request.dependents_of) == ({"a", "b"}, set(), set())
    bench.scheduler.absorb(request, bench.store.find(request))
    assert not bench.scheduler.needs([purge])
    assert bench.scheduler.needs([Cancel("c")]) is NOTHING


# --- Its id and its key are free --------------------------------------------------------------------


def test_its_id_is_free_again() -> None:
    bench = failed_bench("a")
    with pytest.raises(DuplicateWork):
        bench.submit("a")
    bench.purge("a")
    assert bench.submit("a") == ["a"]
    record = bench.record("a")
    assert (record.state.value, record.attempt, record.failures, record.history) == ("running", 1, 0, ())
    assert count(bench) == {"running": 1}


def test_its_key_is_free_again_for_other_work() -> None:
    bench = Bench()
    bench.submit("a", key="k", params=b'{"page":1}')
    bench.fail("a")
    with pytest.raises(DuplicateWork):
        bench.submit("b", key="k", params=b'{"page":2}')
    bench.purge("a")
    assert bench.submit("b", key="k", params=b'{"page":2}') == ["b"]


def test_a_key_that_other_work_has_taken_over_stays_with_it() -> None:
    bench = Bench()
    bench.submit("a", key="k")
    bench.fail("a")
    bench.submit("b", key="k")
    assert bench.purge("a") == 1
    assert bench.submit("c", key="k") == ["b"]


def test_what_depends_on_its_id_afterwards_waits_for_new_work() -> None:
    bench = failed_bench("a")
    bench.purge("a")
    bench.submit("b", needs=["a"])
    assert bench.state("b") == "pending"
    bench.submit("a")
    bench.finish("a")
    assert bench.started == ["b"]


def test_what_depends_on_it_afterwards_fails_where_nobody_else_can_ever_have_its_id() -> None:
    bench = Bench()
    [made] = bench.submit(None)
    bench.fail(made)
    bench.purge(made)
    bench.submit("b", needs=[made])
    assert (bench.started, bench.error("b")) == ([], "prerequisite_failed")


def test_what_depends_on_it_fails_in_the_same_turn_too() -> None:
    bench = Bench()
    [made] = bench.submit(None)
    bench.fail(made)
    bench.turn(Purge([made]), bench.submission("b", needs=[made]))
    assert (bench.started, bench.error("b")) == ([], "prerequisite_failed")


def test_what_failed_because_of_it_stays() -> None:
    bench = Bench()
    bench.submit("a")
    bench.submit("b", needs=["a"])
    bench.fail("a")
    bench.purge("a")
    assert (bench.states(), bench.error("b")) == ({"b": "failed"}, "prerequisite_failed")


def test_purged_and_submitted_in_one_turn_it_is_new_work() -> None:
    bench = failed_bench("a")
    purge, again = Purge(["a"]), bench.submission("a", key="k")
    bench.turn(purge, again)
    assert (bench.answer_to(purge), bench.answer_to(again)) == (1, ["a"])
    assert (bench.plan.purged, list(bench.plan.records)) == (["a"], ["a"])
    assert (bench.state("a"), bench.record("a").seq, count(bench)) == ("running", 2, {"running": 1})
    bench.finish("a")
    assert count(bench) == {"completed": 1}


def test_submitted_before_it_is_purged_in_one_turn_it_is_refused() -> None:
    bench = failed_bench("a")
    again, purge = bench.submission("a"), Purge(["a"])
    bench.turn(again, purge)
    with pytest.raises(DuplicateWork):
        bench.answer_to(again)
    assert (bench.answer_to(purge), bench.states(), count(bench)) == (1, {}, {})


def test_new_work_of_its_id_is_not_purged_in_the_same_turn() -> None:
    bench = failed_bench("a")
    again, second = bench.submission("a"), Purge(["a"])
    bench.turn(Purge(["a"]), again, second)
    assert (bench.answer_to(again), bench.answer_to(second), bench.state("a")) == (["a"], 0, "running")


@pytest.mark.parametrize("on_failed", ["return", "reject"])
def test_its_key_is_free_in_the_same_turn_whatever_is_to_be_done_with_failed_work(on_failed: str) -> None:
    bench = Bench()
    bench.submit("a", key="k")
    bench.fail("a")
    again = bench.submission("b", key="k", on_failed=on_failed)
    bench.turn(Purge(["a"]), again)
    assert (bench.answer_to(again), bench.states()) == (["b"], {"b": "running"})


def test_its_key_is_free_in_the_same_turn_for_other_work() -> None:
    bench = Bench()
    bench.submit("a", key="k", params=b'{"page":1}')
    bench.fail("a")
    again = bench.submission("b", key="k", params=b'{"page":2}')
    bench.turn(Purge(["a"]), again)
    assert (bench.answer_to(again), bench.states()) == (["b"], {"b": "running"})


# --- Beside a retry ---------------------------------------------------------------------------------


def test_purged_first_there_is_nothing_to_retry() -> None:
    bench = failed_bench("a")
    purge, revive = Purge(["a"]), Revive("a")
    bench.turn(purge, revive)
    with pytest.raises(WorkNotFound):
        bench.answer_to(revive)
    assert (bench.answer_to(purge), bench.states(), count(bench)) == (1, {}, {})
    assert (bench.plan.records, bench.plan.revived, bench.plan.start) == ({}, set(), [])


def test_retried_first_there_is_nothing_to_purge() -> None:
    bench = failed_bench("a")
    revive, purge = Revive("a"), Purge(["a"])
    bench.turn(revive, purge)
    assert (bench.answer_to(revive), bench.answer_to(purge)) == (True, 0)
    assert (bench.plan.purged, bench.state("a"), count(bench)) == ([], "running", {"running": 1})
    bench.finish("a")
    assert bench.state("a") == "completed"


def test_a_retry_with_all_who_failed_goes_on_without_those_that_were_purged_before() -> None:
    bench = Bench()
    bench.submit("a")
    bench.submit("b", needs=["a"])
    bench.submit("c", needs=["a"])
    bench.fail("a")
    bench.purge("b")
    assert bench.revive("a", cascade=True) is True
    assert bench.states() == {"a": "running", "c": "pending"}


def test_a_retry_with_all_who_failed_goes_on_without_those_that_the_same_turn_purges() -> None:
    bench = Bench()
    bench.submit("a")
    bench.submit("b", needs=["a"])
    bench.submit("c", needs=["a"])
    bench.fail("a")
    purge, revive = Purge(["b"]), Revive("a", cascade=True)
    bench.turn(purge, revive)
    assert (bench.answer_to(purge), bench.answer_to(revive)) == (1, True)
    assert bench.states() == {"a": "running", "c": "pending"}


def test_work_whose_key_a_purged_work_had_taken_over_can_be_retried_in_the_same_turn() -> None:
    bench = Bench()
    bench.submit("a", key="k")
    bench.fail("a")
    bench.submit("b", key="k")
    bench.fail("b")
    revive = Revive("a")
    bench.turn(Purge(["b"]), revive)
    assert (bench.answer_to(revive), bench.states()) == (True, {"a": "running"})


# --- What is kept in memory -------------------------------------------------------------------------


def test_purged_work_makes_no_room_for_what_was_forgotten_and_none_is_forgotten_for_it() -> None:
    bench = Bench(keep_finished=3)
    bench.submit("a", "b", "c", "d", "e")
    for work_id in "abc":
        bench.fail(work_id)
    bench.purge("b")
    bench.finish("d")
    assert bench.store.forgotten == {}
    assert set(bench.states()) == {"a", "c", "d", "e"}
    bench.finish("e")
    assert bench.plan.forget == ["a"]
    assert set(bench.states()) == {"c", "d", "e"}


def test_the_oldest_goes_next_however_much_was_purged_before_it() -> None:
    bench = failed_bench(*"abcdef", keep_finished=6)
    bench.purge(*"abcd")
    assert set(bench.states()) == {"e", "f"}
    for number in range(5):
        bench.submit(f"n{number}")
        bench.finish(f"n{number}")
    assert set(bench.states()) == {"f", "n0", "n1", "n2", "n3", "n4"}


def test_an_id_that_was_purged_and_used_again_is_forgotten_in_its_own_turn() -> None:
    bench = failed_bench("a", keep_finished=2)
    bench.purge("a")
    bench.submit("a", "b", "c")
    for work_id in ("b", "a", "c"):
        bench.finish(work_id)
    assert set(bench.states()) == {"a", "c"}


def test_what_is_purged_in_the_turn_that_would_forget_it_is_purged() -> None:
    bench = failed_bench("a", keep_finished=1)
    bench.submit("b")
    purge = Purge(["a"])
    bench.turn(bench.success("b"), purge)
    assert (bench.answer_to(purge), bench.plan.purged, bench.plan.forget) == (1, ["a"], [])
    assert (bench.states(), bench.store.forgotten) == ({"b": "completed"}, {})


def test_forgotten_work_cannot_be_purged() -> None:
    bench = failed_bench("a", keep_finished=0)
    assert (bench.states(), bench.purge("a")) == ({}, 0)
    assert bench.store.forgotten == {"a": WorkState.FAILED}


def records(bench: Bench, amount: int) -> list[Record]:
    ids = [f"w{number}" for number in range(amount)]
    bench.submit(*ids)
    return [bench.record(work_id) for work_id in ids]


def test_those_beyond_the_last_few_are_surplus_once() -> None:
    kept = FinishedRetention(2)
    some = records(Bench(), 4)
    for record in some:
        kept.add(record)
    assert list(kept.surplus()) == some[:2]
    assert list(kept.surplus()) == []


def test_one_that_is_dropped_counts_no_longer_and_is_never_surplus() -> None:
    kept = FinishedRetention(2)
    first, second, third, fourth = records(Bench(), 4)
    for record in (first, second, third):
        kept.add(record)
    kept.drop(first)
    assert list(kept.surplus()) == []
    kept.add(fourth)
    assert list(kept.surplus()) == [second]
    kept.drop(third)
    kept.drop(fourth)
    assert list(kept.surplus()) == []


def test_without_a_number_nothing_is_noted() -> None:
    kept = FinishedRetention(None)
    [record] = records(Bench(), 1)
    kept.add(record)
    kept.drop(record)
    assert list(kept.surplus()) == []


# --- In several processes ---------------------------------------------------------------------------


def test_work_that_another_process_ran_is_purged_and_counted_by_both() -> None:
    shared, one, other = two(serving=("one",))
    one.submit("a", "b")
    one.turn(one.failure("a"), one.failure("b"))
    assert other.purge("a") == 1
    assert list(shared.records) == ["b"]
    assert shared.head.failed == 1
    one.turn()
    assert one.scheduler.ledger.counters.counts[WorkState.FAILED] == 1
    assert one.purge("a") == 0
    assert one.submit("a") == ["a"]


def test_the_answer_of_an_attempt_whose_work_was_purged_meanwhile_counts_for_nothing() -> None:
    shared, one, other = two(serving=("one",))
    one.submit("a")
    one.time_out("a")
    assert shared.records["a"].state is WorkState.FAILED
    assert other.purge("a") == 1
    one.end("a", has_answer=True)
    assert shared.records == {}
    assert [fact.get("work_id") for fact in one.facts("stale_completion")] == ["a"]
    assert other.submit("a") == ["a"]
    one.turn()
    one.finish("a")
    assert shared.records["a"].state is WorkState.COMPLETED


def test_a_turn_that_is_not_kept_purges_nothing() -> None:
    shared, one, _ = two()
    one.submit("a")
    one.fail("a")
    one.turn(Purge(["a"]), is_kept=False)
    assert (list(shared.records), shared.head.failed) == (["a"], 1)
    assert one.purge("a") == 1
    assert (list(shared.records), shared.head.failed) == ([], 0)


# --- Texts kept with a queue ------------------------------------------------------------------------


def test_texts_are_part_of_the_plan_and_the_last_one_counts() -> None:
    bench = Bench()
    first, second = Configure({"a": "1", "b": "2"}), Configure({"a": None})
    bench.turn(first, second)
    assert bench.plan.config == {"a": None, "b": "2"}
    assert [item for item, _ in bench.plan.replies] == [first, second]
    assert bench.plan.writes
    bench.turn()
    assert (bench.plan.config, bench.plan.writes) == ({}, False)


def test_a_plan_that_only_purges_or_keeps_a_text_has_to_be_written() -> None:
    for change in ({"purged": ["a"]}, {"config": {"a": None}}):
        plan = Plan()
        assert not plan.writes
        for name, value in change.items():
            setattr(plan, name, value)
        assert plan.writes
