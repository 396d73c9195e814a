"""Sockets that others connect to."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

assert sys.platform == "win32"


def alone() -> int:
    """The option with which a port may be taken again at once and by nobody else, as SO_REUSEADDR allows."""
    import socket  # few programs listen

    return socket.SO_EXCLUSIVEADDRUSE


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop for a server, which goes on to listen when a client is gone before its connection was accepted."""
    import asyncio  # most programs need no loop of their own

    from runcue.host.windows.proactor import Proactor

    return asyncio.ProactorEventLoop(Proactor())
