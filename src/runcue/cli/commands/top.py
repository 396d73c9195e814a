"""`runcue top` and `queuectl top`: a queue live in the terminal."""

from __future__ import annotations

import click

from runcue.cli.failure import bad_input, misconfigured
from runcue.cli.groups import verb
from runcue.cli.home import Home
from runcue.cli.place import File, Place, look, on_file
from runcue.cli.screen import is_dumb, is_terminal

NEEDED = frozenset({"textual", "rich"})


@verb("top", examples=["queuectl top"])
@click.pass_obj
def command(home: Home) -> None:
    """Watch the queue live: what runs, what waits and why, services, failures. Press ? for the keys."""
    _top(home)


@on_file("top", examples=["runcue top queue.db", "runcue top postgresql://me@host/app --name night"])
def top(place: File) -> None:
    """Watch a queue live: what runs, what waits and why, services, failures. Press ? for the keys."""
    _top(place)


def _top(place: Place) -> None:
    import sys

    with look(place) as reader:  # a damaged file is an error here, before the screen is drawn
        reader.count()
    instead = place.words.do("status", "--watch")
    if not is_terminal() or sys.stdin is None or not sys.stdin.isatty():
        raise bad_input(f"top needs a terminal. In a pipe: {instead}")
    if is_dumb():
        raise bad_input(f"top needs a terminal that can be drawn on, and TERM is dumb. Try: {instead}")
    try:
        from runcue.cli.top.app import run
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in NEEDED:
            raise
        raise misconfigured(f'top needs {missing}: pip install "runcue[tui]"') from error
    run(place)
