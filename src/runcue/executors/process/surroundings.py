"""What is around a function in a process of the pool, on Linux and macOS: folder, umask, timers, signals.

SIGTERM ends a function if the owner has sent QUIT, too: a service manager sends SIGTERM to all processes at once.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from runcue.host.posix.processes import ignore_signal

assert sys.platform != "win32"

TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
OURS = {signal.SIGINT, signal.SIGTERM, signal.SIGCONT}


class Surroundings:
    """The folder, umask, timers and signals of this process."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._pid = os.getpid()
        self._home = -1
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, []) - OURS
        signal.signal(signal.SIGINT, ignore_signal)
        signal.signal(signal.SIGCONT, ignore_signal)  # interrupts a system call, so that SIGTERM is noticed
        signal.signal(signal.SIGTERM, self._asked_to_end)
        handlers = {number: signal.getsignal(number) for number in signal.Signals}
        self._handlers: dict[int, Any] = {
            number: handler for number, handler in handlers.items() if handler is not None
        }

    def ready(self) -> None:
        """From now on signals come through."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def settle_in(self) -> None:
        """Keep the folder that the process is in now."""
        self._home = os.open(".", os.O_RDONLY)

    @contextmanager
    def call(self) -> Iterator[None]:
        """A signal of the function's timers within this context belongs to its answer."""
        try:
            yield
        finally:
            for timer in TIMERS:
                signal.setitimer(timer, 0)

    def put_back(self) -> None:
        """Restore folder, umask, signal handlers and mask; signals that came while they were blocked are dropped."""
        os.fchdir(self._home)
        os.umask(self._umask)
        for number, handler in self._handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        if signal.pthread_sigmask(signal.SIG_BLOCK, []) != self._mask:
            for number in signal.sigpending() - OURS:
                signal.signal(number, signal.SIG_IGN)
                signal.signal(number, self._handlers.get(number, signal.SIG_DFL))
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _asked_to_end(self, number: int, frame: object) -> None:
        if os.getpid() != self._pid:
            os._exit(128 + number)
        try:
            self._channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        raise SystemExit(128 + number)
