"""The output of commands: files that the commands write to directly, and that a thread keeps small.

A command has the files themselves as stdout and stderr, opened for appending: there is no pipe that could fill, be
held open or cost memory. Rules:

- A thread looks at the size of the files, often while they grow and a few times a second otherwise. When a file is
  too long, all but its last part is given back to the file system as a hole. Where the file system has no holes, the
  thread keeps the end in memory and empties the file; bytes written at that very moment are lost.
- The result is the end of the file, read when the command has ended, even if a descendant still has it open.
- Each file is locked through the open file description that the command inherits: the lock shows whether a descendant
  still has the file open. Our own descriptor is another description.
- A file has no name until something is in it: most commands are over before. Where nameless files do not exist, it
  has its name from the start. If the folder cannot be used, the file never has a name, and the command runs anyway.
- An id becomes part of a path only if it is harmless on every file system.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from runcue.errors import quoted
from runcue.executors.command.text import LINE, as_text, last_line
from runcue.host.descriptors import close, guard
from runcue.host.system import files

if TYPE_CHECKING:
    from runcue.executors.process_locks import Mark

logger = logging.getLogger("runcue")
Complain = Callable[[OSError], None]

LIMIT = 10 * 1024 * 1024
"""Bytes of each stream, from its end, that its file keeps."""

FLOODED = 0.005
OFTEN = 0.05
SELDOM = 0.25
"""Seconds between two looks at the files: while they grow fast, grow, and do not grow."""
REPORT_EVERY = 1.0
"""Seconds between two lines of one command that are reported as progress."""

_BLOCK = 4096
_SAFE_ID = re.compile(r"[0-9a-z][0-9a-z_-]{0,63}")
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def stem(work_id: str, attempt: int) -> str:
    """The name of an attempt's files, without ending: the id, or its hash where the id is no safe name."""
    name = work_id
    if _SAFE_ID.fullmatch(work_id) is None:
        name = "=" + hashlib.sha256(work_id.encode("utf-8", "surrogatepass")).hexdigest()[:40]
    return f"{name}.{attempt}"


def make_folder(folder: Path) -> None:
    """Create the folder of output files, for this user alone; OSError when it cannot be, or has another owner."""
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory: move it away", str(folder)) from None
        if found.st_uid != files.user():
            raise PermissionError(errno.EPERM, f"belongs to user {found.st_uid}", str(folder)) from None
        if stat.S_IMODE(found.st_mode) != 0o700:
            folder.chmod(0o700)


def is_lack(error: OSError) -> bool:
    """Whether an error says that the system has no room for another open file just now."""
    return error.errno in _NO_ROOM


class Stream:
    """One file that a command writes to."""

    def __init__(self, folder: str | None, name: str, label: bytes | None = None) -> None:
        self._folder = folder
        self._name = name
        self.is_named = False
        self.writing = self._reading = -1
        self._seen = 0  # the size at the last look
        self._holed = 0  # bytes before this were given back
        self._end = b""  # the end of a file that had to be emptied
        self._has_lost = False
        try:
            self._open()
            files.lock(self.writing)
            if label is not None:
                files.put_label(self._reading, label)
        except BaseException:
            self.close()
            raise

    @property
    def _path(self) -> str:
        return f"{self._folder}/{self._name}"

    def _open(self) -> None:
        if self._folder is not None:
            try:
                if not self._open_nameless(self._folder):
                    self.writing = guard(files.create_anew(self._path))
                    self._reading = guard(files.open_file(self._path, os.O_RDWR))
                    self.is_named = True
            except OSError as error:
                if is_lack(error):
                    raise
                self.close()
                self._folder = None  # no file stays, but the result has the output
            else:
                return
        if not self._open_nameless(tempfile.gettempdir()):
            reading, writing = files.open_temporary()
            self._reading, self.writing = guard(reading), guard(writing)

    def _open_nameless(self, folder: str) -> bool:
        """Create a nameless file; False where the system has none."""
        opened = files.open_nameless(folder)
        if opened is not None:
            self._reading, self.writing = map(guard, opened)
        return opened is not None

    def show(self) -> None:
        """Give the file its name."""
        if not self.is_named and self._folder is not None:
            files.give_name(self._reading, self._path)
            self.is_named = True

    @property
    def mark(self) -> Mark:
        """Device and inode, to find the file among the open files of a process."""
        found = os.fstat(self._reading)
        return found.st_dev, found.st_ino

    @property
    def is_held(self) -> bool:
        """Whether a descendant of the command still has the file open."""
        return files.is_locked(self._reading)

    def hand_over(self) -> None:
        """Close our writing end: from here on only the command and its descendants write."""
        if self.writing != -1:
            close(self.writing)
            self.writing = -1

    def grown(self) -> int:
        """How many bytes were written since the last look."""
        size = os.fstat(self._reading).st_size
        grown, self._seen = size - self._seen, size
        if grown < 0:  # the command itself emptied it, as `> /dev/stdout` does
            grown, self._holed = size, 0
        return grown

    def cap(self, limit: int) -> None:
        """Give back all but the last part, if the file had more than `limit` bytes at the last look."""
        if self._seen - self._holed <= limit:
            return
        until = (self._seen - limit // 2) // _BLOCK * _BLOCK
        if files.punch(self._reading, self._holed, until - self._holed):
            self._holed = until
        else:
            self._end = self.tail(limit // 2)
            os.ftruncate(self._reading, 0)
            self._seen = self._holed = 0
            self._has_lost = True

    def tail(self, keep: int) -> bytes:
        """The last bytes that were written."""
        size = os.fstat(self._reading).st_size
        holed = self._holed if self._holed <= size else 0  # else the command emptied it since the last look
        start = max(holed, size - keep)
        data = _read(self._reading, size - start, start)
        return (self._end + data)[-keep:] if len(data) < keep else data

    def text(self, keep: int) -> str:
        """The last bytes as text, beginning with a whole character."""
        data = self.tail(keep)
        return as_text(data, is_cut=len(data) == keep)

    def last_line(self) -> str:
        """The last line that is not blank, fit for a terminal."""
        return last_line(as_text(self.tail(8 * LINE), is_cut=True))

    def is_long(self, limit: int) -> bool:
        """Whether more was written than the file may keep."""
        return self._has_lost or os.fstat(self._reading).st_size > limit

    def settle(self, limit: int) -> None:
        """Prepare the file for keeping after the end of the command: remove it if empty, shorten it if too long."""
        if self._folder is None:
            return
        if not self._has_lost and not os.fstat(self._reading).st_size:
            if self.is_named:
                files.remove(self._path)
        elif self.is_long(limit):
            new = Path(f"{self._path}.new")
            with os.fdopen(files.create_anew(str(new)), "wb") as file:
                file.write(self.tail(limit))
            self.close()  # else it could not be replaced everywhere
            files.replace(new, self._path)
        else:
            self.show()
            self.unlabel()

    def unlabel(self) -> None:
        """Remove the job's label: recovery no longer ends processes that write to the file."""
        files.take_label(self._reading)

    def close(self) -> None:
        """Close our descriptors."""
        self.hand_over()
        if self._reading != -1:
            close(self._reading)
            self._reading = -1


def _read(descriptor: int, size: int, start: int) -> bytes:
    parts = []
    while size > 0 and (part := files.read_at(descriptor, size, start)):
        parts.append(part)
        size -= len(part)
        start += len(part)
    return b"".join(parts)


class Output:
    """The two files of one command."""

    def __init__(
        self,
        folder: Path | None,
        name: str,
        label: bytes | None,
        report: Callable[[str], None],
        complain: Complain,
    ) -> None:
        where = None if folder is None else str(folder)
        self.out = Stream(where, f"{name}.out", label)
        try:
            self.err = Stream(where, f"{name}.err", label)
        except BaseException:
            self.out.close()
            raise
        self._report = report
        self._complain = complain
        self._reported_at = 0.0
        self._changed: Stream | None = None
        self._lock = threading.Lock()  # the watcher looks, the loop closes
        self._is_open = True

    @property
    def marks(self) -> set[Mark]:
        """Device and inode of both files."""
        return {self.out.mark, self.err.mark}

    @property
    def is_held(self) -> bool:
        """Whether a descendant of the command still has one of the files open."""
        return self.out.is_held or self.err.is_held

    def hand_over(self) -> None:
        """Close our writing ends: the command has its own."""
        self.out.hand_over()
        self.err.hand_over()

    def unlabel(self) -> None:
        """Remove the job's label from both files: recovery leaves processes alone that have them open."""
        self.out.unlabel()
        self.err.unlabel()

    def look(self, now: float, limit: int) -> int:
        """Keep the files small and report the last line; returns how many bytes were written since the last look."""
        with self._lock:
            if not self._is_open:
                return 0
            written = 0
            for stream in (self.err, self.out):
                if grown := stream.grown():
                    written += grown
                    self._changed = stream
                    stream.show()
                    stream.cap(limit)
            if self._changed is None or now - self._reported_at < REPORT_EVERY:
                return written
            line, self._changed, self._reported_at = self._changed.last_line(), None, now
        if line:
            self._report(line)
        return written

    def is_long(self, limit: int) -> bool:
        """Whether one of the files has to be shortened when the command has ended."""
        return self.out.is_long(limit) or self.err.is_long(limit)

    def result(self, keep: int, exit_code: int | None) -> dict[str, Any]:
        """The result of the work unit."""
        return {"stdout": self.out.text(keep), "stderr": self.err.text(keep), "exit_code": exit_code}

    def settle(self, limit: int) -> None:
        """Prepare both files for keeping, now that the command has ended."""
        with self._lock:
            for stream in (self.out, self.err):
                try:
                    stream.settle(limit)
                except OSError as error:  # the disk is full or the folder is gone: the file stays as it is
                    self._complain(error)

    def close(self) -> None:
        """Close both files."""
        with self._lock:
            self._is_open = False
            self.out.close()
            self.err.close()


class Watcher:
    """A thread that watches the output of running commands, and calls functions that would block the loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._watched: dict[int, Output] = {}
        self._asked: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_asleep = False
        self._complained: set[int | None] = set()

    def start(self) -> None:
        """Start the thread, if it does not run; RuntimeError when the system has no room for another thread."""
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="runcue-output", daemon=True)
            thread.start()
            self._thread = thread

    def add(self, key: int, output: Output) -> None:
        """Watch the output of a command."""
        self._watched[key] = output
        if self._thread is None or self._is_asleep:
            self._is_asleep = False
            self.do(_nothing)

    def complain(self, error: OSError) -> None:
        """Log that an output file cannot be created, read, shortened or removed; once for each errno."""
        if error.errno not in self._complained:
            self._complained.add(error.errno)
            where = f" {quoted(error.filename)}" if error.filename else ""
            reason = error.strerror or str(error)
            logger.warning("the output of commands cannot be kept in full:%s %s (logged once)", where, reason)

    def remove(self, key: int) -> None:
        """Stop watching the output of a command."""
        self._watched.pop(key, None)

    def do(self, job: Callable[[], None]) -> None:
        """Have the thread call a function, which must not raise."""
        self.start()
        self._asked.put(job)

    @property
    def is_running(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None

    def close(self) -> None:
        """End the thread, after the functions that it was given."""
        if self._thread is not None:
            self._asked.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        pause = OFTEN
        while True:
            try:
                job = self._asked.get(timeout=self._pause(pause))
            except Empty:
                written = self._look()
                pause = FLOODED if written > self._limit else OFTEN if written else min(SELDOM, pause * 1.5)
                continue
            if job is None:
                return
            job()
            pause = OFTEN

    def _pause(self, pause: float) -> float | None:
        if self._watched:
            return pause
        self._is_asleep = True
        if self._watched:  # `add` was called meanwhile, and saw the thread awake
            self._is_asleep = False
            return pause
        return None

    def _look(self) -> int:
        now = time.monotonic()
        written = 0
        for output in list(self._watched.values()):
            try:
                written += output.look(now, self._limit)
            except OSError as error:  # the file system is gone; the command itself will notice
                self.complain(error)
        return written


def _nothing() -> None:
    """Do nothing: the call wakes the thread up."""
