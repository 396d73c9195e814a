"""The output of a supervisor: to the terminal or pipe it was started on, or to a log file.

Rules:
- The supervisor never waits for a reader. Lines for which a pipe or terminal has no room are buffered. When the
  buffer is full, whole lines are dropped, and their number is written once there is room again.
- A pipe without a reader is no error here: `is_closed` says so.
- A log file is private and appended to. When it is full it is renamed to `….1`. Several supervisors may write to it:
  one of them renames it, and the others reopen it. Lines that could not be written are counted, too.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from pathlib import Path
from typing import Protocol

from runcue.cli.screen import counted, styled
from runcue.cli.system import processes
from runcue.host.system import files

MOST_KEPT = 256 * 1024
PIECE = 512
"""Bytes written at once: POSIX writes as many into a pipe with room in one piece."""
LOG_LIMIT = 4 * 1024 * 1024
CLOSED = {errno.EPIPE, errno.EIO, errno.EBADF}
"""Errors that mean that a pipe has no reader, or a terminal is gone."""
LAST_WORDS = 1.0
"""Seconds for which `finish` waits for a reader."""


class Sink(Protocol):
    """A place that whole lines are written to."""

    is_closed: bool

    def fileno(self) -> int: ...
    def put(self, line: str) -> None:
        """Take a line, at once or as soon as possible."""

    def push(self) -> bool:
        """Write what can be written now; False while something is left."""


class Stream:
    """A terminal, a pipe or a file that the process was started with."""

    def __init__(self, descriptor: int, encoding: str) -> None:
        self._descriptor = descriptor
        self._encoding = encoding
        self._left = bytearray()
        self._lost = 0
        self.is_closed = False

    def fileno(self) -> int:
        """The descriptor, to wait for room."""
        return self._descriptor

    def put(self, line: str) -> None:
        """Take a line, at once or as soon as possible."""
        if self.is_closed:
            return
        data = f"{line}\n".encode(self._encoding, "backslashreplace")
        if len(self._left) + len(data) > MOST_KEPT:
            self._lost += 1
            return
        self._left += data
        self.push()

    def push(self) -> bool:
        """Write what can be written now; False while something is left."""
        while self._left and not self.is_closed:
            if not self._has_room():
                return False
            try:
                written = os.write(self._descriptor, self._left[:PIECE])
            except OSError as error:
                self.is_closed = error.errno in CLOSED
                self._lost += self._left.count(b"\n")  # such as by a disk that is full
                self._left.clear()
                break
            del self._left[:written]
            if self._lost and not self._left:
                self._left += f"({counted(self._lost, 'line')} lost: nobody read them)\n".encode("ascii")
                self._lost = 0
        return True

    def _has_room(self) -> bool:
        return processes.has_room(self._descriptor)


class Log:
    """The log file of supervisors without a terminal; several may write to it."""

    def __init__(self, path: Path, limit: int = LOG_LIMIT) -> None:
        self._path = path
        self._limit = limit
        self._lost = 0
        self.is_closed = False
        self._descriptor = files.open_log(path)

    def fileno(self) -> int:
        """The descriptor of the log file."""
        return self._descriptor

    def put(self, line: str) -> None:
        """Append a line, and how many were lost before it."""
        lost = f"({counted(self._lost, 'line')} lost: they could not be written)\n" if self._lost else ""
        data = f"{lost}{line}\n".encode()
        try:
            self._keep_small()
            is_whole = os.write(self._descriptor, data) == len(data)
        except OSError:  # a full disk must not end workers
            is_whole = False
        self._lost = 0 if is_whole else self._lost + 1

    def push(self) -> bool:
        """Do nothing: a log file takes each line at once."""
        return True

    def _keep_small(self) -> None:
        if self._is_there() and self._has_room():
            return
        if not files.try_lock(self._descriptor):
            return  # another supervisor is renaming it: our next line reopens it
        try:
            if self._is_there():
                files.replace(self._path, f"{self._path}.1")
            fresh = files.open_log(self._path)
        finally:
            files.unlock(self._descriptor)
        for number in (self._descriptor, 1, 2):  # stdout and stderr write to the new file, too
            os.dup2(fresh, number, inheritable=number in {1, 2})
        os.close(fresh)

    def _has_room(self) -> bool:
        return os.fstat(self._descriptor).st_size < self._limit

    def _is_there(self) -> bool:
        """True while the open file still has that name."""
        return files.is_at(self._descriptor, self._path)


class Lines:
    """Writes the lines of a supervisor: `job` about jobs, `note` about anything else."""

    def __init__(self, log: Path | None = None, *, is_quiet: bool = False) -> None:
        self._is_quiet = is_quiet
        self._format = "%H:%M:%S" if log is None else "%Y-%m-%d %H:%M:%S"
        self._said: Sink
        self._noted: Sink
        if log is None:
            self._said, self._noted = _standard(sys.stdout, 1), _standard(sys.stderr, 2)
        else:
            self._said = self._noted = Log(log)

    @property
    def is_closed(self) -> bool:
        """True when the lines about jobs have no reader any more."""
        return self._said.is_closed

    @property
    def is_terminal(self) -> bool:
        """True when the supervisor has a terminal, on which Ctrl-C can be pressed."""
        return os.isatty(self._noted.fileno())

    def job(self, number: int, job: str, text: str) -> None:
        """Write what became of a job; nothing when quiet."""
        if not self._is_quiet:
            self._said.put(f"{self._now()} worker {number}  {job}  {_painted(text)}")

    def note(self, text: str, *, is_important: bool = True) -> None:
        """Write anything else; when quiet only what is important."""
        if is_important or not self._is_quiet:
            self._noted.put(f"{self._now()} {text}")

    def waiting(self) -> list[int]:
        """The descriptors for which lines are buffered."""
        return [sink.fileno() for sink in (self._said, self._noted) if not sink.push()]

    def finish(self) -> None:
        """Write what is buffered, waiting a moment for a reader."""
        until = time.monotonic() + LAST_WORDS
        while (left := self.waiting()) and time.monotonic() < until:
            processes.await_room(left, 0.05)

    def _now(self) -> str:
        return time.strftime(self._format)


def _standard(stream: object, descriptor: int) -> Stream:
    flush = getattr(stream, "flush", None)
    if flush is not None:
        flush()  # what was written before comes first
    return Stream(descriptor, getattr(stream, "encoding", None) or "utf-8")


def _painted(text: str) -> str:
    word, _, rest = text.partition(" ")
    colors = {"completed": "green", "failed:": "yellow", "dead:": "red", "cancelled": "bright_black"}
    return styled(word, fg=colors.get(word)) + (f" {rest}" if rest else "") if word in colors else text
