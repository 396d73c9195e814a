"""How soon a process goes on after it decided, or left something for whoever decides, where several share a queue.

Each turn and each exchange has a price, whatever it is about. Who goes on at once decides over one unit at a time,
and pays that price for each. So a process rests for as long as the last one took. What comes meanwhile goes along,
and on a busy machine that is more. Who had much to decide over does not rest, and nobody who is alone does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

MUCH: Final = 32
"""So many units in one turn or exchange are enough."""
LONGEST: Final = 0.02
"""Seconds that a process rests at most."""


class Pace:
    """The turns and exchanges of one process, one after the other."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began_at = 0.0
        self._rests_until = 0.0

    def begins(self) -> None:
        """A turn or an exchange begins."""
        self._began_at = self._clock()

    def ended(self, units: int, *, is_alone: bool) -> None:
        """It has ended, with so many units in it."""
        now = self._clock()
        is_over = is_alone or units >= MUCH
        self._rests_until = now if is_over else now + min(LONGEST, now - self._began_at)

    async def rest(self) -> None:
        """Wait until it is time for the next."""
        left = self._rests_until - self._clock()
        if left > 0:
            await asyncio.sleep(left)
