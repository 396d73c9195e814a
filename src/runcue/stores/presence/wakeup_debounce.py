"""Holds back wake-ups from other processes while this process takes turns anyway.

A busy process needs no wake-up: its next turn reads everything. So while it is busy a wake-up waits a little, and is
passed on only if no turn came meanwhile. A turn for each wake-up would delay every process that has something to
write.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

BUSY: Final = 0.005
"""Seconds after its last commit for which a process counts as busy, and for which a wake-up waits."""


class WakeupDebounce:
    """Passes wake-ups on, unless a turn makes them needless. For the loop's thread, except where another is named."""

    def __init__(self, *, is_at_once: bool) -> None:
        """`is_at_once` says that nothing ever waits, as on virtual time."""
        self._loop = asyncio.get_running_loop()
        self._is_at_once = is_at_once
        self._changed: Callable[[bool], None] = lambda is_urgent: None
        self._timer: asyncio.TimerHandle | None = None
        self._busy_at = -BUSY
        self._turns = self._turns_at_news = 0
        """How many turns have begun, and how many had when the last wake-up came."""
        self._is_in_turn = False
        self._is_closed = False

    def listen(self, changed: Callable[[bool], None]) -> None:
        """Call this for each wake-up from now on."""
        self._changed = changed

    # in the thread that takes turns -----------------------------------------------------------------------

    def turn_wanted(self) -> None:
        """A turn waits for the lock, or holds it."""
        self._is_in_turn = True

    def turn_began(self) -> None:
        """The turn has the lock, and reads what others have done so far."""
        self._turns += 1

    def turn_over(self, *, is_written: bool) -> None:
        """The turn has ended, with a commit or without."""
        self._is_in_turn = False
        if is_written:
            self._busy_at = time.monotonic()

    # on the loop ------------------------------------------------------------------------------------------

    def hear(self, is_urgent: bool) -> None:
        """Another process has committed something."""
        self._turns_at_news = self._turns
        if is_urgent or self._is_at_once or not self._is_busy():
            self._changed(is_urgent)
        elif self._timer is None:
            self._later()

    def close(self) -> None:
        """Drop all further wake-ups."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _is_busy(self) -> bool:
        """Whether a turn is under way, or is likely soon because of what the last one started."""
        return self._is_in_turn or time.monotonic() - self._busy_at < BUSY

    def _later(self) -> None:
        if not self._is_closed:
            self._timer = self._loop.call_later(BUSY, self._pass_on)

    def _pass_on(self) -> None:
        """Pass the wake-up on, unless a turn that began after it has read everything."""
        self._timer = None
        if self._turns != self._turns_at_news:
            return
        if self._is_busy():
            self._later()
        elif not self._is_closed:
            self._changed(False)
