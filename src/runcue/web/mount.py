"""Puts a dashboard together: as routes for an application, or as an application of its own."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from runcue import ConfigError, Cue
from runcue.web.file import InFile
from runcue.web.guard import CODE_LASTS, Guard, Keeper, refusal
from runcue.web.loglimit import LogLimit
from runcue.web.site import TABLE, Site
from runcue.web.source import InMemory, Source
from runcue.web.table import make_routes

logger = logging.getLogger("runcue")

VARIABLE = "RUNCUE_TOKEN"


def routes(
    cue: Cue,
    *,
    token: str | None = None,
    read_only: bool = False,
    hosts: Iterable[str] = (),
    protect: bool = True,
) -> list[BaseRoute]:
    """The dashboard of a Cue, to be mounted: `Mount("/runcue", routes=routes(cue, hosts=["example.com"]))`.

    `hosts` are the names under which the application is reached, besides those of this machine itself. Without a
    `token` (or RUNCUE_TOKEN) one is made that nobody is told, and a link that is good once is logged. With
    `protect=False` the application lets in whom it wants.
    """
    given = known_token(token)
    keeper = _keeper(given or secrets.token_urlsafe(32), read_only, hosts, protect)
    site = Site(_source(cue), keeper, read_only)
    if given is None and protect:
        logger.warning(
            "dashboard: open the address where it is mounted with /?code=%s at its end, once and within %.0f "
            "minutes; with a token of your own (%s) you can come in at any time",
            site.keeper.make_code(),
            CODE_LASTS / 60,
            VARIABLE,
        )
    return make_routes(site, TABLE)


def app(
    queue: Cue | str | os.PathLike[str],
    *,
    token: str | None = None,
    read_only: bool = False,
    hosts: Iterable[str] = (),
    protect: bool = True,
    name: str = "default",
) -> Starlette:
    """The dashboard of a Cue, or of a queue in a file or at an address, as an application; options as for `routes`.

    At an address of PostgreSQL `name` tells which queue.

    `app.state.token` is the token, `app.state.make_code()` makes a code for a link `/?code=…` that is good once, and
    `app.state.end_streams()` sends those away who keep a connection open.
    """
    given = known_token(token) or secrets.token_urlsafe(32)
    site = Site(_source(queue, name), _keeper(given, read_only, hosts, protect), read_only)

    @asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        site.begin()
        yield
        await site.close()

    made = Starlette(routes=make_routes(site, TABLE), lifespan=life)
    made.router.redirect_slashes = False
    made.router.default = Guard(_nothing, site.keeper)
    made.state.token = given
    made.state.make_code = site.keeper.make_code
    made.state.end_streams = site.end_streams
    made.state.log_limit = site.keeper.log_limit
    return made


def known_token(token: str | None) -> str | None:
    """The token that somebody chose, here or in the environment."""
    return token or os.environ.get(VARIABLE) or None


def _keeper(token: str, read_only: bool, hosts: Iterable[str], protect: bool) -> Keeper:
    if isinstance(hosts, str):
        raise ConfigError(f"hosts is a list of names, such as [{hosts!r}].")
    return Keeper(token, hosts, LogLimit(), protect=protect, read_only=read_only)


def _source(queue: Cue | str | os.PathLike[str], name: str = "default") -> Source:
    if not isinstance(queue, Cue):
        return InFile(os.fspath(queue), name=name)
    return InMemory(queue) if queue.path is None else InFile(queue.path, queue, queue.name)


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 404 at all other addresses."""
    if scope["type"] == "http":
        await refusal(404, "There is nothing at this address.")(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1008})
