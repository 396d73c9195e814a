"""`queuectl dlq`: dead jobs, whose last attempt failed. They are kept until they are retried or purged."""

from __future__ import annotations

from collections.abc import Sequence

import click

from runcue.cli.completion import dead_job
from runcue.cli.failure import Failure, bad_input, conflict
from runcue.cli.fields import job_id
from runcue.cli.groups import family
from runcue.cli.home import Home
from runcue.cli.pages import Pages, by_id, limited, most_of, show_none
from runcue.cli.place import MANY, Row, ask, end, migrated
from runcue.cli.reasons import told, tries
from runcue.cli.retries import complaint, confirm, each, requeue, summed
from runcue.cli.screen import counted, in_table, say, show_json_array, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runcue import Cue


@family("dlq", examples=["queuectl dlq list", "queuectl dlq retry --all", "queuectl dlq purge job1"])
def command() -> None:
    """List, retry or purge dead jobs: those whose last attempt failed."""


@command.command("list", examples=["queuectl dlq list", "queuectl dlq list --json | jq length"])
@limited("dead jobs")
@click.option("--json", "as_json", is_flag=True, help="Print an array of objects, as in the jobs view.")
@click.pass_obj
def list_dead(home: Home, limit: int, everything: bool, as_json: bool) -> None:
    """List dead jobs, newest first, and why they died."""
    most = most_of(limit, everything)
    if not home.exists:
        show_none("No dead jobs.", as_json=as_json)
        return
    with home.reader() as reader:
        pages = Pages(
            lambda limit, before: home.rows(reader, "dead", limit=limit, before=before), most, by_id
        )
        if as_json:
            shown = show_json_array(pages.rows())
        else:
            shown = table(("ID", "TRIES", "DIED", "COMMAND", "ERROR"), map(_row, pages.rows()))
    pages.conclude(shown, "No dead jobs.", as_json=as_json)


def _row(job: Row) -> tuple[str, ...]:
    died = in_table(str(job["updated_at"]))
    return job["id"], tries(job), died, job["command"], told(job["last_error"])


@command.command(
    "retry",
    examples=["queuectl dlq retry job1", "queuectl dlq retry job1 --cascade", "queuectl dlq retry --all"],
)
@click.argument("ids", nargs=-1, metavar="[ID…]", shell_complete=dead_job)
@click.option("--all", "everything", is_flag=True, help="Retry every dead job.")
@click.option("--cascade", is_flag=True, help="Also all jobs that are dead because one of these is.")
@click.pass_obj
def retry(home: Home, ids: tuple[str, ...], everything: bool, cascade: bool) -> None:
    """Retry dead jobs, each with all its attempts.

    Each job that a retried job runs after must still exist and not be dead or cancelled, or be retried with it.
    """
    if bool(ids) is everything:
        raise bad_input("Say which: ids, or --all." if not ids else "Give ids or --all, not both.")
    if everything and cascade:
        raise bad_input("--all retries every dead job. Leave --cascade out.")
    wanted = [job_id(one) for one in dict.fromkeys(ids)]
    if everything:
        wanted = _dead(home)
    requeue(home, wanted, everything=everything, cascade=cascade)


@command.command(
    "purge",
    examples=[
        "queuectl dlq purge --dry-run",
        "queuectl dlq purge job1 job2",
        "queuectl dlq purge --all --yes",
    ],
)
@click.argument("ids", nargs=-1, metavar="[ID…]", shell_complete=dead_job)
@click.option("--all", "everything", is_flag=True, help="Delete every dead job, as without ids.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask; needed where there is no terminal to ask on.")
@click.option("--dry-run", is_flag=True, help="Print the ids of what would be deleted, and delete nothing.")
@click.pass_obj
def purge(home: Home, ids: tuple[str, ...], everything: bool, yes: bool, dry_run: bool) -> None:
    """Delete dead jobs and what they printed, for good."""
    if ids and everything:
        raise bad_input("Give ids or --all, not both.")
    wanted = [job_id(one) for one in dict.fromkeys(ids)]
    failures: list[Failure] = []
    if ids:
        failures = _not_dead(home, wanted)
        end(home, failures)
    else:
        wanted = _dead(home)
    if dry_run:
        for one in wanted:
            say(one)
        return
    if wanted:
        what, they = counted(len(wanted), "dead job"), "it" if len(wanted) == 1 else "they"
        question = f"Delete {what} and what {they} printed, for good?"
        confirm(question, f"This would delete {what} for good.", "Nothing was deleted.", yes=yes)
        failures = ask(home, lambda cue: _purged(cue, wanted))
    say(summed("Purged", len(wanted) - len(failures), len(failures), "job"))
    if ids:
        end(home, failures)


def _dead(home: Home) -> list[str]:
    """The ids of all dead jobs, oldest first."""
    if not home.exists:
        return []
    with migrated(home) as reader:
        return [job["id"] for job in reversed(reader.jobs("dead", limit=MANY))]


def _not_dead(home: Home, ids: Sequence[str]) -> list[Failure]:
    with migrated(home) as reader:
        found = ((one, reader.get(one)) for one in ids)
        return [failure for one, work in found if (failure := complaint(home, one, work)) is not None]


async def _purged(cue: Cue, ids: Sequence[str]) -> list[Failure]:
    """Purge these jobs; returns a failure for each that was no longer dead."""
    answers = await each(cue.purge, ids)
    return [
        conflict(f"{one} is no longer dead: somebody else has just retried or purged it.")
        for one, was_dead in zip(ids, answers, strict=True)
        if not was_dead
    ]
