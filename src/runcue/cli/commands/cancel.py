"""`queuectl cancel` and `runcue cancel`: waiting jobs never run, and running jobs are stopped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from runcue.cli.choice import choosing, chosen
from runcue.cli.completion import live_job, live_work
from runcue.cli.failure import Failure, bad_input, conflict
from runcue.cli.groups import verb
from runcue.cli.home import Home
from runcue.cli.lookup import no_job
from runcue.cli.place import File, Place, ask, end, migrated, on_file
from runcue.cli.retries import confirm
from runcue.cli.screen import clean, counted, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runcue import Cue


@verb("cancel", examples=["queuectl cancel job1", "queuectl cancel job1 job2"])
@click.argument("ids", nargs=-1, required=True, metavar="ID…", shell_complete=live_job)
@click.pass_obj
def command(home: Home, ids: tuple[str, ...]) -> None:
    """Cancel jobs: waiting jobs never run, and running jobs are stopped.

    Jobs that were to run after a cancelled one are dead.
    """
    _cancel(home, ids)


@on_file(
    "cancel",
    examples=[
        "runcue cancel queue.db page-7 page-8",
        "runcue cancel queue.db --group import-7 --dry-run",
        "runcue cancel queue.db --tag run=nightly --state pending --yes",
    ],
)
@click.argument("ids", nargs=-1, metavar="[ID…]", shell_complete=live_work)
@choosing()
@click.option("-y", "--yes", is_flag=True, help="Do not ask; needed where there is no terminal to ask on.")
@click.option("--dry-run", is_flag=True, help="Print how many would be cancelled, and cancel nothing.")
def cancel(place: File, ids: tuple[str, ...], yes: bool, dry_run: bool, **wanted: Any) -> None:
    """Cancel units: waiting units never run, and running units are stopped.

    Name them by their ids, or choose them by options. What was to run after a cancelled one fails.
    """
    which = chosen(wanted)
    if bool(ids) is bool(which):
        raise bad_input(
            "Say which: ids, or options such as --group." if not ids else "Give ids or options, not both."
        )
    if ids:
        if dry_run:
            raise bad_input("--dry-run goes with options that choose units.")
        _cancel(place, ids)
        return
    with migrated(place) as reader:
        numbers = reader.count(**which)
    live = sum(numbers[state] for state in numbers if not state.is_final)
    what = counted(live, "unit")
    if dry_run:
        say(f"{what} would be cancelled.")
        return
    if live:
        confirm(f"Cancel {what}?", f"This would cancel {what}.", "Nothing was cancelled.", yes=yes)
    number = ask(place, lambda cue: cue.cancel(**which)) if live else 0
    say(f"Cancelled {counted(number, 'unit')}")


def _cancel(place: Place, ids: tuple[str, ...]) -> None:
    wanted = [place.check_id(one) for one in dict.fromkeys(ids)]
    end(place, ask(place, lambda cue: _cancelled(place, cue, wanted)))


async def _cancelled(place: Place, cue: Cue, ids: Sequence[str]) -> list[Failure]:
    """Cancel these; returns a failure for each that could not be cancelled."""
    failures = []
    for one in ids:
        before = await cue.get(one)
        if await cue.cancel(one):
            was_running = before is not None and before.state == "running"
            stop = ", which was running and is being stopped" if was_running else ""
            say(f"Cancelled {clean(one)}{stop}")
            continue
        work = await cue.get(one)
        ended = work and conflict(f"{clean(one)} is {place.words.state_of(work)} already.")
        failures.append(ended or no_job(place, one))
    return failures
