"""Limits of a service beyond rate and concurrency, as a configuration writes them, and amounts drawn by lot.

    services:
      llm: {rate: 500/min, tokens: 200k/min, adaptive: {min: 4, start: 20, max: 100}, per: account, total: 50}

A key of a service that is not one of its options and has a rate is a quantity, as in `cue.service`.
"""

from __future__ import annotations

import msgspec

from runcue.sim.reading import (
    BadConfig,
    Given,
    choice,
    duration,
    name,
    number,
    optional,
    rate,
    rate_of,
    several,
    whole,
)

MOST = 1e12
MOST_PLACES = 1_000_000
MOST_KEYS = 10_000

DISTRIBUTIONS = ("fixed", "uniform", "normal", "exponential", "lognormal")

Quantities = dict[str, list[str]]


class Amount(msgspec.Struct, frozen=True, kw_only=True):
    """How much of something; every draw is kept within `min` and `max`."""

    distribution: str = "fixed"
    mean: float = 1.0
    stddev: float = 0.0
    min: float = 0.0
    max: float = MOST


class Adaptive(msgspec.Struct, frozen=True, kw_only=True):
    """A concurrency that finds itself, between two bounds."""

    min: int = 1
    start: int | None = None
    max: int = 100


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """What all keys of a service together may have."""

    concurrent: int | None = None
    rates: list[str] = []
    quantities: Quantities = {}

    def option(self) -> dict[str, object]:
        """What `total=` is given."""
        return {"concurrent": self.concurrent, "rate": self.rates or None, **self.quantities}


class Allows(msgspec.Struct, frozen=True, kw_only=True):
    """What the far side takes itself: what is more is refused, as by an answer with status 429."""

    concurrent: int | None = None
    rates: list[str] = []
    quantities: Quantities = {}
    retry_after: float | None = None
    """Seconds that it asks to be left alone; None: until there is room."""


def windows(rates: list[str]) -> list[tuple[int, float]]:
    """Rates as numbers: how many in how many seconds."""
    return [(int(limit), per) for limit, per in map(rate_of, rates)]


# --- reading -------------------------------------------------------------------------------------------------


def read_quantities(given: Given) -> Quantities:
    """What is left of a mapping: each key a quantity with its rates; so is all that stands below `quantities`."""
    inside: Quantities = given.take("quantities", _below, {})
    found = dict(inside)
    for key in given.left():
        value = given.peek(key)
        if isinstance(key, str) and _looks_like_a_rate(value) and not given.is_almost_known(key):
            found[name(key, given.at(key))] = given.take(key, several(rate), [])
    for key in found:
        if not key.isidentifier():
            raise BadConfig(given.at(key), "a name of letters, digits and _ for a quantity", key)
    return found


def _below(value: object, path: str) -> Quantities:
    given = Given(value, path, "rates for each quantity")
    return {name(key, path): several(rate)(item, given.at(key)) for key, item in given.rest().items()}


def _looks_like_a_rate(value: object) -> bool:
    return isinstance(value, list) or (isinstance(value, str) and value[:1].isdigit())


def read_adaptive(value: object, path: str) -> Adaptive:
    """The bounds of a concurrency that finds itself."""
    given = Given(value, path, "min:, start: and max:")
    low = given.take("min", whole(1, MOST_PLACES), 1)
    high = given.take("max", whole(low, MOST_PLACES), max(low, 100))
    start = given.take("start", optional(whole(low, high)), None)
    given.end()
    return Adaptive(min=low, start=start, max=high)


def read_total(value: object, path: str) -> Total:
    """What all keys together may have: a number of places, a rate, or a mapping."""
    if isinstance(value, int) and not isinstance(value, bool):
        return Total(concurrent=whole(1, MOST_PLACES)(value, path))
    if not isinstance(value, dict):
        return Total(rates=several(rate)(value, path))
    given = Given(value, path)
    places = given.take("concurrent", optional(whole(1, MOST_PLACES)), None)
    rates: list[str] = given.take("rate rates", several(rate), [])
    total = Total(concurrent=places, rates=rates, quantities=read_quantities(given))
    given.end()
    return total


def read_allows(value: object, path: str) -> Allows:
    """What the far side takes itself."""
    given = Given(value, path, "rate:, concurrent:, quantities and retry_after:")
    places = given.take("concurrent", optional(whole(1, MOST_PLACES)), None)
    rates: list[str] = given.take("rate rates", several(rate), [])
    after = given.take("retry_after", optional(duration(0.001)), None)
    allows = Allows(concurrent=places, rates=rates, quantities=read_quantities(given), retry_after=after)
    given.end()
    return allows


def read_amount(value: object, path: str) -> Amount:
    """An amount: a number, or a distribution."""
    if not isinstance(value, dict):
        return Amount(mean=number(0, MOST)(value, path))
    given = Given(value, path)
    kind = given.take("distribution", choice(*DISTRIBUTIONS), "fixed")
    needed = ("min", "max") if kind == "uniform" else ("mean",)
    for key in needed:
        if not given.has(key):
            raise BadConfig(given.at(key), f"the {key} of a {kind} distribution", is_given=False)
    least = 0.0 if kind in {"fixed", "uniform", "normal"} else 1e-6
    amount = Amount(
        distribution=kind,
        mean=given.take("mean", number(least, MOST), 1.0),
        stddev=given.take("stddev", number(0, MOST), 0.0),
        min=given.take("min", number(0, MOST), 0.0),
        max=given.take("max", number(0, MOST), MOST),
    )
    given.end()
    if amount.min > amount.max:
        raise BadConfig(given.at("min"), f"no more than max ({amount.max:g})", amount.min)
    return amount


def read_cost(value: object, path: str) -> dict[str, Amount]:
    """What works are expected to use of each quantity."""
    given = Given(value, path, "an amount for each quantity")
    return {name(key, path): read_amount(item, given.at(key)) for key, item in given.rest().items()}


def read_keys(value: object, path: str) -> dict[str, dict[str, float]]:
    """For each param that is a key: its values and their weights, or how many there are."""
    given = Given(value, path, "values for each param")
    return {name(key, path): _weights(item, given.at(key)) for key, item in given.rest().items()}


def _weights(value: object, path: str) -> dict[str, float]:
    if isinstance(value, int) and not isinstance(value, bool):
        return {f"k{place + 1}": 1.0 for place in range(whole(1, MOST_KEYS)(value, path))}
    if isinstance(value, list):
        value = dict.fromkeys(several(name, MOST_KEYS)(value, path), 1.0)
    given = Given(value, path, "a weight for each value, or how many there are")
    found = {name(str(key), path): number(0, 1e9)(item, given.at(key)) for key, item in given.rest().items()}
    if not sum(found.values()):
        raise BadConfig(path, "a weight of more than 0", is_given=False)
    return found
