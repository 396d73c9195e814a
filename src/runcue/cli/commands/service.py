"""`queuectl service`: limits that jobs share, over all workers. A job says which it keeps to by `--uses`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from runcue.cli.completing import service
from runcue.cli.failure import BUSY, Failure, bad_input
from runcue.cli.fields import duration, said
from runcue.cli.fields import name as checked_name
from runcue.cli.groups import Verb, family
from runcue.cli.home import Home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runcue import Cue

NONE = "none"
PATIENCE = 10.0
"""Seconds that a change waits for those before it."""


@family(
    "service",
    examples=[
        "queuectl service set openai --rate 60/min --concurrent 4",
        "queuectl service set openai --rate none",
        "queuectl service list",
    ],
)
def command() -> None:
    """Set and list limits that jobs share."""


@command.command(
    "set",
    cls=Verb,
    examples=[
        "queuectl service set openai --rate 60/min --rate 1000/day",
        "queuectl service set disk --concurrent 2",
        "queuectl service set host --circuit-threshold 5 --circuit-timeout 2m",
    ],
)
@click.argument("name", shell_complete=service)
@click.option("--rate", "rates", multiple=True, metavar="RATE", help="Starts per time: 60/min. Repeatable.")
@click.option("--concurrent", metavar="N", help="How many jobs run at once.")
@click.option("--circuit-threshold", metavar="N", help="Rest after so many failures in a row.")
@click.option("--circuit-timeout", metavar="TIME", help="How long to rest: 90, 90s, 5m, 2h.")
@click.pass_obj
def change(
    home: Home,
    name: str,
    rates: tuple[str, ...],
    concurrent: str | None,
    circuit_threshold: str | None,
    circuit_timeout: str | None,
) -> None:
    """Set a service's limits, for all workers at once.

    What is not given stays as it is; `none` takes a limit away.
    """
    from runcue import InvalidRate
    from runcue.cli.jobs import ask
    from runcue.cli.screen import say

    name = checked_name("service", name)
    given: dict[str, Any] = {}
    if rates:
        given["rate"] = _rates(rates)
    if concurrent is not None:
        given["concurrent"] = _number("--concurrent", concurrent)
    if circuit_threshold is not None:
        given["circuit_threshold"] = _number("--circuit-threshold", circuit_threshold)
    if circuit_timeout is not None:
        given["circuit_timeout"] = duration("--circuit-timeout", circuit_timeout, low=0.001)

    async def declare(cue: Cue, _: object) -> dict[str, Any]:
        before = {one["name"]: one for one in await cue.services()}
        cue.service(name, **(_limits(before.get(name)) | given))
        return next(one for one in await cue.services() if one["name"] == name)

    try:
        with _alone(home):
            found = ask(home, declare, may_create=True)
    except InvalidRate as error:
        raise bad_input(str(error).replace(", '200k/min' or (60, 60)", " or '200k/min'")) from error
    say(f"Service {name}: {_told(found)}")


@contextmanager
def _alone(home: Home) -> Iterator[None]:
    """No other `service set` in between: what is not given is read, and written as it was."""
    import fcntl
    import os
    import time

    home.make()
    until = time.monotonic() + PATIENCE
    descriptor = os.open(home.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    text = "Another `service set` has been at it for some time. Try again in a moment."
                    raise Failure(text, BUSY) from None
                time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


@command.command("list", cls=Verb, examples=["queuectl service list", "queuectl service list --json"])
@click.option("--json", "as_json", is_flag=True, help="Print an array of objects: limits, use, state.")
@click.pass_obj
def list_all(home: Home, as_json: bool) -> None:
    """List services: their limits, how much of them is used, and what holds them back."""
    from runcue.cli.screen import is_terminal, note, show_json, table
    from runcue.cli.services import as_table, services

    found: list[dict[str, Any]] = []
    if home.exists:
        with home.reader() as reader:
            found = services(reader)
    if as_json:
        show_json(found)
        return
    if not found:
        note("No services. Make one: queuectl service set openai --rate 60/min")
        return
    table(*as_table(found, all_columns=not is_terminal()))


def _number(option: str, text: str) -> int | None:
    if text.strip().lower() == NONE:
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:12]) <= 1_000_000_000:
        raise bad_input(f"{option} cannot be {said(text)}: expected a whole number from 1 up, or none.")
    return int(text)


def _rates(texts: tuple[str, ...]) -> list[str] | None:
    if any(text.strip().lower() == NONE for text in texts):
        if len(texts) > 1:
            raise bad_input("--rate none takes all rates away. Give it alone.")
        return None
    return list(texts)


def _limits(service: dict[str, Any] | None) -> dict[str, Any]:
    """What a service is declared with, as it stands."""
    if service is None:
        return {}
    found = {
        "rate": [rate["rate"] for rate in service["rates"]] or None,
        "concurrent": service["concurrent"],
        "circuit_threshold": service.get("circuit_threshold"),
        "circuit_timeout": service.get("circuit_timeout"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _told(service: dict[str, Any]) -> str:
    from runcue.cli.screen import counted, span

    parts = [rate["rate"] for rate in service["rates"]]
    if service["concurrent"] is not None:
        parts.append(f"{service['concurrent']:,} at once")
    if service["circuit"] is not None:
        rest = span(service["circuit_timeout"])
        parts.append(f"rests {rest} after {counted(service['circuit_threshold'], 'failure')} in a row")
    return ", ".join(parts) or "no limits"
