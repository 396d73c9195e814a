"""`pause` and `resume`: nothing starts in a paused queue or on a paused service until it is resumed."""

from __future__ import annotations

from collections.abc import Callable

import click

from runcue.cli.completion import queue_or_service
from runcue.cli.failure import bad_input, not_found
from runcue.cli.fields import name as checked_name
from runcue.cli.fields import said
from runcue.cli.groups import F, declared, verb
from runcue.cli.home import Home
from runcue.cli.lookup import queues
from runcue.cli.place import File, Place, ask_or_make, migrated, on_file
from runcue.cli.screen import clean, say, typed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runcue import Cue

DEFAULT = "default"


def _what(one: str) -> Callable[[F], F]:
    """The arguments of a verb that pauses or resumes; `one` is a job or a unit."""
    text = f"The name is that of a queue, even if no {one} uses it yet."
    return declared(
        click.argument("name", metavar="QUEUE|SERVICE", shell_complete=queue_or_service),
        click.option("--queue", "is_queue", is_flag=True, help=text),
    )


@verb("pause", examples=["queuectl pause openai", "queuectl pause default", "queuectl pause --queue night"])
@_what("job")
@click.pass_obj
def command(home: Home, name: str, is_queue: bool) -> None:
    """Stop starting jobs in a queue or on a service. Running jobs go on."""
    _pause(home, name, is_queue)


@verb("resume", examples=["queuectl resume openai", "queuectl resume default"])
@_what("job")
@click.pass_obj
def resume(home: Home, name: str, is_queue: bool) -> None:
    """Resume a paused queue or service."""
    _resume(home, name, is_queue)


@on_file("pause", examples=["runcue pause queue.db openai", "runcue pause queue.db --queue night"])
@_what("unit")
def pause_file(place: File, name: str, is_queue: bool) -> None:
    """Stop starting units in a queue or on a service, in every program. Running units go on."""
    _pause(place, name, is_queue)


@on_file("resume", examples=["runcue resume queue.db openai"])
@_what("unit")
def resume_file(place: File, name: str, is_queue: bool) -> None:
    """Resume a paused queue or service."""
    _resume(place, name, is_queue)


def _pause(place: Place, name: str, is_queue: bool) -> None:
    kind = _hold(place, name, is_queue, is_paused=True)
    say(f"Paused {kind} {clean(name)}. Go on with: {place.words.do('resume', typed(name))}")


def _resume(place: Place, name: str, is_queue: bool) -> None:
    kind = _hold(place, name, is_queue, is_paused=False)
    say(f"Resumed {kind} {clean(name)}")


def _hold(place: Place, name: str, is_queue: bool, *, is_paused: bool) -> str:
    """Pause or resume a queue or service; returns which of both it is."""
    name = checked_name("name", name)
    services: set[str] = set()
    known = {DEFAULT}
    if place.exists:
        with migrated(place) as reader:
            services = {one["name"] for one in reader.services()}
            known |= queues(reader)
            if place.rows(reader, queue=name, limit=1):
                known.add(name)
    elif not is_queue:
        raise place.nothing()
    if is_queue and name in services:
        raise bad_input(f"{said(name)} is a service. No queue of that name can be paused: leave --queue out.")
    if not is_queue and name not in services | known:
        raise _unknown(name, services | known, place.words.one)

    async def change(cue: Cue) -> None:
        await (cue.pause if is_paused else cue.resume)(name)

    if isinstance(place, Home):  # the home may not exist yet
        place.make()
    ask_or_make(place, change)
    return "service" if name in services else "queue"


def _unknown(name: str, known: set[str], one: str) -> Exception:
    from difflib import get_close_matches  # only mistakes need it

    near = get_close_matches(name, sorted(known), n=3, cutoff=0.5)
    advice = "Did you mean" if near else "There are"
    names = ", ".join(map(said, near or sorted(known)[:8]))
    return not_found(
        f"No service or queue {said(name)}. {advice}: {names}. For a queue that no {one} uses yet, add --queue."
    )
