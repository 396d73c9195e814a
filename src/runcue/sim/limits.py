"""Limits of a service beyond rate and concurrency, as a configuration writes them, and random amounts.

    services:
      llm: {rate: 500/min, tokens: 200k/min, adaptive: {min: 4, start: 20, max: 100}, per: account, total: 50}

A key of a service that is not one of its options and has a rate is a quantity, as in `cue.service`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
from msgspec.structs import replace

from runcue.sim import reading as read
from runcue.sim.reading import BadConfig

if TYPE_CHECKING:
    from runcue.sim.behaviour import Latency

MOST = 1e12
MOST_PLACES = 1_000_000
LEAST_MEAN = 1e-6

DISTRIBUTIONS = ("fixed", "uniform", "normal", "exponential", "lognormal")

Quantities = dict[str, list[str]]
D = TypeVar("D", "Amount", "Latency")
S = TypeVar("S", bound=msgspec.Struct)

_places = read.optional(read.whole(1, MOST_PLACES))
read_rates = read.several(read.rate)
read_quantities = read.mapping(read.name, read_rates, "rates for each quantity")


class Amount(msgspec.Struct, frozen=True, kw_only=True):
    """How much of something; every draw is kept within `min` and `max`."""

    distribution: Annotated[str, read.choice(*DISTRIBUTIONS)] = "fixed"
    mean: Annotated[float, read.number(0, MOST)] = 1.0
    stddev: Annotated[float, read.number(0, MOST)] = 0.0
    min: Annotated[float, read.number(0, MOST)] = 0.0
    max: Annotated[float, read.number(0, MOST)] = MOST


class Adaptive(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of a concurrency that adapts to the service."""

    min: Annotated[int, read.whole(1, MOST_PLACES)] = 1
    start: Annotated[int | None, _places] = None
    max: Annotated[int, read.whole(1, MOST_PLACES)] = 100


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """What all keys of a service together may have."""

    concurrent: Annotated[int | None, _places] = None
    rates: Annotated[list[str], read_rates] = []
    quantities: Annotated[Quantities, read_quantities] = {}

    def option(self) -> dict[str, object]:
        """The value of `total=`."""
        return {"concurrent": self.concurrent, "rate": self.rates or None, **self.quantities}


class Allows(msgspec.Struct, frozen=True, kw_only=True):
    """What the service itself accepts: it refuses the rest, as by an answer with status 429."""

    concurrent: Annotated[int | None, _places] = None
    rates: Annotated[list[str], read_rates] = []
    quantities: Annotated[Quantities, read_quantities] = {}
    retry_after: Annotated[float | None, read.optional(read.duration(0.001))] = None
    """Seconds after which it says that the caller may try again; None: when there is room."""


def windows(rates: list[str]) -> list[tuple[int, float]]:
    """Rates as numbers: how many in how many seconds."""
    return [(int(limit), per) for limit, per in map(read.rate_of, rates)]


# --- reading -------------------------------------------------------------------------------------------------


def limited(
    kind: type[S], value: object, path: str, expected: str = "keys and values", *, also: tuple[str, ...] = ()
) -> S:
    """Read a struct with `quantities`, where each unknown key that has a rate is a quantity as well."""
    if not isinstance(value, dict):
        raise BadConfig(path, expected, value)
    known = [*read.known_keys(kind), *also]
    loose = {
        key: item
        for key, item in value.items()
        if isinstance(key, str)
        and (isinstance(item, list) or (isinstance(item, str) and item[:1].isdigit()))
        and read.nearest(key, known, 0.8) is None
    }
    found = read_quantities(value.get("quantities", {}), read.at(path, "quantities"))
    found |= read_quantities(loose, path)
    for key in found:
        if not key.isidentifier():
            raise BadConfig(read.at(path, key), "a name of letters, digits and _ for a quantity", key)
    rest = {key: item for key, item in value.items() if key not in loose}
    return read.record(kind, rest | {"quantities": found}, path, also=also)


def read_adaptive(value: object, path: str) -> Adaptive:
    """Read the bounds of an adaptive concurrency."""
    bounds = read.record(Adaptive, value, path, "min:, start: and max:")
    if isinstance(value, dict) and "max" not in value:
        bounds = replace(bounds, max=max(bounds.min, bounds.max))
    read.whole(bounds.min, MOST_PLACES)(bounds.max, read.at(path, "max"))
    read.optional(read.whole(bounds.min, bounds.max))(bounds.start, read.at(path, "start"))
    return bounds


def read_total(value: object, path: str) -> Total:
    """Read what all keys together may have: a number of places, a rate, or a mapping."""
    if isinstance(value, int):
        return Total(concurrent=_places(value, path))
    return limited(Total, value, path) if isinstance(value, dict) else Total(rates=read_rates(value, path))


def read_allows(value: object, path: str) -> Allows:
    """Read what the service itself accepts."""
    return limited(Allows, value, path, "rate:, concurrent:, quantities and retry_after:")


def read_amount(value: object, path: str) -> Amount:
    """Read an amount: a number, or a distribution."""
    if not isinstance(value, dict):
        return Amount(mean=read.number(0, MOST)(value, path))
    return distribution(Amount, value, path)


def distribution(kind: type[D], value: dict[object, object], path: str) -> D:
    """Read a distribution: all that it needs is given, and its bounds are the right way round."""
    drawn = read.record(kind, value, path)
    for key in ("min", "max") if drawn.distribution == "uniform" else ("mean",):
        if key not in value:
            raise BadConfig(read.at(path, key), f"the {key} of a {drawn.distribution} distribution")
    if drawn.distribution in {"exponential", "lognormal"} and drawn.mean < LEAST_MEAN:
        raise BadConfig(read.at(path, "mean"), f"at least {LEAST_MEAN:g}", drawn.mean)
    if drawn.min > drawn.max:
        raise BadConfig(read.at(path, "min"), f"no more than max ({drawn.max:g})", drawn.min)
    return drawn


read_cost = read.mapping(read.name, read_amount, "an amount for each quantity")


def _values(value: object, path: str) -> dict[str, float]:
    """Read the values of a key with their weights, a list of values, or how many values there are."""
    if isinstance(value, int):
        return {f"k{place + 1}": 1.0 for place in range(read.whole(1, read.MOST_KEYS)(value, path))}
    found = _weights(value, path)
    if not found:
        raise BadConfig(path, "a weight of more than 0")
    return found


_weights = read.weights(
    lambda key, path: read.name(str(key), path), "a weight for each value, or how many there are"
)
read_keys = read.mapping(read.name, _values, "values for each param")
