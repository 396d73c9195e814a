"""`queuectl cancel`: what waits never runs, and what runs is told to stop."""

from __future__ import annotations

from collections.abc import Sequence

import click

from runcue.cli.completing import live_job
from runcue.cli.failure import Failure, conflict
from runcue.cli.fields import job_id
from runcue.cli.groups import verb
from runcue.cli.home import Home
from runcue.cli.jobs import ask, end, word_of
from runcue.cli.lookup import no_job
from runcue.cli.screen import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runcue import Cue


@verb("cancel", examples=["queuectl cancel job1", "queuectl cancel job1 job2"])
@click.argument("ids", nargs=-1, required=True, metavar="ID…", shell_complete=live_job)
@click.pass_obj
def command(home: Home, ids: tuple[str, ...]) -> None:
    """Cancel jobs: what waits never runs, and what runs is told to stop.

    Jobs that were to run after a cancelled one are dead.
    """
    wanted = [job_id(one) for one in dict.fromkeys(ids)]
    end(ask(home, lambda cue, _: _cancelled(home, cue, wanted)))


async def _cancelled(home: Home, cue: Cue, ids: Sequence[str]) -> list[Failure]:
    """Those that could not be cancelled, and why."""
    failures = []
    for one in ids:
        before = await cue.get(one)
        if await cue.cancel(one):
            was_running = before is not None and before.state == "running"
            say(f"Cancelled {one}" + (", which was running and is told to stop" if was_running else ""))
            continue
        work = await cue.get(one)
        failures.append(no_job(home, one) if work is None else conflict(f"{one} is {word_of(work)} already."))
    return failures
