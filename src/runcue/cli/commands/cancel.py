"""`queuectl cancel` and `runcue cancel`: waiting jobs never run, and running jobs are stopped."""

from __future__ import annotations

from collections.abc import Sequence

import click

from runcue.cli.completion import live_job, live_work
from runcue.cli.failure import Failure, conflict
from runcue.cli.groups import verb
from runcue.cli.home import Home
from runcue.cli.lookup import no_job
from runcue.cli.place import File, Place, ask, end, on_file
from runcue.cli.screen import clean, say

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


@on_file("cancel", examples=["runcue cancel queue.db page-7", "runcue cancel queue.db page-7 page-8"])
@click.argument("ids", nargs=-1, required=True, metavar="ID…", shell_complete=live_work)
def cancel(place: File, ids: tuple[str, ...]) -> None:
    """Cancel units: waiting units never run, and running units are stopped.

    What was to run after a cancelled one fails.
    """
    _cancel(place, ids)


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
