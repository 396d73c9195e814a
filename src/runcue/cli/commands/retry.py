"""`runcue retry`: runs units again that failed or were cancelled."""

from __future__ import annotations

import click

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
@click.option("--task", metavar="NAME", help="With --all-failed: only units of this task.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask; needed where there is no terminal to ask on.")
@click.option("--dry-run", is_flag=True, help="Print the ids of what would be retried, and retry nothing.")
def retry(
    place: File,
    ids: tuple[str, ...],
    everything: bool,
    cascade: bool,
    task: str | None,
    yes: bool,
    dry_run: bool,
) -> None:
    """Retry units that failed or were cancelled, each with all its attempts.

    Each unit that a retried unit runs after must still exist and not be failed or cancelled, or be retried with it.
    """
    if bool(ids) is everything:
        raise bad_input(
            "Say which: ids, or --all-failed." if not ids else "Give ids or --all-failed, not both."
        )
    if everything and cascade:
        raise bad_input("--all-failed retries every failed unit. Leave --cascade out.")
    if task is not None and not everything:
        raise bad_input("--task goes with --all-failed.")
    wanted = [*dict.fromkeys(ids)] or _failed(place, task)
    if dry_run:
        for one in wanted:
            say(clean(one))
        return
    if everything and wanted:
        what = counted(len(wanted), "failed unit") + (f" of {clean(task)}" if task is not None else "")
        confirm(f"Retry {what}?", f"This would retry {what}.", "Nothing was retried.", yes=yes)
    requeue(place, wanted, everything=everything, cascade=cascade)


def _failed(place: File, task: str | None) -> list[str]:
    """The ids of all that failed, oldest first."""
    with migrated(place) as reader:
        return [work.id for work in reversed(reader.list("failed", task, MANY))]
