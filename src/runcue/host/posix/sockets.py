"""Sockets that others connect to."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

ALONE: Final = socket.SO_REUSEADDR
"""The option with which a port may be taken again at once, and by nobody else meanwhile."""


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop for a server."""
    import asyncio  # most programs need no loop of their own

    return asyncio.new_event_loop()
