"""Checks the limits that a service is declared with, and makes them exact.

Rules:
- An unknown option with a rate is a quantity: `tokens="200k/min"`. A name that is almost that of an option is an
  error, because a misspelt limit must not be lost.
- With `per=` the limits hold for each key, and `total=` limits all keys together: a number of slots, a rate, or a
  dict of both and of quantities.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

from runcue.core.model import parse
from runcue.core.model.record import Work
from runcue.core.model.state import Adaptive, Limits, Quantity
from runcue.declare.options import or_none, span, whole
from runcue.engine.handler import is_plain_function
from runcue.errors import ConfigError, InvalidOption, UnknownOption, quoted

KeyOf: TypeAlias = str | Callable[[Work], str]
"""The name of the param that is the key, or a function of work that returns it."""

TOTALS: Final = ("rate", "concurrent")
Value = TypeVar("Value")


def adaptive(*, min: int = 1, start: int | None = None, max: int = 100) -> Adaptive:  # noqa: A002 (as people say)
    """A concurrency that adapts: it halves when the service says "too many", and grows while calls succeed."""
    low = whole(1)(min, "min")
    high = whole(low)(max, "max")
    first = low if start is None else whole(low, high)(start, "start")
    return Adaptive(low, first, high)


def read_limits(
    name: str,
    *,
    rate: object = None,
    concurrent: object = None,
    circuit_threshold: object = None,
    circuit_timeout: object = 300,
    per: object = None,
    total: object = None,
    rate_limit: object = None,
    rate_window: object = None,
    max_concurrent: object = None,
    **quantities: object,
) -> tuple[Limits, KeyOf | None]:
    """Read the limits of a service, and `per=`, if it has keys."""
    name = service_name(name)
    new = None if rate is None else parse.rates(rate)
    old = _older_rate(rate_limit, rate_window)
    adapts = concurrent if isinstance(concurrent, Adaptive) else None
    most = None if concurrent is None or adapts is not None else parse.concurrent(concurrent)
    older = None if max_concurrent is None else whole(1)(max_concurrent, "max_concurrent")
    limits = Limits(
        name,
        agreed("concurrent", most, "max_concurrent", older),
        agreed("rate", new, "rate_limit", old) or (),
        or_none(whole(1))(circuit_threshold, "circuit_threshold"),
        span(circuit_timeout, "circuit_timeout"),
        _quantities(quantities),
        adapts,
    )
    if adapts is not None and limits.concurrent is not None:
        disagree("concurrent", "adaptive(…)", "max_concurrent", max_concurrent)
    if per is None:
        if total is not None:
            raise ConfigError(
                f"total={quoted(total)} needs per=: it limits all keys together. Give both, or only the limits."
            )
        return limits, None
    if "[" in name:
        raise InvalidOption("service name", name, "no '[' in it, because its keys are named with brackets")
    return _total(name, total, limits), _key(per)


def read_changes(
    *, rate: object = ..., concurrent: object = ..., circuit_threshold: object = ..., circuit_timeout: object = ...,
    **quantities: object,
) -> tuple[dict[str, Any], dict[str, Quantity | None]]:  # fmt: skip
    """Read changes to the limits of a service, by field and by quantity; None removes a limit."""
    found: dict[str, Any] = {}
    if rate is not ...:
        found["rates"] = () if rate is None else parse.rates(rate)
    if isinstance(concurrent, Adaptive):
        found |= {"adaptive": concurrent, "concurrent": None}
    elif concurrent is not ...:
        found |= {
            "adaptive": None,
            "concurrent": None if concurrent is None else parse.concurrent(concurrent),
        }
    if circuit_threshold is not ...:
        found["circuit_threshold"] = or_none(whole(1))(circuit_threshold, "circuit_threshold")
    if circuit_timeout is not ...:
        found["circuit_timeout"] = span(circuit_timeout, "circuit_timeout")
    given = {name: value for name, value in quantities.items() if value is not None}
    amounts = {quantity.name: quantity for quantity in _quantities(given, "set_limits()", CHANGES)}
    return found, {name: amounts.get(name) for name in quantities}


OPTIONS: Final = tuple(read_limits.__kwdefaults__ or ())
CHANGES: Final = tuple(read_changes.__kwdefaults__ or ())


def service_name(value: object) -> str:
    """Read the name of a service."""
    name = parse.name(value, "service")
    if name.startswith("#") or any(sign in name for sign in "{}*"):
        raise InvalidOption("service name", value, "no '#' at its beginning and none of { } * in it")
    return name


def _quantities(
    given: Mapping[str, object], where: str = "service()", known: tuple[str, ...] | None = None
) -> tuple[Quantity, ...]:
    found = []
    for name, value in given.items():
        is_rate = isinstance(value, (tuple, list, parse.Rate)) or (
            isinstance(value, str) and value[:1].isdigit()
        )
        if not is_rate or parse.nearest(name, OPTIONS):
            raise UnknownOption(name, OPTIONS if known is None else known, where)
        found.append(Quantity(name, parse.rates(value)))
    return tuple(found)


def _total(name: str, total: object, each: Limits) -> Limits:
    """The limits of a service with keys: those of all together, and those of each."""
    if total is None:
        return Limits(name, each=each)
    if isinstance(total, Mapping):
        slots, rate = total.get("concurrent"), total.get("rate")
        more = {key: value for key, value in total.items() if key not in TOTALS}
        return Limits(
            name,
            None if slots is None else parse.concurrent(slots),
            () if rate is None else parse.rates(rate),
            quantities=_quantities(more, "total=", TOTALS),
            each=each,
        )
    if isinstance(total, int) and not isinstance(total, bool):
        return Limits(name, parse.concurrent(total), each=each)
    return Limits(name, rates=parse.rates(total), each=each)


def _key(per: object) -> KeyOf:
    if isinstance(per, str):
        return parse.name(per, "per")
    if is_plain_function(per):
        return per
    raise InvalidOption("per", per, "the name of a param, or a plain function of work")


def _older_rate(limit: Any, window: Any) -> tuple[parse.Rate, ...] | None:
    """Read rate_limit= and rate_window=."""
    if limit is None:
        if window is not None:
            raise ConfigError(f"rate_window={quoted(window)} needs a rate_limit. Or give rate='60/min'.")
        return None
    if isinstance(limit, (str, tuple, list, parse.Rate)):
        found = parse.rates(limit)
        if window is not None and any(rate.per != parse.duration(window, "rate_window") for rate in found):
            disagree("rate_limit", limit, "rate_window", window)
        return found
    if window is None:
        raise ConfigError(f"rate_limit={quoted(limit)} needs a rate_window. Or give rate='60/min'.")
    return parse.rates((limit, window))


# --- Two spellings of one option ------------------------------------------------------------------


def agreed(name: str, value: Value | None, other_name: str, other: Value | None) -> Value | None:
    """The value of an option with two spellings, either of which may be left out."""
    if value is None or other is None:
        return other if value is None else value
    if value is not other and (callable(value) or callable(other) or value != other):
        disagree(name, _shown(value), other_name, _shown(other))
    return value


def _shown(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else value


def disagree(name: str, value: object, other_name: str, other: object) -> NoReturn:
    """Refuse two spellings with different values."""
    raise ConfigError(
        f"{name}={quoted(value)} and {other_name}={quoted(other)} mean the same thing and differ. Give one."
    )
