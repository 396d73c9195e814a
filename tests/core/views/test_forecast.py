"""What a forecast says of queues that are too long, held up, or of which little is known."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from runcue.core.model.retry import Retry
from runcue.core.model.settings import Rule
from runcue.core.views import forecast as module
from runcue.core.views.forecast import Forecast, Pace, forecast, paces, tasks_of
from tests.core.bench_of_core import Bench, limits, sells
from tests.core.library import Process, Shared


def said(bench: Bench, seconds: float | None = 2.0, attempts: float = 1.0) -> Forecast:
    """What is forecast when each attempt takes so long."""
    known = {} if seconds is None else {task: Pace(seconds, attempts) for task in ("task", "other")}
    return forecast(bench.scheduler.ledger, known, bench.now, bench.wall)


def test_beyond_the_most_that_is_rehearsed_the_pace_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(limits(concurrent=2))
    bench.submit(*[None] * 102, services=("api",))
    whole = said(bench)
    monkeypatch.setattr(module, "MOST", 20)
    part = said(bench)
    assert whole.seconds == 102.0
    assert part.seconds == pytest.approx(102.0, rel=0.1)
    assert part.pending == 100


def test_a_single_work_more_than_is_rehearsed_adds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(limits(concurrent=1))
    bench.submit(*[None] * 3, services=("api",))
    monkeypatch.setattr(module, "MOST", 1)
    assert said(bench).seconds == 4.0


def test_attempts_that_are_expected_cost_as_often() -> None:
    bench = Bench(limits(concurrent=1, rate=(10, 60.0)))
    bench.submit(*[None] * 5, services=("api",))
    assert said(bench, attempts=2.0).seconds == pytest.approx(2 + 4 * 4)


def test_what_depends_on_held_work_is_held_with_it() -> None:
    bench = Bench(limits("api"), limits("other"))
    bench.pause("api")
    bench.submit("first", services=("api",))
    bench.submit("second", services=("other",), needs=("first",))
    assert said(bench) == Forecast(2, 0, None, None, "api", "paused", "1 cannot continue")


def test_a_task_that_nobody_here_knows_is_held() -> None:
    bench = Bench(limits("api"))
    bench.pause("api")
    bench.submit("one", services=("api",))
    del bench.scheduler.ledger.lanes.rules["task"]
    bench.scheduler.ledger.lanes.forget(())
    found = said(bench)
    assert (found.bottleneck, found.limit) == ("task", "unknown_task")


def test_work_waits_for_its_time_of_day() -> None:
    bench = Bench()
    bench.submit("one", run_at=bench.wall + 500)
    assert said(bench).seconds == 502.0


def test_what_costs_more_than_there_ever_is_has_no_end() -> None:
    bench = Bench(sells(tokens=(100, 60.0)))
    bench.pause("api")
    bench.submit("one", services=("api",), cost=(("tokens", 90),))
    bench.declare(sells(tokens=(50, 60.0)))
    bench.resume("api")
    found = said(bench)
    assert (found.seconds, found.bottleneck, found.limit) == (None, "api", "rate")


def test_an_open_circuit_is_waited_for() -> None:
    bench = Bench(limits(circuit_threshold=1, circuit_timeout=30.0))
    bench.submit("one", services=("api",))
    bench.fail("one")
    bench.submit("two", services=("api",))
    found = said(bench)
    assert (found.bottleneck, found.limit) == ("api", "circuit")
    assert found.seconds == pytest.approx(32.0)


def test_running_work_is_waited_for_even_if_it_is_late() -> None:
    bench = Bench(limits(concurrent=1))
    bench.submit("one", "two", services=("api",))
    bench.now += 100
    assert said(bench).seconds == pytest.approx(2.2)


def test_the_pace_is_that_of_what_was_started() -> None:
    bench = Bench(limits("api"))
    bench.submit("one", "two", services=("api",))
    bench.now += 4
    bench.finish("one")
    bench.finish("two")
    one, two = bench.record("one"), bench.record("two")
    assert paces([one, replace(two, started_at=None)]) == {"task": Pace(4.0, 1.0)}


def test_the_tasks_of_all_that_lives_are_known() -> None:
    rules = {name: Rule(Retry.of(None)) for name in ("task", "other")}
    bench = Bench(limits(concurrent=1), rules=rules)
    bench.submit("one", "two", services=("api",))
    bench.submit("three", services=("api",), task="other")
    assert tasks_of(bench.scheduler.ledger) == ["other", "task"]


def test_work_that_needs_several_waits_for_the_last_of_them() -> None:
    bench = Bench(limits(concurrent=1))
    bench.submit("done")
    bench.finish("done")
    bench.submit("one", "two")
    bench.submit("three", needs=("done", "one", "two"))
    bench.submit("four", needs=("two", "three"))
    assert said(bench).seconds == 8.0


def test_processes_with_too_little_room_hold_work_up() -> None:
    shared = Shared()
    rules = {"task": Rule(Retry(), ("#running",))}
    process = Process(shared, "one", rules=rules, room={"#running": 2})
    process.submit(*[None] * 9)
    found = said(process)
    assert (found.seconds, found.bottleneck, found.limit) == (10.0, "#running", "concurrency")


def test_where_nobody_runs_work_yet_it_is_as_if_somebody_did() -> None:
    process = Process(Shared(), "one", limits(concurrent=1), may_start=False)
    process.submit(*[None] * 3)
    assert said(process).seconds == 6.0
