"""Tells a process which process decides, and when to take over from it.

The process that took the last turn goes on deciding, and the others post to it. That is a hint and no lock: the lock
of each turn keeps two processes from deciding at once. A process takes over when no process decides, when the
deciding one is dead, or when it has decided nothing for a while although posts wait: it may be stopped, or something
in it holds the interpreter. The while grows with the time that decisions took lately; else processes on a busy
machine would take over from each other all the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from runcue.core.model.state import NO_HEAD, Head
from runcue.ports import Takeover

SHORTEST: Final = 0.05
LONGEST: Final = 1.0
"""The least and the most seconds that a process waits for a decision before it takes over."""
TIMES: Final = 4.0
"""A process waits this many times as long as decisions took lately."""
HALF_LIFE: Final = 10.0
"""Seconds after which a delay that did not recur counts half."""


class Leadership:
    """What one process knows of the deciding process. Times are those of its loop, except `queue_time`."""

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
        """When this process last saw a new turn of another process."""

    def observe(self, head: Head, has_unread: bool) -> None:
        """Note the latest head, and whether a post of this process is not taken yet."""
        now = self._clock()
        if self._posted_at is not None and (not has_unread or head.revision != self.head.revision):
            took = self._unread_at - self._posted_at  # a lower bound: the post was still unread then
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
        """Seconds that this process waits for a decision before it takes over."""
        return min(LONGEST, max(SHORTEST, TIMES * self._slowness(self._clock())))

    def due(self, queue_time: float) -> Takeover | None:
        """The takeover that is due now; None while another process goes on deciding."""
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
