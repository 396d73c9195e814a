"""`--fail-on 'p95>2s'`: conditions on a summary that make a run fail.

A condition is a metric, a comparison and a value. A metric is one of the short names below, or a path in the JSON
summary (`services.api.rate_limited`, `waits.0.max`); `api.rate_limited` finds a service by its name.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

import msgspec

from runcue.sim.metrics import Summary
from runcue.sim.reading import BadConfig, duration, number, rate_of, share

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}
SHORT = {
    **{name: f"latency.{name}" for name in ("p50", "p95", "p99")},
    "max": "latency.max",
    "depth": "depth_peak",
    "retry": "retry_rate",
}
OPEN = ("waits", "errors", "events", "rejected")
"""Metrics whose keys depend on the run; a missing key is 0."""

EXPECTED = "a metric, a comparison and a value, such as p95>2s, failed>0 or throughput<55/min"

_form = re.compile(r"\s*([^<>=!]+?)\s*(>=|<=|!=|==|>|<|=)\s*(\S.*?)\s*").fullmatch


class Condition(msgspec.Struct, frozen=True):
    """A condition that makes a run fail."""

    text: str
    metric: str
    comparison: str
    value: float


def condition(text: str) -> Condition:
    """Read a condition; `BadConfig` when it is none."""
    match = _form(text) if len(text) <= 200 else None
    if match is None:
        raise BadConfig("--fail-on", EXPECTED, text)
    return Condition(text.strip(), match[1], match[2], _value(match[3]))


def measured(condition: Condition, summary: Summary) -> float:
    """The value of a condition's metric in a summary; `BadConfig` when there is none."""
    whole: Any = msgspec.to_builtins(summary)
    steps = SHORT.get(condition.metric, condition.metric).split(".")
    if steps[0] in summary.services and steps[0] not in whole:
        steps.insert(0, "services")
    here = whole
    for step in steps:
        here = here.get(step) if isinstance(here, dict) else None
    if here is None and steps[0] in OPEN and len(steps) > 1:
        return 0.0
    if isinstance(here, bool) or not isinstance(here, (int, float)):
        known = [name for name, value in whole.items() if isinstance(value, (int, float))]
        names = [*SHORT, *known]
        raise BadConfig(
            "--fail-on", f"one of {', '.join(names)}, or a path", condition.metric, names=_paths(whole, names)
        )
    return float(here)


def holds(condition: Condition, summary: Summary) -> bool:
    """True when the run fails by that condition."""
    return COMPARISONS[condition.comparison](measured(condition, summary), condition.value)


def _paths(whole: dict[str, Any], names: list[str]) -> list[str]:
    """Every metric that a condition may name: those of the run, and those of each service."""
    services: dict[str, dict[str, Any]] = whole["services"]
    return names + [
        f"{service}.{name}"
        for service, found in services.items()
        for name, value in found.items()
        if isinstance(value, (int, float))
    ]


def _value(text: str) -> float:
    if "/" in text:
        limit, per = rate_of(text, "--fail-on")
        return limit * 60 / per
    if text.endswith("%"):
        return share(text, "--fail-on")
    try:
        return number()(float(text), "--fail-on")
    except ValueError:
        pass
    if text[-1:].islower():
        return duration()(text, "--fail-on")
    raise BadConfig("--fail-on", EXPECTED, text)
