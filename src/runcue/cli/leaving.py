"""Has the workers of a home leave, and waits until they have.

Rules:
- Supervisors are told first, so that nobody is replaced; then every worker on this host, whoever started it.
- They are told once each. Whoever turns up while we wait is told as well.
- Waiting changes nothing: who gives it up leaves the workers leaving.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from runcue.cli.failure import TIMED_OUT, Failure, misconfigured
from runcue.cli.lines import counted, listed
from runcue.cli.screen import clean, note, warn
from runcue.cli.standing import send, standing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from runcue import Reader
    from runcue.cli.home import Home

LOOK_EVERY = 0.1
"""Seconds between two looks at who is left."""


def workers(reader: Reader) -> list[dict[str, Any]]:
    """The workers that live, or are dead and still have jobs in their name; `jobs` are what each runs."""
    running: dict[str, list[str]] = {}
    for row in reader.jobs("processing", limit=1000):
        running.setdefault(str(row["worker_id"]), []).append(str(row["id"]))
    found = [row | {"jobs": running.get(row["id"], [])} for row in reader.workers() if row["serving"]]
    return [row for row in found if row["state"] != "gone" or row["jobs"]]


class Leaving:
    """One order to leave, from giving it to its being obeyed."""

    def __init__(self, home: Home, *, at_once: bool) -> None:
        self._home = home
        self._at_once = at_once
        self.told: set[str] = set()
        """Whoever was told: supervisors by their file, workers by their id."""
        self._elsewhere: set[str] = set()
        self._busy: list[str] | None = None
        self.seen: set[str] = set()
        """The workers that had to leave."""

    def wait(self, seconds: float | None) -> None:
        """Tell them all, and wait until all have left; raises when that takes too long."""
        until = None if seconds is None else time.monotonic() + seconds
        with ExitStack() as stack:
            reader = stack.enter_context(self._home.reader()) if self._home.exists else None
            while left := self._look(reader):
                if until is not None and time.monotonic() >= until:
                    busy = f" ({listed(self._busy)})" if self._busy else ""
                    raise Failure(
                        f"{left} still there{busy}. They leave when they can; to put their jobs back: "
                        "queuectl worker stop --now",
                        TIMED_OUT,
                    )
                time.sleep(LOOK_EVERY)

    def _look(self, reader: Reader | None) -> str:
        """Tell whoever was not told yet; who is left, in words."""
        rows = [] if reader is None else [row for row in workers(reader) if row["state"] != "gone"]
        here = [row for row in rows if self._is_here(row)]
        self.seen.update(row["id"] for row in here)
        supervisors = [one for one in standing(self._home.path) if one.host == os.uname().nodename]
        for one in supervisors:
            self._tell(one.path, one.pid, signal.SIGQUIT if self._at_once else signal.SIGUSR1, one.lives)
        for row in here:
            number = signal.SIGQUIT if self._at_once else signal.SIGTERM
            self._tell(row["id"], row["pid"], number, partial(_lives, reader, row["id"]))
        self._say(
            [job for row in here for job in row["jobs"]], [row for row in here if row["state"] != "alive"]
        )
        if here:
            return f"{counted(len(here), 'worker')} {'is' if len(here) == 1 else 'are'}"
        return "A supervisor is" if supervisors else ""

    def _tell(self, key: str, pid: int, number: signal.Signals, lives: Callable[[], bool]) -> None:
        """Tell it, unless it was told."""
        if key not in self.told:
            self.told.add(key)
            try:
                send(pid, number, lives)
            except PermissionError:
                raise misconfigured(f"Process {pid} is another user's: stop it as that user.") from None

    def _is_here(self, row: dict[str, Any]) -> bool:
        if row["host"] == os.uname().nodename:
            return True
        if row["id"] not in self._elsewhere:
            self._elsewhere.add(row["id"])
            warn(f"Worker {row['id']} is on {clean(row['host'])} (pid {row['pid']}): stop it there.")
        return False

    def _say(self, jobs: list[str], stuck: list[dict[str, Any]]) -> None:
        """Who is still busy, whenever that has changed."""
        for row in stuck:
            if f"stuck {row['id']}" not in self.told:
                self.told.add(f"stuck {row['id']}")
                warn(
                    f"Worker {row['id']} (pid {row['pid']}) does not move. If it was stopped: kill -CONT {row['pid']}"
                )
        if jobs and jobs != self._busy:
            note(f"Waiting for {len(jobs)} running: {listed(jobs)}")
        self._busy = jobs


def _lives(reader: Reader | None, worker_id: str) -> bool:
    assert reader is not None, "it is he who told of this worker"
    return any(row["id"] == worker_id and row["state"] != "gone" for row in reader.workers())
