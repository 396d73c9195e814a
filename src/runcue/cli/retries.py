"""Retries dead jobs: those that others depend on first, and with a reason for each that cannot be retried."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import click

from runcue.cli.failure import Failure, bad_input, conflict
from runcue.cli.jobs import was_ended
from runcue.cli.lookup import no_job
from runcue.cli.place import Place, ask, end
from runcue.cli.screen import clean, counted, note, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runcue import Cue, Work

T = TypeVar("T")

NAMED = 10
"""How many of the skipped jobs are named after all were to be retried."""
AT_ONCE = 500
"""How many jobs are changed at once, so that they share a commit."""


def requeue(place: Place, ids: Sequence[str], *, everything: bool, cascade: bool = False) -> None:
    """Retry these jobs and print how many were; raises, or with `everything` prints, why others were not.

    With `cascade` also the jobs that are dead because one of these is.
    """
    failures = ask(place, lambda cue: _retried(place, cue, ids, cascade=cascade)) if ids else []
    done = len(ids) - len(failures)
    text = summed("Requeued", done, len(failures), place.words.one)
    more = f", and what {place.words.had_died} because of {'it' if done == 1 else 'them'}"
    say(f"{text}{more}" if cascade and done else text)
    if not everything:
        end(place, failures)
    for failure in failures[:NAMED]:
        note(clean(failure.text))
    if len(failures) > NAMED:
        note(f"and {len(failures) - NAMED:,} more")


async def _retried(place: Place, cue: Cue, ids: Sequence[str], *, cascade: bool) -> list[Failure]:
    """Retry these jobs, prerequisites first; returns the reason for each that could not be retried."""
    from graphlib import TopologicalSorter

    works = dict(zip(ids, await each(cue.get, ids), strict=True))
    complaints = {one: complaint(place, one, work) for one, work in works.items()}
    failures = {one: found for one, found in complaints.items() if found is not None}
    needs = {one: work.depends_on for one, work in works.items() if work is not None and one not in failures}
    lost = await _lost(place, cue, {need for after in needs.values() for need in after if need not in needs})
    order = []
    for one in TopologicalSorter(needs).static_order():
        need = next((need for need in needs.get(one, ()) if need in lost or need in failures), None)
        if need is not None and one in needs:
            failures[one] = conflict(f"{one} runs after {need}, which is {lost.get(need, 'not retried')}.")
        elif one in needs:
            order.append(one)
    answers = await each(lambda one: _retry(place, cue, one, cascade=cascade), order)
    return [*failures.values(), *(failure for failure in answers if failure is not None)]


def complaint(place: Place, one: str, work: Work | None) -> Failure | None:
    """Why a job cannot be retried; None when it can."""
    if work is None:
        return no_job(place, one)
    if work.state in place.words.may_retry:
        return None
    return conflict(f"{clean(one)} is {place.words.state_of(work)}, not {place.words.dead}.")


async def each(question: Callable[[str], Awaitable[T]], ids: Sequence[str]) -> list[T]:
    """The results of a coroutine function for each of these ids, in their order; many run at a time."""
    import asyncio

    answers: list[T] = []
    for start in range(0, len(ids), AT_ONCE):
        answers += await asyncio.gather(*map(question, ids[start : start + AT_ONCE]))
    return answers


async def _lost(place: Place, cue: Cue, ids: set[str]) -> dict[str, str]:
    """The jobs among these after which nothing can run, and why: dead, cancelled, or no longer there."""
    works = dict(zip(ids, await each(cue.get, [*ids]), strict=True))
    missing = [one for one, work in works.items() if work is None]
    ended = await each(lambda one: was_ended(cue, one), missing)
    lost = {one: "no longer there" for one, has_ended in zip(missing, ended, strict=True) if not has_ended}
    return lost | {
        work.id: place.words.state_of(work)
        for work in works.values()
        if work is not None and work.state in {"failed", "cancelled"}
    }


async def _retry(place: Place, cue: Cue, one: str, *, cascade: bool) -> Failure | None:
    from runcue import DuplicateWork, WorkNotFound

    try:
        if await cue.retry(one, cascade=cascade) or cascade:  # another of these has brought it back with it
            return None
    except WorkNotFound:
        return no_job(place, one)
    except DuplicateWork as error:
        if error.is_unique:
            return conflict(f"{one} counts as the same as {error.work_id}, which is {error.state}.")
        return conflict(f"{one} shares its key with {error.work_id}, which was enqueued later.")
    return conflict(f"{one} is no longer {place.words.dead}: somebody else has just retried it.")


# words ----------------------------------------------------------------------------------------------------


def confirm(question: str, warning: str, refusal: str, *, yes: bool) -> None:
    """Ask for confirmation on a terminal; elsewhere --yes is required."""
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise bad_input(f"{warning} Add --yes if that is meant, or see --dry-run.")
    if not click.confirm(question, err=True):
        raise bad_input(refusal)


def summed(verb: str, done: int, skipped: int, one: str) -> str:
    """A summary such as `Requeued 2 jobs, skipped 1`."""
    text = f"{verb} {counted(done, one)}"
    return f"{text}, skipped {skipped:,}" if skipped else text
