"""`queuectl why`: what keeps a job from running, until when, and what to do about it."""

from __future__ import annotations

import click

from runcue.cli.completing import any_job
from runcue.cli.groups import verb
from runcue.cli.home import Home


@verb("why", examples=["queuectl why job1", "queuectl why job1 --json"])
@click.argument("id", shell_complete=any_job)
@click.option(
    "--json", "as_json", is_flag=True, help="Print an object: reason, until, ahead, service, waits_for."
)
@click.pass_obj
def command(home: Home, id: str, as_json: bool) -> None:
    """Say why a job does not run, what is ahead of it, until when, and what to do."""
    from runcue.cli.looking import explained, the_job
    from runcue.cli.reasons import Crew, sentence
    from runcue.cli.screen import say, show_json

    with the_job(home, id) as (reader, work, job):
        why, now, crew = reader.explain(id), reader.now(), Crew(reader.workers())
    text = sentence(why, job, now, crew, work.queue)
    if as_json:
        show_json({"id": id, "state": job["state"], **explained(why, now), "text": text})
    else:
        say(text)
