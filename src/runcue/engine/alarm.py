"""Wakes the engine at the moment that the last plan named, and when a clock was set that something waits for.

A timer of the loop does not count the time for which the machine is suspended, and does not notice that the wall
clock is set. So a long sleep is made of short ones, and after each both clocks are looked at. On virtual time nobody
has to look: the loop says when its wall clock jumps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from runcue.ports import Clock

NEVER: Final = float("inf")
LONGEST: Final = 60.0
WALL_CHECK: Final = 1.0
"""Seconds of one short sleep, and of one while something waits for the wall clock."""
SET: Final = 0.02
"""Seconds by which the wall clock has to differ from where it was, to count as set."""


class Alarm:
    """Calls `ring` once, at the queue time that it was last set to."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._at = NEVER
        self._lead: float | None = None
        """How far the wall clock was ahead of queue time when it was last set; None where nobody waits for it."""
        self._is_told = hasattr(self._loop, "on_jump")
        if self._is_told:
            self._loop.on_jump(self._look)  # type: ignore[attr-defined] # virtual time

    def set(self, at: float, waits_for_wall: bool = False) -> None:
        """Ring at that time, in place of the time set before; with `waits_for_wall` also when that clock is set."""
        if at == self._at and waits_for_wall == (self._lead is not None):
            return
        self._lead = self._clock.wall() - self._clock.now() if waits_for_wall else None
        if at == self._at and self._is_told:  # a timer that is set once rings at that very moment
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._at = at
        self._sleep()

    def _sleep(self) -> None:
        if self._at == NEVER:
            return
        seconds = self._at - self._clock.now()
        if not self._is_told:
            seconds = min(seconds, LONGEST if self._lead is None else WALL_CHECK)
        self._timer = self._loop.call_later(max(0.0, seconds), self._look)

    def _look(self) -> None:
        """Ring if it is time, or if the wall clock was set; else sleep again."""
        if self._timer is None:  # nothing is waited for
            return
        self._timer.cancel()
        now = self._clock.now()
        is_set = self._lead is not None and abs(self._clock.wall() - now - self._lead) > SET
        if is_set or now >= self._at - 1e-6:
            self._at, self._timer, self._lead = NEVER, None, None
            self._ring()
        else:
            self._sleep()
