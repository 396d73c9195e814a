"""`queuectl list` and `runcue list`: the latest jobs, and why those that wait do so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from runcue.cli.completing import queue, service
from runcue.cli.fields import unicode
from runcue.cli.groups import verb
from runcue.cli.home import Home
from runcue.cli.place import File, hiding, on_file, row_of
from runcue.cli.words import QUEUECTL, RUNCUE

TYPE_CHECKING = False
if TYPE_CHECKING:
    import runcue

SHORT_COMMAND = 60
SHORT_ERROR = 60
MOST = click.IntRange(1, 100_000)
RAW = "Show passwords, tokens and other secrets as they are."


@verb(
    "list",
    examples=[
        "queuectl list",
        "queuectl list --state failed --limit 20",
        "queuectl list --json | jq -r '.[].id'",
    ],
)
@click.option("--state", type=click.Choice(QUEUECTL.states), help="Only jobs in this state.")
@click.option("--queue", metavar="NAME", shell_complete=queue, help="Only jobs of this queue.")
@click.option("--limit", metavar="N", type=MOST, default=50, show_default=True, help="At most so many jobs.")
@click.option("--json", "as_json", is_flag=True, help="Print an array of objects, as in the jobs view.")
@click.option("--raw", is_flag=True, help=RAW)
@click.pass_obj
def command(home: Home, state: str | None, queue: str | None, limit: int, as_json: bool, raw: bool) -> None:
    """List jobs, newest first, and why they wait.

    In a pipe the columns are separated by tabs and there is no heading. Secrets are shown as
    ***, in JSON as well, unless --raw asks for them.
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
        found = home.rows(reader, state, queue=queue, limit=limit + 1, raw=raw)
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


@on_file(
    "list",
    examples=[
        "runcue list queue.db --state failed",
        "runcue list queue.db --service openai --search page-7",
        "runcue list queue.db --json | jq -r '.[].id'",
    ],
)
@click.option("--state", type=click.Choice(RUNCUE.states), help="Only works in this state.")
@click.option("--task", metavar="NAME", help="Only works of this task.")
@click.option("--queue", metavar="NAME", shell_complete=queue, help="Only works of this queue.")
@click.option("--service", metavar="NAME", shell_complete=service, help="Only works that use this service.")
@click.option("--search", metavar="TEXT", help="Only with this text in id, target, error or params.")
@click.option("--limit", metavar="N", type=MOST, default=50, show_default=True, help="At most so many works.")
@click.option("--json", "as_json", is_flag=True, help="Print an array of objects.")
@click.option("--raw", is_flag=True, help=RAW)
def list_file(place: File, limit: int, as_json: bool, raw: bool, **wanted: str | None) -> None:
    """List works, newest first, and why they wait.

    In a pipe the columns are separated by tabs and there is no heading. Secrets are shown as
    ***, in JSON as well, unless --raw asks for them.
    """
    from runcue.cli.reasons import Crew, waits
    from runcue.cli.screen import note, show_json, table

    for name, value in wanted.items():
        if value is not None:
            unicode(f"--{name}", value)
    if not place.exists:
        raise place.nothing()
    with place.reader() as reader:
        found = reader.list(limit=limit + 1, **wanted)
        works = found[:limit]
        now, rows = reader.now(), [row_of(work, raw=raw) for work in works]
        told = waits(reader, rows, now, Crew(reader.workers()), place.words)
    if as_json:
        show_json([{**summary(work, raw=raw), "why": _why(told.get(work.id), now)} for work in works])
        return
    if not works:
        note("No such works." if any(wanted.values()) else f"No works. {place.words.add}")
        return
    reasons = {id: text for id, (_, text) in told.items()}
    table(WORK_HEADS, [_row(row, reasons) for row in rows])
    if len(found) > limit:
        note(f"There are more than these {limit:,}: use --limit.")


def summary(work: runcue.Work, *, raw: bool = False) -> dict[str, Any]:
    """A work in a list, as data: everything but what it was given and what it gave, and its history."""
    from runcue.cli.screen import moment

    hide = hiding(raw)
    return {
        "id": work.id,
        "task": work.task,
        "target": hide(work.target),
        "queue": work.queue,
        "state": str(work.state),
        "attempt": work.attempt,
        "failures": work.failures,
        "priority": work.priority,
        "services": list(work.services),
        "worker": work.worker,
        "created_at": moment(work.created_at),
        "run_at": moment(work.run_at) or None,
        "next_retry_at": moment(work.next_retry_at) or None,
        "started_at": moment(work.started_at) or None,
        "completed_at": moment(work.completed_at) or None,
        "skipped": work.skipped,
        "error": hide(work.error),
    }


def _why(told: tuple[runcue.Explanation, str] | None, now: float) -> dict[str, Any] | None:
    from runcue.cli.commands.why import explained

    return None if told is None else {**explained(told[0], now), "text": told[1]}


HEADS = ("ID", "STATE", "TRIES", "PRIO", "COMMAND", "WAITING / ERROR")
WORK_HEADS = (*HEADS[:4], "TASK", HEADS[-1])


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
