"""Which commands of a worker are still there, known by the kernel and not by guess.

A job is a file in the worker's own directory, locked by `flock`. The process that is started inherits the descriptor,
and so does whatever it starts: the lock is free when the last of them is gone, whoever died first. Rules:

- A job's file is there from before its process starts until the work is over. Then it is removed, held or not; a
  free one may be kept for the next job.
- Only a dead worker's directory is looked at from outside. `end_leftovers` ends what still holds a lock there.
- A process is signalled through a descriptor of its own and looked at again after that was opened: a pid that was
  given to somebody else meanwhile is never signalled.
- A session is ended as a whole only when it is the one that was noted for the job and a holder of the lock is in it,
  or when the holder itself leads it.
- Who dropped the lock may still have the output of its job open. Those files carry the job's label as long as it
  runs, where the file system knows such things (extended attributes): whoever writes to one is ended, too.
- A reaper holds a lock here, too, and is never ended: it is waited for, and woken if somebody stopped it.
- Descriptors are closed in a forked child before its code runs: it must not keep a lock that is not its own.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import stat
import threading
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

from runcue.host.descriptors import close, forking, guard
from runcue.host.processes import (
    HAS_PROC,
    open_files,
    pids,
    send,
    send_in_session,
    session_members,
    session_of,
    signal_group,
)

REAPER = "reaper"
"""How the names of locks begin whose holders end what they were told of, and then themselves."""

PATIENCE = 0.01
"""Seconds that `end_leftovers` waits for what it has just ended."""

_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

_LABEL = "user.runcue"

Mark = tuple[int, int]
"""Device and inode of a file that processes may have open."""


# --- Job locks ------------------------------------------------------------------------------------


class Jobs:
    """The job locks of this worker. Without a directory there are none: nobody could ask after a crash."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self._ours: dict[str, int] = {}  # job → our own descriptor of its lock
        self._lock = threading.Lock()

    def take(self, token: str | int) -> int | None:
        """Lock a job, whose file may be there from an earlier one; the descriptor is for its process to inherit."""
        if self.directory is None:
            return None
        name = _checked(token)
        try:
            descriptor = lock_file(self.directory, name)
        except FileNotFoundError:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = lock_file(self.directory, name)
        with self._lock:
            self._ours[name] = descriptor
        return descriptor

    def descriptor(self, token: str | int) -> int | None:
        """What `take` gave, until the job has started."""
        with self._lock:
            return self._ours.get(_checked(token))

    def started(self, token: str | int, leader: int) -> None:
        """Note which process leads the job's session; from here on only it and its descendants hold the lock."""
        with self._lock:
            descriptor = self._ours.pop(_checked(token), None)
        if descriptor is None:
            return
        try:
            os.pwrite(descriptor, b"%-20d\n" % leader, 0)  # over what an earlier job left there
        except OSError:  # a full disk: the lock is what counts, and the note only helps recovery
            return
        finally:
            close(descriptor)

    def is_held(self, token: str | int) -> bool:
        """Whether somebody still holds the lock of this job."""
        return self.directory is not None and _is_held(f"{self.directory}/{_checked(token)}")

    def label(self, token: str | int) -> bytes | None:
        """What the files that the job writes to are marked with, for recovery to know them by."""
        return None if self.directory is None else f"{self.directory.name}/{_checked(token)}".encode()

    def marks(self, token: str | int) -> set[Mark]:
        """What the job's file is known by among the open files of a process."""
        try:
            found = None if self.directory is None else (self.directory / _checked(token)).stat()
        except FileNotFoundError:
            return set()
        return set() if found is None else {(found.st_dev, found.st_ino)}

    def release(self, token: str | int) -> None:
        """The work of this job is over: its file goes, whoever still holds it."""
        name = _checked(token)
        with self._lock:
            descriptor = self._ours.pop(name, None)
        if descriptor is not None:
            close(descriptor)
        if self.directory is not None:
            try:
                os.unlink(f"{self.directory}/{name}")  # noqa: PTH108 (for every command)
            except (FileNotFoundError, NotADirectoryError):
                return

    def close(self) -> None:
        """Remove the directory, if nothing is in it any more."""
        if self.directory is not None:
            _remove(self.directory)


def lock_file(directory: Path, name: str) -> int:
    """Make the file of a job and lock it; for `Jobs`, and for a process that keeps its own lock."""
    with forking:
        descriptor = guard(os.open(f"{directory}/{name}", _FLAGS | os.O_RDWR | os.O_CREAT, 0o600))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        close(descriptor)
        raise
    return descriptor


def put_label(descriptor: int, label: bytes) -> None:
    """Mark a file as one that a job writes to."""
    try:
        os.setxattr(descriptor, _LABEL, label)
    except (AttributeError, OSError):  # not known here: recovery goes by the locks alone
        return


def take_label(descriptor: int) -> None:
    """The job is over, or no longer to be asked for whoever has this file open."""
    try:
        os.removexattr(descriptor, _LABEL)
    except (AttributeError, OSError):  # it never had one
        return


def _checked(token: str | int) -> str:
    name = str(token)
    assert _NAME.fullmatch(name), f"not a name for a job: {name!r}"
    return name


def is_locked(descriptor: int) -> bool:
    """Whether somebody else holds a lock on this file, which was opened anew to ask."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two who ask do not see each other
    except BlockingIOError:
        return True
    return False


def _is_held(path: str) -> bool:
    try:
        descriptor = os.open(path, _FLAGS | os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return is_locked(descriptor)
    finally:
        os.close(descriptor)


def _remove(directory: Path) -> bool:
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise
        return False
    return True


# --- After the death of a worker ------------------------------------------------------------------


class _Job(NamedTuple):
    path: Path
    mark: Mark
    leader: int | None
    is_held: bool

    @property
    def is_reaper(self) -> bool:
        return self.path.name.startswith(REAPER)


def end_leftovers(directory: Path) -> bool:
    """End what a dead worker's jobs left behind; True when nothing is left, and its directory gone.

    Signals, waits a few milliseconds at most, and is to be called again when it says False. What may not be
    signalled (a program that runs as somebody else) keeps it False.
    """
    ending = time.monotonic() + PATIENCE
    jobs = _jobs(directory)
    if any(job.is_held for job in jobs):
        _wake([job for job in jobs if job.is_held and job.is_reaper])
        _end([job for job in jobs if job.is_held and not job.is_reaper])
        while any(job.is_held for job in jobs):
            if time.monotonic() > ending:
                return False
            time.sleep(0.001)
            jobs = _jobs(directory)
    if jobs and _end_writers(directory):
        return False
    for job in jobs:
        job.path.unlink(missing_ok=True)
    return _remove(directory)


def _jobs(directory: Path) -> list[_Job]:
    found = []
    try:
        paths = sorted(directory.iterdir())
    except FileNotFoundError:
        return []
    for path in paths:
        try:
            descriptor = os.open(path, _FLAGS | os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            status = os.fstat(descriptor)
            noted = os.pread(descriptor, 32, 0).strip()
            leader = int(noted) if noted.isdigit() else None
            found.append(_Job(path, (status.st_dev, status.st_ino), leader, is_locked(descriptor)))
        finally:
            os.close(descriptor)
    return found


def _wake(jobs: list[_Job]) -> None:
    marks = {job.mark for job in jobs}
    for pid in holders(marks) if marks and HAS_PROC else ():
        send(pid, signal.SIGCONT, partial(_holds, pid, marks))


def _end(jobs: list[_Job]) -> None:
    if not HAS_PROC:
        for job in jobs:
            if job.leader is not None:
                signal_group(job.leader, signal.SIGKILL)
        return
    marks = {job.mark for job in jobs}
    leaders = {job.leader for job in jobs}
    sessions = set()
    for pid in holders(marks):
        session = session_of(pid)
        if session is not None and (session in leaders or session == pid):
            sessions.add(session)
        send(pid, signal.SIGKILL, partial(_holds, pid, marks))
    for session in sessions:
        for member in session_members(session):
            send_in_session(member.pid, session, signal.SIGKILL)


def _end_writers(directory: Path) -> bool:
    """End who holds no lock any more, but writes to what a job of this worker wrote to; False if nobody does."""
    label = f"{directory.name}/".encode()
    writers = [pid for pid in pids() if pid != os.getpid() and _writes(pid, label)] if HAS_PROC else []
    for pid in writers:
        members = session_members(pid) if session_of(pid) == pid else []
        send(pid, signal.SIGKILL, partial(_writes, pid, label))
        for member in members:
            send_in_session(member.pid, pid, signal.SIGKILL)
    return bool(writers)


# --- What processes have open ---------------------------------------------------------------------


def holders(marks: set[Mark]) -> list[int]:
    """Who has one of these files open for writing, as who inherited it does; this process left out."""
    return [pid for pid in pids() if pid != os.getpid() and _holds(pid, marks)]


def _holds(pid: int, marks: set[Mark]) -> bool:
    return any(_is_one_of(link, marks) for link in open_files(pid))


def _writes(pid: int, label: bytes) -> bool:
    return any(_has_label(link, label) for link in open_files(pid))


def _has_label(link: str, label: bytes) -> bool:
    try:
        if not stat.S_ISREG(os.stat(link).st_mode) or not os.lstat(link).st_mode & stat.S_IWUSR:  # noqa: PTH116
            return False
        return os.getxattr(link, _LABEL).startswith(label)
    except OSError:  # closed meanwhile, or without any label
        return False


def _is_one_of(link: str, marks: set[Mark]) -> bool:
    try:
        found = os.stat(link)  # noqa: PTH116 (a path object for every open file of the host is too much)
        return (found.st_dev, found.st_ino) in marks and bool(os.lstat(link).st_mode & stat.S_IWUSR)
    except OSError:  # closed meanwhile
        return False
