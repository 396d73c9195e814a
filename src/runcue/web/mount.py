"""Makes a dashboard: routes for an application, or an application of its own."""

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
from runcue.web.file import InFile, Source
from runcue.web.guard import CODE_LASTS, Access, Guard, refusal
from runcue.web.loglimit import LogLimit
from runcue.web.site import TABLE, Site
from runcue.web.source import InMemory
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
    `token` (or RUNCUE_TOKEN) a secret one is made, and a link that works once is logged. With `protect=False` no
    token is needed: the application decides who may see these routes.
    """
    given = known_token(token)
    access = _access(given or secrets.token_urlsafe(32), read_only, hosts, protect)
    site = Site(_source(cue), access, read_only)
    if given is None and protect:
        logger.warning(
            "dashboard: open the address where it is mounted with /?code=%s at its end, once and within %.0f "
            "minutes; with a token of your own (%s) you can come in at any time",
            site.access.make_code(),
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

    `name` is that of a queue in PostgreSQL.

    `app.state.token` is the token, `app.state.make_code()` makes a code for a link `/?code=…` that works once, and
    `app.state.end_streams()` ends all live connections.
    """
    given = known_token(token) or secrets.token_urlsafe(32)
    site = Site(_source(queue, name), _access(given, read_only, hosts, protect), read_only)

    @asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        site.begin()
        yield
        await site.close()

    made = Starlette(routes=make_routes(site, TABLE), lifespan=life)
    made.router.redirect_slashes = False
    made.router.default = Guard(_nothing, site.access)
    made.state.token = given
    made.state.make_code = site.access.make_code
    made.state.end_streams = site.end_streams
    made.state.log_limit = site.access.log_limit
    return made


def known_token(token: str | None) -> str | None:
    """The token that the caller gave or the environment has; None when nobody chose one."""
    return token or os.environ.get(VARIABLE) or None


def _access(token: str, read_only: bool, hosts: Iterable[str], protect: bool) -> Access:
    if isinstance(hosts, str):
        raise ConfigError(f"hosts is a list of names, such as [{hosts!r}].")
    return Access(token, hosts, LogLimit(), protect=protect, read_only=read_only)


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
