"""Who decides, as one of the processes that share a queue sees it, and when it is to decide itself.

The process that took the last turn goes on deciding, and the others leave what they have for it. That is a hint, and
no lock: the lock of each turn keeps two from deciding at once. A process takes over when nobody decides, when the one
that did is dead, or when nothing was decided for a while although there was something to decide: it is stopped, or
something in it holds the interpreter. How long that while is depends on how long decisions took lately, or on a busy
machine everybody would take over from everybody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from runcue.core.model.state import NO_HEAD, Head
from runcue.ports import Takeover

SHORTEST: Final = 0.05
LONGEST: Final = 1.0
"""Seconds for which a process waits for a decision before it takes over, at least and at most."""
TIMES: Final = 4.0
"""How many times as long as decisions took lately."""
HALF_LIFE: Final = 10.0
"""Seconds after which half of a delay that did not happen again is forgotten."""


class Leadership:
    """What one process knows of who decides. Times are those of its loop, but where queue time is said."""

    def __init__(self, me: str, is_alive: Callable[[str], bool], clock: Callable[[], float]) -> None:
        self.me = me
        self._is_alive = is_alive
        self._clock = clock
        self.head = NO_HEAD
        self._unread_since: float | None = None
        self._posted_at: float | None = None
        self._unread_at = 0.0
        self._delay = 0.0
        self._delayed_at = 0.0
        self._decided_at = -SHORTEST
        """When this process last saw that something had been decided."""

    def saw(self, head: Head, has_unread: bool) -> None:
        """That is how the queue stands, and whether something that this process left has not been taken yet."""
        now = self._clock()
        if self._posted_at is not None and (not has_unread or head.revision != self.head.revision):
            took = self._unread_at - self._posted_at  # at least: it was seen unread then
            if took > self._slowness(now):
                self._delay, self._delayed_at = took, now
        if self.head is not NO_HEAD and head.revision != self.head.revision:
            self._decided_at = now
        if not has_unread:
            self._unread_since = self._posted_at = None
        elif self._unread_since is None or head.revision != self.head.revision:
            self._unread_since = now
            self._posted_at = self._posted_at or now
        self._unread_at = now
        self.head = head

    @property
    def patience(self) -> float:
        """For how long this process waits for a decision."""
        return min(LONGEST, max(SHORTEST, TIMES * self._slowness(self._clock())))

    def due(self, queue_time: float) -> Takeover | None:
        """Whose place this process takes now; None while somebody else decides."""
        head = self.head
        if head.decider is None or head.decider == self.me:
            return Takeover(head.decider)
        if self._clock() - self._decided_at >= SHORTEST and not self._is_alive(head.decider):
            return Takeover(head.decider)
        is_waiting = self._unread_since is not None and self._clock() - self._unread_since >= self.patience
        is_late = head.wake_at is not None and queue_time - head.wake_at >= 2 * self.patience
        return Takeover(head.decider, head.revision) if is_waiting or is_late else None

    def _slowness(self, now: float) -> float:
        return float(self._delay * 2.0 ** ((self._delayed_at - now) / HALF_LIFE)) if self._delay else 0.0
