"""How a mock service behaves, as a configuration writes it: how long calls take, how they end, what it accepts."""

from __future__ import annotations

from typing import Annotated

import msgspec

from runcue.sim import reading as read
from runcue.sim.limits import DISTRIBUTIONS, Allows, distribution, read_allows
from runcue.sim.reading import BadConfig

LONGEST_CALL = 86400.0


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """How long a call takes, in seconds; every draw is kept within `min` and `max`."""

    distribution: Annotated[str, read.choice(*DISTRIBUTIONS)] = "fixed"
    mean: Annotated[float, read.duration(0.0, LONGEST_CALL)] = 0.1
    stddev: Annotated[float, read.duration(0.0, LONGEST_CALL)] = 0.0
    min: Annotated[float, read.duration(0.0, LONGEST_CALL)] = 0.0
    max: Annotated[float, read.duration(0.0, LONGEST_CALL)] = 3600.0


class Outage(msgspec.Struct, frozen=True, kw_only=True):
    """A time during which every call fails: from `at`, for so many seconds."""

    at: Annotated[float, read.duration()] = 0.0
    for_: Annotated[float, read.duration(0.001)] = msgspec.field(name="for", default=60.0)


def _latency(value: object, path: str) -> Latency:
    if not isinstance(value, dict):
        return Latency(mean=read.duration(0.0, LONGEST_CALL)(value, path))
    return distribution(Latency, value, path)


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """What calls of a mock service do; with `circuit_test` they fail for the last 40 s of every two minutes."""

    latency: Annotated[Latency, _latency] = Latency()
    error_rate: Annotated[float, read.share] = 0.0
    timeout_rate: Annotated[float, read.share] = 0.0
    permanent_error_rate: Annotated[float, read.share] = 0.0
    circuit_test: Annotated[bool, read.flag] = False
    outages: Annotated[list[Outage], read.several(read.struct(Outage, "at: and for:"))] = []
    allows: Annotated[Allows | None, read.optional(read_allows)] = None


def read_behaviour(value: object, path: str) -> Behaviour:
    """Read what the calls of a service do."""
    behaviour = read.record(Behaviour, value, path)
    total = behaviour.error_rate + behaviour.timeout_rate + behaviour.permanent_error_rate
    if total > 1 + 1e-9:
        expected = "error, timeout and permanent rates of at most 1 together"
        raise BadConfig(read.at(path, "error_rate"), expected, total)
    return behaviour
