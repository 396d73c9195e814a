"""Two runs side by side."""

import msgspec
import pytest

from runcue.sim.compare import compare, lines
from runcue.sim.config import Config, with_changes
from runcue.sim.metrics import Metrics, Summary
from runcue.sim.scenarios import scenario
from runcue.sim.workload import arrivals
from runcue.sim.world import simulate


def summary_of(config: Config) -> Summary:
    metrics = Metrics(config)
    return metrics.finish(simulate(config, None, metrics, keep_calls=False))


BASE = scenario("burst", 300.0)
CHANGES = ["api.rate=120/min", "api.concurrent=20"]


@pytest.fixture(scope="module")
def both() -> tuple[Summary, Summary]:
    return summary_of(BASE), summary_of(with_changes(BASE, CHANGES))


def test_a_change_of_limits_changes_neither_arrivals_nor_luck() -> None:
    changed = with_changes(BASE, CHANGES)
    assert list(arrivals(BASE)) == list(arrivals(changed))
    calls, others = (
        {
            (call.work_id, call.attempt): (round(call.left_at - call.entered_at, 3), call.how)
            for call in outcome.calls
        }
        for outcome in (simulate(BASE), simulate(changed))
    )
    assert calls.keys() == others.keys()
    assert all(
        calls[key] == (pytest.approx(seconds, abs=0.002), how) for key, (seconds, how) in others.items()
    )


def test_differences_are_those_of_the_numbers(both: tuple[Summary, Summary]) -> None:
    rows = {row.metric: row for row in compare(*both)}
    assert rows["completed"].difference == 0
    assert rows["latency p95"].changed < rows["latency p95"].base
    assert rows["latency p95"].difference == pytest.approx(
        rows["latency p95"].changed - rows["latency p95"].base, rel=1e-5
    )
    assert rows["api rate-limited"].base > rows["api rate-limited"].changed


def test_a_run_is_the_same_as_itself(both: tuple[Summary, Summary]) -> None:
    assert {row.difference for row in compare(both[0], both[0])} == {0.0}


def test_the_table_is_aligned_and_names_the_changes(both: tuple[Summary, Summary]) -> None:
    found = lines(*both, CHANGES)
    assert "api.rate=120/min, api.concurrent=20" in found[0]
    table = found[2 : found.index("", 2)]
    assert table[0].split() == ["base", "changed", "difference"]
    assert len({len(line) for line in table}) == 1
    assert "same" in "\n".join(table)
    assert "(-" in "\n".join(table)


def test_a_comparison_can_be_written_down(both: tuple[Summary, Summary]) -> None:
    found = msgspec.json.decode(msgspec.json.encode(compare(*both)))
    assert found[0].keys() == {"metric", "base", "changed", "difference"}
