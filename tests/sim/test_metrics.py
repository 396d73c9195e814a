"""Metrics: from events by hand, where every number can be reckoned, and from runs."""

from itertools import count
from typing import Any

import pytest

import runcue
from runcue.sim.config import Config, load
from runcue.sim.histogram import Histogram, Level
from runcue.sim.metrics import Metrics, Summary
from runcue.sim.scenarios import SCENARIOS, scenario
from runcue.sim.world import Outcome, simulate

API = "services: {api: {concurrent: 2, rate: 3/10s, circuit_threshold: 3}}\nduration: 100s"


def config(more: str = "") -> Config:
    return load(f"{API}\n{more}", name="test")


def summed(config: Config, *told: tuple[Any, ...], took: float = 100.0) -> Summary:
    """What comes of events written as (second, type, work, and whatever else they say)."""
    metrics, numbers = Metrics(config), count(1)
    metrics.begin(1000.0)
    for second, type, work, *rest in told:
        more: dict[str, Any] = dict(rest[0]) if rest else {}
        data: dict[str, Any] = {key: more.pop(key) for key in ("priority", "needs", "keys") if key in more}
        task = more.pop("task", "api") if work else None
        metrics(
            runcue.Event(type, next(numbers), 1000.0 + second, work, task, data=data, service="api", **more)
        )
    return metrics.finish(
        Outcome(config=config, events=0, missed=0, submitted=0, rejected={}, began_at=1000.0, ended_at=1000.0 + took,
                kills=0, rebuilds=0)
    )  # fmt: skip


def test_latency_wait_and_run_are_told_apart() -> None:
    found = summed(
        config(), (0, "queued", "a"), (3, "started", "a"), (5, "completed", "a", {"duration": 2.0})
    )
    assert (found.latency.p50, found.wait.p50, found.run.p50) == (5.0, 3.0, 2.0)
    assert (found.completed, found.attempts, found.throughput) == (1, 1, 0.6)


def test_retries_and_success_after_them_are_counted() -> None:
    found = summed(
        config(),
        (0, "queued", "a"), (0, "queued", "b"),
        (1, "started", "a"), (2, "failed", "a", {"duration": 1.0, "error": "OSError: no"}), (2, "retrying", "a"),
        (1, "started", "b"), (2, "failed", "b", {"duration": 1.0, "error": "OSError: no"}), (2, "retrying", "b"),
        (4, "started", "a"), (5, "completed", "a", {"duration": 1.0}),
        (4, "started", "b"), (5, "failed", "b", {"duration": 1.0, "final": True, "error": "Permanent: never"}),
    )  # fmt: skip
    assert (found.attempts, found.retries, found.retried, found.recovered) == (4, 2, 2, 1)
    assert (found.retry_rate, found.success_after_retry, found.success_rate) == (0.5, 0.5, 0.5)
    assert found.errors == {"OSError: no": 2, "Permanent: never": 1}
    assert (found.services["api"].completed, found.services["api"].failed) == (1, 3)


def test_depth_is_what_waits() -> None:
    found = summed(
        config(),
        *[(0, "queued", name) for name in "abc"],
        (10, "started", "a"),
        (20, "completed", "a"),
        took=30.0,
    )
    assert (found.depth_peak, found.depth_end, found.unfinished) == (3, 2, 2)
    assert found.depth_mean == pytest.approx((3 * 10 + 2 * 20) / 30, rel=1e-5)


def test_time_rate_limited_is_while_a_window_is_full_and_something_waits() -> None:
    starts = [(second, "started", name) for second, name in zip((1, 2, 3), "abc", strict=True)]
    found = summed(
        config("workload: {task_types: [api]}"),
        *[(0, "queued", name) for name in "abc"], *starts,
        (5, "queued", "d"),   # the window of 1, 2, 3 is full until 11
        (11, "started", "d"),
        (20, "queued", "e"),  # nothing is full any more
        (21, "started", "e"),
    )  # fmt: skip
    assert found.services["api"].rate_limited == 6.0
    assert found.services["api"].rate_limited_share == 0.06


def test_a_full_service_is_seen() -> None:
    found = summed(
        config(), (0, "queued", "a"), (0, "queued", "b"), (10, "started", "a"), (10, "started", "b"),
        (40, "completed", "a"), (50, "completed", "b"),
    )  # fmt: skip
    api = found.services["api"]
    assert (api.full_share, api.running_peak, api.running_mean) == (0.3, 2, 0.7)
    assert found.bottleneck == "concurrency of api (2): full 30% of the time"


def test_circuit_transitions_are_kept_with_their_times() -> None:
    found = summed(
        config(), (10, "circuit_opened", None), (30, "circuit_half_open", None), (31, "circuit_opened", None),
        (60, "circuit_half_open", None), (61, "circuit_closed", None),
    )  # fmt: skip
    assert found.circuits[0] == (10.0, "api", "opened")
    assert found.services["api"].circuit == {"closed": 1, "half_open": 2, "opened": 2}
    assert (found.services["api"].circuit_open, found.bottleneck) == (
        51.0,
        "circuit of api: open for 51 s (51%)",
    )


RANKED = "workload: {priorities: {0: 1, 5: 1}}"


HIGH, LOW = {"priority": 5.0}, {"priority": 0.0}


def ran(*works: tuple[str, float, float, float, dict[str, float]]) -> Summary:
    """What comes of works told as (name, queued, started, completed, more)."""
    told = [
        moment
        for name, queued, started, completed, more in works
        for moment in (
            (queued, "queued", name, more),
            (started, "started", name),
            (completed, "completed", name),
        )
    ]
    return summed(config(RANKED), *sorted(told, key=lambda moment: moment[0]))


def test_a_work_that_finishes_before_an_older_and_more_urgent_one_is_an_inversion() -> None:
    found = ran(("high", 0, 1, 9, HIGH), ("low", 2, 3, 4, LOW))
    assert (found.inversions, found.inversion_pairs, found.out_of_order_starts) == (1, 1, 0)


def test_an_inversion_is_one_however_many_older_works_are_passed_over() -> None:
    found = ran(
        ("high", 0, 1, 9, HIGH), ("other", 1, 1, 9, HIGH), ("low", 2, 3, 4, LOW), ("low-2", 2, 3, 4, LOW)
    )
    assert (found.inversions, found.inversion_pairs) == (2, 4)


@pytest.mark.parametrize(
    "works",
    [
        [("high", 0, 1, 3, HIGH), ("low", 2, 2, 4, LOW)],  # it finished first
        [("high", 2, 2, 9, HIGH), ("low", 1, 1, 4, LOW)],  # it is younger
        [("high", 0, 1, 9, HIGH), ("low", 0, 1, 4, LOW)],  # they are of the same age
        [("one", 0, 1, 9, LOW), ("two", 2, 3, 4, LOW)],  # neither is more urgent
    ],
)
def test_what_is_no_inversion(works: list[Any]) -> None:
    found = ran(*works)
    assert (found.inversions, found.inversion_pairs) == (0, 0)


def test_a_work_that_fails_for_good_finishes_and_one_that_is_skipped_or_cancelled_does_not() -> None:
    found = summed(
        config(RANKED), (0, "queued", "high", HIGH), (1, "started", "high"),
        *[(2, "queued", name, LOW) for name in ("a", "b", "c", "d")],
        (3, "started", "a"), (4, "failed", "a", {"final": False}),
        (5, "started", "a"), (6, "failed", "a", {"final": True}),
        (7, "skipped", "b"), (8, "cancelled", "c"), (9, "completed", "high"),
        (10, "started", "d"), (11, "completed", "d"),
    )  # fmt: skip
    assert found.inversions == 1


def test_a_start_before_an_older_and_more_urgent_work_that_could_start_is_out_of_order() -> None:
    high, low = {"priority": 5.0}, {"priority": 0.0}
    wrong = summed(
        config(RANKED), (0, "queued", "high", high), (1, "queued", "low", low), (2, "started", "low")
    )
    right = summed(
        config(RANKED), (0, "queued", "low", low), (1, "queued", "high", high), (2, "started", "low")
    )
    plain = summed(config(RANKED), (0, "queued", "high", high), (1, "queued", "low", low), (2, "started", "high"),
                   (2, "started", "low"))  # fmt: skip
    assert [one.out_of_order_starts for one in (wrong, right, plain)] == [1, 0, 0]


SEVERAL = """
services: {api: {concurrent: 2}, disk: {concurrent: 1}}
duration: 100s
workload:
  task_types: [call, copy, both, turned]
  uses: {call: api, copy: disk, both: [api, disk], turned: [disk, api]}
"""


@pytest.mark.parametrize(
    ("high", "low", "expected"),
    [("call", "call", 1), ("copy", "call", 0), ("both", "call", 0), ("both", "copy", 0), ("call", "both", 0),
     ("both", "turned", 1)],
)  # fmt: skip
def test_who_waits_for_another_service_is_not_passed_over(high: str, low: str, expected: int) -> None:
    found = summed(
        load(SEVERAL, name="several"),
        (0, "queued", "high", {"priority": 5.0, "task": high}),
        (1, "queued", "low", {"priority": 0.0, "task": low}),
        (2, "started", "low"),
    )
    assert found.out_of_order_starts == expected


@pytest.mark.parametrize(("key", "expected"), [("ann", 1), ("bob", 0)])
def test_who_waits_for_another_key_is_not_passed_over(key: str, expected: int) -> None:
    found = summed(
        config(),
        (0, "queued", "high", {"priority": 5.0, "keys": {"account": "ann"}}),
        (1, "queued", "low", {"priority": 0.0, "keys": {"account": key}}),
        (2, "started", "low"),
    )
    assert found.out_of_order_starts == expected


def test_a_work_takes_its_place_on_each_of_its_services() -> None:
    found = summed(
        load(SEVERAL, name="several"),
        (0, "queued", "a", {"task": "both"}),
        (10, "started", "a"),
        (30, "completed", "a"),
    )
    assert [(one.starts, one.completed, one.running_mean) for one in found.services.values()] == [
        (1, 1, 0.2)
    ] * 2
    assert found.services["disk"].full_share == 0.2


def test_who_waits_for_something_else_is_not_passed_over() -> None:
    found = summed(
        config(RANKED),
        (0, "queued", "first", {"priority": 5.0}),
        (0, "queued", "high", {"priority": 5.0, "needs": ["first"]}),
        (1, "started", "first"),
        (1, "queued", "low", {"priority": 0.0}),
        (2, "started", "low"),       # "high" cannot start yet
        (3, "completed", "first"),
        (4, "queued", "later", {"priority": 0.0}),
        (5, "started", "later"),     # now it could
    )  # fmt: skip
    assert found.out_of_order_starts == 1


def test_an_attempt_that_ended_with_its_node_is_lost() -> None:
    found = summed(
        config(),
        (0, "queued", "a"),
        (1, "started", "a"),
        (9, "started", "a"),
        (10, "completed", "a", {"duration": 1.0}),
    )
    assert (found.lost, found.retries, found.completed) == (1, 0, 1)
    assert found.services["api"].running_peak == 1


def test_series_are_as_long_as_the_run_and_no_longer_than_they_may_be() -> None:
    found = summed(config(), (0, "queued", "a"), (1, "started", "a"), (2, "completed", "a"), took=100.0)
    assert (found.step, len(found.depth)) == (0.5, 200)
    assert sum(value for _, value in found.completed_per_minute) * found.step / 60 == 1.0
    long = summed(config(), (0, "queued", "a"), (1, "started", "a"), (9000, "completed", "a"), took=10_000.0)
    assert len(long.depth) <= 480
    assert long.depth[-1][0] + long.step >= 10_000.0
    assert sum(value for _, value in long.completed_per_minute) * long.step / 60 == pytest.approx(1.0)
    assert [value for _, value in long.latency_p95] == [9000.0]
    assert [at for at, _ in long.services["api"].running] == [at for at, _ in long.depth]


def test_a_histogram_is_right_within_one_per_cent() -> None:
    histogram = Histogram()
    for number in range(1, 100_001):
        histogram.add(number / 1000)
    spread = histogram.spread()
    assert (spread.p50, spread.p95, spread.p99) == pytest.approx((50.0, 95.0, 99.0), rel=0.01)
    assert (spread.count, spread.max, spread.mean) == (100_000, 100.0, 50.0005)


def test_a_histogram_of_one_value_is_exact() -> None:
    histogram = Histogram()
    for _ in range(100):
        histogram.add(0.05)
    assert histogram.percentiles(0.01, 0.5, 1.0) == pytest.approx([0.05] * 3)
    assert Histogram().percentiles(0.5, 0.9) == [0.0, 0.0]


def test_a_histogram_takes_bounded_room() -> None:
    histogram = Histogram()
    for number in range(1, 200_000):
        histogram.add(number * 0.7)
    assert len(histogram._buckets) < 3000


def test_a_level_is_averaged_over_time() -> None:
    level = Level()
    level.change(4, 10.0)
    level.change(-3, 20.0)
    assert level.mean(40.0) == (4 * 10 + 1 * 20) / 40
    assert level.mean(50.0) == 1.0
    assert (level.peak, level.peak_at, level.total) == (4, 10.0, 70.0)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_shows_what_it_is_for(name: str) -> None:
    plan = scenario(name, 240.0 if name == "burst" else 90.0)
    metrics = Metrics(plan)
    found = metrics.finish(simulate(plan, None, metrics))
    assert found.completed > 40
    assert found.missed == 0
    expected = {
        "steady_load": 0.4 < found.services[next(iter(found.services))].rate_share < 1.3,
        "burst": found.depth_peak > 10,
        "cascade_failure": sum(one.circuit.get("opened", 0) for one in found.services.values()) > 0,
        "priority_test": found.waits.get("10", found.wait).p95 <= found.waits.get("0", found.wait).p95,
        "starvation": found.waits.get("0", found.wait).count > 0 and found.unfinished == 0,
        "recovery": found.kills == 1 and found.lost > 0 and found.unfinished == 0,
        "single_queue": found.submitted == 100,
        "pipeline": found.unfinished == 0,
        "fanout": found.unfinished == 0,
        "llm": found.services[next(iter(found.services))].refused > 0 and found.unfinished == 0,
        "dynamic": found.skipped > 0 and found.rebuilds > 0,
    }
    assert expected[name]
    assert found.out_of_order_starts == 0


def test_inversions_of_a_run_are_those_of_its_events() -> None:
    plan = scenario("priority_test", 60.0)
    metrics, there = Metrics(plan), dict[str, tuple[float, float]]()
    passed_over: list[int] = []

    def listen(event: runcue.Event) -> None:
        metrics(event)
        if event.type == "queued":
            there[event.work_id or ""] = event.at, event.data["priority"]
        elif event.type in {"completed", "failed"} and event.final:
            at, priority = there.pop(event.work_id or "")
            passed_over.append(sum(older < at and high > priority for older, high in there.values()))

    found = metrics.finish(simulate(plan, None, listen))
    assert (found.inversions, found.inversion_pairs) == (sum(map(bool, passed_over)), sum(passed_over))
    assert found.inversions > 0
