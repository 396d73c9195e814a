"""The built-in scenarios: one configuration each, that shows one thing.

Times inside a scenario (a burst, an outage, a crash) move with its duration: `--duration 24h` has its burst
after eight hours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from runcue.sim.config import Config, parse

Values = dict[str, Any]


class Scenario(msgspec.Struct, frozen=True):
    """What it shows, how long it takes by default, and its configuration for a given duration."""

    text: str
    duration: float
    make: Callable[[float], Values]


def scenario(name: str, duration: float | None = None) -> Config:
    """The configuration of a built-in scenario, over that many seconds."""
    found = SCENARIOS[name]
    length = found.duration if duration is None else duration
    return parse({**found.make(length), "duration": length, "name": name}, name=name)


def _normal(mean: str, stddev: str) -> Values:
    return {"distribution": "normal", "mean": mean, "stddev": stddev, "min": "10ms"}


def _service(concurrent: int, latency: str | Values, *, rate: str | None = None, **behaviour: Any) -> Values:
    return {"concurrent": concurrent, "rate": rate or [], "behavior": {"latency": latency, **behaviour}}


def _api(**behaviour: Any) -> Values:
    return _service(5, _normal("200ms", "50ms"), rate="60/min", **behaviour)


def _chain(tasks: dict[str, str], **workload: Any) -> Values:
    """Three tasks, each of which waits for the artifact of the one before."""
    chain = {"pattern": "chain", "linked_by": "is_ready", "task_types": list(tasks), "uses": tasks}
    return {"workload": {**chain, **workload}, "pending_timeout": "2m"}


def _burst(duration: float) -> Values:
    steps = [(duration / 3, "120/min"), (duration / 3 + duration / 6, "30/min")]
    return {
        "services": {"api": _api(error_rate=0.01)},
        "workload": {
            "submit_rate": "30/min",
            "submit_rates": [{"at": at, "rate": rate} for at, rate in steps],
        },
    }


def _cascade_failure(duration: float) -> Values:
    outages = [{"at": duration / 3, "for": duration / 6}]
    payments = _service(4, _normal("300ms", "80ms"), error_rate=0.02, outages=outages)
    payments |= {"circuit_threshold": 5, "circuit_timeout": max(duration / 30, 1.0)}
    uses = {"charge": "payments", "notify": "mail"}
    return {
        "services": {"payments": payments, "mail": _api()},
        "workload": {"submit_rate": 1.5, "task_types": list(uses), "uses": uses},
        "retry": {"max_attempts": 5, "base_delay": "2s"},
    }


def _nightly() -> Values:
    # The import takes 20 minutes, more or less: now and then its next slot comes while it runs, and is left out.
    return {
        "services": {
            "api": _api(error_rate=0.01),
            "warehouse": _service(2, _normal("20m", "8m"), error_rate=0.1),
        },
        "workload": {"submit_rate": "12/h", "task_types": ["call"], "uses": {"call": "api"}},
        "schedules": {
            "sweep": {"every": "5m", "uses": "api", "jitter": "30s"},
            "import": {"cron": "*/30 * * * *", "uses": "warehouse"},
            "nightly": {"cron": "0 3 * * *", "tz": "Europe/Zurich", "uses": "warehouse", "priority": 10},
            "weekly": {"cron": "@weekly", "tz": "Europe/Zurich", "uses": "warehouse", "overlap": "queue"},
        },
        "begins": "2024-01-01T00:00:00+01:00",
        "timeout": "2h",
        "age_step": "1h",
    }


def _llm() -> Values:
    # The service accepts a little less than its limits say: it answers 429 now and then, and the adaptive
    # concurrency finds out how many calls at once the service can take.
    latency = {"distribution": "lognormal", "mean": "4s", "stddev": "2s", "max": "30s"}
    allows = {"rate": "480/min", "tokens": "195k/min", "concurrent": 28, "retry_after": "1s"}
    tokens = {"distribution": "lognormal", "mean": 450, "stddev": 300, "min": 50, "max": 4000}
    return {
        "services": {
            "llm": {
                "rate": "500/min",
                "tokens": "200k/min",
                "adaptive": {"min": 4, "start": 20, "max": 100},
                "behavior": {"latency": latency, "error_rate": 0.005, "allows": allows},
            }
        },
        "workload": {
            "submit_rate": "450/min",
            "cost": {"tokens": tokens},
            "used": {"distribution": "normal", "mean": 0.9, "stddev": 0.1, "min": 0.3, "max": 1.2},
        },
        "timeout": "60s",
    }


SCENARIOS = {
    "steady_load": Scenario("sustained load at 80 % of a rate of 60/min", 600.0, lambda _: {
        "services": {"api": _api(error_rate=0.01)},
        "workload": {"submit_rate": "48/min"},
    }),
    "burst": Scenario("arrivals jump to 200 % of the rate for a sixth of the time", 600.0, _burst),
    "cascade_failure": Scenario("one service fails, its circuit opens, the other goes on", 600.0, _cascade_failure),
    "priority_test": Scenario("three priorities on one service", 600.0, lambda _: {
        "services": {"api": _service(3, _normal("1s", "200ms"))},
        "workload": {"submit_rate": 2.8, "priorities": {0: 6, 5: 3, 10: 1}},
    }),
    # More urgent work than the service can do: without ageing the rest would never run.
    "starvation": Scenario("endless urgent work; the rest still runs, by ageing", 600.0, lambda duration: {
        "services": {"api": _service(2, "1s")},
        "workload": {"submit_rate": 2.3, "priorities": {10: 95, 0: 5}},
        "age_step": "5s",
        "drain": duration,
    }),
    "recovery": Scenario("a node is killed in the middle of it, another takes over", 120.0, lambda duration: {
        "services": {"api": _service(4, _normal("800ms", "200ms"))},
        "workload": {"submit_rate": 3},
        "store": "file",
        "kills": [{"at": duration / 2, "down": min(5.0, duration / 10)}],
    }),
    "single_queue": Scenario("100 independent units on one service, all at once", 120.0, lambda _: {
        "services": {"api": _api()},
        "workload": {"count": 100},
        "drain": "24h",
    }),
    "pipeline": Scenario("extract, transform, load: linked by is_ready", 600.0, lambda _: {
        "services": {
            "source": _service(4, "300ms", rate="60/min", error_rate=0.02),
            "cpu": _service(2, _normal("900ms", "200ms")),
            "warehouse": _service(1, "200ms"),
        },
        **_chain({"extract": "source", "transform": "cpu", "load": "warehouse"}, submit_rate=2),
    }),
    "fanout": Scenario("split into eight, then aggregate", 600.0, lambda _: {
        "services": {"cpu": _service(2, "200ms"), "api": _api(error_rate=0.02)},
        "workload": {
            "pattern": "diamond",
            "diamond_width": 8,
            "task_types": ["split", "part", "aggregate"],
            "uses": {"split": "cpu", "part": "api", "aggregate": "cpu"},
            "submit_rate": 1,
        },
    }),
    "llm": Scenario("requests and tokens a minute; the service accepts less than promised", 600.0, lambda _: _llm()),
    "nightly": Scenario("a week of schedules on a warehouse with two places", 7 * 86400.0, lambda _: _nightly()),
    "dynamic": Scenario("a checker invalidates artifacts, is_stale has them rebuilt", 600.0, lambda _: {
        "services": {
            "api": _api(error_rate=0.02),
            "local": _service(2, _normal("600ms", "100ms")),
            "publisher": _service(1, "250ms"),
        },
        **_chain({"fetch": "api", "build": "local", "publish": "publisher"}, submit_rate=1.5, check_every=10),
    }),
}  # fmt: skip
