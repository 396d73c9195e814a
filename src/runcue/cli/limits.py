"""The limits of a service as options of a command: `--rate 60/min`, where `none` takes a limit away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from runcue.cli.failure import bad_input
from runcue.cli.fields import duration, said
from runcue.cli.groups import F, declared

NONE = "none"
MOST = 1_000_000_000
TAKEN = frozenset({"rate", "concurrent", "circuit_threshold", "circuit_timeout", "service"})
"""Names that no quantity can have."""


def limit_options(what: str) -> Callable[[F], F]:
    """The options of a verb that sets limits; `what` are jobs or units."""
    return declared(
        click.option(
            "--rate",
            "rates",
            multiple=True,
            metavar="RATE",
            help="Starts per period, such as 60/min. Repeatable.",
        ),
        click.option("--concurrent", metavar="N", help=f"How many {what} run at once."),
        click.option("--circuit-threshold", metavar="N", help="Open the circuit after N failures in a row."),
        click.option(
            "--circuit-timeout", metavar="TIME", help="How long the circuit stays open: 90, 90s, 5m, 2h."
        ),
    )


def read(
    rates: tuple[str, ...],
    concurrent: str | None,
    circuit_threshold: str | None,
    circuit_timeout: str | None,
    quantities: tuple[str, ...] = (),
) -> dict[str, Any]:
    """The arguments of `Cue.set_limits`: only the options that were given; None takes a limit away."""
    given: dict[str, Any] = {}
    if rates:
        given["rate"] = _rates(rates)
    if concurrent is not None:
        given["concurrent"] = _number("--concurrent", concurrent)
    if circuit_threshold is not None:
        given["circuit_threshold"] = _number("--circuit-threshold", circuit_threshold)
    if circuit_timeout is not None:
        given["circuit_timeout"] = duration("--circuit-timeout", circuit_timeout, low=0.001)
    for text in quantities:
        name, equals, amount = text.partition("=")
        if not equals or not name.isidentifier() or name in TAKEN | given.keys():
            raise bad_input(
                f"--quantity cannot be {said(text)}: expected NAME=RATE once for each, as tokens=200k/min."
            )
        given[name] = None if _is_none(amount) else amount
    return given


@contextmanager
def refused() -> Iterator[None]:
    """Turn the error about an invalid rate into one that speaks of a command line."""
    from runcue import InvalidRate

    try:
        yield
    except InvalidRate as error:
        raise bad_input(str(error).replace(", '200k/min' or (60, 60)", " or '200k/min'")) from error


def _is_none(text: str) -> bool:
    return text.strip().lower() == NONE


def _number(option: str, text: str) -> int | None:
    if _is_none(text):
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:12]) <= MOST:
        raise bad_input(
            f"{option} cannot be {said(text)}: expected a whole number from 1 to {MOST:,}, or none."
        )
    return int(text)


def _rates(texts: tuple[str, ...]) -> list[str] | None:
    if any(map(_is_none, texts)):
        if len(texts) > 1:
            raise bad_input("--rate none takes all rates away. Give it alone.")
        return None
    return list(texts)
