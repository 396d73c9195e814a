"""Turns, wake-ups and signs of life between the processes on one host that have a queue open.

Beside the file of a queue lies the directory `<file>.runcue` (0700), with files (0600) that hold no data:
`turn`, and for each worker `<worker>.lock` and `<worker>.wake`. Rules:

- A worker lives as long as the kernel holds its lock, and no longer: pids, clocks and beats prove nothing. A stopped
  process lives. A check takes the lock shared, so that two checks of a dead worker do not take each other for it.
- A lock file is locked before it gets its name, and is made and removed with the directory itself locked. So a free
  lock means a dead worker, and the files of a living one are never removed.
- Descriptors are closed in a forked child before its code runs: it must not keep its parent's lock.
- The turnstile only makes waiting fair. A process that cannot pass it may try the database's own lock without it.
- Nothing here reads or writes the database.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from runcue.errors import ForkedConnection, StorageBusy, StorageFull, StorageReplaced, StoreError, quoted
from runcue.host.descriptors import close, forking, guard
from runcue.host.shortage import no_files, start_thread
from runcue.host.system import clock, files, wake
from runcue.stores.sqlite.owner import belongs_to_another, check_found, is_trusted

FIRST_PAUSE = 0.0002
LONGEST_PAUSE = 0.02
DIRECTORY_PATIENCE = 3.0
KEPT_WAKES = 64
NEWS, URGENT = wake.NEWS, wake.URGENT

WORKER_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")
"""The form of a worker's id, which becomes the name of files."""
boot_id, boottime, host_name = clock.boot_id, clock.boottime, clock.host_name
_SUFFIXES = (wake.SUFFIX, ".lock", ".new")


# --- Facts about this process and host ------------------------------------------------------------


def side_directory(database: str | Path) -> Path:
    """The directory of a queue's side files: the same for every path that leads to the file."""
    real = Path(os.path.realpath(database))  # which takes a ring of links, too
    return real.with_name(real.name + ".runcue")


def new_worker_id() -> str:
    """An id that no worker had before. The pid in it is for people; nothing is decided by it."""
    return f"{os.getpid()}-{secrets.token_hex(8)}"


# --- Files, opened for this process alone ----------------------------------------------------------


def _open(path: str | Path, flags: int) -> int:
    return _trusted(path, lambda: files.open_file(path, flags))


def _trusted(path: str | Path, opened: Callable[[], int]) -> int:
    with forking:
        descriptor = guard(opened())
    found = os.fstat(descriptor)
    if not is_trusted(found.st_uid):
        close(descriptor)
        raise belongs_to_another(str(path), found.st_uid)
    return descriptor


def _make(path: Path, flags: int) -> int:
    """Open a file that is ours alone, whatever the umask."""
    descriptor = _open(path, flags | os.O_RDWR | os.O_CREAT)
    try:
        files.make_private(descriptor)
    except OSError:
        close(descriptor)
        raise
    return descriptor


# --- The directory and its locks ------------------------------------------------------------------


def _failure(action: str, path: str | Path, error: OSError) -> StoreError:
    reason = error.strerror or str(error)
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StorageFull(f"Cannot {action} {quoted(str(path))}: {reason}. Free some space.", str(path))
    if (lack := no_files(error.errno, quoted(str(path)), str(path))) is not None:
        return lack
    advice = "Every process on this queue needs to write there: check who may, or move the queue's file."
    return StoreError(f"Cannot {action} {quoted(str(path))}: {reason}. {advice}", str(path))


def make_directory(path: Path) -> None:
    """A directory that nobody else may write to: made, or found as it has to be."""
    try:
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            found = path.lstat()
        else:
            path.chmod(0o700)  # the umask may have taken away even our own rights
            found = path.lstat()
    except OSError as error:
        raise _failure("make the directory", path, error) from error
    if not stat.S_ISDIR(found.st_mode):
        name = quoted(str(path))
        raise StoreError(f"{name} is not a directory. Move it away: this queue needs the name.", str(path))
    if found.st_uid != files.user():
        raise belongs_to_another(str(path), found.st_uid)
    check_found(str(path), found)


def _take(descriptor: int, timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    pause = FIRST_PAUSE
    while True:
        if files.try_lock(descriptor):
            return True
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(pause, left))
        pause = min(1.5 * pause, LONGEST_PAUSE)


@contextmanager
def _directory_lock(directory: Path, patience: float) -> Iterator[bool]:
    """Hold the lock under which files of workers are made and removed; False when others hold it for too long."""
    descriptor = _trusted(directory, lambda: files.open_door(directory))
    try:
        is_ours = _take(descriptor, patience)
        try:
            yield is_ours
        finally:
            if is_ours:
                files.unlock(descriptor)
    finally:
        close(descriptor)


def _is_held(path: str) -> bool | None:
    """Whether a process holds this lock; None when there is no such file."""
    try:
        descriptor = _open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return files.is_locked(descriptor)
    finally:
        close(descriptor)


def is_alive(directory: Path, worker_id: str) -> bool:
    """Whether that worker's process lives; for callers without a Presence of their own."""
    if WORKER_ID.fullmatch(worker_id) is None:
        return False
    path = f"{directory}/{worker_id}.lock"
    try:
        return bool(_is_held(path))
    except OSError as error:
        raise _failure("look at the lock", path, error) from error


def last_beat(directory: Path, worker_id: str) -> float | None:
    """When that worker last gave a sign of life, on the clock of `boottime()`; None when it has no files."""
    if WORKER_ID.fullmatch(worker_id) is None:
        return None
    path = directory / f"{worker_id}.lock"
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _failure("look at the lock", path, error) from error


def workers(directory: Path) -> list[str]:
    """The ids of all workers that have files here, dead ones too."""
    try:
        names = [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _failure("list the directory", directory, error) from error
    ids = {name.rpartition(".")[0] for name in names if name.endswith(_SUFFIXES)}
    return sorted(filter(WORKER_ID.fullmatch, ids))


# --- Taking turns ---------------------------------------------------------------------------------


class Turnstile:
    """Lets the processes on one queue through one by one, before each takes the database's lock.

    For one thread. The kernel serves blocking calls in order; a process that polls would starve. A blocking call
    cannot be given up: a caller that no longer wants the turn releases it when it comes.
    """

    def __init__(self, directory: Path) -> None:
        make_directory(directory)
        self._path = directory / "turn"
        self._pid = os.getpid()
        self._is_open = True
        self._guard = threading.Lock()
        self._is_waiting = False  # then the waiting thread closes the descriptor
        try:
            self._descriptor = _make(self._path, 0)
        except OSError as error:
            raise _failure("open", self._path, error) from error

    def acquire(self, timeout: float | None = None) -> bool:
        """Wait for our turn. With a timeout the lock is polled; False when the turn did not come in time."""
        try:
            with self._guard:
                _check_open(self._is_open, self._pid, self._path)
                is_ours = _take(self._descriptor, 0.0)
                self._is_waiting = not is_ours and timeout is None
            if self._is_waiting:
                self._wait()
            return is_ours or timeout is None or _take(self._descriptor, timeout)
        except OSError as error:
            raise _failure("lock", self._path, error) from error

    def _wait(self) -> None:
        try:
            files.lock(self._descriptor)
        finally:
            with self._guard:
                self._is_waiting = False
                if not self._is_open:
                    close(self._descriptor)
        _check_open(self._is_open, self._pid, self._path)

    def release(self) -> None:
        """Let the next process through."""
        _check_open(self._is_open, self._pid, self._path)
        files.unlock(self._descriptor)

    def close(self) -> None:
        """Close the file, and with it the turn; the file stays for the others. From any thread."""
        if self._pid != os.getpid():
            return
        with self._guard:
            if self._is_open and not self._is_waiting:
                close(self._descriptor)
            self._is_open = False


def _check_open(is_open: bool, pid: int, path: Path) -> None:
    if pid != os.getpid():
        message = f"{quoted(str(path))} was opened by process {pid}, before a fork. Open the queue anew here."
        raise ForkedConnection(message, str(path))
    if not is_open:
        raise StoreError(f"{quoted(str(path))} is closed. Open the queue anew.", str(path))


# --- Being there ----------------------------------------------------------------------------------


class Presence:
    """Shows the other processes on a queue that this worker lives, wakes them, and can be woken."""

    def __init__(self, directory: Path, worker_id: str) -> None:
        assert WORKER_ID.fullmatch(worker_id), worker_id
        make_directory(directory)
        self.directory = directory
        self.worker_id = worker_id
        self._path = directory / f"{worker_id}.lock"
        self._pid = os.getpid()
        self._is_open = False
        self._guard = threading.Lock()  # the heart's thread, the store's and the loop's all come here
        self._lock = -1
        self._ear: wake.Ear | None = None
        self._mouths: dict[str, wake.Mouth] = {}  # peer → what it hears, the longest unused first
        try:
            self._make_files()
        except OSError as error:
            raise _failure("make", self._path, error) from error
        finally:
            if not self._is_open:
                self._let_go()

    def __repr__(self) -> str:
        state = "forked" if self.is_forked else "open" if self._is_open else "closed"
        return f"<Presence {self.worker_id} {state}>"

    def _make_files(self) -> None:
        new = self.directory / f"{self.worker_id}.new"
        with _directory_lock(self.directory, DIRECTORY_PATIENCE) as is_ours:
            if not is_ours:
                name = quoted(str(self.directory))
                advice = "Look for a stopped process that has it open."
                raise StorageBusy(
                    f"{name} was locked for {DIRECTORY_PATIENCE:g} s. {advice}", str(self.directory)
                )
            if _is_held(str(self._path)):
                message = f"Worker {quoted(self.worker_id)} is at work already. Give every worker its own id."
                raise StoreError(message, str(self._path))
            files.remove(new)
            self._lock = _make(new, os.O_EXCL)
            files.lock(self._lock)
            self._touch()
            files.replace(new, self._path)
            self._ear = wake.Ear(self.directory, self.worker_id, _open)
            self._is_open = True

    @property
    def is_forked(self) -> bool:
        """True in a child of the process that made this: everything but `close` raises there."""
        return self._pid != os.getpid()

    @property
    def is_in_place(self) -> bool:
        """False when our lock file was removed or replaced, so that others take this process for dead."""
        return files.is_at(self._lock, self._path)

    @property
    def ear(self) -> wake.Ear:
        """Where the pokes of peers arrive."""
        _check_open(self._is_open, self._pid, self._path)
        assert self._ear is not None
        return self._ear

    def drain(self) -> bytes:
        """Read all pokes so far: their bytes, none when there was no poke."""
        return self.ear.drain()

    def poke(self, worker_ids: Iterable[str], urgent: Container[str] = ()) -> list[str]:
        """Wake these workers; those in `urgent` learn that something was left for them.

        Returns the workers that cannot be reached any more, and may be dead. An error with one does not keep the
        others from being woken; the first error is raised afterwards.
        """
        _check_open(self._is_open, self._pid, self._path)
        gone, troubles = [], []
        with self._guard, wake.saying():
            for one in worker_ids:
                try:
                    if one != self.worker_id and not self._poke(one, URGENT if one in urgent else NEWS):
                        gone.append(one)
                except StoreError as error:
                    troubles.append(error)
        if troubles:
            raise troubles[0]
        return gone

    def _poke(self, worker_id: str, word: bytes) -> bool:
        kept = self._mouths.pop(worker_id, None)
        if kept is not None:
            if kept.say(word):
                self._mouths[worker_id] = kept
                return True
            kept.close()  # gone, or its files were made anew
        if WORKER_ID.fullmatch(worker_id) is None:
            return False
        try:
            opened = wake.Mouth(self.directory, worker_id, _open)
        except OSError as error:
            if wake.is_deaf(error):
                return False
            raise _failure("write to", f"{self.directory}/{worker_id}{wake.SUFFIX}", error) from error
        if not opened.say(word):
            opened.close()
            return False
        self._mouths[worker_id] = opened
        if len(self._mouths) > KEPT_WAKES:
            self._mouths.pop(next(iter(self._mouths))).close()
        return True

    def is_alive(self, worker_id: str) -> bool:
        """Whether that worker's process lives; raises when our own files are gone, too."""
        _check_open(self._is_open, self._pid, self._path)
        if worker_id == self.worker_id or is_alive(self.directory, worker_id):
            return True
        if not self.is_in_place:
            name = quoted(str(self._path))
            message = (
                f"{name} was removed while in use: which processes are alive is unknown. Open the queue anew."
            )
            raise StorageReplaced(message, str(self._path))
        return False

    def watch(self, pid: int) -> wake.Watch | None:
        """Watch the end of that process, until the caller closes it; None where that cannot be done.

        It is a hint: begin, then ask `is_alive`. If that says yes, the pid was still the worker's own.
        """
        return wake.watch(pid)

    def sweep(self, dead_ids: Iterable[str]) -> list[str]:
        """Remove the files of the dead among these workers; the ids of those. Does nothing while others sweep."""
        _check_open(self._is_open, self._pid, self._path)
        swept = []
        try:
            with _directory_lock(self.directory, 0.0) as is_ours:
                for worker_id in dead_ids if is_ours else ():
                    if worker_id != self.worker_id and not is_alive(self.directory, worker_id):
                        self._remove(worker_id)
                        swept.append(worker_id)
        except OSError as error:
            raise _failure("sweep the directory", self.directory, error) from error
        return swept

    def _remove(self, worker_id: str) -> None:
        if WORKER_ID.fullmatch(worker_id) is not None:
            for suffix in _SUFFIXES:
                files.remove(self.directory / (worker_id + suffix))
        with self._guard:
            if (kept := self._mouths.pop(worker_id, None)) is not None:
                kept.close()

    def beat(self) -> None:
        """Leave a sign that this process not only lives but runs."""
        _check_open(self._is_open, self._pid, self._path)
        try:
            with self._guard:
                if self._is_open:
                    self._touch()
        except OSError as error:
            raise _failure("touch", self._path, error) from error

    def _touch(self) -> None:
        # The time of access stays the wall clock's, for programs that clear away what is old.
        files.set_times(self._lock, time.time_ns(), int(boottime() * 1e9))

    def close(self) -> None:
        """Remove our files, then let the lock go. In a forked child: nothing, they are the parent's."""
        if self.is_forked:
            return
        with self._guard:
            if not self._is_open:
                return
            self._is_open = False
            try:
                if self.is_in_place:
                    if self._ear is not None:
                        self._ear.remove()
                    files.remove(self._path)
            except OSError as error:
                raise _failure("remove", self._path, error) from error
            finally:
                self._let_go()

    def _let_go(self) -> None:
        for mouth in self._mouths.values():
            mouth.close()
        self._mouths.clear()
        if self._ear is not None:
            self._ear.close()
        if self._lock != -1:
            close(self._lock)
        self._lock, self._ear = -1, None


class Heart:
    """Calls `beat` regularly in a thread of its own, until closed; reports errors to `trouble`."""

    def __init__(
        self, beat: Callable[[], None], every: float, trouble: Callable[[str, Exception], None]
    ) -> None:
        self._beat = beat
        self._trouble = trouble
        self._every = every
        self._pid = os.getpid()
        self._closed = threading.Event()
        self._thread = start_thread(self._work, "runcue-heart")

    def _work(self) -> None:
        while not self._closed.wait(self._every):
            try:
                self._beat()
            except Exception as error:  # noqa: BLE001 (whatever it is, the next one may come off)
                self._trouble("cannot give a sign of life", error)

    def close(self) -> None:
        """End the thread now. In a forked child: nothing, there is none."""
        if self._pid == os.getpid():
            self._closed.set()
            self._thread.join()
