"""Has a process go on in the background, without the terminal and files of its parent.

`detached(log)` returns twice: a `Child` to wait for in the old process, a `Parent` to answer in the new one. The new
process has only the log file open, as its output, and the pipe for its answer.
"""

from __future__ import annotations

import os
from pathlib import Path

from runcue.cli.failure import BUSY, INTERNAL, Failure
from runcue.cli.system import processes
from runcue.host.system import files

UP = b"\0"
LONGEST = 4096
"""Bytes of a reason that are sent at most."""


class Child:
    """The new process, as the old one sees it."""

    def __init__(self, process: processes.Background) -> None:
        self.pid = process.pid
        self._process = process

    def wait(self, seconds: float) -> None:
        """Wait until the new process is up; raises the reason and its exit code when it is not. Ctrl-C ends it."""
        try:
            word = self._process.answer(seconds)
        except KeyboardInterrupt:
            self._process.ask_to_end()
            raise
        if word is None:
            text = f"Process {self.pid} has not reported for {seconds:g} s whether it is up. It still runs."
            raise Failure(text, BUSY)
        if word != UP:
            code = self._process.wait()
            raise Failure(word.decode(), code if code > 0 else INTERNAL)


class Parent:
    """The old process, as the new one sees it: it waits for an answer."""

    def __init__(self, ready: int) -> None:
        self._ready = ready

    def is_up(self) -> None:
        """Answer that the new process is up."""
        self._answer(UP)

    def is_not_up(self, reason: str) -> None:
        """Answer why the new process is not up; does nothing after an answer."""
        self._answer(reason.encode()[:LONGEST])

    def _answer(self, word: bytes) -> None:
        if self._ready == -1:
            return
        try:
            os.write(self._ready, word)
        except processes.UNHEARD:
            return  # the old process has stopped waiting
        finally:
            os.close(self._ready)
            self._ready = -1


def detached(log: Path) -> Child | Parent:
    """Go on in the background; returns in both processes."""
    found = processes.in_background(files.open_log(log))
    return Parent(found) if isinstance(found, int) else Child(found)
