"""`queuectl pause` and `queuectl resume`: nothing more starts in a queue or on a service until it is let go on."""

from __future__ import annotations

import click

from runcue.cli.completing import queue_or_service
from runcue.cli.failure import bad_input, not_found
from runcue.cli.fields import name as checked_name
from runcue.cli.fields import said
from runcue.cli.groups import verb
from runcue.cli.home import Home
from runcue.cli.jobs import ask, reading
from runcue.cli.lookup import no_queue, queues
from runcue.cli.screen import clean, say, typed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runcue import Cue

DEFAULT = "default"


@verb("pause", examples=["queuectl pause openai", "queuectl pause default", "queuectl pause --queue night"])
@click.argument("name", metavar="QUEUE|SERVICE", shell_complete=queue_or_service)
@click.option("--queue", "is_queue", is_flag=True, help="It is a queue, even if no job uses it yet.")
@click.pass_obj
def command(home: Home, name: str, is_queue: bool) -> None:
    """Start nothing more in a queue or on a service. What runs goes on."""
    kind = _hold(home, name, is_queue, is_paused=True)
    say(f"Paused {kind} {clean(name)}. Go on with: queuectl resume {typed(name)}")


@verb("resume", examples=["queuectl resume openai", "queuectl resume default"])
@click.argument("name", metavar="QUEUE|SERVICE", shell_complete=queue_or_service)
@click.option("--queue", "is_queue", is_flag=True, help="It is a queue, even if no job uses it yet.")
@click.pass_obj
def resume(home: Home, name: str, is_queue: bool) -> None:
    """Let a queue or a service go on."""
    say(f"Resumed {_hold(home, name, is_queue, is_paused=False)} {clean(name)}")


def _hold(home: Home, name: str, is_queue: bool, *, is_paused: bool) -> str:
    """Pause or resume what is meant; whether it is a service or a queue."""
    name = checked_name("name", name)
    services: set[str] = set()
    known = {DEFAULT}
    if home.exists:
        with reading(home) as reader:
            services = {one["name"] for one in reader.services()}
            known |= queues(reader)
            if reader.jobs(queue=name, limit=1):
                known.add(name)
    elif not is_queue:
        raise no_queue(home)
    if is_queue and name in services:
        raise bad_input(f"{said(name)} is a service, which no queue can be told from. Leave --queue out.")
    if not is_queue and name not in services | known:
        raise _unknown(name, services | known)

    async def change(cue: Cue, _: object) -> None:
        await (cue.pause if is_paused else cue.resume)(name)

    ask(home, change, may_create=is_queue)
    return "service" if name in services else "queue"


def _unknown(name: str, known: set[str]) -> Exception:
    from difflib import get_close_matches  # only mistakes need it

    near = get_close_matches(name, sorted(known), n=3, cutoff=0.5)
    advice = "Did you mean" if near else "There are"
    names = ", ".join(map(said, near or sorted(known)[:8]))
    return not_found(
        f"No service or queue {said(name)}. {advice}: {names}. For a queue that no job uses yet, add --queue."
    )
