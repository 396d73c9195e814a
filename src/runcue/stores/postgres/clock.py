"""Queue time on many machines: the server's clock, continued between turns by each host's own.

Rules:
- Queue time is the server's clock plus an offset that is stored with the queue. A process that sees the server's
  clock jump against its own host's clock moves the offset by as much, so that queue time goes on without a jump.
- The server's time was true at some moment between question and answer: an answer that is late is no jump.
- An offset that another process moved is taken as it is: otherwise two processes would move it to and fro.
- Between turns the lowest possible time counts, less what clocks may drift apart. It never goes backwards.
"""

from __future__ import annotations

import math
import time
from typing import Final

from runcue.stores.presence.presence import boottime

JUMP: Final = 1.0
"""Seconds by which two clocks may differ before one of them must have jumped."""
DRIFT: Final = 0.0005
"""Seconds a second by which two good clocks may drift apart."""


class ServerClock:
    """Queue time as this process last heard it, and what its own clock says since."""

    def __init__(self) -> None:
        self._at = boottime()
        self._wall = time.time() - self._at
        """How far the server's time of day is ahead of this host's clock."""
        self._low, self._high = -math.inf, math.inf
        """How far queue time is ahead of this host's clock: at least, and at most."""
        self._offset: float | None = None
        self._latest = 0.0

    def hear(self, asked_at: float, server: float, offset: float, at_least: float) -> tuple[float, float]:
        """The server was asked then, and has just answered: queue time, and the offset as it must be from now on."""
        here = boottime()
        now = server + offset
        low, high = now - here, now - asked_at
        if offset == self._offset:
            drift = DRIFT * (here - self._at)
            jump = _beyond(low, high, self._low - drift, self._high + drift)
            if abs(jump) > JUMP:
                offset, now, low, high = offset - jump, now - jump, low - jump, high - jump
            low, high = max(low, min(self._low - drift, high)), min(high, max(self._high + drift, low))
        self._low, self._high = max(low, at_least - here), max(high, at_least - here)
        self._wall, self._at, self._offset = server - here, here, offset
        return max(now, at_least), offset

    def now(self) -> float:
        """Queue time."""
        lead = self._low if math.isfinite(self._low) else self._wall
        self._latest = max(self._latest, lead + boottime())
        return self._latest

    def wall(self) -> float:
        """The time of day, as the server believes it to be."""
        return self._wall + boottime()


def _beyond(low: float, high: float, least: float, most: float) -> float:
    """How far a range lies beyond another: above it, below it (negative), or 0 where they meet."""
    return low - most if low > most else min(0.0, high - least)
