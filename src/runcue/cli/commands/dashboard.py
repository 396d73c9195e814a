"""`runcue dashboard` and `queuectl dashboard`: a queue in the browser, served to this machine alone unless told."""

from __future__ import annotations

from collections.abc import Callable
from errno import EADDRINUSE
from typing import Any, TypeVar

import click

from runcue.cli.failure import bad_input, conflict, misconfigured
from runcue.cli.groups import verb
from runcue.cli.home import Home
from runcue.cli.place import File, Place, on_file
from runcue.cli.screen import clean, note, say

F = TypeVar("F", bound=Callable[..., Any])
TOKEN = "RUNCUE_TOKEN"
SHORTEST_TOKEN = 16
NEEDED = ("starlette", "uvicorn", "sse_starlette", "websockets", "prometheus_client")


def _options(function: F) -> F:
    options = [
        click.option("--host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Where to listen."),
        click.option(
            "--port", type=click.IntRange(0, 65535), metavar="N", default=8787, show_default=True,
            help="The port; 0 takes one that is free.",
        ),
        click.option(
            "--token", metavar="TEXT", help=f"What the link has to carry.  [default: {TOKEN}, or one that is made up]"
        ),
        click.option("--read-only", is_flag=True, help="Show everything, change nothing."),
        click.option("--no-browser", is_flag=True, help="Print the link, and open no browser."),
    ]  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


@verb("dashboard", examples=["queuectl dashboard", "queuectl dashboard --port 0 --no-browser --read-only"])
@_options
@click.pass_obj
def command(home: Home, /, **flags: Any) -> None:
    """See the queue in a browser, live, and act on it, until Ctrl-C.

    The link carries a token: who has it may do what you may. Other machines are let in with --host and --token.
    """
    _serve(home, **flags)


@on_file(
    "dashboard", examples=["runcue dashboard queue.db", "runcue dashboard queue.db --read-only --port 0"]
)
@_options
def dashboard(place: File, **flags: Any) -> None:
    """See a queue in a browser, live, and act on it, until Ctrl-C.

    The link carries a token: who has it may do what you may. Other machines are let in with --host and --token.
    """
    _serve(place, **flags)


def _serve(place: Place, host: str, port: int, token: str | None, read_only: bool, no_browser: bool) -> None:
    import os

    token = token or os.environ.get(TOKEN) or None
    if not place.exists:
        raise place.nothing()
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise bad_input(
            f"A token is {SHORTEST_TOKEN} or more printable ASCII characters, or it could be guessed."
        )
    if token is None and not _is_own(host):
        raise misconfigured(
            f"Other machines could reach {clean(host)}, so a token of your own is needed: --token, or {TOKEN}=…"
        )
    with place.reader() as reader:  # what is wrong with the file is told here, not on a page
        reader.count()
    try:
        from runcue import web
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in NEEDED:
            raise
        raise misconfigured(f'The dashboard needs {missing}: pip install "runcue[web]"') from error
    try:
        web.serve(
            place.database,
            host=host,
            port=port,
            token=token,
            read_only=read_only,
            open_browser=not no_browser,
            say=_tell,
        )
    except OSError as error:
        if error.errno != EADDRINUSE:
            raise
        raise conflict(f"Port {port} of {clean(host)} is taken. Give another, or --port 0.") from error


def _tell(link: str) -> None:
    import sys

    say(link)
    note("Ctrl-C ends it.")
    if sys.stdout is not None:
        sys.stdout.flush()


def _is_own(host: str) -> bool:
    """True when only this machine can reach that address."""
    from ipaddress import ip_address

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
