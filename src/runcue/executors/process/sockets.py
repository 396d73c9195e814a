"""The sockets of a pool: closing them ends its processes."""

from __future__ import annotations

import socket

from runcue.host.descriptors import forget, guard

Sockets = set[socket.socket]
NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
"""Send without SIGPIPE: the application may have restored its default, which ends the process."""


def add(one: socket.socket, sockets: Sockets) -> None:
    """Keep a socket until it is closed, and have forked children close it."""
    one.setblocking(False)
    sockets.add(one)
    guard(one.fileno())


def close_one(one: socket.socket, sockets: Sockets) -> None:
    """Close a socket that was added."""
    if one in sockets:
        sockets.remove(one)
        with forget(one.fileno()):
            one.close()


def close_all(sockets: Sockets) -> None:
    """Close all sockets of a pool: the keeper ends, and with it the workers."""
    for one in list(sockets):
        close_one(one, sockets)
