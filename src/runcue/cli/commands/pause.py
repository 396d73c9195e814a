"""`queuectl pause`: nothing more starts in a queue or on a service until `queuectl resume`. What runs goes on."""

from __future__ import annotations

import click

from runcue.cli.completing import queue_or_service
from runcue.cli.failure import bad_input, not_found
from runcue.cli.fields import name as checked_name
from runcue.cli.fields import said
from runcue.cli.groups import verb
from runcue.cli.home import Home
from runcue.cli.jobs import ask, no_queue
from runcue.cli.screen import clean, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runcue import Cue, Reader

DEFAULT = "default"
SOME = 1000
"""How many of the latest jobs are asked for the names of their queues."""


@verb("pause", examples=["queuectl pause openai", "queuectl pause default", "queuectl pause --queue night"])
@click.argument("name", metavar="QUEUE|SERVICE", shell_complete=queue_or_service)
@click.option("--queue", "is_queue", is_flag=True, help="It is a queue, even if no job uses it yet.")
@click.pass_obj
def command(home: Home, name: str, is_queue: bool) -> None:
    """Start nothing more in a queue or on a service. What runs goes on."""
    kind = hold(home, name, is_queue, is_paused=True)
    say(f"Paused {kind} {clean(name)}. Go on with: queuectl resume {clean(name)}")


def hold(home: Home, name: str, is_queue: bool, *, is_paused: bool) -> str:
    """Pause or resume what is meant; whether it is a service or a queue."""
    name = checked_name("name", name)
    services: set[str] = set()
    queues = {DEFAULT}
    if home.exists:
        with home.reader() as reader:
            services = {one["name"] for one in reader.services()}
            queues |= _queues(reader, name)
    elif not is_queue:
        raise no_queue(home)
    if is_queue and name in services:
        raise bad_input(f"{said(name)} is a service, which no queue can be told from. Leave --queue out.")
    if not is_queue and name not in services | queues:
        raise _unknown(name, services | queues)

    async def change(cue: Cue, _: object) -> None:
        await (cue.pause if is_paused else cue.resume)(name)

    ask(home, change, may_create=is_queue)
    return "service" if name in services else "queue"


def _queues(reader: Reader, name: str) -> set[str]:
    """The queues that are known: those of jobs and workers, and what is paused."""
    served = [one for worker in reader.workers() for one in worker["queues"] or ()]
    used = [work.queue for work in reader.list(limit=SOME)]
    older = [name] if reader.jobs(queue=name, limit=1) else []
    return {*served, *used, *older, *reader.paused()}


def _unknown(name: str, known: set[str]) -> Exception:
    from difflib import get_close_matches  # only mistakes need it

    near = get_close_matches(name, sorted(known), n=3, cutoff=0.5)
    advice = "Did you mean" if near else "There are"
    names = ", ".join(map(said, near or sorted(known)[:8]))
    return not_found(
        f"No service or queue {said(name)}. {advice}: {names}. For a queue that no job uses yet, add --queue."
    )
