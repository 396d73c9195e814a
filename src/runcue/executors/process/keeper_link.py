"""The owner's link to the keeper process of a pool: starts the keeper, sends it orders, receives its reports.

- The only lasting thread of the pool is here: it starts the keeper, which takes a while, and waits for its end. It
  holds the pool by a weak reference: when a pool that was never closed is collected, its sockets close, and the
  keeper ends.
- Orders go out in order. An order for which the socket has no room waits; none is lost while the keeper lives.
- The keeper holds a job lock whose holder is never killed: recovery waits until the keeper has ended all workers.
- If the keeper dies before its workers, the thread here kills what is left in the workers' sessions.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from subprocess import DEVNULL
from typing import TYPE_CHECKING

from runcue.core.model.failure import describe
from runcue.executors.process.protocol import ORDER, REPORT
from runcue.executors.process.sockets import NO_SIGNAL, Sockets, add, close_one
from runcue.executors.process_locks import REAPER, Jobs
from runcue.host.interpreter import python_command
from runcue.host.loops import later, post_to_loop
from runcue.host.posix.processes import cause_of_death, end_sessions

if TYPE_CHECKING:
    from runcue.executors.process.executor import Heard, Lost

PRELOADED = (
    "runcue.executors.process.executor",
    "runcue.api.cue",
    "runcue.api.wiring",
)
"""Modules that the keeper imports if the owner has imported them, so that no worker has to: only runcue's own."""
SHORTLY = 0.02
"""Seconds after which an order is sent again that the system had no room for."""


class KeeperLink:
    """A keeper process, from its owner."""

    def __init__(
        self,
        jobs: Jobs,
        loop: asyncio.AbstractEventLoop,
        number: int,
        sockets: Sockets,
        heard: Heard,
        lost: Lost,
    ) -> None:
        """It holds the job lock with that number."""
        self.loop = loop
        self.ended: asyncio.Future[None] = loop.create_future()
        self.is_lost = False
        """True from when the keeper takes no more orders."""
        self._sessions: set[int] = set()
        """The sessions of workers that are not known to be gone."""
        self._sockets = sockets
        self._heard = heard
        self._lost = lost
        self._orders: deque[tuple[bytes, socket.socket | None]] = deque()
        self._incoming = bytearray()
        self._control, theirs = socket.socketpair()
        token = f"{REAPER}-pool-{number}"
        arguments = (theirs, jobs, token, self._sessions, loop, weakref.WeakMethod(self._over))
        try:
            threading.Thread(target=_keep, args=arguments, name="runcue-pool", daemon=True).start()
        except RuntimeError as error:
            self._control.close()
            theirs.close()
            raise OSError(errno.EAGAIN, "no thread can be started") from error
        add(self._control, sockets)
        loop.add_reader(self._control, self._read)

    def order(
        self, what: bytes, number: int, grace: float = 0.0, channel: socket.socket | None = None
    ) -> None:
        """Send an order; a channel that goes with it is closed on this side."""
        self._orders.append((ORDER.pack(what, number, grace), channel))
        if len(self._orders) == 1 or self.is_lost:
            self._write()

    def awake(self, number: int, pid: int) -> None:
        """That worker has reported with its pid, which is its session."""
        self._sessions.add(pid)

    def gone(self, pid: int) -> None:
        """The worker with that pid is gone, with its session."""
        self._sessions.discard(pid)

    def _write(self) -> None:
        """Send orders until the socket is full; the loop calls this again when it has room."""
        if self.is_lost:
            self._drop_orders()
            return
        try:
            while self._orders:
                data, channel = self._orders[0]
                if channel is None:
                    self._control.send(data, NO_SIGNAL)
                else:
                    socket.send_fds(self._control, [data], [channel.fileno()], NO_SIGNAL)
                    channel.close()
                self._orders.popleft()
        except BlockingIOError:
            self.loop.add_writer(self._control, self._write)
            return
        except ConnectionError:
            self.is_lost = True  # the keeper is dead, and `_over` is about to be called
            self._drop_orders()
        except OSError:  # too many descriptors under way, or no memory
            later(self.loop, SHORTLY, self._write)
        self.loop.remove_writer(self._control)

    def _drop_orders(self) -> None:
        for _, channel in self._orders:
            if channel is not None:
                channel.close()
        self._orders.clear()

    def _read(self) -> bool:
        """Read some of the keeper's reports; True if there may be more."""
        try:
            data = self._control.recv(4096)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.is_lost = True
            self.loop.remove_reader(self._control)  # `_over` is about to be called
        self._incoming += data
        while len(self._incoming) >= REPORT.size:
            news = REPORT.unpack_from(self._incoming)
            del self._incoming[: REPORT.size]
            self._heard(*news)
        return bool(data)

    def _over(self, reason: str | OSError) -> None:
        """The keeper process has ended, and so have its workers and all that they started."""
        while self._read():
            pass  # its last reports
        self.is_lost = True
        self.loop.remove_reader(self._control)
        self.loop.remove_writer(self._control)
        close_one(self._control, self._sockets)
        self._drop_orders()
        self._lost(self, reason)
        if not self.ended.done():
            self.ended.set_result(None)


def _keep(
    theirs: socket.socket,
    jobs: Jobs,
    token: str,
    sessions: set[int],
    loop: asyncio.AbstractEventLoop,
    over: weakref.WeakMethod[Callable[[str | OSError], None]],
) -> None:
    """Start a keeper and wait for its end; runs in the link's thread, and does not keep the pool alive."""
    reason: str | OSError = ""
    try:
        with theirs:
            control = theirs.fileno()
            keeper = jobs.start(token, partial(keeper_command, control), [control], stdin=DEVNULL)
        code = keeper.wait()
        reason = f"its keeper died before it: {cause_of_death(code)}" if code else ""
        if code:
            end_sessions(set(sessions))
        # While the lock is held, a process is left that cannot be ended; recovery waits for the lock, too.
        if not jobs.is_held(token):
            jobs.release(token)
    except OSError as error:
        reason = error
    except Exception as error:  # noqa: BLE001 (the pool waits for the reason, whatever it is)
        reason = f"its keeper could not be started: {describe(error)}"
    finally:
        report = over()
        if report is not None:
            post_to_loop(loop, report, reason)


def keeper_command(control: int, lock: int | None) -> list[str]:
    """The command that starts a keeper."""
    modules = ["runcue.executors.process.keeper", *(name for name in PRELOADED if name in sys.modules)]
    return python_command(
        f"import {', '.join(modules)}; runcue.executors.process.keeper.keep({control}, {lock})"
    )
