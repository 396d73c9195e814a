"""The lines of the table of addresses (site.py has the table), and the routes that are made of them.

The query and the body of a request are checked against the types of its line (400 where they do not fit), and its
handler answers. Errors are answered with one line of text: 404 for what does not exist, 400 for what is not allowed,
503 while the queue cannot be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from runcue import (
    ConfigError,
    CueClosed,
    RuncueError,
    SubmitError,
    UnknownSchedule,
    UnknownService,
    WorkNotFound,
)
from runcue.web.fragments import VARY, wants_html
from runcue.web.guard import Guard, Refused, answer, refusal
from runcue.web.loglimit import LogLimit
from runcue.web.rows import encoded
from runcue.web.shapes import EventsQuery
from runcue.web.source import Unavailable, public_message

if TYPE_CHECKING:
    from runcue.web.site import Site

LARGEST_BODY = 1 << 20
SLOWEST_BODY = 4.0
"""Seconds within which the whole body has to arrive."""
JSON = "application/json"
STREAM = "text/event-stream"


class Call(msgspec.Struct, frozen=True):
    """A request whose query and body were checked against its line in the table."""

    site: Site
    request: Request
    query: Any
    body: Any

    @property
    def name(self) -> str:
        """The id or name in the address."""
        return str(self.request.path_params["name"])

    @property
    def peer(self) -> str:
        """The address that the request comes from."""
        return "unknown" if self.request.client is None else self.request.client.host


Handler = Callable[[Call], Awaitable[Any]]


class Line(msgspec.Struct, frozen=True):
    """One line of the table. The handler returns an `answer`; without that type, a whole response of that `kind`.

    `fragment` makes HTML of an answer, for requests that prefer HTML.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    answer: Any = None
    query: Any = None
    body: Any = None
    kind: str = JSON
    fragment: Callable[[Any, Request], str] | None = None


class Endpoint:
    """Answers the requests to one address, by method."""

    def __init__(self, site: Site, lines: Iterable[Line]) -> None:
        self._site = site
        self.lines = {line.method: line for line in lines}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001 (every error gets an answer; our own mistakes are logged)
            response = excuse(error, self._site.access.log_limit)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        line = self.lines.get(method)
        if line is None:
            allowed = {**self.lines, "HEAD": None} if "GET" in self.lines else self.lines
            raise Refused(405, f"{request.method[:20]} cannot be done here.", {"Allow": ", ".join(allowed)})
        query = read_query(request.query_params.multi_items(), line.query)
        body = None if line.body is None else await _read_body(request, line.body)
        found = await line.handler(Call(self._site, request, query, body))
        if isinstance(found, Response):
            return found
        if line.fragment is not None and wants_html(request.headers):
            html = line.fragment(found, request).encode("utf-8", "xmlcharrefreplace")
            return HTMLResponse(html, headers=VARY)
        return Response(encoded(found), media_type=JSON, headers=VARY if line.fragment else None)


class EventSocket:
    """Sends events to a WebSocket."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = WebSocket(scope, receive, send)
        peer = "unknown" if socket.client is None else socket.client.host
        try:
            query = read_query(socket.query_params.multi_items(), EventsQuery)
            types, since = await self._site.events.start_of(query, None)
            self._site.seats.check(peer)
        except Exception as error:  # noqa: BLE001 (as above)
            await answer(excuse(error, self._site.access.log_limit), scope, receive, send)
            return
        with self._site.seats.take(peer):
            await self._site.events.talk(socket, types, since)


def read_query(given: list[tuple[str, str]], kind: Any) -> Any:
    """The query of an address as a value of that type; a name that occurs twice is refused."""
    named = dict(given)
    if len(named) != len(given):
        raise Refused(400, "Something is given twice in the query. Give it once.")
    if kind is None:
        if named:
            raise Refused(400, f"{next(iter(named))[:80]!r} cannot be given here.")
        return None
    return msgspec.convert(named, kind, strict=False)


async def _read_body(request: Request, kind: Any) -> Any:
    length = request.headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()) or int(length[:20]) > LARGEST_BODY:
        raise _too_large()
    body = bytearray()
    try:
        async with asyncio.timeout(SLOWEST_BODY):
            async for piece in request.stream():
                body += piece
                if len(body) > LARGEST_BODY:
                    raise _too_large()
    except TimeoutError:
        raise Refused(408, "The body takes too long.", {"Connection": "close"}) from None
    return msgspec.json.decode(bytes(body), type=kind)


def _too_large() -> Refused:
    """The answer to a body that is too large. It closes the connection: otherwise the server would read the rest."""
    return Refused(413, f"The body is larger than {LARGEST_BODY:,} bytes.", {"Connection": "close"})


def excuse(error: Exception, log_limit: LogLimit) -> Response:
    """The response for an error."""
    match error:
        case Refused():
            return refusal(error.status, error.reason, error.headers)
        case Unavailable() | CueClosed():
            return refusal(503, public_message(error), {"Retry-After": "1"})
        case WorkNotFound() | UnknownService() | UnknownSchedule():
            return refusal(404, str(error))
        case msgspec.DecodeError():
            what, _, where = str(error).replace("`", "").partition(" - at $.")
            return refusal(400, f"{where}: {what}" if where else what)
        case ConfigError() | SubmitError() | UnicodeError():
            return refusal(400, str(error))
        case RuncueError():
            return refusal(503, public_message(error), {"Retry-After": "1"})
    log_limit.fault("dashboard: a request failed", error)
    return refusal(500, "The dashboard failed to answer; its log says why.")


def make_routes(site: Site, lines: Iterable[Line]) -> list[BaseRoute]:
    """The routes of a table, each behind the guard."""
    by_path: dict[str, list[Line]] = {}
    for line in lines:
        by_path.setdefault(line.path, []).append(line)

    def route(path: str, found: list[Line]) -> BaseRoute:
        is_static = path.startswith("/static/")
        guard = Guard(Endpoint(site, found), site.access, is_page=path == "/", may_keep=is_static)
        return Route(path, guard, name=f"runcue:{path}", include_in_schema=False)

    socket = WebSocketRoute("/ws", Guard(EventSocket(site), site.access), name="runcue:/ws")
    return [*(route(path, found) for path, found in by_path.items()), socket]
