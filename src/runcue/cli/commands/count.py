"""`runcue count`: how many units there are in each state."""

from __future__ import annotations

from typing import Any

import click

from runcue.cli.choice import choosing, chosen
from runcue.cli.failure import not_found
from runcue.cli.place import File, look, on_file
from runcue.cli.screen import clean, say, show_json, table


@on_file(
    "count",
    examples=["runcue count queue.db --tag run=nightly", "runcue count queue.db --group import-7 --json"],
)
@choosing(state=False)
@click.option("--json", "as_json", is_flag=True, help="Print one object.")
def count(place: File, as_json: bool, **wanted: Any) -> None:
    """Count units by state.

    Without options, and of a group alone, those count, too, whose records are no longer kept.
    """
    from runcue import GroupNotFound

    which = chosen(wanted)
    with look(place) as reader:
        if which.keys() == {"group"}:
            try:
                group = reader.group(which["group"])
            except GroupNotFound as error:
                raise not_found(clean(str(error))) from error
            numbers, text = group.by_state, f"{clean(which['group'])}: {group.text}"
        else:
            numbers, text = reader.count(**which), ""
    found = {str(state): number for state, number in numbers.items()}
    if as_json:
        show_json(found)
        return
    if text:
        say(text)
    table(("STATE", "UNITS"), ((state, str(number)) for state, number in found.items()))
