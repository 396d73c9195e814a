"""What the verbs that read have in common: finding one job, and telling an explanation as data."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from runcue.cli.failure import bad_input, not_found
from runcue.cli.screen import clean, cut, moment

TYPE_CHECKING = False
if TYPE_CHECKING:
    import runcue
    from runcue.cli.home import Home

MOST_NEAR = 1000
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)


@contextmanager
def the_job(home: Home, id: str) -> Iterator[tuple[runcue.Reader, runcue.Work, dict[str, Any]]]:
    """The queue, one job in it, and its row of the jobs view; exit code 6 when there is no such job."""
    if not _ID.fullmatch(id):
        raise bad_input(
            f"'{cut(clean(id), 40)}' is no job id: letters, digits, '.', '_' and '-', at most 128, "
            "and a letter or digit first."
        )
    if not home.exists:
        raise not_found(f"No job {id}: nothing was enqueued yet. Start with: queuectl enqueue -- echo hello")
    with home.reader() as reader:
        work, rows = reader.get(id), reader.jobs(ids=[id], limit=1)
        if work is None or not rows:
            raise not_found(f"No job {id}.{_nearest(reader, id)}")
        yield reader, work, rows[0]


def _nearest(reader: runcue.Reader, id: str) -> str:
    from difflib import get_close_matches  # only mistakes need it

    near = get_close_matches(id, [job["id"] for job in reader.jobs(limit=MOST_NEAR)], n=1)
    return f" Did you mean {clean(near[0])}?" if near else " See them: queuectl list"


def explained(why: runcue.Explanation, now: float) -> dict[str, Any]:
    """An explanation as data: `until` as a time, `seconds` from now until then."""
    left = None if why.until is None else max(0.0, why.until - now)
    return {
        "reason": why.reason,
        "details": why.details,
        "until": None if left is None else moment(time.time() + left),
        "seconds": None if left is None else round(left, 3),
        "ahead": why.ahead,
        "service": why.service,
        "waits_for": list(why.waits_for),
    }
