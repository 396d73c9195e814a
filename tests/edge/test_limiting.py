"""What a service may be declared with beyond rate and concurrency, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import runcue
from runcue.core.model.parse import Rate
from runcue.core.model.state import Limits, Quantity
from runcue.declare.service_options import read_limits


def read(**options: Any) -> Limits:
    return read_limits("api", **options)[0]


def test_any_other_name_with_a_rate_is_a_quantity() -> None:
    limits = read(rate="500/min", tokens="200k/min", usd=["5/h", "50/day"], bytes=(1000, 1))
    assert limits.quantities == (
        Quantity("tokens", (Rate(200_000, 60.0),)),
        Quantity("usd", (Rate(5, 3600.0), Rate(50, 86400.0))),
        Quantity("bytes", (Rate(1000, 1.0),)),
    )


@pytest.mark.parametrize(
    "options",
    [{"rates": "5/min"}, {"concurent": "5/min"}, {"circuit_treshold": "3/min"}, {"mode": "fast"}, {"size": 5},
     {"tokens": None}, {"tokens": ""}],
)  # fmt: skip
def test_what_is_misspelt_or_no_rate_is_no_quantity(options: dict[str, Any]) -> None:
    with pytest.raises(runcue.UnknownOption):
        read(**options)


@pytest.mark.parametrize("rate", ["0/min", "5", "5/fortnight", [], (0, 60)])
def test_a_quantity_needs_a_rate_that_makes_sense(rate: object) -> None:
    with pytest.raises(runcue.InvalidRate):
        read(tokens=rate)


def test_with_keys_the_limits_are_those_of_each() -> None:
    limits, key = read_limits(
        "api", per="user", rate="5/s", concurrent=2, tokens="9/min", circuit_threshold=3
    )
    assert key == "user"
    assert limits.concurrent is None
    assert limits.rates == ()
    assert limits.each == Limits(
        "api", 2, (Rate(5, 1.0),), 3, quantities=(Quantity("tokens", (Rate(9, 60.0),)),)
    )
    assert limits.of_key("api[ann]") == msgspec_replace(limits.each, "api[ann]")


def msgspec_replace(limits: Limits | None, name: str) -> Limits:
    from msgspec.structs import replace

    assert limits is not None
    return replace(limits, name=name)


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (5, Limits("api", 5)),
        ("5/s", Limits("api", rates=(Rate(5, 1.0),))),
        ((5, 1), Limits("api", rates=(Rate(5, 1.0),))),
        (["5/s", "9/min"], Limits("api", rates=(Rate(5, 1.0), Rate(9, 60.0)))),
        ({"concurrent": 5, "rate": "5/s"}, Limits("api", 5, (Rate(5, 1.0),))),
        ({"tokens": "9/min"}, Limits("api", quantities=(Quantity("tokens", (Rate(9, 60.0),)),))),
    ],
)
def test_a_total_is_places_a_rate_or_several(total: object, expected: Limits) -> None:
    limits = read(per="user", total=total)
    assert (limits.concurrent, limits.rates, limits.quantities) == (
        expected.concurrent,
        expected.rates,
        expected.quantities,
    )


@pytest.mark.parametrize("total", [0, -1, True, "5", {"concurrent": 0}, {"rates": "5/s"}, {"per": "x"}, 1.5])
def test_a_total_that_makes_no_sense_is_refused(total: object) -> None:
    with pytest.raises(runcue.ConfigError):
        read(per="user", total=total)


def test_a_total_needs_keys() -> None:
    with pytest.raises(runcue.ConfigError, match="total=5 needs per="):
        read(total=5)


@pytest.mark.parametrize("per", [5, "", lambda: "x", ["user"], b"user"])
def test_a_key_is_a_params_name_or_a_function_of_work(per: object) -> None:
    with pytest.raises(runcue.ConfigError):
        read(per=per)


def test_adaptive_and_a_number_are_two_answers_to_one_question() -> None:
    assert read(concurrent=runcue.adaptive(min=2, max=9)).adaptive == runcue.adaptive(min=2, start=2, max=9)
    with pytest.raises(runcue.ConfigError, match="mean the same thing"):
        read(concurrent=runcue.adaptive(), max_concurrent=5)


async def test_a_task_may_not_cost_what_is_no_cost() -> None:
    cue = runcue.Cue()
    cue.service("api", tokens="100/min")
    wrong: list[Any] = [5, "tokens", [("tokens", 5)], {"tokens": -1}, {5: 5}, lambda one, two: {}]
    for cost in wrong:
        with pytest.raises(runcue.ConfigError, match="cost"):
            cue.task("call", uses="api", cost=cost)
    number: Any = lambda work: 5  # noqa: E731
    cue.task("odd", uses="api", cost=number)(lambda work: None)
    with pytest.raises(runcue.SubmitError, match="returned 5, not a dict"):
        await cue.submit("odd")
    cue.task("broken", uses="api", cost=lambda work: work.params["n"])(lambda work: None)
    with pytest.raises(runcue.SubmitError, match="The cost= of task 'broken' raised"):
        await cue.submit("broken")
    cue.task("nothing", uses="api", cost={"tokens": 0})(lambda work: None)
    assert await cue.submit("nothing")
