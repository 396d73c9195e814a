"""Waking other processes: at once those for whom something was left, and all others now and then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable

from runcue.core.schedule.plan import Plan
from runcue.errors import StoreError
from runcue.host.loops import post_to_loop
from runcue.stores.presence.peer_monitor import Trouble
from runcue.stores.presence.presence import Presence
from runcue.stores.sql.store_thread import StoreThread

EVERY = 0.02
"""Seconds between two wake-ups that a busy process sends to processes for which nothing was left."""
FEW = 8
"""With more processes than these each is woken less often, so that the total stays the same."""


class Wakeups:
    """Wakes other processes after a turn. For the store's thread, except where another is named."""

    def __init__(
        self,
        me: str,
        thread: StoreThread,
        peers: Callable[[], Collection[str]],
        poke: Callable[[Iterable[str], Iterable[str]], None],
        *,
        is_at_once: bool,
    ) -> None:
        """`poke(workers, urgent)` wakes workers; `urgent` are those for which something was left. `peers` may name
        `me`, which is not woken."""
        self._me = me
        self._thread = thread
        self._peers = peers
        self._poke = poke
        self._is_at_once = is_at_once
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False
        """True from a turn that woke nobody until all others are woken for it."""
        self._told_at = -EVERY
        self._is_closed = False

    def of(self, plan: Plan) -> None:
        """A turn with this plan was committed."""
        if plan.parts:
            self.wake(plan.parts)
        if all(worker == self._me for worker in self._peers()):
            return  # and the loop, which the answer of the turn wakes anyway, is left alone until then
        now = time.monotonic()
        if now - self._told_at < self._every() and not (
            plan.lost or plan.has_moved_alarm or self._is_at_once
        ):
            if not self._is_due:
                self._is_due = True
                post_to_loop(self._loop, self._later)
        else:
            self._told_at = now
            self.to_all(but=plan.parts)

    def wake(self, workers: Collection[str]) -> None:
        """Wake these: something was left for them."""
        self._poke(workers, set(workers))

    def to_all(self, but: Iterable[str] = (), *, is_urgent: bool = False) -> None:
        """Wake all others, but those that were woken already."""
        others = {*self._peers()} - {*but}
        self._poke(others, others if is_urgent else ())

    def close(self) -> None:
        """Stop the timer. On the loop."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _later(self) -> None:
        if self._timer is None and not self._is_closed:
            self._timer = self._loop.call_later(self._every(), self._now)

    def _every(self) -> float:
        return EVERY * max(1.0, len(self._peers()) / FEW)

    def _now(self) -> None:
        self._timer = None
        self._is_due = False  # before: what a turn commits from now on may come too late for these wake-ups
        self._thread.put(self.to_all)


def sweep(presence: Presence, trouble: Trouble, dead: list[str]) -> None:
    """Remove the files that dead processes left on this host."""
    try:
        presence.sweep(dead)
    except (OSError, StoreError) as error:  # the next process that opens the queue does it
        trouble("cannot clear away the files of dead processes", error)
