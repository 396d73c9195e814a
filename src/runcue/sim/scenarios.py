"""The built-in scenarios: one configuration each, that shows one thing.

Times inside a scenario (a burst, an outage, a crash) move with its duration: `--duration 24h` has its burst
after eight hours.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from runcue.sim.config import Config, parse

Maker = Callable[[float], dict[str, object]]


class Scenario(msgspec.Struct, frozen=True):
    """What it shows, how long it takes by default, and its configuration for a given duration."""

    text: str
    duration: float
    make: Maker


def scenario(name: str, duration: float | None = None) -> Config:
    """The configuration of a built-in scenario, over that many seconds."""
    found = SCENARIOS[name]
    length = found.duration if duration is None else duration
    return parse({**found.make(length), "duration": length, "name": name}, name=name)


def _normal(mean: str, stddev: str) -> dict[str, object]:
    return {"distribution": "normal", "mean": mean, "stddev": stddev, "min": "10ms"}


def _api(**more: object) -> dict[str, object]:
    return {"concurrent": 5, "rate": "60/min", "behavior": {"latency": _normal("200ms", "50ms"), **more}}


def _steady_load(duration: float) -> dict[str, object]:
    return {"services": {"api": _api(error_rate=0.01)}, "workload": {"submit_rate": "48/min"}}


def _burst(duration: float) -> dict[str, object]:
    return {
        "services": {"api": _api(error_rate=0.01)},
        "workload": {
            "submit_rate": "30/min",
            "submit_rates": [
                {"at": duration / 3, "rate": "120/min"},
                {"at": duration / 3 + duration / 6, "rate": "30/min"},
            ],
        },
    }


def _cascade_failure(duration: float) -> dict[str, object]:
    outage = {"at": duration / 3, "for": duration / 6}
    payments = {
        "concurrent": 4,
        "circuit_threshold": 5,
        "circuit_timeout": max(duration / 30, 1.0),
        "behavior": {"latency": _normal("300ms", "80ms"), "error_rate": 0.02, "outages": [outage]},
    }
    return {
        "services": {"payments": payments, "mail": _api()},
        "workload": {
            "submit_rate": 1.5,
            "task_types": ["charge", "notify"],
            "uses": {"charge": "payments", "notify": "mail"},
        },
        "retry": {"max_attempts": 5, "base_delay": "2s"},
    }


def _priority_test(duration: float) -> dict[str, object]:
    return {
        "services": {"api": {"concurrent": 3, "behavior": {"latency": _normal("1s", "200ms")}}},
        "workload": {"submit_rate": 2.8, "priorities": {0: 6, 5: 3, 10: 1}},
    }


def _starvation(duration: float) -> dict[str, object]:
    # More urgent work than the service can do: without ageing the rest would never run.
    return {
        "services": {"api": {"concurrent": 2, "behavior": {"latency": "1s"}}},
        "workload": {"submit_rate": 2.3, "priorities": {10: 95, 0: 5}},
        "age_step": "5s",
        "drain": duration,
    }


def _recovery(duration: float) -> dict[str, object]:
    return {
        "services": {"api": {"concurrent": 4, "behavior": {"latency": _normal("800ms", "200ms")}}},
        "workload": {"submit_rate": 3},
        "store": "file",
        "nodes": 1,
        "kills": [{"at": duration / 2, "node": 0, "down": min(5.0, duration / 10)}],
    }


def _single_queue(duration: float) -> dict[str, object]:
    return {"services": {"api": _api()}, "workload": {"count": 100}, "drain": "24h"}


def _pipeline(duration: float) -> dict[str, object]:
    return {
        "services": {
            "source": {
                "concurrent": 4,
                "rate": "60/min",
                "behavior": {"latency": "300ms", "error_rate": 0.02},
            },
            "cpu": {"concurrent": 2, "behavior": {"latency": _normal("900ms", "200ms")}},
            "warehouse": {"concurrent": 1, "behavior": {"latency": "200ms"}},
        },
        "workload": {
            "pattern": "chain",
            "chain_depth": 3,
            "linked_by": "is_ready",
            "task_types": ["extract", "transform", "load"],
            "uses": {"extract": "source", "transform": "cpu", "load": "warehouse"},
            "submit_rate": 2,
        },
        "pending_timeout": "2m",
    }


def _fanout(duration: float) -> dict[str, object]:
    return {
        "services": {
            "cpu": {"concurrent": 2, "behavior": {"latency": "200ms"}},
            "api": _api(error_rate=0.02),
        },
        "workload": {
            "pattern": "diamond",
            "diamond_width": 8,
            "task_types": ["split", "part", "aggregate"],
            "uses": {"split": "cpu", "part": "api", "aggregate": "cpu"},
            "submit_rate": 1,
        },
    }


def _dynamic(duration: float) -> dict[str, object]:
    return {
        "services": {
            "api": _api(error_rate=0.02),
            "local": {"concurrent": 2, "behavior": {"latency": _normal("600ms", "100ms")}},
            "publisher": {"concurrent": 1, "behavior": {"latency": "250ms"}},
        },
        "workload": {
            "pattern": "chain",
            "chain_depth": 3,
            "linked_by": "is_ready",
            "task_types": ["fetch", "build", "publish"],
            "uses": {"fetch": "api", "build": "local", "publish": "publisher"},
            "submit_rate": 1.5,
            "check_every": 10,
        },
        "pending_timeout": "2m",
    }


def _llm(duration: float) -> dict[str, object]:
    # The far side takes a little less than was promised: it says 429 now and then, and the number of calls at once
    # finds its own size.
    return {
        "services": {
            "llm": {
                "rate": "500/min",
                "tokens": "200k/min",
                "adaptive": {"min": 4, "start": 20, "max": 100},
                "behavior": {
                    "latency": {"distribution": "lognormal", "mean": "4s", "stddev": "2s", "max": "30s"},
                    "error_rate": 0.005,
                    "allows": {
                        "rate": "480/min",
                        "tokens": "195k/min",
                        "concurrent": 28,
                        "retry_after": "1s",
                    },
                },
            }
        },
        "workload": {
            "submit_rate": "450/min",
            "cost": {
                "tokens": {"distribution": "lognormal", "mean": 450, "stddev": 300, "min": 50, "max": 4000}
            },
            "used": {"distribution": "normal", "mean": 0.9, "stddev": 0.1, "min": 0.3, "max": 1.2},
        },
        "timeout": "60s",
    }


SCENARIOS = {
    "steady_load": Scenario("sustained load at 80 % of a rate of 60/min", 600.0, _steady_load),
    "burst": Scenario("arrivals jump to 200 % of the rate for a sixth of the time", 600.0, _burst),
    "cascade_failure": Scenario(
        "one service fails, its circuit opens, the other goes on", 600.0, _cascade_failure
    ),
    "priority_test": Scenario("three priorities on one service", 600.0, _priority_test),
    "starvation": Scenario("endless urgent work; the rest still runs, by ageing", 600.0, _starvation),
    "recovery": Scenario("a node is killed in the middle of it, another takes over", 120.0, _recovery),
    "single_queue": Scenario("100 independent works on one service, all at once", 120.0, _single_queue),
    "pipeline": Scenario("extract, transform, load: linked by is_ready", 600.0, _pipeline),
    "fanout": Scenario("split into eight, then aggregate", 600.0, _fanout),
    "llm": Scenario("requests and tokens a minute; the far side takes less than promised", 600.0, _llm),
    "dynamic": Scenario("a checker invalidates artifacts, is_stale has them rebuilt", 600.0, _dynamic),
}
