"""What is around a function in a process of the pool, on Windows: folder, umask, signals.

A thread looks at the channel while a function is called. Only QUIT comes then, or the end of the owner: the function
is interrupted as by Ctrl-C, which wakes `time.sleep`, and ends with SystemExit. Who does not heed that is ended by
the owner, with everything that it started.
"""

from __future__ import annotations

import _thread
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

assert sys.platform == "win32"

LOOK = 0.2
"""Seconds that the thread waits for the channel at a time."""
ENDED = 143
"""The exit code of a function that was told to end."""


class Surroundings:
    """The folder, umask and signals of this process."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._home = os.getcwd()  # noqa: PTH109 (as text)
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        signal.signal(signal.SIGINT, self._asked_to_end)
        handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
        self._handlers: dict[int, Any] = {
            number: handler for number, handler in handlers.items() if handler is not None
        }
        self._lock = threading.Lock()
        self._calls = threading.Semaphore(0)
        self._is_called = self._is_told = False
        threading.Thread(target=self._watch, name="runcue-watch", daemon=True).start()

    def ready(self) -> None:
        """Nothing: no signal was held back."""

    def settle_in(self) -> None:
        """Keep the folder that the process is in now."""
        self._home = os.getcwd()  # noqa: PTH109 (as text)

    @contextmanager
    def call(self) -> Iterator[None]:
        """The function is told to end when anything comes through the channel within this context."""
        with self._lock:
            self._is_called = True
        self._calls.release()
        try:
            yield
        finally:
            with self._lock:
                self._is_called = False

    def put_back(self) -> None:
        """Restore folder, umask and signal handlers."""
        os.chdir(self._home)
        os.umask(self._umask)
        for number, handler in self._handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)

    def _watch(self) -> None:
        while True:
            self._calls.acquire()
            while self._look():
                pass

    def _look(self) -> bool:
        """Wait a while for something to come; False when no function is called any more, or it was told to end."""
        readable = select.select([self._channel], [], [], LOOK)[0]
        with self._lock:
            if not self._is_called:
                return False
            # What came before was the call itself, which was read before this lock was taken.
            if readable and select.select([self._channel], [], [], 0)[0]:
                self._is_told = True
                _thread.interrupt_main()
                return False
        return True

    def _asked_to_end(self, number: int, frame: object) -> None:
        if self._is_told:
            raise SystemExit(ENDED)
