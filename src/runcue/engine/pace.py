"""How soon a process goes on after it decided, or left something for whoever decides, where several share a queue.

Each turn and each exchange has a price, whatever it is about. Who goes on at once decides over one unit at a time,
and pays that price for each. So a process that spent more than half of its time on them lately rests for a moment:
what comes meanwhile goes along, and on a busy machine that is more. Who had much to decide over does not rest, and
nobody who is alone does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

MUCH: Final = 32
"""So many units in one turn or exchange are enough."""
SHARE: Final = 0.5
"""How much of its time a process spends on turns and exchanges before it rests between them."""
LONGEST: Final = 0.02
"""Seconds that a process rests at most, and that it may spend without a rest after a quiet time."""


class Pace:
    """The turns and exchanges of one process, one after the other."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began_at = self._ended_at = clock()
        self._left = LONGEST
        """Seconds that may be spent before it is time to rest."""

    def begins(self) -> None:
        """A turn or an exchange begins."""
        self._began_at = self._clock()
        self._left = min(LONGEST, self._left + SHARE * (self._began_at - self._ended_at))

    def ended(self, units: int, *, is_alone: bool) -> None:
        """It has ended, with so many units in it."""
        self._ended_at = self._clock()
        if is_alone or units >= MUCH:
            self._left = LONGEST
        else:
            self._left = max(-SHARE * LONGEST, self._left - (1 - SHARE) * (self._ended_at - self._began_at))

    async def rest(self) -> None:
        """Wait until it is time for the next."""
        passed = self._clock() - self._ended_at
        seconds = -self._left / SHARE - passed
        if seconds > 0:
            await asyncio.sleep(seconds)
