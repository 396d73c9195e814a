"""How a mock service behaves, as a configuration writes it: how long calls take, how they end, what it takes."""

from __future__ import annotations

import msgspec

from runcue.sim.limits import DISTRIBUTIONS, Allows, read_allows
from runcue.sim.reading import BadConfig, Given, choice, duration, flag, optional, several, share, span


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """How long a call takes, in seconds; every draw is kept within `min` and `max`."""

    distribution: str = "fixed"
    mean: float = 0.1
    stddev: float = 0.0
    min: float = 0.0
    max: float = 3600.0


class Outage(msgspec.Struct, frozen=True, kw_only=True):
    """A time during which every call fails: from `at`, for so many seconds."""

    at: float
    for_: float = msgspec.field(name="for")


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """What calls of a mock service do. `circuit_test`: of every two minutes it fails the last forty seconds."""

    latency: Latency = Latency()
    error_rate: float = 0.0
    timeout_rate: float = 0.0
    permanent_error_rate: float = 0.0
    circuit_test: bool = False
    outages: list[Outage] = []
    allows: Allows | None = None


def read_behaviour(value: object, path: str) -> Behaviour:
    """What a mock does."""
    given = Given(value, path)
    behaviour = Behaviour(
        latency=given.take("latency", _latency, Latency()),
        error_rate=given.take("error_rate", share, 0.0),
        timeout_rate=given.take("timeout_rate", share, 0.0),
        permanent_error_rate=given.take("permanent_error_rate", share, 0.0),
        circuit_test=given.take("circuit_test", flag, False),
        outages=given.take("outages", several(_outage), []),
        allows=given.take("allows", optional(read_allows), None),
    )
    given.end()
    total = behaviour.error_rate + behaviour.timeout_rate + behaviour.permanent_error_rate
    if total > 1 + 1e-9:
        raise BadConfig(
            given.at("error_rate"), "error, timeout and permanent rates of at most 1 together", total
        )
    return behaviour


def _latency(value: object, path: str) -> Latency:
    if not isinstance(value, dict):
        return Latency(mean=duration(0.0, 86400.0)(value, path))
    given = Given(value, path)
    kind = given.take("distribution", choice(*DISTRIBUTIONS), "fixed")
    if kind == "uniform" and not (given.has("min") and given.has("max")):
        raise BadConfig(given.at("max"), "min and max of a uniform distribution", is_given=False)
    if kind != "uniform" and not given.has("mean"):
        raise BadConfig(given.at("mean"), f"the mean of a {kind} distribution", is_given=False)
    least = 0.0 if kind in {"fixed", "uniform", "normal"} else 1e-6
    latency = Latency(
        distribution=kind,
        mean=given.take("mean", duration(least, 86400.0), 0.1),
        stddev=given.take("stddev", duration(0.0, 86400.0), 0.0),
        min=given.take("min", duration(0.0, 86400.0), 0.0),
        max=given.take("max", duration(0.0, 86400.0), 3600.0),
    )
    given.end()
    if latency.min > latency.max:
        raise BadConfig(given.at("min"), f"no more than max ({span(latency.max)})", span(latency.min))
    return latency


def _outage(value: object, path: str) -> Outage:
    given = Given(value, path, "at: and for:")
    outage = Outage(at=given.take("at", duration(), 0.0), for_=given.take("for", duration(0.001), 60.0))
    given.end()
    return outage
