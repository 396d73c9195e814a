"""Streams to clients that stay connected: the live overview and the events, by server-sent events or a WebSocket.

Rules:
- The number of clients is limited (503), in all and for each address. A client that reads nothing for half a minute
  is disconnected.
- No events are buffered for a client. Each reads at its own pace. In place of events that the queue no longer keeps
  it gets one `gap` event.
- A client may give the number of the last event that it has. A value that is no number is ignored.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any

from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from runcue import Event, RuncueError
from runcue.web.file import Source
from runcue.web.guard import Refused
from runcue.web.loglimit import LogLimit
from runcue.web.rows import WallClock, encoded, event_line
from runcue.web.shapes import EventsQuery
from runcue.web.source import Unavailable, public_message

if TYPE_CHECKING:
    from runcue.web.broadcast import Broadcast

logger = logging.getLogger("runcue")

MOST_CLIENTS = 100
MOST_PER_PEER = 10
PING = 15
PATIENCE = 30
"""Seconds that a client may take to receive one message."""
OTHER_ENDS = "\u0085\u2028\u2029"
"""Characters at which some clients end a line, against the standard."""
PAUSE = 1.0
"""Seconds until a queue whose events ended, or that could not be read, is asked again."""


class Seats:
    """Limits the live clients: `MOST_CLIENTS` in all, `MOST_PER_PEER` from each address."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        """How many seats are taken."""
        return self._taken.total()

    def check(self, peer: str) -> None:
        """Refuse another client when no seat is left."""
        if self.taken >= MOST_CLIENTS or self._taken[peer] >= MOST_PER_PEER:
            raise Refused(
                503, "Too many live connections. Close one of the other pages.", {"Retry-After": "5"}
            )

    @contextmanager
    def take(self, peer: str) -> Iterator[None]:
        """Take a seat until the stream ends."""
        self._taken[peer] += 1
        try:
            yield
        finally:
            self._taken[peer] -= 1
            self._taken += Counter()  # drops addresses without a client


class LiveResponse(EventSourceResponse):
    """A stream of events that takes a seat, and ends without an error when its client disconnects."""

    def __init__(self, content: AsyncIterator[bytes], seats: Seats, peer: str) -> None:
        seats.check(peer)
        super().__init__(content, ping=PING, send_timeout=PATIENCE, sep="\n")
        self._seats = seats
        self._peer = peer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_open = False

        async def send_noted(message: Message) -> None:
            nonlocal is_open
            await send(message)
            is_open = message["type"] == "http.response.start" or message.get("more_body", False)

        with self._seats.take(self._peer):
            try:
                await super().__call__(scope, receive, send_noted)
                if is_open:  # the server is shutting down, which ended the stream
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
            except (SendTimeoutError, ClientDisconnect, OSError):
                logger.info("dashboard: %s read nothing any more and was disconnected", self._peer)


def message(name: str, data: bytes, number: int | None = None) -> bytes:
    """A server-sent event as bytes; `data` is JSON, so that `OTHER_ENDS` in it can be escaped."""
    identity = None if number is None else str(number)
    text = data.decode()
    for end in OTHER_ENDS:
        text = text.replace(end, f"\\u{ord(end):04x}")
    return ServerSentEvent(text, event=name, id=identity, sep="\n").encode()


async def live(broadcast: Broadcast) -> AsyncIterator[bytes]:
    """The overview, as often as it changes."""
    async with aclosing(broadcast.listen()) as messages:
        async for name, data in messages:
            yield message(name, data)


class Events:
    """Sends the events of a queue to clients."""

    def __init__(self, source: Source, clock: WallClock, log_limit: LogLimit) -> None:
        self._source = source
        self._clock = clock
        self._log_limit = log_limit
        self._over = asyncio.Event()

    def begin(self) -> None:
        """Accept clients, also after `end`."""
        self._over.clear()

    def end(self) -> None:
        """End all streams."""
        self._over.set()

    async def start_of(self, query: EventsQuery, last_id: str | None) -> tuple[list[str] | None, int]:
        """The types, and the number after which to begin: the client's if such an event exists, else the latest."""
        types = query.types.split(",") if query.types else None
        last = await self._source.last_event(types)
        self._clock.tell(await self._source.now())
        number = _number(last_id) if last_id is not None else query.since
        return types, last if number is None or number > last else max(0, number)

    async def read(self, types: list[str] | None, since: int) -> AsyncGenerator[Event | str, None]:
        """Every event after that number; in place of an event a text while the queue cannot be read."""
        while not self._over.is_set():
            try:
                async with aclosing(self._source.events(types, since)) as events:
                    while (event := await self._next(events)) is not None:
                        since = event.seq
                        yield event
            except (RuncueError, Unavailable) as error:
                yield public_message(error)
            try:
                async with asyncio.timeout(PAUSE):
                    await self._over.wait()
            except TimeoutError:
                continue

    async def _next(self, events: AsyncGenerator[Event, None]) -> Event | None:
        """The next event; None when there will be none, or all streams are to end."""
        following: asyncio.Future[Event | None] = asyncio.ensure_future(anext(events, None))
        over = asyncio.ensure_future(self._over.wait())
        try:
            both: set[asyncio.Future[Any]] = {following, over}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            return following.result() if following.done() else None
        finally:
            over.cancel()
            following.cancel()
            await asyncio.wait({following})

    async def sse(self, types: list[str] | None, since: int) -> AsyncIterator[bytes]:
        """Every event after that number, as server-sent events."""
        async with aclosing(self.read(types, since)) as events:
            async for event in events:
                if isinstance(event, str):
                    yield message("unavailable", encoded({"error": event}))
                else:
                    yield message(event.name, event_line(event, self._clock), event.seq)

    async def talk(self, socket: WebSocket, types: list[str] | None, since: int) -> None:
        """Send every event after that number over a WebSocket until it is closed."""
        await socket.accept()
        sending = asyncio.create_task(self._send(socket, types, since))
        hearing = asyncio.create_task(_heard(socket))
        over = asyncio.create_task(self._over.wait())
        tasks = {sending, hearing, over}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            found, *_ = await asyncio.gather(sending, hearing, over, return_exceptions=True)
        if isinstance(found, (TimeoutError, WebSocketDisconnect, OSError)):
            logger.info("dashboard: a WebSocket read nothing any more and was disconnected")
        elif isinstance(found, Exception):
            self._log_limit.fault("dashboard: sending events to a WebSocket failed", found)
        if not hearing.done() or hearing.cancelled():
            await _close(socket)

    async def _send(self, socket: WebSocket, types: list[str] | None, since: int) -> None:
        async with aclosing(self.read(types, since)) as events:
            async for event in events:
                if isinstance(event, str):
                    line = encoded({"name": "unavailable", "error": event})
                else:
                    line = event_line(event, self._clock)
                async with asyncio.timeout(PATIENCE):
                    await socket.send_text(line.decode())


async def _heard(socket: WebSocket) -> None:
    """Read until the client disconnects; ignore what it sends."""
    while (await socket.receive())["type"] != "websocket.disconnect":
        continue


async def _close(socket: WebSocket) -> None:
    try:
        async with asyncio.timeout(1):
            await socket.close(1001)
    except (TimeoutError, RuntimeError, WebSocketDisconnect, OSError):
        logger.debug("dashboard: a WebSocket was gone before it was closed")


def _number(text: str) -> int | None:
    """The number in a Last-Event-ID header; None when it is no number."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 30):
        return None
    return int(text)
