"""`runcue retry`: runs units again that failed or were cancelled."""

from __future__ import annotations

from typing import Any

import click

from runcue.cli.choice import choosing, chosen
from runcue.cli.completion import failed_work
from runcue.cli.failure import bad_input
from runcue.cli.place import MANY, File, migrated, on_file
from runcue.cli.retries import confirm, requeue
from runcue.cli.screen import clean, counted, say


@on_file(
    "retry",
    examples=[
        "runcue retry queue.db page-7",
        "runcue retry queue.db page-7 --cascade",
        "runcue retry queue.db --all-failed --task extract --dry-run",
        "runcue retry queue.db --all-failed --yes",
    ],
)
@click.argument("ids", nargs=-1, metavar="[ID…]", shell_complete=failed_work)
@click.option("--all-failed", "everything", is_flag=True, help="Every unit that failed for good.")
@click.option("--cascade", is_flag=True, help="Also all units that failed because one of these did.")
@choosing()
@click.option("-y", "--yes", is_flag=True, help="Do not ask; needed where there is no terminal to ask on.")
@click.option("--dry-run", is_flag=True, help="Print the ids of what would be retried, and retry nothing.")
def retry(
    place: File,
    ids: tuple[str, ...],
    everything: bool,
    cascade: bool,
    yes: bool,
    dry_run: bool,
    **wanted: Any,
) -> None:
    """Retry units that failed or were cancelled, each with all its attempts.

    Name them by their ids, or choose among the failed ones by options (with --state cancelled, among those). Each
    unit that a retried unit runs after must still exist and not be failed or cancelled, or be retried with it.
    """
    which = chosen(wanted)
    if bool(ids) is (everything or bool(which)):
        raise bad_input(
            "Say which: ids, --all-failed, or options such as --group."
            if not ids
            else "Give ids, or --all-failed and options, not both."
        )
    if everything and cascade:
        raise bad_input("--all-failed retries every failed unit. Leave --cascade out.")
    which.setdefault("state", "failed")
    if which["state"] not in {"failed", "cancelled"}:
        raise bad_input("Only failed and cancelled units can be retried.")
    found = [*dict.fromkeys(ids)] or _found(place, which)
    if dry_run:
        for one in found:
            say(clean(one))
        return
    if found and not ids:
        what = counted(len(found), f"{which['state']} unit") + (
            f" of {clean(which['task'])}" if "task" in which else ""
        )
        confirm(f"Retry {what}?", f"This would retry {what}.", "Nothing was retried.", yes=yes)
    requeue(place, found, everything=not ids, cascade=cascade)


def _found(place: File, which: dict[str, Any]) -> list[str]:
    """The ids of all that are chosen, oldest first."""
    with migrated(place) as reader:
        return [work.id for work in reversed(reader.list(limit=MANY, **which))]
