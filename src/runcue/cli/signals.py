"""The signals that a supervisor heeds, as something that can be waited for together with pipes.

Rules:
- What whoever started us wants to have ignored (`nohup`, a job in the background) stays ignored.
- Afterwards they mean nothing any more: all that is left to do then is to end, with the exit code that was earned.
"""

from __future__ import annotations

import os
import select
import signal
from types import FrameType
from typing import Self

COUNTED = (signal.SIGINT, signal.SIGTERM)
"""Those of which a second one means more than the first."""
HEEDED = (*COUNTED, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT)


class Signals:
    """The signals that a supervisor heeds, as something that can be waited for."""

    def __enter__(self) -> Self:
        self._ours, self._theirs = os.pipe()
        os.set_blocking(self._ours, False)
        os.set_blocking(self._theirs, False)
        for number in (*HEEDED, signal.SIGCHLD):
            if number == signal.SIGCHLD or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _noted)
        signal.set_wakeup_fd(self._theirs, warn_on_full_buffer=False)
        return self

    def __exit__(self, *error: object) -> None:
        signal.set_wakeup_fd(-1)
        for number in HEEDED:
            signal.signal(number, signal.SIG_IGN)
        os.close(self._ours)
        os.close(self._theirs)

    def wait(self, readable: list[int], writable: list[int], seconds: float | None) -> None:
        """Until a signal comes, something can be read or written, or so much time has passed."""
        poll = select.poll()
        for descriptor in (self._ours, *readable):
            if descriptor != -1:
                poll.register(descriptor, select.POLLIN)
        for descriptor in writable:
            poll.register(descriptor, select.POLLOUT)
        poll.poll(None if seconds is None else seconds * 1000 + 1)

    def take(self) -> bytes:
        """The numbers of the signals that came."""
        try:
            return os.read(self._ours, 1024)
        except BlockingIOError:
            return b""


def _noted(number: int, frame: FrameType | None) -> None:
    """The number has gone through the pipe already."""
