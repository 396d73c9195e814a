"""What the processes of a run and the one that times them tell each other: a few numbers in a shared file.

The first is set when it is time to stop; each process has one after it, for the works it has run. Nobody waits for
anybody here, and nothing of it is in the database that is measured.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
import sys
from pathlib import Path
from time import process_time
from typing import Self

PEERS = Path(__file__).resolve().parents[2] / ".cache" / "peers" / "python"
MOST = 64
NUMBER = struct.Struct("q")
LOOK = 0.01
"""Seconds between two looks at whether to stop."""


def with_peers() -> None:
    """Find the other queues where they were installed for this alone."""
    if PEERS.exists() and str(PEERS) not in sys.path:
        sys.path.append(str(PEERS))


class Board:
    """The numbers, seen by one process."""

    def __init__(self, path: str, place: int = 0) -> None:
        if not Path(path).exists():
            Path(path).write_bytes(bytes(MOST * NUMBER.size))
        with Path(path).open("r+b") as file:
            self._numbers = mmap.mmap(file.fileno(), MOST * NUMBER.size)
        self._at = place * NUMBER.size
        self._mine = 0
        self._began = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._numbers.close()

    def ran(self, works: int = 1) -> None:
        """This process has run some more."""
        self._mine += works
        NUMBER.pack_into(self._numbers, self._at, self._mine)

    def total(self) -> int:
        """How many all have run."""
        return sum(number for (number,) in NUMBER.iter_unpack(self._numbers[NUMBER.size :]))

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
