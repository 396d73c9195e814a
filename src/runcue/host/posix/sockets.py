"""Sockets that others connect to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


def alone() -> int:
    """The option with which a port may be taken again at once, and by nobody else meanwhile."""
    import socket  # few programs listen

    return socket.SO_REUSEADDR


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop for a server."""
    import asyncio  # most programs need no loop of their own

    return asyncio.new_event_loop()
