"""Job locks: how a process finds out whether the commands and processes that a worker started are still alive.

A job is a file in the worker's own directory, locked by `flock`. The process of the job inherits the descriptor, and
so do its descendants: the kernel frees the lock when the last of them is gone, in whatever order they die. Rules:

- The file exists from before the process starts until the work unit is over. Then it is removed, held or not; a free
  one may be kept for the next job.
- Other processes look only at the directory of a dead worker. `end_leftovers` ends what still holds a lock there.
- A session is ended as a whole only when it was noted for the job and a member holds the lock, or when the holder of
  the lock leads the session.
- A process that dropped the lock may still have the output files of its job open. Those files carry the job's label
  while it runs, where the file system has extended attributes: a process that writes to one is ended, too.
- A reaper holds a lock here, too, and is never killed: recovery waits for it, and wakes it if it was stopped.
- A forked child closes the descriptors before its code runs: it must not keep its parent's locks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from runcue.host.descriptors import close, forking, guard
from runcue.host.posix.files import LABEL, is_locked
from runcue.host.posix.processes import (
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
"""The names of a reaper's locks begin so: it kills the processes that it watches, then ends by itself."""

PATIENCE = 0.01
"""Seconds for which `end_leftovers` waits for the end of processes that it has killed."""

_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

Mark = tuple[int, int]
"""Device and inode of a file, to find it among the open files of processes."""


# --- Job locks ------------------------------------------------------------------------------------


class Jobs:
    """The job locks of this worker. A queue in memory has no directory, and so no locks: nothing survives a crash."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self._ours: dict[str, int] = {}  # job → our own descriptor of its lock
        self._lock = threading.Lock()

    def take(self, token: str | int) -> int | None:
        """Lock a job, whose file may be left from an earlier job; its process has to inherit the descriptor."""
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

    def start(
        self,
        token: str | int,
        command: Callable[[int | None], list[str]],
        descriptors: Iterable[int] = (),
        **options: Any,
    ) -> subprocess.Popen[bytes]:
        """Start a process that holds a job's lock and leads a session; `command` gets the lock's descriptor."""
        lock = self.take(token)
        try:
            process = subprocess.Popen(
                command(lock),
                pass_fds=[*descriptors, *(() if lock is None else (lock,))],
                start_new_session=True,
                **options,
            )
        except BaseException:
            self.release(token)
            raise
        self.started(token, process.pid)
        return process

    def started(self, token: str | int, leader: int) -> None:
        """Note which process leads the job's session; from here on only it and its descendants hold the lock."""
        with self._lock:
            descriptor = self._ours.pop(_checked(token), None)
        if descriptor is None:
            return
        try:
            os.pwrite(descriptor, b"%-20d\n" % leader, 0)  # over the pid of an earlier job
        except OSError:  # a full disk: the lock is what counts, and the note only helps recovery
            return
        finally:
            close(descriptor)

    def is_held(self, token: str | int) -> bool:
        """Whether a process still holds the lock of this job."""
        return self.directory is not None and _is_held(f"{self.directory}/{_checked(token)}")

    def label(self, token: str | int) -> bytes | None:
        """The label of the job's output files, by which recovery finds processes that write to them."""
        return None if self.directory is None else f"{self.directory.name}/{_checked(token)}".encode()

    def marks(self, token: str | int) -> set[Mark]:
        """Device and inode of the job's file, to find it among the open files of a process."""
        try:
            found = None if self.directory is None else (self.directory / _checked(token)).stat()
        except FileNotFoundError:
            return set()
        return set() if found is None else {(found.st_dev, found.st_ino)}

    def release(self, token: str | int) -> None:
        """Remove the file of a job that is over, even if a process still holds its lock."""
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
        """Remove the directory if it is empty."""
        if self.directory is not None:
            _remove(self.directory)


def lock_file(directory: Path, name: str) -> int:
    """Create the file of a job and lock it."""
    with forking:
        descriptor = guard(os.open(f"{directory}/{name}", _FLAGS | os.O_RDWR | os.O_CREAT, 0o600))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        close(descriptor)
        raise
    return descriptor


def _checked(token: str | int) -> str:
    name = str(token)
    assert _NAME.fullmatch(name), f"not a name for a job: {name!r}"
    return name


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
    """End what the jobs of a dead worker left behind; True when nothing is left and its directory is removed.

    Sends signals and waits a few milliseconds at most; call it again while it returns False. It stays False while
    a process is left that may not be signalled, because it runs as another user.
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
    """End processes without a lock that write to output files of this worker's jobs; False if there are none."""
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
    """The processes that have one of these files open for writing, this one left out."""
    return [pid for pid in pids() if pid != os.getpid() and _holds(pid, marks)]


def _holds(pid: int, marks: set[Mark]) -> bool:
    return any(_is_one_of(link, marks) for link in open_files(pid))


def _writes(pid: int, label: bytes) -> bool:
    return any(_has_label(link, label) for link in open_files(pid))


def _has_label(link: str, label: bytes) -> bool:
    try:
        if not stat.S_ISREG(os.stat(link).st_mode) or not os.lstat(link).st_mode & stat.S_IWUSR:  # noqa: PTH116
            return False
        return os.getxattr(link, LABEL).startswith(label)
    except OSError:  # closed meanwhile, or without any label
        return False


def _is_one_of(link: str, marks: set[Mark]) -> bool:
    try:
        found = os.stat(link)  # noqa: PTH116 (a path object for every open file of the host costs too much)
        return (found.st_dev, found.st_ino) in marks and bool(os.lstat(link).st_mode & stat.S_IWUSR)
    except OSError:  # closed meanwhile
        return False
