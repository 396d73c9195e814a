"""The one moment at which a process looks again, whatever comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from runcue.ports import Clock

NEVER = float("inf")


class Alarm:
    """Rings once, at the time that it was last set to. Times are those of the queue."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._at = NEVER

    def set(self, at: float) -> None:
        """Ring at that time, and at no other."""
        if at == self._at:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._at = at
        if at != NEVER:
            self._timer = self._loop.call_later(max(0.0, at - self._clock.now()), self._rings)

    def _rings(self) -> None:
        self._at, self._timer = NEVER, None
        self._ring()
