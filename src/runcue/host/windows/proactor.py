"""Accepts connections on a loop of Windows, also after one whose client was gone too soon (CPython issue 93821)."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

assert sys.platform == "win32"


class Proactor(asyncio.IocpProactor):
    """Accepts the next connection in the place of one that failed."""

    def accept(self, listener: socket.socket) -> asyncio.Future[Any]:
        """The next connection."""
        return asyncio.ensure_future(self._next(listener, super().accept))

    async def _next(self, listener: socket.socket, accept: Any) -> Any:
        while True:
            try:
                return await accept(listener)
            except OSError:
                if listener.fileno() == -1:  # it was closed
                    raise
