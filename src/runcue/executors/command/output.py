"""What commands print: files that the commands write to directly, kept small from outside.

A command has the files themselves as stdout and stderr, opened for appending: there is no pipe that could fill, be
held open or cost memory. Rules:

- A thread looks at the size of the files, often while something is written and a few times a second otherwise. What
  is older than the last part of a file that became too long is given back to the file system as a hole. Where there
  are no holes, the end is remembered and the file emptied; what is written in that very moment is lost.
- The result is the end of the file, read when the command has ended, whoever still has it open.
- Each file is locked through the description that the command inherits, so that it can be told whether a
  descendant still has it open. Our own descriptor is another one.
- A file has no name until something was found in it: most commands are over before. Where that is not possible it
  has one from the start. A file that cannot be made in its folder never has one: the command runs all the same.
- Nothing of an id becomes part of a path unless it is harmless on every file system.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from runcue.errors import quoted
from runcue.executors.process_locks import Mark, is_locked, put_label, take_label
from runcue.host.descriptors import close, guard

logger = logging.getLogger("runcue")
Complain = Callable[[OSError], None]

KEEP = 64 * 1024
"""Bytes of each stream that are the result."""
LIMIT = 10 * 1024 * 1024
"""Bytes of each stream that are kept in its file."""
LINE = 200
"""Characters of a line that are told as progress."""

FLOODED = 0.005
OFTEN = 0.05
SELDOM = 0.25
"""Seconds between two looks at the files: while they are flooded, written to, and left alone."""
TOLD_EVERY = 1.0
"""Seconds between two lines told of one command."""

_BLOCK = 4096
_PUNCH_HOLE = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
_SAFE_ID = re.compile(r"[0-9a-z][0-9a-z_-]{0,63}")
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW
_TMPFILE: int | None = getattr(os, "O_TMPFILE", None)
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def stem(work_id: str, attempt: int) -> str:
    """The name, without its ending, of the files of an attempt. Ids that are no safe names are replaced by a hash."""
    name = work_id
    if _SAFE_ID.fullmatch(work_id) is None:
        name = "=" + hashlib.sha256(work_id.encode("utf-8", "surrogatepass")).hexdigest()[:40]
    return f"{name}.{attempt}"


def make_folder(folder: Path) -> None:
    """Make the folder of output files, for us alone; raises OSError when it cannot be, or is somebody else's."""
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory: move it away", str(folder)) from None
        if found.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, f"belongs to user {found.st_uid}", str(folder)) from None
        if stat.S_IMODE(found.st_mode) != 0o700:
            folder.chmod(0o700)


def is_lack(error: OSError) -> bool:
    """Whether the system had no room just now: another time there may be some."""
    return error.errno in _NO_ROOM


class Stream:
    """One file that a command writes to. It gets its name when somebody may want to look at it."""

    def __init__(self, folder: str | None, name: str, label: bytes | None = None) -> None:
        self._folder = folder
        self._name = name
        self.is_named = False
        self.writing = self._reading = -1
        self._seen = 0  # the size at the last look
        self._holed = 0  # what is before that was given back
        self._end = b""  # what a file that had to be emptied ended with
        self._has_lost = False
        try:
            self._open()
            fcntl.flock(self.writing, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if label is not None:
                put_label(self._reading, label)
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
                    self.writing = guard(_made_anew(self._path))
                    self._reading = guard(os.open(self._path, _FLAGS | os.O_RDWR))
                    self.is_named = True
            except OSError as error:
                if is_lack(error):
                    raise
                self.close()
                self._folder = None  # the file is lost, the output is not
            else:
                return
        if not self._open_nameless(tempfile.gettempdir()):
            made, name = tempfile.mkstemp(prefix="runcue-")
            self._reading = guard(made)
            try:
                self.writing = guard(os.open(name, _FLAGS | os.O_WRONLY | os.O_APPEND))
            finally:
                os.unlink(name)  # noqa: PTH108

    def _open_nameless(self, folder: str) -> bool:
        """Make a file without a name; False where there is no such thing."""
        if _TMPFILE is None:
            return False
        try:
            self._reading = guard(os.open(folder, _TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600))
            opened = f"/proc/self/fd/{self._reading}"
            self.writing = guard(os.open(opened, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))
        except OSError as error:
            self.close()
            if error.errno in {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL}:
                return False
            raise
        return True

    def show(self) -> None:
        """Give the file its name."""
        if not self.is_named and self._folder is not None:
            source = f"/proc/self/fd/{self._reading}"
            try:
                os.link(source, self._path, src_dir_fd=self._reading, follow_symlinks=True)
            except FileExistsError:
                os.unlink(self._path)  # noqa: PTH108
                os.link(source, self._path, src_dir_fd=self._reading, follow_symlinks=True)
            self.is_named = True

    @property
    def mark(self) -> Mark:
        """What the file is known by among the open files of a process."""
        found = os.fstat(self._reading)
        return found.st_dev, found.st_ino

    @property
    def is_held(self) -> bool:
        """Whether a descendant of the command still has it open."""
        return is_locked(self._reading)

    def hand_over(self) -> None:
        """The command has it: from here on only it and its descendants write."""
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
        """Give back what is older than the last part, if there is more than `limit` as of the last look."""
        if self._seen - self._holed <= limit:
            return
        until = (self._seen - limit // 2) // _BLOCK * _BLOCK
        if punch(self._reading, self._holed, until - self._holed):
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
        """The last bytes as text, from the first whole character on."""
        data = self.tail(keep)
        return as_text(data, is_cut=len(data) == keep)

    def last_line(self) -> str:
        """The last line with something on it, fit for a terminal."""
        return last_line(as_text(self.tail(8 * LINE), is_cut=True))

    def is_long(self, limit: int) -> bool:
        """Whether more was written than its file is to keep."""
        return self._has_lost or os.fstat(self._reading).st_size > limit

    def settle(self, limit: int) -> None:
        """The command has ended: keep the file if there is something in it, and no more of it than is meant."""
        if self._folder is None:
            return
        if not self._has_lost and not os.fstat(self._reading).st_size:
            if self.is_named:
                os.unlink(self._path)  # noqa: PTH108
        elif self.is_long(limit):
            new = Path(f"{self._path}.new")
            with os.fdopen(_made_anew(str(new)), "wb") as file:
                file.write(self.tail(limit))
            new.replace(self._path)
        else:
            self.show()
            self.unlabel()

    def unlabel(self) -> None:
        """Nobody is to be asked for it any more."""
        take_label(self._reading)

    def close(self) -> None:
        """Let go of the file."""
        self.hand_over()
        if self._reading != -1:
            close(self._reading)
            self._reading = -1


def _made_anew(path: str) -> int:
    """A new file in the place of whatever is there."""
    flags = _FLAGS | os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
    try:
        return os.open(path, flags, 0o600)
    except FileExistsError:
        os.unlink(path)  # noqa: PTH108
        return os.open(path, flags, 0o600)


def _read(descriptor: int, size: int, start: int) -> bytes:
    parts = []
    while size > 0 and (part := os.pread(descriptor, size, start)):
        parts.append(part)
        size -= len(part)
        start += len(part)
    return b"".join(parts)


def as_text(data: bytes, *, is_cut: bool) -> str:
    """What a command printed; where its beginning was cut off, from the first whole character on."""
    if is_cut:
        data = data[next((at for at, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0) :]
    return data.decode("utf-8", "backslashreplace")


def last_line(text: str) -> str:
    """The last line of a text with something on it, fit for a terminal."""
    return next(filter(None, map(shown, reversed(re.split(r"[\r\n]+", text)))), "")


def shown(text: str) -> str:
    """A line that is short and has nothing in it that moves a cursor."""
    text = "".join(character if character.isprintable() else " " for character in text).strip()
    return text if len(text) <= LINE else text[:LINE] + "…"


class Tail:
    """The last bytes of a stream that comes in parts, however long that is."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._is_cut = False

    def add(self, data: bytes) -> None:
        """Take in what came."""
        self._kept += data
        if len(self._kept) > 2 * KEEP:
            del self._kept[:-KEEP]
            self._is_cut = True

    def text(self) -> str:
        """What is kept; no character is cut in half."""
        return as_text(bytes(self._kept[-KEEP:]), is_cut=self._is_cut or len(self._kept) > KEEP)

    def last_line(self, *, is_whole: bool = False) -> str:
        """The last line, or the last whole one, that says something."""
        data = bytes(self._kept[-8 * LINE :])
        if is_whole:
            data = data[: data.rfind(b"\n") + 1]
        return last_line(as_text(data, is_cut=True))


@cache
def _fallocate() -> Callable[..., int] | None:
    import ctypes  # only commands that print a lot need it

    try:
        library = ctypes.CDLL(None, use_errno=True)
        function: Any = getattr(library, "fallocate64", None) or library.fallocate
    except (OSError, AttributeError):  # not this kind of system
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    called: Callable[..., int] = function
    return called


def punch(descriptor: int, start: int, size: int) -> bool:
    """Give a part of a file back to the file system; False where that is not possible."""
    function = _fallocate()
    return function is not None and function(descriptor, _PUNCH_HOLE, start, size) == 0


class Output:
    """The two files of one command."""

    def __init__(
        self,
        folder: Path | None,
        name: str,
        label: bytes | None,
        tell: Callable[[str], None],
        complain: Complain,
    ) -> None:
        where = None if folder is None else str(folder)
        self.out = Stream(where, f"{name}.out", label)
        try:
            self.err = Stream(where, f"{name}.err", label)
        except BaseException:
            self.out.close()
            raise
        self._tell = tell
        self._complain = complain
        self._told_at = 0.0
        self._news: Stream | None = None
        self._lock = threading.Lock()  # the watcher looks, the loop closes
        self._is_open = True

    @property
    def marks(self) -> set[Mark]:
        """What the files are known by among the open files of a process."""
        return {self.out.mark, self.err.mark}

    @property
    def is_held(self) -> bool:
        """Whether a descendant of the command still has one of them open."""
        return self.out.is_held or self.err.is_held

    def hand_over(self) -> None:
        """The command has them."""
        self.out.hand_over()
        self.err.hand_over()

    def unlabel(self) -> None:
        """The command has ended, and whoever still has one of them open is left alone."""
        self.out.unlabel()
        self.err.unlabel()

    def look(self, now: float, limit: int) -> int:
        """Keep the files small and tell the last line; how many bytes were written since the last look."""
        with self._lock:
            if not self._is_open:
                return 0
            written = 0
            for stream in (self.err, self.out):
                if grown := stream.grown():
                    written += grown
                    self._news = stream
                    stream.show()
                    stream.cap(limit)
            if self._news is None or now - self._told_at < TOLD_EVERY:
                return written
            line, self._news, self._told_at = self._news.last_line(), None, now
        if line:
            self._tell(line)
        return written

    def is_long(self, limit: int) -> bool:
        """Whether one of them has to be made shorter now that the command has ended."""
        return self.out.is_long(limit) or self.err.is_long(limit)

    def result(self, keep: int, exit_code: int | None) -> dict[str, Any]:
        """What the work's result is."""
        return {"stdout": self.out.text(keep), "stderr": self.err.text(keep), "exit_code": exit_code}

    def settle(self, limit: int) -> None:
        """The command has ended: keep of its files what is meant to be kept."""
        with self._lock:
            for stream in (self.out, self.err):
                try:
                    stream.settle(limit)
                except OSError as error:  # the disk is full or the folder gone: it stays as it is
                    self._complain(error)

    def close(self) -> None:
        """Let go of both files."""
        with self._lock:
            self._is_open = False
            self.out.close()
            self.err.close()


class Watcher:
    """A thread that looks at the output of what runs, and does what would hold the loop for too long."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._watched: dict[int, Output] = {}
        self._asked: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_asleep = False
        self._complained: set[int | None] = set()

    def start(self) -> None:
        """Be ready; raises RuntimeError when the system has no room for another thread."""
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
        """Say that files of output cannot be made, looked at, shortened or removed; once for each cause."""
        if error.errno not in self._complained:
            self._complained.add(error.errno)
            where = f" {quoted(error.filename)}" if error.filename else ""
            reason = error.strerror or str(error)
            logger.warning("what commands print is not kept as it should be:%s %s (told once)", where, reason)

    def remove(self, key: int) -> None:
        """Watch it no longer."""
        self._watched.pop(key, None)

    def do(self, job: Callable[[], None]) -> None:
        """Have something done in the thread; it must not raise."""
        self.start()
        self._asked.put(job)

    @property
    def is_running(self) -> bool:
        """Whether there is a thread."""
        return self._thread is not None

    def close(self) -> None:
        """End the thread, once it has done what was asked of it."""
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
        if self._watched:  # somebody came who still saw us awake
            self._is_asleep = False
            return pause
        return None

    def _look(self) -> int:
        now = time.monotonic()
        written = 0
        for output in list(self._watched.values()):
            try:
                written += output.look(now, self._limit)
            except OSError as error:  # a file system that has gone away; the command itself will notice
                self.complain(error)
        return written


def _nothing() -> None:
    """Wakes the thread up."""
