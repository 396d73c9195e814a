"""Starts processes on Windows, each in a job object of its own, which ends it with everything that it started.

- A process is started suspended and put into its job before its first instruction: no child of it is outside.
- A job ends all its processes when its handle is closed, which Windows does when this process ends in any way. So
  nothing that a worker started outlives it, and there is nothing to search for.
- Windows ends them a moment after their worker. Therefore a note with pid and time of creation lies in the worker's
  own folder while a process runs: `end_leftovers` says that nothing is left when the noted processes are gone.
"""

from __future__ import annotations

import sys

assert sys.platform == "win32"

import os
import subprocess
import time
from collections.abc import Mapping
from ctypes import byref
from pathlib import Path
from typing import Any, Final

from runcue.host.system import files
from runcue.host.windows import kernel

SUSPENDED: Final = 0x00000004
KILL_ON_CLOSE: Final = 0x00002000
BASIC_ACCOUNTING, EXTENDED_LIMITS = 1, 9
ENDED: Final = 9
"""The exit code of what is ended by force."""
PATIENCE: Final = 0.01
"""Seconds for which `end_leftovers` waits for the end of processes that it has killed."""


class Job:
    """A process and everything that it starts."""

    def __init__(self) -> None:
        self._handle: int = kernel.checked(kernel.CreateJob(None, None))
        limits = kernel.ExtendedLimits()
        limits.basic.flags = KILL_ON_CLOSE
        kernel.checked(kernel.SetJob(self._handle, EXTENDED_LIMITS, byref(limits), kernel.size_of(limits)))

    def take(self, process: int) -> None:
        """Take in a process, of which this is a handle."""
        kernel.checked(kernel.AssignToJob(self._handle, process))

    @property
    def running(self) -> int:
        """How many of its processes still run."""
        found = kernel.Accounting()
        kernel.checked(
            kernel.QueryJob(self._handle, BASIC_ACCOUNTING, byref(found), kernel.size_of(found), None)
        )
        return int(found.active)

    def end(self) -> None:
        """End all its processes."""
        kernel.checked(kernel.TerminateJob(self._handle, ENDED))

    def close(self) -> None:
        """End what is left, and close the handles."""
        kernel.CloseHandle(self._handle)


class Started:
    """A process that was started in a job of its own."""

    def __init__(self, process: subprocess.Popen[bytes], handle: int, job: Job) -> None:
        self._process = process  # which waits for nobody, and closes its own handle
        self._handle = handle
        self.pid = process.pid
        self.job = job

    def send(self, data: bytes) -> None:
        """Write its whole input, where that is a pipe; nothing when the process does not read it any more."""
        assert self._process.stdin is not None
        try:
            with self._process.stdin as pipe:
                pipe.write(data)
        except OSError:  # its end is about to be noticed
            return

    def wait(self) -> int:
        """Wait for the end of the process itself: its exit code. In a thread."""
        kernel.wait_for([self._handle])
        return self._process.wait()

    def has_ended(self) -> bool:
        """Whether the process itself has ended."""
        return kernel.exit_code(self._handle) is not None

    def ask_to_end(self) -> None:
        """Send Ctrl-Break to the process and its children, if they share our console."""
        kernel.ConsoleEvent(1, self.pid)

    def close(self) -> None:
        """End what is left, and close the handles."""
        self.job.close()
        kernel.CloseHandle(self._handle)


class Jobs:
    """The notes of one worker about the processes that it started. A queue in memory has no folder, and no notes."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory

    def start(
        self,
        token: str | int,
        line: list[str] | str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        **streams: Any,
    ) -> Started:
        """Start a process in a job of its own, and note it under that name."""
        job = Job()
        try:
            console = kernel.GetConsole()
            flags = subprocess.CREATE_NEW_PROCESS_GROUP if console else subprocess.CREATE_NO_WINDOW
            process = subprocess.Popen(line, cwd=cwd, env=env, creationflags=SUSPENDED | flags, **streams)
        except BaseException:
            job.close()
            raise
        handle = 0
        try:
            wanted = kernel.ALL_OF_A_PROCESS
            handle = kernel.checked(kernel.OpenProcess(wanted, False, process.pid))
            job.take(handle)
            self._note(token, process.pid, handle)
            if kernel.ResumeProcess(handle):
                raise kernel.failure()
        except BaseException:
            process.kill()
            process.wait()
            job.close()
            kernel.CloseHandle(handle)
            self.release(token)
            raise
        return Started(process, handle, job)

    def _note(self, token: str | int, pid: int, handle: int) -> None:
        if self.directory is None:
            return
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.directory / str(token)).write_text(f"{pid} {kernel.created_at(handle)}", encoding="ascii")

    def release(self, token: str | int) -> None:
        """Remove the note about a process that is gone."""
        if self.directory is not None:
            files.remove(self.directory / str(token))

    def close(self) -> None:
        """Remove the folder if it is empty."""
        if self.directory is not None:
            _remove(self.directory)


def end_leftovers(directory: Path) -> bool:
    """End what the processes of a dead worker left behind; True when nothing is left and its folder is removed.

    Waits a few milliseconds at most; call it again while it returns False.
    """
    until = time.monotonic() + PATIENCE
    try:
        notes = sorted(directory.iterdir())
    except FileNotFoundError:
        return True
    for note in notes:
        while not _is_gone(note):
            if time.monotonic() > until:
                return False
            time.sleep(0.001)
        files.remove(note)
    return _remove(directory)


def _is_gone(note: Path) -> bool:
    """Whether the noted process has ended; one that has not is ended."""
    try:
        pid, created = map(int, note.read_text(encoding="ascii").split())
    except FileNotFoundError:
        return True
    except ValueError:  # its worker was killed while it wrote the note: the process has not been resumed
        return True
    handle = kernel.open_process(pid, kernel.SYNCHRONIZE | kernel.PROCESS_QUERY | kernel.PROCESS_TERMINATE)
    if handle is None:
        return True
    try:
        if kernel.created_at(handle) != created or kernel.exit_code(handle) is not None:
            return True
        kernel.TerminateProcess(handle, ENDED)
        return False
    finally:
        kernel.CloseHandle(handle)


def _remove(directory: Path) -> bool:
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return not os.path.isdir(directory)  # noqa: PTH112 (what is being removed may look like anything)
    return True
