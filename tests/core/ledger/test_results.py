"""Results that come in one turn: taken together where that is possible, and told as if each had come alone."""

from __future__ import annotations

from runcue.core.model.events import draft_of
from runcue.core.model.failure import Failure
from runcue.core.model.record import WorkState
from runcue.core.model.state import Adaptive
from runcue.core.schedule.plan import Item, Outcome
from tests.core.bench_of_core import Bench, limits


def heard(bench: Bench) -> list[tuple[str, str | None]]:
    """What was told of which work, but for how the queue stands."""
    words = [draft_of(news) for news in bench.plan.events]
    return [
        (one.type, one.record.id if one.record else None)
        for one in words
        if one.type not in ("queue_status", "started")
    ]


def running(*names: str) -> Bench:
    bench = Bench(limits(concurrent=len(names)))
    bench.submit(*names)
    assert bench.started == list(names)
    return bench


def test_results_are_told_in_the_order_they_came() -> None:
    bench = running("a", "b", "c")
    bench.turn(bench.success("c", 3), bench.success("a", 1), bench.success("b", 2))
    assert heard(bench) == [("completed", "c"), ("completed", "a"), ("completed", "b")]
    assert [bench.record(name).result for name in "abc"] == [1, 2, 3]


def test_an_answer_that_no_longer_counts_stops_none_of_those_after_it() -> None:
    bench = running("a", "b")
    items: list[Item] = [bench.success("a", 1), Outcome("never", 99), bench.success("b", 2)]
    bench.turn(*items, bench.success("a", 3))
    assert heard(bench) == [
        ("completed", "a"),
        ("stale_completion", None),
        ("completed", "b"),
        ("stale_completion", "a"),
    ]
    assert [bench.record(name).result for name in "ab"] == [1, 2]


def test_a_failure_among_results_is_told_in_its_place() -> None:
    bench = running("a", "b", "c")
    failed = Outcome("b", bench.tokens["b"], None, Failure("permanent", "no"))
    bench.turn(bench.success("a"), failed, bench.success("c"))
    assert heard(bench) == [("completed", "a"), ("failed", "b"), ("completed", "c")]


def test_the_final_events_have_the_places_they_are_told_at() -> None:
    bench = running("a", "b", "c")
    bench.turn(bench.success("a"), Outcome("never", 99), bench.success("b"), bench.success("c"))
    events, finals = bench.plan.events, bench.plan.finals
    assert len(finals) == 3
    assert all(events[place] is news for place, news in finals.items())


def test_their_places_are_free_for_others_in_the_same_turn() -> None:
    bench = running("a", "b")
    bench.submit("c", "d", "e")
    assert bench.started == []
    bench.turn(bench.success("a"), bench.success("b"))
    assert bench.started == ["c", "d"]
    ledger = bench.scheduler.ledger
    assert (
        ledger.counters.running,
        ledger.counters.pending,
        ledger.counters.counts[WorkState.COMPLETED],
    ) == (2, 1, 2)


def test_each_result_widens_what_adapts() -> None:
    bench = Bench(limits(adaptive=Adaptive(1, 2, 20)))
    bench.submit(*"abcd")
    bench.turn(*[bench.success(name) for name in bench.started])
    assert bench.scheduler.ledger.ready.services["api"].width == 2 + 1 / 2 + 1 / 2.5


def test_of_many_results_the_oldest_are_forgotten() -> None:
    bench = Bench(limits(concurrent=3), keep_finished=1)
    bench.submit("a", "b", "c")
    bench.turn(*[bench.success(name) for name in "abc"])
    assert bench.plan.forget == ["a", "b"]
