"""Measures queue time: the host's boot-time clock, anchored once to the wall clock.

Queue time looks like epoch seconds, goes on while the machine sleeps, and never jumps when the clock is set.
"""

from __future__ import annotations

import time

from runcue.host.system import clock


class SystemClock:
    """The clocks of this host."""

    __slots__ = ("_anchor",)

    def __init__(self) -> None:
        self._anchor = time.time() - clock.boottime()

    def now(self) -> float:
        """Queue time."""
        return self._anchor + clock.boottime()

    def wall(self) -> float:
        """The time of day, which may be set at any moment."""
        return time.time()
