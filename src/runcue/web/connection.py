"""Connections that are closed when a request takes too long to arrive, or is malformed.

The number of connections is limited, and to hold one a client needs no token. So a client has a few seconds for the
head of a request, from the opening of the connection or from the last answer on, however often a byte arrives. A
WebSocket handshake that cannot be read is answered with an error, and its connection is closed.
"""

from __future__ import annotations

import asyncio
from codecs import getincrementaldecoder
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode

if TYPE_CHECKING:
    import h11
    from websockets.frames import Frame

SLOWEST_HEAD = 5.0
"""Seconds within which the head of a request has to arrive."""
UNREADABLE = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class Connection(H11Protocol):
    """An HTTP/1.1 connection with a time limit for the head of each request."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._cut: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit for the head of the first request."""
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time limit of a connection that is gone."""
        self._stop_watching()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Check whether the head is complete, after data were read."""
        super().handle_events()
        self._watch()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Stop the time limit: the WebSocket protocol takes over."""
        super().handle_websocket_upgrade(event)
        self._watch()

    def on_response_complete(self) -> None:
        """Start the time limit for the next request's head."""
        super().on_response_complete()
        self._watch()

    def _watch(self) -> None:
        is_ours = self.transport.get_protocol() is self and not self.transport.is_closing()
        is_busy = bool(self.cycle) and not self.cycle.response_complete
        if not is_ours or is_busy:
            self._stop_watching()
        elif self._cut is None:
            self._cut = self.loop.call_later(SLOWEST_HEAD, self.transport.close)

    def _stop_watching(self) -> None:
        if self._cut is not None:
            self._cut.cancel()
            self._cut = None


class EventWebSocket(WebSocketsSansIOProtocol):
    """A WebSocket that only sends. Messages of the client are checked to be well-formed, and dropped."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._decoder = getincrementaldecoder("utf-8")()
        self._is_text = False

    def data_received(self, data: bytes) -> None:
        """Answer a handshake that cannot be read, and close; uvicorn would ignore it."""
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.transport.is_closing():
            self.transport.write(b"".join(self.conn.data_to_send()) or UNREADABLE)
            self.transport.close()

    def handle_text(self, event: Frame) -> None:
        """Check the beginning of a text message."""
        self._is_text = True
        self._heard(event)

    def handle_bytes(self, event: Frame) -> None:
        """Check nothing of a binary message."""
        self._is_text = False
        self._heard(event)

    def handle_cont(self, event: Frame) -> None:
        """Check the next part of a message."""
        self._heard(event)

    def _heard(self, event: Frame) -> None:
        if not self._is_text or self.transport.is_closing():
            return
        try:
            self._decoder.decode(event.data, final=event.fin)
        except UnicodeDecodeError:
            self.conn.fail(CloseCode.INVALID_DATA)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            self.transport.close()
