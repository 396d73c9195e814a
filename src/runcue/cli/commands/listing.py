"""`queuectl list` and `runcue list`: the newest jobs, and why those that wait do so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from runcue.cli.choice import choosing, chosen
from runcue.cli.commands.why import explained
from runcue.cli.completion import queue
from runcue.cli.failure import bad_input
from runcue.cli.fields import unicode
from runcue.cli.groups import verb
from runcue.cli.home import Home
from runcue.cli.pages import Pages, by_id, limited, most_of, show_none
from runcue.cli.place import File, hiding, look, on_file, row_of
from runcue.cli.reasons import Crew, told, tries, waits
from runcue.cli.screen import cut, is_terminal, moment, show_csv, show_json_array, table
from runcue.cli.words import QUEUECTL, Words

TYPE_CHECKING = False
if TYPE_CHECKING:
    import runcue
    from runcue.cli.reasons import Crew

SHORT_COMMAND = 60
SHORT_ERROR = 60
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
@limited("jobs")
@click.option("--json", "as_json", is_flag=True, help="Print an array of objects, as in the jobs view.")
@click.option("--raw", is_flag=True, help=RAW)
@click.pass_obj
def command(
    home: Home, state: str | None, queue: str | None, limit: int, everything: bool, as_json: bool, raw: bool
) -> None:
    """List jobs, newest first, and why they wait.

    In a pipe the columns are separated by tabs and there is no heading. Secrets are shown as
    ***, in JSON as well, unless --raw asks for them.
    """
    most = most_of(limit, everything)
    if queue is not None:
        unicode("queue", queue)
    if not home.exists:
        show_none("No jobs yet. Start with: queuectl enqueue -- echo hello", as_json=as_json)
        return
    with home.reader() as reader:
        pages = Pages(
            lambda limit, before: home.rows(reader, state, queue=queue, limit=limit, before=before, raw=raw),
            most,
            by_id,
        )
        if as_json:
            shown = show_json_array(pages.rows())
        else:
            crew = Crew(reader.workers())
            shown = table(HEADS, (row for page in pages for row in _rows(reader, page, crew, home.words)))
    chosen = state is not None or queue is not None
    none = "No such jobs." if chosen else "No jobs. Add one: queuectl enqueue -- echo hello"
    pages.conclude(shown, none, as_json=as_json)


@on_file(
    "list",
    examples=[
        "runcue list queue.db --state failed",
        "runcue list queue.db --tag run=nightly --state failed --since 2h",
        "runcue list queue.db --json | jq -r '.[].id'",
    ],
)
@choosing()
@limited("units")
@click.option(
    "--json", "as_json", is_flag=True, help="Print an array of objects, with all that is known of each."
)
@click.option("--csv", "as_csv", is_flag=True, help="Print the same as CSV, with a heading.")
@click.option("--raw", is_flag=True, help=RAW)
def list_file(
    place: File, limit: int, everything: bool, as_json: bool, as_csv: bool, raw: bool, **wanted: Any
) -> None:
    """List units, newest first, and why they wait.

    In a pipe the columns are separated by tabs and there is no heading. Secrets are shown as
    ***, in JSON as well, unless --raw asks for them.
    """
    if as_json and as_csv:
        raise bad_input("Give --json or --csv, not both.")
    most, which = most_of(limit, everything), chosen(wanted)
    with look(place) as reader:
        pages = Pages(
            lambda limit, before: reader.list(limit=limit, before=before, **which),
            most,
            lambda work: work.id,
        )
        crew, words = Crew(reader.workers()), place.words
        found = (one for page in pages for one in _summaries(reader, page, crew, words, raw=raw))
        if as_json:
            shown = show_json_array(found)
        elif as_csv:
            shown = show_csv((*FIELDS, "why"), found)
        else:
            rows = ([row_of(work, raw=raw) for work in page] for page in pages)
            shown = table(WORK_HEADS, (row for page in rows for row in _rows(reader, page, crew, words)))
    none = "No such units." if which else f"No units. {place.words.add}"
    pages.conclude(shown, none, as_json=as_json or as_csv)


def _summaries(
    reader: runcue.Reader, works: Sequence[runcue.Work], crew: Crew, words: Words, *, raw: bool
) -> Iterator[dict[str, Any]]:
    """Units of a list as data, and why each waits."""
    now = reader.now()
    told = waits(reader, [row_of(work, raw=raw) for work in works], now, crew, words)
    for work in works:
        why = {**explained(told[work.id][0], now), "text": told[work.id][1]} if work.id in told else None
        yield {**summary(work, raw=raw), "why": why}


def summary(work: runcue.Work, *, raw: bool = False) -> dict[str, Any]:
    """A unit in a list, as data: everything but its history, and what few units are submitted with."""
    hide = hiding(raw)
    return {
        "id": work.id,
        "task": work.task,
        "label": hide(work.label),
        "idempotency_key": hide(work.idempotency_key),
        "group": work.group,
        "tags": hide(work.tags),
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
        "params": hide(work.params),
        "result": hide(work.result),
        "error": hide(work.error),
    }


FIELDS = (
    "id", "task", "label", "idempotency_key", "group", "tags", "target", "queue", "state", "attempt", "failures",
    "priority", "services", "worker", "created_at", "run_at", "next_retry_at", "started_at", "completed_at",
    "skipped", "params", "result", "error",
)  # fmt: skip
"""The names of a summary, in order."""
HEADS = ("ID", "STATE", "TRIES", "PRIO", "COMMAND", "WAITING / ERROR")
WORK_HEADS = (*HEADS[:4], "TASK", "UNIT", HEADS[-1])


def _rows(
    reader: runcue.Reader, jobs: Sequence[Mapping[str, Any]], crew: Crew, words: Words
) -> Iterator[tuple[str, ...]]:
    """Jobs as rows of a table, and why each waits."""
    told = waits(reader, jobs, reader.now(), crew, words)
    for job in jobs:
        yield _row(job, told[job["id"]][1] if job["id"] in told else "")


def _row(job: Mapping[str, Any], said: str) -> tuple[str, ...]:
    command, error = job["command"], told(job["last_error"]) if job["last_error"] else ""
    if error == job["state"]:
        error = ""
    if is_terminal():
        command, error = cut(command, SHORT_COMMAND), cut(error, SHORT_ERROR)
    if said and error:
        said = f"{said}: {error}"
    known = (
        () if "title" not in job else (cut(job["title"], SHORT_COMMAND) if is_terminal() else job["title"],)
    )
    return job["id"], job["state"], tries(job), f"{job['priority']:g}", command, *known, said or error
