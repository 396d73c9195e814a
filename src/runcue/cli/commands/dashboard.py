"""`runcue dashboard` and `queuectl dashboard`: a queue in the browser, by default for this machine alone.

`runcue.web` checks the token and what is installed, and raises errors about them.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EACCES, EADDRINUSE, EADDRNOTAVAIL
from types import FrameType
from typing import Any

import click

from runcue.cli.failure import INTERRUPTED, Failure, bad_input, conflict, misconfigured
from runcue.cli.fields import said
from runcue.cli.groups import declared, verb
from runcue.cli.home import Home
from runcue.cli.place import File, Place, look, on_file
from runcue.cli.screen import clean, flush, note, say

LONGEST_NAME = 253
_is_name = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\]", re.IGNORECASE | re.ASCII).fullmatch
EXTRA = "runcue[web]"


def _names(_: click.Context, __: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """The host names as given; raises for one with a scheme, a port or a path."""
    for name in names:
        if len(name) > LONGEST_NAME or _is_name(name) is None:
            raise bad_input(
                f"--name cannot be {said(name)}: expected a host alone, such as queue.example.com."
            )
    return names


def _address(_: click.Context, __: click.Parameter, host: str) -> str:
    """The address to listen on as given; raises for one that cannot be looked up."""
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise _no_address(host) from error
    if not host:
        raise _no_address(host)
    return host


def _no_address(host: str, reason: str = "") -> Failure:
    """The failure for an address that nothing can listen on."""
    return bad_input(f"--host cannot be {said(host)}: expected an address of this machine{reason}.")


_options = declared(
    click.option(
        "--host", metavar="ADDRESS", default="127.0.0.1", show_default=True, callback=_address,
        help="Where to listen.",
    ),
    click.option(
        "--port", type=click.IntRange(0, 65535), metavar="N", default=8787, show_default=True,
        help="The port; 0 takes one that is free.",
    ),
    click.option(
        "--token", metavar="TEXT", help="The token that lets people in.  [default: RUNCUE_TOKEN, or a new one]"
    ),
    click.option(
        "--name", "names", metavar="HOST", multiple=True, callback=_names,
        help="A host name of the dashboard, such as that of a proxy before it. Repeatable.",
    ),
    click.option("--read-only", is_flag=True, help="Show everything, change nothing."),
    click.option("--no-browser", is_flag=True, help="Print the link, and open no browser."),
)  # fmt: skip


@verb("dashboard", examples=["queuectl dashboard", "queuectl dashboard --port 0 --no-browser --read-only"])
@_options
@click.pass_obj
def command(home: Home, /, **flags: Any) -> None:
    """See the queue in a browser, live, and act on it, until Ctrl-C.

    Whoever has the link can do what you can. To let other machines in, give --host and --token. Behind a proxy that
    speaks TLS, give the name of that proxy with --name.
    """
    _serve(home, **flags)


@on_file(
    "dashboard",
    examples=[
        "runcue dashboard queue.db",
        "runcue dashboard queue.db --read-only --port 0",
        "runcue dashboard queue.db --name queue.example.com",
        "runcue dashboard postgresql://me@host/app",
    ],
    options=["--namespace"],  # --name is that of a host here
)
@_options
def dashboard(place: File, **flags: Any) -> None:
    """See a queue in a browser, live, and act on it, until Ctrl-C.

    Whoever has the link can do what you can. To let other machines in, give --host and --token. Behind a proxy that
    speaks TLS, give the name of that proxy with --name.
    """
    _serve(place, **flags)


def _serve(
    place: Place,
    host: str,
    port: int,
    token: str | None,
    names: tuple[str, ...],
    read_only: bool,
    no_browser: bool,
) -> None:
    with look(place) as reader:  # a damaged file is an error here, not a page in the browser
        reader.count()
    try:
        from runcue import web
    except ModuleNotFoundError as error:
        if EXTRA not in str(error):
            raise
        raise misconfigured(str(error)) from error
    with _refused(host, port, token), _ended_at_once():
        web.serve(
            place.address if isinstance(place, File) else place.database,
            name=place.name if isinstance(place, File) else "default",
            host=host,
            port=port,
            token=token,
            read_only=read_only,
            hosts=names,
            open_browser=not no_browser,
            say=_tell,
        )


@contextmanager
def _ended_at_once() -> Iterator[None]:
    """Exit at once at a second signal, even when a request hangs; the first one ends `web.serve`."""

    def end(number: int, frame: FrameType | None) -> None:
        os._exit(INTERRUPTED)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _refused(host: str, port: int, token: str | None) -> Iterator[None]:
    """Turn errors about address, port or token into failures."""
    from socket import gaierror

    from runcue import ConfigError

    try:
        yield
    except ConfigError as error:
        if token:
            raise
        raise misconfigured(str(error)) from error
    except gaierror as error:
        raise _no_address(host, f" ({error.strerror})") from error
    except OSError as error:
        if error.errno == EADDRNOTAVAIL:
            raise _no_address(host) from error
        if error.errno == EACCES:
            raise misconfigured(
                f"You may not listen on port {port}. Give one from 1024 up, or --port 0."
            ) from error
        if error.errno == EADDRINUSE:
            raise conflict(f"Port {port} of {clean(host)} is taken. Give another, or --port 0.") from error
        raise


def _tell(link: str) -> None:
    say(link)
    note("Ctrl-C ends it.")
    flush()
