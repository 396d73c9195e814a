"""Chooses the services of a unit, its keys and its cost, as `uses=`, `per=` and `cost=` say.

A function of work is called once for each unit, when it is submitted and before it is queued; its answer is stored
with the unit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from runcue.core.limits.meter import Cost, amount
from runcue.core.model import parse
from runcue.core.model.record import Work
from runcue.core.model.state import key_name
from runcue.declare.service_options import KeyOf
from runcue.engine.artifacts import PLACE
from runcue.engine.handler import is_plain_function
from runcue.errors import InvalidOption, SubmitError, quoted

Picks: TypeAlias = Callable[[Work], str | list[str]]
CostOf: TypeAlias = Cost | Callable[[Work], Mapping[str, float]]


def read_uses(value: object, option: str) -> tuple[str, ...] | Picks | None:
    """Read uses= or services=: names, perhaps with places for params, or a function that picks."""
    if value is None:
        return None
    if isinstance(value, (str, list, tuple)):
        given = (value,) if isinstance(value, str) else value
        return tuple(dict.fromkeys(parse.name(name, "service") for name in given))
    if is_plain_function(value):
        return value
    raise InvalidOption(option, value, "a service's name, a list of names, or a plain function of work")


def template(names: tuple[str, ...]) -> Picks | None:
    """Fill places such as {host} from the params of each unit; None when there are no places."""
    if not any("{" in name or "}" in name for name in names):
        return None
    for name in names:
        rest = PLACE.sub("", name)
        if "{" in rest or "}" in rest:
            raise InvalidOption("uses", name, "places that name a param and nothing else, as in 'ssh_{host}'")

    def pick(work: Work) -> list[str]:
        return [PLACE.sub(lambda place: _param(work, place[1]), name) for name in names]

    return pick


def _param(work: Work, key: str) -> str:
    value = work.params.get(key)
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise SubmitError(
            f"Task {quoted(work.task)} chooses its service by params[{key!r}], which is {quoted(value)}. "
            "Pass text or a whole number."
        )
    return str(value)


def picked(picks: Picks, work: Work) -> tuple[str, ...]:
    """The services that a function chose for one unit."""
    where = f"The uses= of task {quoted(work.task)}"
    answer: Any = _call(picks, work, where)
    names = (answer,) if isinstance(answer, str) else answer
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise SubmitError(f"{where} returned {quoted(answer)}, not a service name or a list of them.")
    return tuple(dict.fromkeys(names))


def with_keys(names: tuple[str, ...], keys: Mapping[str, KeyOf], work: Work) -> tuple[str, ...]:
    """Put the unit's key before each service that has keys."""
    found: list[str] = []
    for name in names:
        key = keys.get(name)
        if key is not None:
            found.append(key_name(name, _key(name, key, work)))
        found.append(name)
    return tuple(found)


def _key(service: str, key: KeyOf, work: Work) -> str:
    where = f"The per= of service {quoted(service)}"
    answer = _param(work, key) if isinstance(key, str) else _call(key, work, where)
    is_key = isinstance(answer, str) and 1 <= len(answer) <= parse.LONGEST_NAME and answer.isprintable()
    if not is_key:
        raise SubmitError(
            f"{where} returned {quoted(answer)}, not a text of 1 to {parse.LONGEST_NAME} printable characters."
        )
    return str(answer)


def read_cost(value: object) -> CostOf | None:
    """Read cost=: amounts, or a function of work that returns them."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        return _amounts(value, "cost=", InvalidOption("cost", value, COST_FORMS))
    if is_plain_function(value):
        return value
    raise InvalidOption("cost", value, COST_FORMS)


def cost_of(cost: CostOf, work: Work) -> Cost:
    """The cost of a unit: how much of each quantity it is expected to use."""
    if isinstance(cost, tuple):
        return cost
    where = f"The cost= of task {quoted(work.task)}"
    answer = _call(cost, work, where)
    refusal = SubmitError(f"{where} returned {quoted(answer)}, not {COST_FORMS}.")
    if not isinstance(answer, Mapping):
        raise refusal
    return _amounts(answer, where, refusal)


COST_FORMS: Final = "a dict of quantities and amounts of 0 or more, such as {'tokens': 500}"


def _amounts(given: Mapping[Any, Any], where: str, refusal: Exception) -> Cost:
    found = []
    for name, value in given.items():
        size = amount(value)
        if not isinstance(name, str) or size is None:
            raise refusal
        if size:
            found.append((name, size))
    return tuple(found)


def _call(function: Callable[[Work], Any], work: Work, where: str) -> Any:
    try:
        return function(work)
    except SubmitError:
        raise
    except Exception as error:
        raise SubmitError(f"{where} raised {quoted(error)}. Nothing was queued.") from error
