"""Finds by its name what a queue holds, a job or a queue, and says so where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from runcue.cli.failure import Failure, not_found
from runcue.cli.fields import job_id
from runcue.cli.home import Home
from runcue.cli.screen import clean, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    import runcue

SOME = 1000
"""How many of the latest jobs are looked at for a name that is like another, or for their queues."""


@contextmanager
def the_job(home: Home, id: str) -> Iterator[tuple[runcue.Reader, runcue.Work, dict[str, Any]]]:
    """The queue, one job in it, and its row of the jobs view; exit code 6 when there is no such job."""
    job_id(id)
    if not home.exists:
        raise no_queue(home)
    with home.reader() as reader:
        work, rows = reader.get(id), reader.jobs(ids=[id], limit=1)
        if work is None or not rows:
            raise no_job(home, id)
        yield reader, work, rows[0]


def no_queue(home: Home) -> Failure:
    """There is no queue yet, so there is nothing that could be meant."""
    return not_found(f"There are no jobs in {shown(home.path)} yet. Add one: queuectl enqueue -- echo hello")


def no_job(home: Home, id: str, purpose: str = "") -> Failure:
    """There is no job of that id: the nearest one, if any is near."""
    from difflib import get_close_matches  # only mistakes need it

    near = get_close_matches(id, _latest(home), n=1)
    advice = f"Did you mean {clean(near[0])}?" if near else "See them: queuectl list"
    return not_found(f"No job {id}{purpose}. {advice}")


@lru_cache(maxsize=1)
def _latest(home: Home) -> list[str]:
    """The ids of the latest jobs; many names may be wrong at once."""
    if not home.exists:
        return []
    with home.reader() as reader:
        return [job["id"] for job in reader.jobs(limit=SOME)]


def queues(reader: runcue.Reader) -> set[str]:
    """The queues that are known: those of the latest jobs and of workers, and what is paused."""
    served = [name for worker in reader.workers() for name in worker["queues"] or ()]
    return {*served, *(work.queue for work in reader.list(limit=SOME)), *reader.paused()}
