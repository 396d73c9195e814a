"""Sockets that others connect to.

A loop of Windows stops to listen when somebody is gone before his connection was accepted (CPython issue 93821). That
of `new_loop` goes on.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any, Final

assert sys.platform == "win32"

ALONE: Final = socket.SO_EXCLUSIVEADDRUSE
"""The option with which a port may be taken again at once, and by nobody else meanwhile, as SO_REUSEADDR allows."""


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


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop for a server."""
    return asyncio.ProactorEventLoop(Proactor())
