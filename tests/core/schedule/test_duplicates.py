"""What becomes of units with the same unique key: in a window of time, or while one of them is pending or running."""

from collections.abc import Callable
from typing import Any

import pytest

from runcue.core.model.record import Extras, Spec, Uniqueness
from runcue.core.schedule.plan import Purge
from runcue.errors import DuplicateWork, QueueFull
from tests.core.bench_of_core import Bench, limits
from tests.core.library import Process, two

WHILE_ACTIVE = Uniqueness()


def unique(
    bench: Bench, id: str, rule: Uniqueness = WHILE_ACTIVE, /, *, key: str = "k", expires: float | None = None,
    **fields: Any,
) -> Spec:  # fmt: skip
    """What the edge makes of a unit that is submitted with `unique=`."""
    return bench.spec(id, unique_key=key, extras=Extras(expires=expires, unique=rule), **fields)


def submit(bench: Bench, id: str, rule: Uniqueness = WHILE_ACTIVE, /, **fields: Any) -> Any:
    """Submit one, and give the ids it was answered with."""
    return bench.submit(unique(bench, id, rule, **fields))


def closed(**settings: Any) -> Bench:
    """A bench on which everything stays pending until the service is resumed."""
    bench = Bench(limits(), **settings)
    bench.pause("api")
    return bench


# --- Which units count ------------------------------------------------------------------------------


def test_a_second_unit_with_the_key_of_a_pending_one_is_answered_with_its_id() -> None:
    bench = closed()
    submit(bench, "first")
    assert submit(bench, "second") == ["first"]
    assert bench.states() == {"first": "pending"}


def test_a_running_unit_counts_as_active_and_one_that_has_ended_does_not() -> None:
    bench = Bench()
    submit(bench, "first")
    assert submit(bench, "second") == ["first"]
    bench.finish("first")
    assert submit(bench, "third") == ["third"]


def test_another_key_makes_another_unit() -> None:
    bench = closed()
    submit(bench, "a", key="one")
    assert submit(bench, "b", key="two") == ["b"]


def test_a_window_reaches_back_from_the_new_unit_to_when_the_other_came() -> None:
    bench, rule = Bench(), Uniqueness(within=10)
    submit(bench, "first", rule)
    bench.finish("first")
    bench.now += 9.9
    assert submit(bench, "second", rule) == ["first"]
    bench.now += 0.1
    assert submit(bench, "third", rule) == ["third"]


def test_a_window_is_over_for_a_unit_that_is_still_pending() -> None:
    bench, rule = closed(), Uniqueness(within=10)
    submit(bench, "first", rule)
    bench.now += 10
    assert submit(bench, "second", rule) == ["second"]


@pytest.mark.parametrize("end", [Bench.fail, Bench.cancel])
def test_within_its_window_a_unit_that_failed_or_was_cancelled_does_not_count(
    end: Callable[..., Any],
) -> None:
    bench, rule = Bench(), Uniqueness(within=10)
    submit(bench, "first", rule)
    end(bench, "first")
    assert submit(bench, "second", rule) == ["second"]


def test_a_deleted_unit_does_not_count() -> None:
    bench, rule = Bench(), Uniqueness(within=10)
    submit(bench, "first", rule)
    bench.fail("first")
    bench.purge("first")
    assert submit(bench, "second", rule) == ["second"]


def test_a_unit_purged_in_the_turn_that_brings_another_does_not_count() -> None:
    bench, rule = Bench(), Uniqueness(within=10)
    submit(bench, "first", rule)
    bench.fail("first")
    purge, more = Purge(["first"]), bench.submission(unique(bench, "second", rule))
    bench.turn(purge, more)
    assert bench.answer_to(more) == ["second"]


# --- Refused ----------------------------------------------------------------------------------------


def test_raise_refuses_the_whole_submission_and_names_the_other_unit() -> None:
    bench, rule = closed(), Uniqueness(on_conflict="raise")
    submit(bench, "first", rule)
    with pytest.raises(
        DuplicateWork, match="duplicate of unit 'first' by unique=, which is pending"
    ) as caught:
        bench.submit("other", unique(bench, "second", rule))
    assert (caught.value.work_id, caught.value.state, caught.value.is_unique) == ("first", "pending", True)
    assert bench.states() == {"first": "pending"}


@pytest.mark.parametrize("on_conflict", ["replace", "extend"])
def test_a_pending_unit_is_not_replaced_by_one_that_depends_on_others(on_conflict: str) -> None:
    bench, rule = closed(), Uniqueness(on_conflict=on_conflict, at_most=60)
    bench.submit("need")
    submit(bench, "first", rule)
    with pytest.raises(DuplicateWork, match="has other depends_on"):
        submit(bench, "second", rule, needs=["need"])
    assert bench.record("first").spec.depends_on == ()


# --- Replaced ---------------------------------------------------------------------------------------

REPLACE = Uniqueness(on_conflict="replace")


def test_replace_makes_a_pending_unit_what_was_submitted_last_under_its_id_and_its_age() -> None:
    bench = closed()
    submit(bench, "first", REPLACE, params=b'{"n":1}')
    came = bench.now
    bench.now += 5
    assert submit(bench, "second", REPLACE, params=b'{"n":2}', priority=3, target="t") == ["first"]
    record = bench.record("first")
    assert (record.spec.params, record.spec.priority, record.spec.target) == (b'{"n":2}', 3, "t")
    assert (record.id, record.spec.id, record.created_at) == ("first", "first", came)
    assert bench.told("edited") == ["first"]


def test_a_replaced_unit_starts_once_and_with_what_was_submitted_last() -> None:
    bench = closed()
    submit(bench, "first", REPLACE, params=b'{"n":1}')
    submit(bench, "second", REPLACE, params=b'{"n":2}')
    bench.resume("api")
    bench.turn()
    assert [record.spec.params for plan in bench.plans for record in plan.start] == [b'{"n":2}']


def test_a_replaced_unit_waits_in_the_lane_of_its_new_services_and_queue() -> None:
    bench = Bench(limits(), limits("other"))
    bench.pause("api")
    submit(bench, "first", REPLACE)
    submit(bench, "second", REPLACE, services=("other",), queue="night")
    assert bench.running == ["first"]
    bench.resume("api")
    assert bench.running == ["first"]


def test_a_replaced_unit_has_the_place_that_its_new_priority_gives_it() -> None:
    bench = Bench(limits(concurrent=1), age_step=None)
    bench.pause("api")
    bench.submit("other", priority=1)
    submit(bench, "first", REPLACE)
    submit(bench, "second", REPLACE, priority=2)
    bench.resume("api")
    assert bench.running == ["first"]


def test_a_running_unit_is_not_replaced() -> None:
    bench = Bench()
    submit(bench, "first", REPLACE, params=b'{"n":1}')
    assert submit(bench, "second", REPLACE, params=b'{"n":2}') == ["first"]
    assert bench.record("first").spec.params == b'{"n":1}'
    assert bench.told("edited") == []


def test_a_unit_that_waits_for_a_retry_is_pending_and_replaced() -> None:
    bench = Bench(retry=2)
    submit(bench, "first", REPLACE)
    bench.fail("first", after=60)
    assert submit(bench, "second", REPLACE, params=b'{"n":2}') == ["first"]
    assert bench.record("first").spec.params == b'{"n":2}'
    assert bench.record("first").failures == 1


def test_a_unit_that_waits_for_others_is_replaced_and_goes_on_waiting() -> None:
    bench = Bench(retry=1)
    bench.pause("api")
    bench.submit("need")
    submit(bench, "first", REPLACE, needs=["need"])
    submit(bench, "second", REPLACE, needs=["need"], params=b'{"n":2}')
    bench.resume("api")
    assert bench.running == ["need"]
    bench.finish("need")
    assert bench.running == ["first"]


def test_without_a_delay_a_replaced_unit_waits_no_longer_for_the_one_it_had() -> None:
    bench = Bench()
    submit(bench, "first", REPLACE, delay=60.0)
    submit(bench, "second", REPLACE)
    assert bench.started == ["first"]
    bench.finish("first")
    assert bench.after(60).start == []


def test_the_delay_of_what_replaces_a_unit_counts_from_then() -> None:
    bench = Bench()
    submit(bench, "first", REPLACE, delay=60.0)
    bench.now += 50
    submit(bench, "second", REPLACE, delay=20.0)
    assert bench.plan.wake_at == bench.now + 20
    assert bench.after(19.9).start == []
    assert [record.id for record in bench.wake().start] == ["first"]


def test_what_replaces_a_unit_expires_as_it_says_itself() -> None:
    bench = closed()
    submit(bench, "first", REPLACE, expires=10.0)
    bench.now += 5
    submit(bench, "second", REPLACE, expires=10.0)
    bench.after(9.9)
    assert bench.state("first") == "pending"
    submit(bench, "third", REPLACE)
    bench.after(100)
    assert bench.state("first") == "pending"


# --- Postponed --------------------------------------------------------------------------------------

EXTEND = Uniqueness(on_conflict="extend", at_most=100)


def test_extend_postpones_a_pending_unit_by_the_delay_of_the_last_one() -> None:
    bench = Bench()
    submit(bench, "first", EXTEND, delay=30.0, params=b'{"n":1}')
    for number in range(2, 4):
        bench.after(20)
        assert submit(bench, "more", EXTEND, delay=30.0, params=b'{"n":%d}' % number) == ["first"]
    assert bench.after(29.9).start == []
    assert [record.spec.params for record in bench.after(0.1).start] == [b'{"n":3}']


def test_extend_postpones_no_unit_beyond_at_most_after_it_came() -> None:
    bench = Bench()
    submit(bench, "first", EXTEND, delay=30.0)
    for _ in range(4):
        bench.after(24)
        submit(bench, "more", EXTEND, delay=30.0)
    assert bench.after(3.9).start == []
    assert [record.id for record in bench.after(0.1).start] == ["first"]


def test_a_unit_that_is_postponed_for_long_leaves_nothing_behind_for_each_time() -> None:
    bench, rule = Bench(), Uniqueness(on_conflict="extend", at_most=1e6)
    bench.submit("early", delay=29.0)
    submit(bench, "first", rule, delay=30.0)
    for _ in range(1_000):
        bench.now += 0.001
        submit(bench, "more", rule, delay=30.0)
    assert len(bench.scheduler.ledger.timers._later) < 200
    assert [record.id for record in bench.after(28.5).start] == ["early"]
    assert [record.id for record in bench.after(2).start] == ["first"]


def test_the_last_of_many_is_not_left_out_when_the_one_before_has_started() -> None:
    bench = Bench()
    submit(bench, "first", EXTEND, delay=30.0)
    bench.after(30)
    assert submit(bench, "second", EXTEND, delay=30.0) == ["second"]
    assert submit(bench, "third", EXTEND, delay=30.0) == ["second"]


# --- In one submission, in one turn -----------------------------------------------------------------


def test_two_of_a_kind_in_one_submission_are_one_unit() -> None:
    bench = closed()
    assert bench.submit(unique(bench, "a"), unique(bench, "b"), unique(bench, "c", key="other")) == [
        "a",
        "a",
        "c",
    ]
    assert bench.states() == {"a": "pending", "c": "pending"}


def test_the_last_in_one_submission_replaces_those_before() -> None:
    bench = closed()
    specs = [unique(bench, f"w{n}", REPLACE, params=b'{"n":%d}' % n) for n in range(3)]
    assert bench.submit(*specs) == ["w0", "w0", "w0"]
    assert bench.record("w0").spec.params == b'{"n":2}'


def test_the_last_in_one_submission_replaces_a_unit_that_was_there_before() -> None:
    bench = closed()
    submit(bench, "old", REPLACE)
    specs = [unique(bench, f"w{n}", REPLACE, params=b'{"n":%d}' % n) for n in range(3)]
    assert bench.submit(*specs) == ["old"] * 3
    assert bench.record("old").spec.params == b'{"n":2}'
    assert bench.told("edited") == ["old"]


def test_two_submissions_in_one_turn_do_what_they_would_do_in_two() -> None:
    bench = closed()
    items = [bench.submission(unique(bench, id, REPLACE, params=params)) for id, params in
             (("a", b'{"n":1}'), ("b", b'{"n":2}'))]  # fmt: skip
    bench.turn(*items)
    assert [bench.answer_to(item) for item in items] == [["a"], ["a"]]
    assert bench.record("a").spec.params == b'{"n":2}'


def test_what_is_refused_has_replaced_nothing() -> None:
    bench = closed()
    submit(bench, "old", REPLACE, params=b'{"n":1}')
    with pytest.raises(DuplicateWork):
        bench.submit(unique(bench, "new", REPLACE, params=b'{"n":2}'), "old")
    assert bench.record("old").spec.params == b'{"n":1}'
    assert bench.told("edited") == []


# --- Room in a full queue ---------------------------------------------------------------------------


def test_a_duplicate_needs_no_room() -> None:
    bench = closed(max_queued=1)
    submit(bench, "old", REPLACE)
    assert submit(bench, "new", REPLACE) == ["old"]
    with pytest.raises(QueueFull):
        submit(bench, "more", REPLACE, key="other")


def test_what_was_to_replace_a_unit_that_is_dropped_to_make_room_is_new() -> None:
    bench = closed(max_queued=2, reject_policy="drop_oldest")
    submit(bench, "old", REPLACE)
    bench.submit("other")
    assert bench.submit(unique(bench, "new", REPLACE), "more") == ["new", "more"]
    assert bench.states() == {"old": "failed", "other": "failed", "new": "pending", "more": "pending"}


def test_what_waits_for_room_replaces_nothing_before_there_is_some() -> None:
    bench = closed(max_queued=3, reject_policy="block")
    submit(bench, "old", REPLACE, params=b'{"n":1}')
    bench.submit("one", "other")
    waiting = bench.submission(unique(bench, "new", REPLACE, params=b'{"n":2}'), "more", may_wait=True)
    bench.turn(waiting)
    assert bench.record("old").spec.params == b'{"n":1}'
    bench.cancel("one")
    bench.cancel("other")
    assert bench.answer_to(waiting) == ["old", "more"]
    assert bench.record("old").spec.params == b'{"n":2}'


# --- Retried by hand --------------------------------------------------------------------------------


def test_a_failed_unit_is_not_retried_while_another_with_its_key_is_active() -> None:
    bench = Bench()
    submit(bench, "first")
    bench.fail("first")
    submit(bench, "second")
    with pytest.raises(DuplicateWork, match="duplicate of unit 'second' by unique=, which is running"):
        bench.revive("first")
    assert bench.state("first") == "failed"
    bench.finish("second")
    assert bench.revive("first") is True


def test_a_unit_that_was_retried_is_the_newest_with_its_key() -> None:
    bench, rule = Bench(), Uniqueness(within=10)
    submit(bench, "first", rule)
    bench.fail("first")
    submit(bench, "second", rule)
    bench.finish("second")
    bench.revive("first")
    assert submit(bench, "third", rule) == ["first"]


def test_a_dependent_is_not_retried_with_what_it_needs_while_another_with_its_key_is_active() -> None:
    bench = Bench()
    bench.submit("need")
    submit(bench, "first", needs=["need"])
    bench.fail("need")
    submit(bench, "second")
    assert bench.revive("need", cascade=True) is True
    assert bench.state("first") == "failed"


# --- Shared -----------------------------------------------------------------------------------------


def answered(process: Process, *specs: Spec) -> Any:
    """Submit these in a turn of that process."""
    item = process.submission(*specs)
    process.turn(item)
    return process.answer_to(item)


def test_in_a_shared_queue_a_unit_of_one_process_is_replaced_by_that_of_another() -> None:
    _, one, other = two(serving=["one"])
    one.pause("api")
    answered(one, unique(one, "a", REPLACE, params=b'{"n":1}'))
    assert answered(other, unique(other, "b", REPLACE, params=b'{"n":2}')) == ["a"]
    one.resume("api")
    assert [record.spec.params for record in one.begun] == [b'{"n":2}']


def test_in_a_shared_queue_a_replaced_unit_is_found_where_it_waits_now() -> None:
    shared, one, _ = two(serving=["one"])
    answered(one, unique(one, "a", REPLACE, delay=60.0))
    answered(one, unique(one, "b", REPLACE, delay=30.0))
    assert shared.under("later") == ["a"]
    one.after(29.9)
    assert one.started == []
    one.after(0.2)
    assert one.started == ["a"]
    one.after(60)
    assert one.started == []


def test_in_a_shared_queue_the_newest_unit_with_a_key_is_read_with_the_turn() -> None:
    _, one, other = two(serving=["one"])
    assert answered(one, unique(one, "a", Uniqueness(within=10))) == ["a"]
    assert answered(other, unique(other, "b", Uniqueness(within=10))) == ["a"]


def test_a_replaced_unit_wants_the_results_that_its_last_params_name() -> None:
    bench = closed(keep_finished=0)
    bench.submit(bench.spec("need", services=()), bench.spec("other", services=()))
    needs = ["need", "other"]

    def wanting(id: str, output: str) -> Spec:
        return bench.spec(
            id,
            unique_key="k",
            needs=needs,
            extras=Extras(outputs=(output,), unique=REPLACE),
            services=("api",),
        )

    bench.submit(wanting("first", "need"))
    bench.submit(wanting("second", "other"))
    bench.turn(bench.success("need"), bench.success("other"))
    assert "need" not in bench.store.records
    assert bench.state("other") == "completed"
    bench.cancel("first")
    bench.turn()
    assert "other" not in bench.store.records
