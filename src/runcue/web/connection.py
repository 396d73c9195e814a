"""A connection that is cut off when it takes too long to ask for something.

A server has so many connections and no more, and whoever holds one needs no token for that. So each has a few seconds
for the head of its next request, counted from when it came or from its last answer, however often a byte comes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import h11

SLOWEST_HEAD = 5.0
"""Seconds."""


class Connection(H11Protocol):
    """HTTP/1.1 for those who know what they want."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._cut: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody came: the time for the first head begins."""
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Somebody left."""
        self._stop_watching()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Something was read, maybe the rest of a head."""
        super().handle_events()
        self._watch()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """From here on it is another protocol's."""
        super().handle_websocket_upgrade(event)
        self._watch()

    def on_response_complete(self) -> None:
        """All is answered: the time for the next head begins."""
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
