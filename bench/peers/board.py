"""What the processes of a run and the one that times them tell each other: a few numbers in a shared file.

The first is set when it is time to stop; each process has two after it, for its id and for the units it has run; then
come the moments at which the first units were started. Nobody waits for anybody here, and nothing of it is in the
store that is measured.
"""

from __future__ import annotations

import asyncio
import itertools
import mmap
import os
import struct
from pathlib import Path
from threading import Lock
from time import perf_counter, process_time
from typing import Self

MOST = 64
"""Processes, at most, that have a place."""
TIMED = 2048
"""Units, at most, whose start is kept."""
NUMBER = struct.Struct("q")
MOMENT = struct.Struct("d")
IDS = NUMBER.size
COUNTS = IDS + MOST * NUMBER.size
MOMENTS = COUNTS + MOST * NUMBER.size
SIZE = MOMENTS + TIMED * MOMENT.size
LOOK = 0.01
"""Seconds between two looks at whether to stop."""


class Board:
    """The numbers, seen by one process; place 0 only looks."""

    def __init__(self, path: str, place: int = 0) -> None:
        if not Path(path).exists():
            Path(path).write_bytes(bytes(SIZE))
        with Path(path).open("r+b") as file:
            self._numbers = mmap.mmap(file.fileno(), SIZE)
        self._at = COUNTS + place * NUMBER.size
        self._mine = 0
        self._began = 0.0
        self._lock = Lock()
        if place:
            NUMBER.pack_into(self._numbers, IDS + place * NUMBER.size, os.getpid())

    @classmethod
    def claimed(cls, path: str) -> Self:
        """The numbers, with a place that nobody else has."""
        for place in itertools.count(MOST - 1, -1):
            try:
                os.close(os.open(f"{path}.{place}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            return cls(path, place)
        raise AssertionError  # count() has no end

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._numbers.close()

    def ran(self, units: int = 1) -> None:
        """This process has run some more; any thread may say so."""
        with self._lock:
            self._mine += units
            NUMBER.pack_into(self._numbers, self._at, self._mine)

    def total(self) -> int:
        """How many all have run."""
        return sum(number for (number,) in NUMBER.iter_unpack(self._numbers[COUNTS:MOMENTS]))

    def start(self, page: int) -> None:
        """A unit starts now."""
        MOMENT.pack_into(self._numbers, MOMENTS + page * MOMENT.size, perf_counter())

    def started(self, page: int) -> float:
        """When a unit was started, or 0."""
        found: float = MOMENT.unpack_from(self._numbers, MOMENTS + page * MOMENT.size)[0]
        return found

    def processes(self) -> list[int]:
        """The ids of the processes that have a place."""
        return [number for (number,) in NUMBER.iter_unpack(self._numbers[IDS:COUNTS]) if number]

    def stop(self) -> None:
        """Tell all to stop."""
        NUMBER.pack_into(self._numbers, 0, 1)

    @property
    def stopped(self) -> bool:
        """Is it time?"""
        return bool(self._numbers[0])

    def begin(self) -> None:
        """From here on the time of the processor counts."""
        self._began = process_time()

    def used(self) -> float:
        """Seconds of the processor that this process has used since it began."""
        return process_time() - self._began

    async def until_stopped(self) -> None:
        """Wait for it."""
        while not self.stopped:  # noqa: ASYNC110 (another process says so)
            await asyncio.sleep(LOOK)
