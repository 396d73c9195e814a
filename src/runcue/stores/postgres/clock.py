"""Queue time on many machines: the server's clock, continued between turns by each host's own.

Rules:
- The server's clock plus an offset that is kept with the queue. Whoever sees that it jumped against the clock of
  its own host moves the offset by as much, so that queue time goes on as if nothing had happened.
- An offset that another process moved is taken as it is: else two would move it to and fro.
- What the server says is late when it is heard, by the way it took and by whoever kept this thread waiting. So
  between turns the least late of what was heard counts, less what clocks may drift apart since.
- It never goes backwards.
"""

from __future__ import annotations

import time
from typing import Final

from runcue.stores.presence import boottime

JUMP: Final = 1.0
"""Seconds by which two clocks may differ before one of them must have jumped."""
DRIFT: Final = 0.0005
"""Seconds a second by which two good clocks may drift apart."""


class ServerClock:
    """Queue time as this process last heard it, and what its own clock says since."""

    def __init__(self) -> None:
        self._at = boottime()
        self._ahead = self._wall = time.time() - self._at
        """How far queue time, and the server's time of day, are ahead of this host's clock."""
        self._offset: float | None = None
        self._latest = 0.0

    def hear(self, server: float, offset: float, at_least: float) -> tuple[float, float]:
        """The server has just said what its clock says: queue time, and the offset as it must be from now on."""
        here = boottime()
        now, known = server + offset, self._ahead
        if offset == self._offset:
            jump = now - here - known
            if abs(jump) > JUMP:
                offset -= jump
                now -= jump
        else:
            known = now - here
        now = max(now, at_least)
        self._ahead = max(now - here, known - DRIFT * (here - self._at))
        self._wall, self._at, self._offset = server - here, here, offset
        return now, offset

    def now(self) -> float:
        """Queue time."""
        self._latest = max(self._latest, self._ahead + boottime())
        return self._latest

    def wall(self) -> float:
        """The time of day, as the server believes it to be."""
        return self._wall + boottime()
