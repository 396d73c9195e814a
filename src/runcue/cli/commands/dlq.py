"""`queuectl dlq`: the dead jobs, which had their last attempt. They stay until they are retried or purged."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import click

from runcue.cli.completing import dead_job
from runcue.cli.failure import Failure, bad_input, conflict
from runcue.cli.fields import job_id
from runcue.cli.groups import Verb, family
from runcue.cli.home import Home
from runcue.cli.jobs import ask, end, reading, was_ended, word_of
from runcue.cli.lookup import no_job, no_queue
from runcue.cli.screen import counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runcue import Cue, Work

T = TypeVar("T")

MANY = 1_000_000
NAMED = 10
"""How many of those that were skipped are named where all were meant."""
AT_ONCE = 500
"""How many jobs are asked for together, so that they share a commit."""


@family("dlq", examples=["queuectl dlq list", "queuectl dlq retry --all", "queuectl dlq purge job1"])
def command() -> None:
    """List, retry or purge dead jobs: those that failed as often as they may."""


@command.command("list", cls=Verb, examples=["queuectl dlq list", "queuectl dlq list --json | jq length"])
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="At most so many jobs."
)
@click.option("--json", "as_json", is_flag=True, help="Print an array of objects, as in the jobs view.")
@click.pass_obj
def list_dead(home: Home, limit: int, as_json: bool) -> None:
    """List dead jobs, newest first, and why they died."""
    from runcue.cli.screen import note, reason_of, show_json, table

    jobs: list[dict[str, Any]] = []
    if home.exists:
        with home.reader() as reader:
            jobs = reader.jobs("dead", limit=limit + 1)
    if as_json:
        show_json(jobs[:limit])
        return
    if not jobs:
        note("No dead jobs.")
        return
    rows = [
        (job["id"], str(job["attempts"]), _died(job), job["command"], reason_of(job["last_error"]))
        for job in jobs[:limit]
    ]
    table(("ID", "TRIES", "DIED", "COMMAND", "ERROR"), rows)
    if len(jobs) > limit:
        note(f"There are more than these {limit:,}: use --limit.")


@command.command("retry", cls=Verb, examples=["queuectl dlq retry job1", "queuectl dlq retry --all"])
@click.argument("ids", nargs=-1, metavar="[ID…]", shell_complete=dead_job)
@click.option("--all", "everything", is_flag=True, help="Retry every dead job.")
@click.pass_obj
def retry(home: Home, ids: tuple[str, ...], everything: bool) -> None:
    """Have dead jobs tried again, each with all its attempts.

    What a job runs after has to be there still, or to be retried with it.
    """
    from runcue.cli.screen import clean, note, say

    if bool(ids) is everything:
        raise bad_input("Say which: ids, or --all." if not ids else "Give ids or --all, not both.")
    wanted = [job_id(one) for one in dict.fromkeys(ids)]
    if everything:
        wanted = _dead(home)
    failures = ask(home, lambda cue, _: _retried(home, cue, wanted)) if home.exists or wanted else []
    say(_sum("Requeued", len(wanted) - len(failures), len(failures)))
    if not everything:
        end(failures)
    for failure in failures[:NAMED]:
        note(clean(failure.text))
    if len(failures) > NAMED:
        note(f"and {len(failures) - NAMED:,} more")


@command.command(
    "purge",
    cls=Verb,
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
    from runcue.cli.screen import say

    if ids and everything:
        raise bad_input("Give ids or --all, not both.")
    wanted = [job_id(one) for one in dict.fromkeys(ids)]
    failures: list[Failure] = []
    if ids:
        failures = _not_dead(home, wanted)
        end(failures)
    else:
        wanted = _dead(home)
    if dry_run:
        for one in wanted:
            say(one)
        return
    if wanted:
        _confirm(len(wanted), yes)
        failures = ask(home, lambda cue, _: _purged(cue, wanted))
    say(_sum("Purged", len(wanted) - len(failures), len(failures)))
    if ids:
        end(failures)


def _dead(home: Home) -> list[str]:
    """The ids of all dead jobs, oldest first."""
    if not home.exists:
        return []
    with reading(home) as reader:
        return [job["id"] for job in reversed(reader.jobs("dead", limit=MANY))]


def _not_dead(home: Home, ids: Sequence[str]) -> list[Failure]:
    if not home.exists:
        raise no_queue(home)
    with reading(home) as reader:
        found = ((one, reader.get(one)) for one in ids)
        return [failure for one, work in found if (failure := _complaint(home, one, work)) is not None]


def _complaint(home: Home, one: str, work: Work | None) -> Failure | None:
    if work is None:
        return no_job(home, one)
    return None if work.state == "failed" else conflict(f"{one} is {word_of(work)}, not dead.")


def _confirm(number: int, yes: bool) -> None:
    if yes:
        return
    what = counted(number, "dead job")
    if sys.stdin is None or not sys.stdin.isatty():
        raise bad_input(f"This would delete {what} for good. Add --yes if that is meant, or see --dry-run.")
    if not click.confirm(
        f"Delete {what} and what {'it' if number == 1 else 'they'} printed, for good?", err=True
    ):
        raise bad_input("Nothing was deleted.")


async def _retried(home: Home, cue: Cue, ids: Sequence[str]) -> list[Failure]:
    """Those that could not be retried, and why. Of the others, what some run after is retried before them."""
    from graphlib import TopologicalSorter

    works = dict(zip(ids, await _each(cue.get, ids), strict=True))
    complaints = {one: _complaint(home, one, work) for one, work in works.items()}
    failures = {one: found for one, found in complaints.items() if found is not None}
    needs = {one: work.depends_on for one, work in works.items() if work is not None and one not in failures}
    lost = await _lost(cue, {need for after in needs.values() for need in after if need not in needs})
    order = []
    for one in TopologicalSorter(needs).static_order():
        need = next((need for need in needs.get(one, ()) if need in lost or need in failures), None)
        if need is not None and one in needs:
            failures[one] = conflict(f"{one} runs after {need}, which is {lost.get(need, 'not retried')}.")
        elif one in needs:
            order.append(one)
    answers = await _each(lambda one: _retry(home, cue, one), order)
    return [*failures.values(), *(failure for failure in answers if failure is not None)]


async def _lost(cue: Cue, ids: set[str]) -> dict[str, str]:
    """Those of these jobs that nothing can run after, and why: dead and cancelled ones, and those that are purged."""
    works = dict(zip(ids, await _each(cue.get, [*ids]), strict=True))
    missing = [one for one, work in works.items() if work is None]
    ended = await _each(lambda one: was_ended(cue, one), missing)
    lost = {one: "no longer there" for one, has_ended in zip(missing, ended, strict=True) if not has_ended}
    return lost | {
        work.id: word_of(work)
        for work in works.values()
        if work is not None and work.state in {"failed", "cancelled"}
    }


async def _each(question: Callable[[str], Awaitable[T]], ids: Sequence[str]) -> list[T]:
    """The answers for all of these, many asked for together; they are taken up in this order."""
    import asyncio

    answers: list[T] = []
    for start in range(0, len(ids), AT_ONCE):
        answers += await asyncio.gather(*map(question, ids[start : start + AT_ONCE]))
    return answers


async def _retry(home: Home, cue: Cue, one: str) -> Failure | None:
    from runcue import DuplicateWork, WorkNotFound

    try:
        if await cue.retry(one):
            return None
    except WorkNotFound:
        return no_job(home, one)
    except DuplicateWork as error:
        return conflict(f"{one} shares its key with {error.work_id}, which was enqueued later.")
    return conflict(f"{one} is no longer dead: somebody else has just retried it.")


def _died(job: dict[str, Any]) -> str:
    """When: to the second on a terminal, which has little room."""
    from runcue.cli.screen import is_terminal

    at = str(job["updated_at"])
    return f"{at[:10]} {at[11:19]}" if is_terminal() else at


def _sum(verb: str, done: int, skipped: int) -> str:
    text = f"{verb} {counted(done, 'job')}"
    return f"{text}, skipped {skipped:,}" if skipped else text


async def _purged(cue: Cue, ids: Sequence[str]) -> list[Failure]:
    """Those that were no longer dead."""
    answers = await _each(cue.purge, ids)
    return [
        conflict(f"{one} is no longer dead: somebody else has just retried or purged it.")
        for one, was_dead in zip(ids, answers, strict=True)
        if not was_dead
    ]
