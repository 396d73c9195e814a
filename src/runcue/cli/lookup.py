"""Finds a job by its id, and the names of the queues; suggests the nearest id where there is no such job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from runcue.cli.failure import Failure, not_found
from runcue.cli.place import Place, look
from runcue.cli.screen import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    import runcue

SOME = 1000
"""How many of the newest jobs are searched for a similar id, or for the names of queues."""


@contextmanager
def the_job(
    place: Place, id: str, *, raw: bool = False
) -> Iterator[tuple[runcue.Reader, runcue.Work, dict[str, Any]]]:
    """The queue, one job in it, and its row, with its secrets if `raw`; exit code 6 when there is no such job."""
    place.check_id(id)
    with look(place) as reader:
        work, rows = reader.get(id), place.rows(reader, ids=[id], limit=1, raw=raw)
        if work is None or not rows:
            raise no_job(place, id)
        yield reader, work, rows[0]


def no_job(place: Place, id: str, purpose: str = "") -> Failure:
    """The failure where no job has that id; it names a job with a similar id, if there is one."""
    from difflib import get_close_matches  # only mistakes need it

    near = get_close_matches(id, _latest(place), n=1)
    advice = f"Did you mean {clean(near[0])}?" if near else f"See them: {place.words.do('list')}"
    return not_found(f"No {place.words.one} {clean(id)}{purpose}. {advice}")


@lru_cache(maxsize=1)
def _latest(place: Place) -> list[str]:
    """The ids of the newest jobs; cached, as a command may name many wrong ids."""
    if not place.exists:
        return []
    with place.reader() as reader:
        return [work.id for work in reader.list(limit=SOME)]


def queues(reader: runcue.Reader) -> set[str]:
    """The names of known queues: of the newest jobs, of workers, and of paused queues."""
    served = [name for worker in reader.workers() for name in worker["queues"] or ()]
    return {*served, *(work.queue for work in reader.list(limit=SOME)), *reader.paused()}
