"""A system that has no room for more threads, or for more open files, until it has."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

NO_THREAD = r"No thread can be started for {} .*\(ulimit -u\)"
"""What is said of a thread of that name."""


class Room:
    """Has no room for threads of some names, until it has."""

    def __init__(self) -> None:
        self.lacking = ""
        self.started: list[str] = []
        self.refused: list[str] = []

    def start(self, thread: threading.Thread, start: Callable[[threading.Thread], None]) -> None:
        if self.lacking and thread.name.startswith(self.lacking):
            self.refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)
        self.started.append(thread.name)


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Room:
    """Where threads are started from now on."""
    made, start = Room(), threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda thread: made.start(thread, start))
    return made


@contextmanager
def no_descriptors() -> Iterator[None]:
    """No more files can be opened within this."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
