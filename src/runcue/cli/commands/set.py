"""`runcue set`: changes the limits of a service while its program runs."""

from __future__ import annotations

from typing import Any

import click

from runcue.cli.completion import service
from runcue.cli.failure import advice, bad_input, not_found
from runcue.cli.fields import said
from runcue.cli.limits import limit_options, read, refused
from runcue.cli.place import File, ask, on_file
from runcue.cli.screen import clean, note, say
from runcue.cli.services import limits_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runcue import Cue


@on_file(
    "set",
    examples=[
        "runcue set queue.db openai --rate 30/min",
        "runcue set queue.db openai --concurrent 2 --rate none",
        "runcue set queue.db openai --quantity tokens=200k/min",
    ],
)
@click.argument("name", metavar="SERVICE", shell_complete=service)
@limit_options("units")
@click.option(
    "--quantity",
    "quantities",
    multiple=True,
    metavar="NAME=RATE",
    help="How much of a quantity per period, such as tokens=200k/min. Repeatable.",
)
def set_limits(place: File, name: str, **flags: Any) -> None:
    """Set a service's limits by hand, for all who share the queue.

    What is not given stays as it is; `none` takes a limit away. It holds until the program declares other limits
    than it did before.
    """
    given = read(**flags)
    if not given:
        raise bad_input(
            "Say what to set: --rate, --concurrent, --circuit-threshold, --circuit-timeout, --quantity."
        )

    async def change(cue: Cue) -> dict[str, Any]:
        names = [one["name"] for one in await cue.services()]
        if name not in names:
            there = advice(name, names, said, cutoff=0.5, most=8) if names else "None was declared yet."
            raise not_found(f"No service {said(name)}. {there}")
        await cue.set_limits(name, **given)
        return next(one for one in await cue.services() if one["name"] == name)

    with refused():
        found = ask(place, change)
    say(f"Service {clean(name)}: {limits_of(found)}")
    if declared := found.get("declared"):
        note(f"Its program declared: {clean(declared)}")
