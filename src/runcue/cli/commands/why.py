"""`queuectl why` and `runcue explain`: what keeps a job from running, until when, and what to do about it."""

from __future__ import annotations

import time
from typing import Any

import click

from runcue.cli import reasons
from runcue.cli.completion import any_job, any_work
from runcue.cli.groups import verb
from runcue.cli.home import Home
from runcue.cli.lookup import the_job
from runcue.cli.place import File, Place, on_file
from runcue.cli.screen import moment, say, show_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    import runcue

AS_JSON = "Print an object: reason, until, ahead, service, waits_for."


@verb("why", examples=["queuectl why job1", "queuectl why job1 --json"])
@click.argument("id", shell_complete=any_job)
@click.option("--json", "as_json", is_flag=True, help=AS_JSON)
@click.pass_obj
def command(home: Home, id: str, as_json: bool) -> None:
    """Say why a job does not run, what is ahead of it, until when, and what to do."""
    _explain(home, id, as_json)


@on_file("explain", examples=["runcue explain queue.db page-7", "runcue explain queue.db page-7 --json"])
@click.argument("id", shell_complete=any_work)
@click.option("--json", "as_json", is_flag=True, help=AS_JSON)
def explain(place: File, id: str, as_json: bool) -> None:
    """Say why a unit does not run, what is ahead of it, until when, and what to do.

    The callbacks of its program are not called: they may have it wait for a reason that is not shown.
    """
    _explain(place, id, as_json)


def _explain(place: Place, id: str, as_json: bool) -> None:
    with the_job(place, id) as (reader, work, job):
        why, now, text = reasons.explained(reader, work, job, place.words)
    if as_json:
        show_json({"id": id, "state": job["state"], **explained(why, now), "text": text})
    else:
        say(text)


def explained(why: runcue.Explanation, now: float) -> dict[str, Any]:
    """An explanation as data: `until` is a time, `seconds` the time left until then."""
    from runcue import mask

    left = None if why.until is None else max(0.0, why.until - now)
    return {
        "reason": why.reason,
        "details": mask(why.details),
        "until": None if left is None else moment(time.time() + left),
        "seconds": None if left is None else round(left, 3),
        "ahead": why.ahead,
        "service": why.service,
        "waits_for": list(why.waits_for),
        "expires_at": None
        if why.expires_at is None
        else moment(time.time() + max(0.0, why.expires_at - now)),
    }
