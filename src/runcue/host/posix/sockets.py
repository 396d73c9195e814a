"""Sockets that others connect to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

ALONE: Final = socket.SO_REUSEADDR
"""The option with which a port may be taken again at once, and by nobody else meanwhile."""
new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
"""Makes a loop for a server."""
