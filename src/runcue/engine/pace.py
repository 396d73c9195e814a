"""Spaces the turns and exchanges of a process that shares a queue, so that each carries more than one unit.

Each turn and each exchange has a fixed price. A process that takes the next one at once pays that price for every
unit. So a process that lately spent more than half of its time on turns and exchanges rests for a moment, and the
next one takes all items that came meanwhile. After a turn with many units it does not rest, and neither does a
process that is alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

MUCH: Final = 32
"""After a turn or exchange with so many units a process does not rest."""
SHARE: Final = 0.5
"""The share of its time that a process spends on turns and exchanges before it rests."""
LONGEST: Final = 0.02
"""The most seconds of one rest, and of turns without a rest after a quiet time."""


class Pace:
    """Times the turns and exchanges of one process."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began_at = self._ended_at = clock()
        self._left = LONGEST
        """Seconds that may be spent on turns before a rest is due."""

    def begins(self) -> None:
        """A turn or an exchange begins."""
        self._began_at = self._clock()
        self._left = min(LONGEST, self._left + SHARE * (self._began_at - self._ended_at))

    def ended(self, units: int, *, is_alone: bool) -> None:
        """The turn or exchange has ended, with so many units in it."""
        self._ended_at = self._clock()
        if is_alone or units >= MUCH:
            self._left = LONGEST
        else:
            self._left = max(-SHARE * LONGEST, self._left - (1 - SHARE) * (self._ended_at - self._began_at))

    async def rest(self) -> None:
        """Wait until it is time for the next turn or exchange."""
        passed = self._clock() - self._ended_at
        seconds = -self._left / SHARE - passed
        if seconds > 0:
            await asyncio.sleep(seconds)
