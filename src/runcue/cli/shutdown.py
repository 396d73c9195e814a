"""Finds the supervisors and workers of a home, and tells them to leave.

Rules:
- Each supervisor holds the lock of a file of its own below the home. The lock says that it lives, the file which
  process it is. Files of dead supervisors are removed by whichever process looks at them.
- Supervisors are asked first, so that they replace no worker; then every worker on this host, whoever started it, and
  those that appear while we wait. Each is asked once.
- Supervisors are found without the queue, so they and their workers can be stopped when it cannot be read.
- Interrupting the wait changes nothing: the workers still leave.
- How they are told is said in posix.py, and for Windows in windows.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec

from runcue.cli.failure import TIMED_OUT, Failure, misconfigured
from runcue.cli.screen import clean, counted, listed, note, warn
from runcue.cli.system import processes
from runcue.host.system import clock, files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from runcue import Reader, StoreError
    from runcue.cli.home import Home

FOLDER = "supervisors"
LOOK_EVERY = 0.1
"""Seconds between two looks at who is left."""


# finding --------------------------------------------------------------------------------------------


class Standing(msgspec.Struct, frozen=True, omit_defaults=True):
    """A supervisor: its pid and host, and the file that it holds while it lives."""

    pid: int
    host: str
    path: str = ""

    def lives(self) -> bool:
        """True while the supervisor holds its lock."""
        return _is_held(Path(self.path))


class Post:
    """The lock that says that a supervisor runs in this process, held inside `with`."""

    def __init__(self, home: Path) -> None:
        self._folder = home / FOLDER
        name = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._path = self._folder / name
        self._new = self._folder / f".{name}"
        self._descriptor = -1

    def __enter__(self) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._descriptor = files.open_file(self._new, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        files.lock(self._descriptor)
        facts = Standing(os.getpid(), clock.host_name())
        os.write(self._descriptor, msgspec.json.encode(facts))
        files.replace(self._new, self._path)

    def __exit__(self, *error: object) -> None:
        files.remove(self._path)
        os.close(self._descriptor)


def standing(home: Path) -> list[Standing]:
    """The supervisors that live on this home."""
    try:
        paths = sorted(path for path in (home / FOLDER).iterdir() if not path.name.startswith("."))
    except FileNotFoundError:
        return []
    found = []
    for path in paths:
        if _is_held(path):
            try:
                facts = msgspec.json.decode(path.read_bytes(), type=Standing)
            except (FileNotFoundError, msgspec.MsgspecError):
                continue  # it has just ended, or the file is none of ours
            found.append(msgspec.structs.replace(facts, path=str(path)))
        else:
            files.remove(path)
    return found


def _is_held(path: Path) -> bool:
    try:
        descriptor = files.open_file(path, os.O_RDWR)
    except OSError:
        return False
    try:
        return files.is_locked(descriptor)
    finally:
        os.close(descriptor)


def workers(reader: Reader) -> list[dict[str, Any]]:
    """The workers that live, and dead ones that still have running jobs; `jobs` are the ids of what each runs."""
    running: dict[str, list[str]] = {}
    for row in reader.jobs("processing", limit=1000):
        running.setdefault(str(row["worker_id"]), []).append(str(row["id"]))
    found = [
        row | {"jobs": running.get(row["id"], [])}
        for row in reader.workers()
        if row["serving"] or row["id"] in running  # one that is about to leave begins nothing more
    ]
    return [row for row in found if row["state"] != "gone" or row["jobs"]]


def is_stopped(row: dict[str, Any]) -> bool:
    """True for a worker on this host that is suspended, as by SIGSTOP; False where that is unknown."""
    return row["host"] == clock.host_name() and row["state"] != "gone" and processes.is_stopped(row["pid"])


# stopping -------------------------------------------------------------------------------------


class Leaving:
    """Tells the supervisors and workers of a home to leave, and waits until they have."""

    def __init__(self, home: Home, *, at_once: bool) -> None:
        self._home = home
        self._at_once = at_once
        self._told: set[str] = set()
        """The supervisors (by their file) and workers (by their id) that were asked to exit."""
        self._elsewhere: set[str] = set()
        self._busy: list[str] | None = None
        self._reader: Reader | None = None
        self.supervisors: set[str] = set()
        """The supervisors that had to leave, by their files."""
        self.workers: set[str] = set()
        """The workers that had to leave, as far as the queue could be read."""
        self.unreadable: StoreError | None = None
        """Why the queue could not be read, so that only supervisors were told."""

    def wait(self, seconds: float | None) -> None:
        """Tell all to leave, and return when all have; raises after that many seconds."""
        until = None if seconds is None else time.monotonic() + seconds
        with ExitStack() as stack:
            self._open(stack)
            while left := self._look():
                if until is not None and time.monotonic() >= until:
                    busy = f" ({listed(self._busy)})" if self._busy else ""
                    raise Failure(
                        f"{left} still there{busy}, to leave as soon as possible. To put running jobs back: "
                        "queuectl worker stop --now",
                        TIMED_OUT,
                    )
                time.sleep(LOOK_EVERY)

    def _open(self, stack: ExitStack) -> None:
        from runcue import StoreError

        if self._home.exists:
            try:
                self._reader = stack.enter_context(self._home.reader())
            except StoreError as error:
                self.unreadable = error

    def _look(self) -> str:
        """Tell everybody who was not told yet; returns in words who is left."""
        here = self._here()  # before any is asked: one that has exited could not be counted
        supervisors = self._tell_supervisors()
        self._tell_workers(here)
        self._say(
            [job for row in here for job in row["jobs"]],
            [row for row in here if row["state"] != "alive" or is_stopped(row)],
        )
        if here:
            return f"{counted(len(here), 'worker')} {'is' if len(here) == 1 else 'are'}"
        return "A supervisor is" if supervisors else ""

    def _tell_supervisors(self) -> list[Standing]:
        """Tell every supervisor on this host to leave; returns those that are still there."""
        found = [one for one in standing(self._home.path) if one.host == clock.host_name()]
        self.supervisors.update(one.path for one in found)
        for one in found:
            self._tell(one.path, one.pid, processes.tell_supervisor, one.lives)
        return found

    def _here(self) -> list[dict[str, Any]]:
        """The workers on this host that live; none where the queue cannot be read."""
        from runcue import StoreError

        if self._reader is None:
            return []
        try:
            rows = [row for row in workers(self._reader) if row["state"] != "gone"]
        except StoreError as error:
            self.unreadable, self._reader = error, None
            return []
        here = [row for row in rows if self._is_here(row)]
        self.workers.update(row["id"] for row in here)
        return here

    def _tell_workers(self, here: list[dict[str, Any]]) -> None:
        for row in here:
            self._tell(row["id"], row["pid"], processes.tell_worker, partial(self._lives, row["id"]))

    def _lives(self, worker_id: str) -> bool:
        """True while that worker lives; False also when the queue cannot be read: then its supervisor stops it."""
        from runcue import StoreError

        if self._reader is None:
            return False
        try:
            rows = self._reader.workers()
        except StoreError as error:
            self.unreadable, self._reader = error, None
            return False
        return any(row["id"] == worker_id and row["state"] != "gone" for row in rows)

    def _tell(
        self,
        key: str,
        pid: int,
        tell: Callable[[int, int, Callable[[], bool]], bool],
        lives: Callable[[], bool],
    ) -> None:
        """Tell a process to leave, unless it was told before."""
        if key not in self._told:
            self._told.add(key)
            try:
                tell(pid, processes.AT_ONCE if self._at_once else processes.GRACEFUL, lives)
            except PermissionError:
                raise misconfigured(f"Process {pid} is another user's: stop it as that user.") from None

    def _is_here(self, row: dict[str, Any]) -> bool:
        if row["host"] == clock.host_name():
            return True
        if row["id"] not in self._elsewhere:
            self._elsewhere.add(row["id"])
            warn(f"Worker {row['id']} is on {clean(row['host'])} (pid {row['pid']}): stop it there.")
        return False

    def _say(self, jobs: list[str], stuck: list[dict[str, Any]]) -> None:
        """Name the running jobs whenever they have changed, and each suspended or unresponsive worker once."""
        for row in stuck:
            if f"stuck {row['id']}" not in self._told:
                self._told.add(f"stuck {row['id']}")
                what = "is stopped. Continue it" if is_stopped(row) else "does not move. If it was stopped"
                warn(f"Worker {row['id']} (pid {row['pid']}) {what}: kill -CONT {row['pid']}")
        if jobs and jobs != self._busy:
            note(f"Waiting for {counted(len(jobs), 'running job')}: {listed(jobs)}")
        self._busy = jobs
