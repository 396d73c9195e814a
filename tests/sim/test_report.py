"""Reports: the lines of a terminal, the JSON document, and conditions on it."""

import msgspec
import pytest

from runcue.sim import report
from runcue.sim.conditions import condition, holds, measured
from runcue.sim.config import BadConfig, Config, parse
from runcue.sim.metrics import Metrics, Summary
from runcue.sim.scenarios import SCENARIOS, scenario
from runcue.sim.world import simulate


def summary_of(config: Config) -> Summary:
    metrics = Metrics(config)
    return metrics.finish(simulate(config, None, metrics, keep_calls=False))


@pytest.fixture(scope="module")
def burst() -> Summary:
    return summary_of(scenario("burst", 300.0))


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_same_seed_gives_the_same_bytes(name: str) -> None:
    config = scenario(name, 45.0)
    first, second = (report.document(summary_of(config), config) for _ in range(2))
    assert first == second
    assert report.lines(summary_of(config)) == report.lines(summary_of(config))


def test_another_seed_gives_another_report() -> None:
    one, other = (scenario("burst", 60.0), msgspec.structs.replace(scenario("burst", 60.0), seed=2))
    assert report.document(summary_of(one), one) != report.document(summary_of(other), other)


def test_the_document_has_the_configuration_in_the_form_it_is_read_from(burst: Summary) -> None:
    config = scenario("burst", 300.0)
    found = msgspec.json.decode(report.document(burst, config, []))
    assert parse(found["config"], name="burst") == config
    assert found["summary"]["latency"].keys() == {"count", "mean", "p50", "p95", "p99", "max"}
    assert found["violations"] == []
    assert found["form"] == 1


def test_the_document_has_every_metric_there_is(burst: Summary) -> None:
    found = msgspec.json.decode(report.document(burst, scenario("burst", 300.0)))["summary"]
    for name in (
        "throughput",
        "latency",
        "retry_rate",
        "success_after_retry",
        "circuits",
        "inversions",
        "depth",
    ):
        assert name in found
    assert "rate_limited" in found["services"]["api"]


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_terminal_gets_ten_to_twenty_aligned_lines(name: str) -> None:
    lines = report.lines(summary_of(scenario(name, 45.0)))
    assert 10 <= len(lines) <= 20
    assert lines[1] == ""
    widths = {len(line) - len(line[2:].split("  ", 1)[1].lstrip()) for line in lines[2:]}
    assert len(widths) == 1


def test_the_terminal_is_told_what_matters(burst: Summary) -> None:
    text = "\n".join(report.lines(burst))
    for word in ("throughput", "p50", "p95", "p99", "completed", "failed", "rate-limited", "inversions", "peak",
                 "bottleneck", "60/min"):  # fmt: skip
        assert word in text


def test_a_circuit_is_told() -> None:
    text = "\n".join(report.lines(summary_of(scenario("cascade_failure", 120.0))))
    assert "circuit opened" in text
    assert "half-open" in text


# --- conditions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("p95>2s", True),
        ("p95 > 24h", False),
        ("p95<=1ms", False),
        ("throughput<10000/min", True),
        ("throughput>5/s", False),
        ("failed!=0", False),
        ("failed=0", True),
        ("success_rate<100%", False),
        ("api.rate_limited>1s", True),
        ("services.api.rate_limited>1s", True),
        ("depth>=1", True),
        ("waits.0.max>1ms", True),
        ("waits.7.max>1ms", False),
        ("errors.none>0", False),
    ],
)
def test_a_condition_is_held_against_the_summary(burst: Summary, text: str, expected: bool) -> None:
    assert holds(condition(text), burst) is expected


@pytest.mark.parametrize(
    "text",
    ["p95", ">2s", "p95>", "p95>2 parsecs", "p95>soon", "p95>1e999", "p95>200%", "p95>5/x", "x" * 300 + ">1"],
)
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(BadConfig, match="--fail-on"):
        condition(text)


@pytest.mark.parametrize(
    "text", ["zig>1", "services>1", "services.nobody.starts>1", "bottleneck>1", "latency>1s"]
)
def test_a_metric_that_is_not_there_is_refused(burst: Summary, text: str) -> None:
    with pytest.raises(BadConfig, match="--fail-on: expected one of p50"):
        measured(condition(text), burst)
