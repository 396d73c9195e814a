"""`queuectl list`: the latest jobs, and why those that wait do so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from runcue.cli.completing import queue
from runcue.cli.fields import unicode
from runcue.cli.groups import verb
from runcue.cli.home import Home
from runcue.cli.screen import STATES

SHORT_COMMAND = 60
SHORT_ERROR = 60


@verb(
    "list",
    examples=[
        "queuectl list",
        "queuectl list --state failed --limit 20",
        "queuectl list --json | jq -r '.[].id'",
    ],
)
@click.option("--state", type=click.Choice(STATES), help="Only jobs in this state.")
@click.option("--queue", metavar="NAME", shell_complete=queue, help="Only jobs of this queue.")
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(1, 100_000),
    default=50,
    show_default=True,
    help="At most so many jobs.",
)
@click.option("--json", "as_json", is_flag=True, help="Print an array of objects, as in the jobs view.")
@click.pass_obj
def command(home: Home, state: str | None, queue: str | None, limit: int, as_json: bool) -> None:
    """List jobs, newest first, and why they wait.

    In a pipe the columns are separated by tabs and there is no heading.
    """
    from runcue.cli.reasons import Crew, waits
    from runcue.cli.screen import note, show_json, table

    if queue is not None:
        unicode("queue", queue)
    if not home.exists:
        if as_json:
            show_json([])
        else:
            note("No jobs yet. Start with: queuectl enqueue -- echo hello")
        return
    with home.reader() as reader:
        found = reader.jobs(state, queue=queue, limit=limit + 1)
        jobs = found[:limit]
        if as_json:
            show_json(jobs)
            return
        told = waits(reader, jobs, reader.now(), Crew(reader.workers()))
        reasons = {id: text for id, (_, text) in told.items()}
    if not jobs:
        chosen = state is not None or queue is not None
        note("No such jobs." if chosen else "No jobs. Add one: queuectl enqueue -- echo hello")
        return
    table(HEADS, [_row(job, reasons) for job in jobs])
    if len(found) > limit:
        note(f"There are more than these {limit:,}: use --limit.")


HEADS = ("ID", "STATE", "TRIES", "PRIO", "COMMAND", "WAITING / ERROR")


def _row(job: Mapping[str, Any], reasons: Mapping[str, str]) -> tuple[str, ...]:
    from runcue.cli.reasons import tries
    from runcue.cli.screen import cut, is_terminal, reason_of

    command, error = job["command"], reason_of(job["last_error"]) if job["last_error"] else ""
    if error == job["state"]:
        error = ""
    if is_terminal():
        command, error = cut(command, SHORT_COMMAND), cut(error, SHORT_ERROR)
    said = reasons.get(job["id"], "")
    if said and error:
        said = f"{said}: {error}"
    return job["id"], job["state"], tries(job), f"{job['priority']:g}", command, said or error
