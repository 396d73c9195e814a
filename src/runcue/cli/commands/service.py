"""`queuectl service`: limits that all workers share. A job names the services it uses with `--uses`."""

from __future__ import annotations

from typing import Any

import click

from runcue.cli.completion import service
from runcue.cli.fields import name as checked_name
from runcue.cli.groups import family
from runcue.cli.home import Home
from runcue.cli.limits import limit_options, read, refused
from runcue.cli.place import ask_or_make
from runcue.cli.screen import is_terminal, note, say, show_json, table
from runcue.cli.services import as_table, limits_of, services

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runcue import Cue


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
    examples=[
        "queuectl service set openai --rate 60/min --rate 1000/day",
        "queuectl service set disk --concurrent 2",
        "queuectl service set host --circuit-threshold 5 --circuit-timeout 2m",
    ],
)
@click.argument("name", shell_complete=service)
@limit_options("jobs")
@click.pass_obj
def change(home: Home, /, name: str, **flags: Any) -> None:
    """Set a service's limits, for all workers at once.

    What is not given stays as it is; `none` takes a limit away.
    """
    from runcue import UnknownService

    name, given = checked_name("service", name), read(**flags)

    async def declare(cue: Cue) -> dict[str, Any]:
        try:
            await cue.set_limits(name, **given)
        except UnknownService:
            cue.service(name)  # without limits: all of them are set by hand
            await cue.set_limits(name, **given)
        return next(one for one in await cue.services() if one["name"] == name)

    home.make()
    with refused():
        found = ask_or_make(home, declare)
    say(f"Service {name}: {limits_of(found)}")


@command.command("list", examples=["queuectl service list", "queuectl service list --json"])
@click.option("--json", "as_json", is_flag=True, help="Print an array of objects: limits, use, state.")
@click.pass_obj
def list_all(home: Home, as_json: bool) -> None:
    """List services: their limits, how much of them is used, and what holds them back."""
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
