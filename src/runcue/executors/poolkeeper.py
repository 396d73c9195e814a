"""The keeper of a pool as its owner sees it: a process that is started once, given orders, and heard.

The only thread of the pool is here: it starts the keeper, which takes a while, and then waits for its end. It knows
the pool only weakly, so that a pool which nobody closes is let go of, its sockets with it, and then the keeper ends.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable

from runcue.executors.jobs import close, guard
from runcue.executors.poolwork import NEWS, ORDER

Sockets = set[socket.socket]

PRELOADED = ("runcue.executors.poolwork", "runcue.executors.process", "runcue.cue", "runcue.connect")
"""What the keeper imports, as far as it is imported here, so that no worker has to: our own modules alone."""
HINTS = {
    "KILL": " (often because memory ran out)",
    "SEGV": " (a crash in native code)",
    "BUS": " (a crash in native code)",
    "ABRT": " (native code gave up)",
}


class Keeper:
    """The process that starts and ends workers for us."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sockets: Sockets,
        heard: Callable[[bytes, int, int], None],
        lost: Callable[[str], None],
    ) -> None:
        self.loop = loop
        self.ended: asyncio.Future[None] = loop.create_future()
        self._sockets = sockets
        self._heard = heard
        self._lost = lost
        self._news = bytearray()
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
        sockets.add(self._control)
        guard(self._control.fileno())
        loop.add_reader(self._control, self._read)
        over = weakref.WeakMethod(self._over)
        threading.Thread(target=_keep, args=(theirs, loop, over), name="runcue-pool", daemon=True).start()

    def order(self, what: bytes, number: int, grace: float = 0.0, fds: list[int] | None = None) -> None:
        """Tell the keeper to do something."""
        data = ORDER.pack(what, number, grace)
        try:
            if fds:
                socket.send_fds(self._control, [data], fds)
            else:
                self._control.send(data)
        except ConnectionError:
            return  # it is dead, and we are about to hear of it

    def _read(self) -> None:
        try:
            data = self._control.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.loop.remove_reader(self._control)  # `_over` is about to be called
        self._news += data
        while len(self._news) >= NEWS.size:
            news = NEWS.unpack_from(self._news)
            del self._news[: NEWS.size]
            self._heard(*news)

    def _over(self, reason: str) -> None:
        self._read()
        self.loop.remove_reader(self._control)
        close_one(self._control, self._sockets)
        self._lost(reason)
        if not self.ended.done():
            self.ended.set_result(None)


def _keep(
    theirs: socket.socket, loop: asyncio.AbstractEventLoop, over: weakref.WeakMethod[Callable[[str], None]]
) -> None:
    """Start a keeper and wait for its end: that is all its thread does. A pool that is forgotten is let go of."""
    with theirs:
        try:
            process = subprocess.Popen(
                keeper_command(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            process, reason = None, f"its keeper could not be started: {error}"
        else:
            reason = ""
    if process is not None and (code := process.wait()) != 0:
        reason = f"its keeper died before it: {cause_of_death(code)}"
    told = over()
    if told is not None:
        try:
            loop.call_soon_threadsafe(told, reason)
        except RuntimeError:
            return  # the loop is closed


def keeper_command(fd: int) -> list[str]:
    """How to start a keeper: this Python with its options, and where it finds what we find."""
    from multiprocessing.spawn import get_command_line

    line = get_command_line()  # [python, options …, "-c", …]
    modules = ", ".join(name for name in PRELOADED if name in sys.modules)
    code = f"import sys; sys.path[:] = {sys.path!r}; import {modules}; runcue.executors.poolwork.keep({fd})"
    return [*line[: line.index("-c")], "-c", code]


def cause_of_death(code: int) -> str:
    """An exit code in words; signals are negative."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name.removeprefix("SIG")
    except ValueError:
        name = str(-code)
    return f"signal:{name}{HINTS.get(name, '')}"


def close_one(one: socket.socket, sockets: Sockets) -> None:
    """Close a socket that a forked child would close, too."""
    if one in sockets:
        sockets.remove(one)
        close(one.detach())


def close_all(sockets: Sockets) -> None:
    """Close all of them: the keeper ends, and with it the workers."""
    for one in list(sockets):
        close_one(one, sockets)
