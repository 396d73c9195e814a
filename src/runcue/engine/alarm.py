"""Wakes the engine at the moment that the last plan named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from runcue.ports import Clock

NEVER = float("inf")


class Alarm:
    """Calls `ring` once, at the queue time that it was last set to."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._at = NEVER

    def set(self, at: float) -> None:
        """Ring at that time, in place of the time set before."""
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
