"""`runcue schedules`: what submits units at moments, and what can be done to it."""

from __future__ import annotations

import click

from runcue.cli import schedules as shared
from runcue.cli.completion import schedule
from runcue.cli.failure import bad_input
from runcue.cli.place import File, look, on_file
from runcue.cli.screen import note, say, show_json, table, typed

VERBS = ("pause", "resume", "run", "remove")


@on_file(
    "schedules",
    examples=[
        "runcue schedules queue.db",
        "runcue schedules queue.db --json | jq '.[] | select(.paused)'",
        "runcue schedules queue.db pause nightly",
        "runcue schedules queue.db run nightly",
    ],
)
@click.argument("verb", type=click.Choice(VERBS), required=False)
@click.argument("name", required=False, shell_complete=schedule)
@click.option("--json", "as_json", is_flag=True, help="Print an array of objects: all that is known of each.")
@click.option("--raw", is_flag=True, help="Show passwords, tokens and other secrets as they are.")
def schedules(place: File, verb: str | None, name: str | None, as_json: bool, raw: bool) -> None:
    """List schedules: when their units come, how the last one stands, and what is wrong.

    Behind the queue, pause or resume a schedule by its name, run it now (which prints the unit's id), or remove it.
    The units of a schedule: runcue list queue.db --tag schedule=NAME
    """
    if verb is None:
        _list(place, as_json=as_json, raw=raw)
        return
    if name is None:
        raise bad_input(f"Which schedule? {place.words.do('schedules', verb, 'NAME')}")
    if as_json or raw:
        raise bad_input("--json and --raw are for the list. Leave them out.")
    match verb:
        case "run":
            say(shared.run(place, name))
        case "remove":
            shared.remove(place, name)
        case _:
            go_on = place.words.do("schedules", "resume", typed(name))
            shared.hold(place, name, go_on, is_paused=verb == "pause")


def _list(place: File, *, as_json: bool, raw: bool) -> None:
    with look(place) as reader:
        found = shared.found(place, reader, raw=raw)
    if as_json:
        show_json(found)
    elif not found:
        note(
            "No schedules. A program adds them with `@cue.cron(…)`, `@cue.every(…)` or `await cue.schedule(…)`."
        )
    else:
        table((*shared.HEADS, "TASK"), ((*shared.row_of(one), one["task"]) for one in found))
