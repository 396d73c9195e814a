"""Sockets that others connect to."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

assert sys.platform == "win32"

ALONE: Final = socket.SO_EXCLUSIVEADDRUSE
"""The option with which a port may be taken again at once, and by nobody else meanwhile, as SO_REUSEADDR allows."""


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop for a server, which goes on to listen when a client is gone before its connection was accepted."""
    import asyncio  # most programs need no loop of their own

    from runcue.host.windows.proactor import Proactor

    return asyncio.ProactorEventLoop(Proactor())
