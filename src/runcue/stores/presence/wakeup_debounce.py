"""News of other processes, on their way to the engine.

A process that takes one turn after the other need not be told: its next turn sees what there is. So while it is
busy, news wait a little, and are passed on only if no turn came meanwhile. Each turn for news alone would hold up
everybody who has something to write.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

BUSY: Final = 0.005
"""Seconds after its last commit for which a process counts as busy, and for which news wait there."""


class WakeupDebounce:
    """Hears of others, and of this process's own turns. For the loop's thread, but where another is named."""

    def __init__(self, *, is_at_once: bool) -> None:
        """`is_at_once` says that nothing ever waits, as on virtual time."""
        self._loop = asyncio.get_running_loop()
        self._is_at_once = is_at_once
        self._changed: Callable[[bool], None] = lambda is_urgent: None
        self._timer: asyncio.TimerHandle | None = None
        self._busy_at = -BUSY
        self._turns = self._turns_at_news = 0
        """How many turns have seen what others did, and how many had when the last news came."""
        self._is_in_turn = False
        self._is_closed = False

    def listen(self, changed: Callable[[bool], None]) -> None:
        """Pass news on to this from now on."""
        self._changed = changed

    # in the thread that takes turns -----------------------------------------------------------------------

    def turn_wanted(self) -> None:
        """A turn is waited for, or under way."""
        self._is_in_turn = True

    def turn_began(self) -> None:
        """It has the lock: what others did so far, it sees."""
        self._turns += 1

    def turn_over(self, *, is_written: bool) -> None:
        """It has ended, with a commit or without."""
        self._is_in_turn = False
        if is_written:
            self._busy_at = time.monotonic()

    # on the loop ------------------------------------------------------------------------------------------

    def hear(self, is_urgent: bool) -> None:
        """Somebody committed something."""
        self._turns_at_news = self._turns
        if is_urgent or self._is_at_once or not self._is_busy():
            self._changed(is_urgent)
        elif self._timer is None:
            self._later()

    def close(self) -> None:
        """Pass nothing on any more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _is_busy(self) -> bool:
        """Whether a turn is under way or may well be the next thing: what the last one started brings it."""
        return self._is_in_turn or time.monotonic() - self._busy_at < BUSY

    def _later(self) -> None:
        if not self._is_closed:
            self._timer = self._loop.call_later(BUSY, self._pass_on)

    def _pass_on(self) -> None:
        """Pass news on, unless a turn that began after they came has seen them."""
        self._timer = None
        if self._turns != self._turns_at_news:
            return
        if self._is_busy():
            self._later()
        elif not self._is_closed:
            self._changed(False)
