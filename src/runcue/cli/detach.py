"""Forks a process into the background, in a session of its own, without the terminal and files of its parent.

`detached(log)` returns twice: a `Child` to wait for in the old process, a `Parent` to answer in the new one. The new
process has only the log file open, as its output, and the pipe for its answer.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from pathlib import Path

from runcue.cli.failure import BUSY, INTERNAL, Failure
from runcue.cli.lines import open_log

READY = 3
"""The descriptor on which the new process answers."""
MOST_DESCRIPTORS = 1 << 20
UP = b"\0"
LONGEST = 4096
"""Bytes of a reason that are sent at most."""


class Child:
    """The new process, as the old one sees it."""

    def __init__(self, pid: int, ready: int) -> None:
        self.pid = pid
        self._ready = ready

    def wait(self, seconds: float) -> None:
        """Wait until the new process is up; raises the reason and its exit code when it is not. Ctrl-C ends it."""
        try:
            if not select.select([self._ready], [], [], seconds)[0]:
                text = (
                    f"Process {self.pid} has not reported for {seconds:g} s whether it is up. It still runs."
                )
                raise Failure(text, BUSY)
            word = os.read(self._ready, LONGEST)
        except KeyboardInterrupt:
            os.kill(self.pid, signal.SIGTERM)
            raise
        if word != UP:
            code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
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
        except BrokenPipeError:
            return  # the old process has stopped waiting
        finally:
            os.close(self._ready)
            self._ready = -1


def detached(log: Path) -> Child | Parent:
    """Fork; returns in both processes."""
    output = open_log(log)
    ours, theirs = os.pipe()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed from the start
            stream.flush()
    pid = os.fork()
    if pid:
        os.close(theirs)
        os.close(output)
        return Child(pid, ours)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, place in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, place)
    os.dup2(theirs, READY, inheritable=False)
    os.closerange(READY + 1, MOST_DESCRIPTORS)
    return Parent(READY)
