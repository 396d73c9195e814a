"""`queuectl why`: what keeps a job from running, until when, and what to do about it."""

from __future__ import annotations

import time
from typing import Any

import click

from runcue.cli.completing import any_job
from runcue.cli.groups import verb
from runcue.cli.home import Home

TYPE_CHECKING = False
if TYPE_CHECKING:
    import runcue


@verb("why", examples=["queuectl why job1", "queuectl why job1 --json"])
@click.argument("id", shell_complete=any_job)
@click.option(
    "--json", "as_json", is_flag=True, help="Print an object: reason, until, ahead, service, waits_for."
)
@click.pass_obj
def command(home: Home, id: str, as_json: bool) -> None:
    """Say why a job does not run, what is ahead of it, until when, and what to do."""
    from runcue.cli.lookup import the_job
    from runcue.cli.reasons import Crew, again, sentence
    from runcue.cli.screen import say, show_json

    with the_job(home, id) as (reader, work, job):
        why, now, crew = reader.explain(id), reader.now(), Crew(reader.workers())
        way = again(reader, work)
    text = sentence(why, job, now, crew, work.queue, way)
    if as_json:
        show_json({"id": id, "state": job["state"], **_explained(why, now), "text": text})
    else:
        say(text)


def _explained(why: runcue.Explanation, now: float) -> dict[str, Any]:
    """An explanation as data: `until` as a time, `seconds` from now until then."""
    from runcue.cli.screen import moment

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
