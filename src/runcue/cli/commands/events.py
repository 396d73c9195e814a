"""`runcue events`: what happened in a queue, to all units, one unit or one group."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import click

from runcue.cli.completion import any_work
from runcue.cli.failure import not_found
from runcue.cli.place import File, hiding, look, on_file
from runcue.cli.screen import clean, moment, say, show_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    import runcue

PAUSE = 0.5
"""Seconds between two looks with --follow."""


@on_file(
    "events",
    examples=[
        "runcue events queue.db --unit page-7",
        "runcue events queue.db --group import-7 --type failed",
        "runcue events queue.db --follow --json | jq .type",
    ],
)
@click.option("--unit", metavar="ID", shell_complete=any_work, help="Only events of this unit.")
@click.option("--group", metavar="NAME", help="Only events of units of this group.")
@click.option(
    "--type", "types", metavar="TYPE", multiple=True, help="Only these events; may be given several times."
)
@click.option(
    "--after", metavar="N", type=click.IntRange(0), default=0, help="Only events after this number."
)
@click.option("-f", "--follow", is_flag=True, help="Keep printing what happens, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print one object a line.")
@click.option("--raw", is_flag=True, help="Show passwords, tokens and other secrets as they are.")
def events(
    place: File, unit: str | None, group: str | None, types: tuple[str, ...], after: int, follow: bool,
    as_json: bool, raw: bool,
) -> None:  # fmt: skip
    """Show what happened: number, time, unit, event, and what belongs to it."""
    from runcue import GroupNotFound, WorkNotFound

    with look(place) as reader:
        try:
            for event in _read(
                reader, follow=follow, types=types or None, since=after, work=unit, group=group
            ):
                found = _data(event, raw=raw)
                if as_json:
                    show_json(found, pretty=False)
                else:
                    say("\t".join(map(clean, _cells(found))))
        except (GroupNotFound, WorkNotFound) as error:
            raise not_found(clean(str(error))) from error


def _read(reader: runcue.Reader, *, follow: bool, since: int, **which: Any) -> Iterator[runcue.Event]:
    while True:
        last = reader.last_event()
        for event in reader.events(since=since, **which):
            since = event.seq
            yield event
        if not follow:
            return
        since = max(since, last)
        while reader.last_event() <= since:
            time.sleep(PAUSE)


def _data(event: runcue.Event, *, raw: bool) -> dict[str, Any]:
    hide = hiding(raw)
    found = {
        "seq": event.seq, "at": moment(event.at), "type": event.type, "unit": event.work_id, "task": event.task,
        "group": event.group, "attempt": event.attempt, "final": event.final, "duration": event.duration,
        "service": event.service, "result": hide(event.result), "error": hide(event.error), "data": hide(event.data),
    }  # fmt: skip
    return {name: value for name, value in found.items() if value not in (None, {}, False)}


def _cells(found: dict[str, Any]) -> list[str]:
    data = {
        name: value for name, value in found.get("data", {}).items() if name not in {"will_retry", "duration"}
    }
    more = found.get("error") or " ".join(f"{name}={value}" for name, value in data.items())
    return [str(found["seq"]), found["at"], found.get("unit", ""), found["type"], str(more)]
