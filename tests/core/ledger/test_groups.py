"""What is counted of groups, and when one is done."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import astuple

from runcue.core.ledger.groups import MOST_KNOWN
from runcue.core.model.events import EventDraft
from runcue.core.model.group import GroupCounts, counted
from runcue.core.model.record import Extras, Uniqueness, WorkState
from runcue.core.schedule.plan import Cancel
from tests.core.bench_of_core import Bench, limits
from tests.core.library import Process, Shared


def counts(bench: Bench, name: str = "g") -> tuple[int, ...]:
    """How many units are pending, running, completed, failed, cancelled."""
    return astuple(bench.store.groups_kept[name])[:5]


def done(bench: Bench) -> list[dict[str, Any]]:
    return bench.facts("group_done")


def test_every_move_of_a_unit_is_counted_in_its_group() -> None:
    bench = Bench(limits(concurrent=1), retry=2)
    bench.submit("a", "b", group="g")
    assert counts(bench) == (1, 1, 0, 0, 0)
    bench.fail("a")
    assert counts(bench) == (1, 1, 0, 0, 0)  # b runs meanwhile
    bench.finish("b")
    bench.wake()
    bench.fail("a")
    assert counts(bench) == (0, 0, 1, 1, 0)
    bench.revive("a")
    assert counts(bench) == (0, 1, 1, 0, 0)
    bench.cancel("a")
    assert counts(bench) == (0, 0, 1, 0, 1)


def test_a_group_is_done_when_its_last_unit_has_ended_however_it_did() -> None:
    bench = Bench(limits(concurrent=3))
    bench.submit("a", "b", "c", group="g")
    bench.finish("a")
    bench.cancel("b")
    assert done(bench) == []
    bench.fail("c")
    assert done(bench) == [
        {"group": "g", "total": 3, "pending": 0, "running": 0, "completed": 1, "failed": 1, "cancelled": 1}
    ]
    assert bench.store.groups_kept["g"].done_at == bench.now


def test_a_group_is_done_again_when_units_joined_it_since() -> None:
    bench = Bench()
    bench.submit("a", group="g")
    bench.finish("a")
    bench.submit("b", group="g")
    assert bench.store.groups_kept["g"].done_at is None
    bench.turn()
    assert len(done(bench)) == 1
    bench.finish("b")
    assert [one["total"] for one in done(bench)] == [1, 2]


def test_a_unit_that_joins_in_the_turn_of_the_last_end_keeps_its_group_open() -> None:
    bench = Bench()
    bench.submit("a", group="g")
    bench.turn(bench.success("a"), bench.submission("b", group="g"))
    assert done(bench) == []


def test_units_without_a_group_are_counted_in_none() -> None:
    bench = Bench()
    bench.submit("a", extras=Extras(expires=1e12))
    bench.finish("a")
    assert (bench.store.groups_kept, done(bench)) == ({}, [])
    assert all(not plan.tagged and not plan.groups for plan in bench.plans)


def test_what_is_tagged_is_named_when_it_comes_and_when_it_ends() -> None:
    bench = Bench(retry=2)
    bench.submit("a", extras=Extras((("run", "x"),)))
    assert bench.plan.tagged == ["a"]
    bench.fail("a")
    assert bench.plan.tagged == []
    bench.wake()
    assert bench.plan.tagged == []
    bench.fail("a")
    assert bench.plan.tagged == ["a"]
    bench.revive("a")
    assert bench.plan.tagged == ["a"]
    bench.finish("a")
    assert bench.plan.tagged == ["a"]


def test_a_purged_unit_is_counted_no_longer_and_an_empty_group_is_gone() -> None:
    bench = Bench(limits(concurrent=2))
    bench.submit("a", "b", group="g")
    bench.fail("a")
    bench.fail("b")
    bench.purge("a")
    assert counts(bench) == (0, 0, 0, 1, 0)
    assert len(done(bench)) == 1
    bench.purge("b")
    assert bench.store.groups_kept == {}


def test_a_group_in_memory_is_kept_as_long_as_a_unit_of_it() -> None:
    bench = Bench(limits(concurrent=3), keep_finished=1)
    bench.submit("a", "b", group="g")
    bench.finish("a")
    bench.finish("b")
    assert counts(bench) == (0, 0, 2, 0, 0)  # a is kept no longer
    bench.submit("c")
    bench.finish("c")
    assert bench.store.groups_kept == {}
    bench.submit("d", group="g")
    assert counts(bench) == (0, 1, 0, 0, 0)


def test_a_unit_that_comes_anew_leaves_its_group_for_another_and_is_found_by_its_new_tags() -> None:
    bench = Bench()
    bench.may_start = False
    rule = Uniqueness(None, "replace", None)
    bench.submit(bench.spec("a", unique_key="k", group="g", extras=Extras((("run", "x"),), unique=rule)))
    bench.submit(bench.spec("b", unique_key="k", group="h", extras=Extras((("run", "y"),), unique=rule)))
    assert bench.store.groups_kept["h"].pending == 1
    assert "g" not in bench.store.groups_kept
    assert bench.plan.tagged == ["a"]
    assert bench.plan.retagged["a"].spec.tags == (("run", "x"),)
    bench.submit(bench.spec("c", unique_key="k", extras=Extras((("run", "y"),), unique=rule)))
    assert bench.store.groups_kept == {}
    bench.submit(bench.spec("d", unique_key="k", group="h", extras=Extras((("run", "y"),), unique=rule)))
    assert bench.store.groups_kept["h"].pending == 1
    bench.submit(bench.spec("e", unique_key="k", group="h", extras=Extras((("run", "z"),), unique=rule)))
    assert (bench.store.groups_kept["h"].pending, bench.plan.groups) == (1, {})


def test_groups_are_counted_apart() -> None:
    bench = Bench(limits(concurrent=2))
    bench.turn(bench.submission("a", group="g"), bench.submission("b", group="h"))
    bench.turn(bench.success("a"), bench.success("b"))
    assert sorted(one["group"] for one in done(bench)) == ["g", "h"]
    assert (counts(bench), counts(bench, "h")) == ((0, 0, 1, 0, 0), (0, 0, 1, 0, 0))


def test_whoever_takes_over_goes_on_counting() -> None:
    shared = Shared()
    first, second = Process(shared, "one"), Process(shared, "two")
    first.submit("a", "b", group="g")
    first.finish("a")
    second.turn()
    second.cancel("b")
    assert astuple(shared.groups_kept["g"])[:5] == (0, 0, 1, 0, 1)
    assert second.facts("group_done")


def test_a_process_does_not_remember_groups_without_end() -> None:
    shared = Shared()
    process = Process(shared, "one")
    process.may_start = False
    names = [f"g{number}" for number in range(MOST_KNOWN + 5)]
    process.turn(*(process.submission(None, group=name) for name in names))
    process.turn(process.submission(None, group="g0"))
    assert shared.groups_kept["g0"].pending == 2


def test_the_event_goes_to_the_process_that_ended_the_last_unit() -> None:
    shared = Shared()
    decider, other = Process(shared, "one", may_start=False), Process(shared, "two", may_start=False)
    decider.submit("a", group="g")
    other.post(Cancel("a"))
    decider.turn()
    other.read()
    heard = {
        one.tag: [news.type for news in one.heard if isinstance(news, EventDraft)] for one in (decider, other)
    }
    assert ("group_done" in heard["one"], "group_done" in heard["two"]) == (False, True)


@pytest.mark.parametrize(
    ("group", "text", "fraction"),
    [
        (GroupCounts(), "0 of 0 units", 0.0),
        (GroupCounts(completed=1), "1 of 1 unit", 1.0),
        (GroupCounts(650, 0, 345, 3, 2), "350 of 1,000 units, 3 failed, 2 cancelled", 0.35),
    ],
)
def test_counts_say_how_far_a_group_is(group: GroupCounts, text: str, fraction: float) -> None:
    assert (group.text, group.fraction) == (text, fraction)


def test_counts_by_state() -> None:
    found = counted([WorkState.PENDING, WorkState.FAILED, WorkState.FAILED])
    assert found == GroupCounts(pending=1, failed=2)
    assert found.by_state == dict.fromkeys(WorkState, 0) | {WorkState.PENDING: 1, WorkState.FAILED: 2}
    assert found.plus(0) is found
    assert found.plus(2).pending == 3
