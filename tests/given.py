"""How much of the machine processes were given: a test that judges by time judges by what there was of it."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

LOOK_EVERY = 0.05
"""Seconds between two looks."""


class Had(NamedTuple):
    """What a process had of the processors: seconds in which it ran, and in which it waited while others did."""

    ran: float = 0.0
    waited: float = 0.0


def had_of(pid: int) -> Had:
    """What all threads of a process had so far; nothing of one that is gone, and where the kernel does not count."""
    ran = waited = 0
    with contextlib.suppress(OSError):
        for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # that thread has ended
                more_ran, more_waited, _ = map(int, file.read_text().split())
                ran, waited = ran + more_ran, waited + more_waited
    return Had(ran / 1e9, waited / 1e9)


def share_of(seconds: float, ran: float, waited: float) -> float:
    """The part of a stretch of time that the machine left to processes which ran and waited for so long in it.

    What they neither ran nor waited they slept, and nobody kept them from anything. A thread that ended takes what it
    had with it, so that there may be less than before.
    """
    wanted = max(ran, 0.0) + max(waited, 0.0)
    if not wanted or not seconds:
        return 1.0
    asleep = max(0.0, seconds - wanted)
    return (asleep + (seconds - asleep) * max(ran, 0.0) / wanted) / seconds


class Watch:
    """Looks at a process and at all that it starts, as long as it runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._pid = process.pid
        self._seconds = self._given = 0.0
        self.looks = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def share(self) -> float:
        """The part of that time that the machine left to them."""
        return self._given / self._seconds if self._seconds else 1.0

    def _look(self) -> None:
        looked_at, before = time.monotonic(), {pid: had_of(pid) for pid in family(self._pid)}
        while not self._over.wait(LOOK_EVERY):
            now, had = time.monotonic(), {pid: had_of(pid) for pid in family(self._pid)}
            known = [(one, before.get(pid, Had())) for pid, one in had.items()]
            ran, waited = (sum(one[place] - old[place] for one, old in known) for place in (0, 1))
            self._seconds += now - looked_at
            self._given += (now - looked_at) * share_of(now - looked_at, ran, waited)
            looked_at, before = now, had
            self.looks += 1


def family(pid: int) -> Iterator[int]:
    """A process, and all that it started."""
    yield pid
    with contextlib.suppress(OSError):  # it has ended
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in file.read_text().split():
                yield from family(int(child))
