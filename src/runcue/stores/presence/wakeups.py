"""Waking other processes: at once those for whom something was left, and all others now and then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable

from runcue.core.schedule.plan import Plan
from runcue.errors import StoreError
from runcue.host.loops import post_to_loop
from runcue.stores.presence.peer_monitor import Trouble
from runcue.stores.presence.posix import Presence
from runcue.stores.sql.store_thread import StoreThread

EVERY = 0.02
"""Seconds between two tidings of a process that is busy, for those who have nothing to do."""
FEW = 8
"""Where there are more processes than these, they are told less often: together they are woken as often as these."""


class Wakeups:
    """What a process tells the others after its turns. For the store's thread, but where another is named."""

    def __init__(
        self,
        thread: StoreThread,
        peers: Callable[[], Collection[str]],
        poke: Callable[[Iterable[str], Iterable[str]], None],
        *,
        is_at_once: bool,
    ) -> None:
        """`poke` wakes some, and tells those among them for whom something was left that it was."""
        self._thread = thread
        self._peers = peers
        self._poke = poke
        self._is_at_once = is_at_once
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._told_at = -EVERY
        self._is_closed = False

    def of(self, plan: Plan) -> None:
        """A turn was committed that decided this."""
        if plan.parts:
            self.wake(plan.parts)
        now = time.monotonic()
        if now - self._told_at < self._every() and not (
            plan.lost or plan.has_moved_alarm or self._is_at_once
        ):
            post_to_loop(self._loop, self._later)
        else:
            self._told_at = now
            self.to_all(but=plan.parts)

    def wake(self, workers: Collection[str]) -> None:
        """Wake these: something was left for them."""
        self._poke(workers, set(workers))

    def to_all(self, but: Iterable[str] = (), *, is_urgent: bool = False) -> None:
        """Wake everybody, but those who were woken already."""
        others = {*self._peers()} - {*but}
        self._poke(others, others if is_urgent else ())

    def close(self) -> None:
        """Tell nothing more by itself. On the loop."""
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
        self._thread.put(self.to_all)


def sweep(presence: Presence, trouble: Trouble, dead: list[str]) -> None:
    """Clear away what dead processes left on this host."""
    try:
        presence.sweep(dead)
    except (OSError, StoreError) as error:  # the next who opens the queue does it
        trouble("cannot clear away the files of dead processes", error)
