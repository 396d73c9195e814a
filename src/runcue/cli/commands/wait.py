"""`queuectl wait`: returns when jobs have ended, whoever runs them.

It only reads the queue, a few times a second and a few jobs at a time, so waiting takes little time from the workers.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable

import click

from runcue.cli.completion import live_job
from runcue.cli.failure import JOB_FAILED, TIMED_OUT, Failure, bad_input, not_found
from runcue.cli.fields import duration, job_id
from runcue.cli.groups import verb
from runcue.cli.home import Home
from runcue.cli.jobs import was_ended
from runcue.cli.lookup import no_job
from runcue.cli.place import MANY, ask, end
from runcue.cli.reasons import Crew
from runcue.cli.screen import STATE_COLORS, counted, is_terminal, note, reason_of, say, span, styled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runcue import Reader, Work

SHORTEST = 0.02
LONGEST = 0.25
"""Seconds between two looks: the first after a job ended, growing to the second while none ends."""
SOME = 64
"""How many jobs are read in one look."""
NAMED = 5
LIVE = ("pending", "failed", "processing")


@verb(
    "wait", examples=["queuectl wait job1 job2 && echo both completed", "queuectl wait --all --timeout 10m"]
)
@click.argument("ids", nargs=-1, metavar="[ID…]", shell_complete=live_job)
@click.option("--all", "everything", is_flag=True, help="Wait until no job is left to run.")
@click.option("--timeout", metavar="TIME", help="Wait no longer than this: 90, 90s, 5m, 2h.")
@click.pass_obj
def command(home: Home, ids: tuple[str, ...], everything: bool, timeout: str | None) -> None:
    """Wait for jobs to end, and print a line for each.

    Exit code 0 when all completed, 1 when one is dead or cancelled, 124 when it took too long.
    """
    if bool(ids) is everything:
        raise bad_input("Say what to wait for: ids, or --all." if not ids else "Give ids or --all, not both.")
    wanted = [job_id(one) for one in dict.fromkeys(ids)]
    limit = math.inf if timeout is None else duration("--timeout", timeout)
    if not home.exists:
        if everything:
            return
        raise home.nothing()
    with home.reader() as reader:
        watch = _Watch(home, reader, limit)
        end(home, [_missing(home, reader, one) for one in wanted if reader.get(one) is None])
        if wanted:
            watch.wait_for(wanted, may_have_ended=True)
        while everything and (left := _unfinished(reader)):
            watch.wait_for(left, may_have_ended=False)
    if watch.failed:
        raise Failure("", JOB_FAILED)


def _missing(home: Home, reader: Reader, one: str) -> Failure:
    if _is_noted(reader, one):
        return not_found(f"{one} has ended and is no longer kept.")
    return no_job(home, one)


def _is_noted(reader: Reader, one: str) -> bool:
    """For an id without a job: True when the queue still knows that the job ended."""
    from runcue import WorkNotFound

    try:
        reader.explain(one)
    except WorkNotFound as error:
        return error.forgotten
    return False


def _unfinished(reader: Reader) -> list[str]:
    return [job["id"] for state in LIVE for job in reversed(reader.jobs(state, limit=MANY))]


class _Watch:
    """Reads jobs until they have ended, and counts those that did not complete."""

    def __init__(self, home: Home, reader: Reader, limit: float) -> None:
        self._home = home
        self._reader = reader
        self._cancelled = reader.job_counts()["cancelled"]
        self._limit = limit
        self._until = time.monotonic() + limit
        self._has_hinted = not is_terminal()
        self.failed = 0

    def wait_for(self, ids: Iterable[str], *, may_have_ended: bool) -> None:
        """Return when all of these have ended; `may_have_ended` has all of them read once before any pause."""
        left, pause = deque(ids), SHORTEST
        unseen = len(left) if may_have_ended else 0
        while left:
            number = len(left)
            unseen -= min(number, SOME)
            for _ in range(min(number, SOME)):
                one = left.popleft()
                work = self._reader.get(one)
                if work is not None and not work.state.is_final:
                    left.append(one)
                else:
                    self._ended(one, work)
            if not left or unseen > 0:
                continue
            rest = self._until - time.monotonic()
            if rest <= 0:
                raise self._too_long(left)
            pause = min(pause * 1.5, LONGEST) if len(left) == number else SHORTEST
            self._hint()
            time.sleep(min(pause, rest))

    def _ended(self, one: str, work: Work | None) -> None:
        from runcue import mask

        if work is None:
            self._vanished(one)
            return
        word = self._home.words.state_of(work)
        self.failed += word != "completed"
        text = f"{one} {styled(word, fg=STATE_COLORS.get(word))}"
        if word == "completed" and work.started_at is not None and work.completed_at is not None:
            text += f" in {span(work.completed_at - work.started_at)}"
        elif word == "dead":
            tries = f" after {counted(work.failures, 'attempt')}" if work.failures else ""
            text += f"{tries}: {reason_of(mask(work.error))}"
        say(text)

    def _vanished(self, one: str) -> None:
        """Print what is known of a job that ended between two looks and is no longer kept."""
        if _is_noted(self._reader, one):  # completed or cancelled: cancelled if the count of those grew
            is_known = self._reader.job_counts()["cancelled"] == self._cancelled
        elif ask(self._home, lambda cue: was_ended(cue, one)):  # the Cue knows of jobs that completed, too
            is_known = True
        else:
            self.failed += 1
            say(f"{one} is gone: it was purged")
            return
        self.failed += not is_known
        say(
            f"{one} completed, and is no longer kept"
            if is_known
            else f"{one} has ended; whether it completed is no longer known"
        )

    def _too_long(self, left: Iterable[str]) -> Failure:
        names = list(left)
        more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
        shown = ", ".join(names[:NAMED])
        return Failure(f"Not ended after {span(self._limit)}: {shown}{more}. See: queuectl list", TIMED_OUT)

    def _hint(self) -> None:
        """Say once, on a terminal, that no worker is running."""
        if not self._has_hinted:
            self._has_hinted = True
            if not Crew(self._reader.workers()).serves(None):
                note("No worker is running. Start one elsewhere: queuectl worker start")
