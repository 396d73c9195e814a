"""Deletes what is old, and renews leases, now and then in the store's thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from runcue.errors import StoreError
from runcue.host.loops import post_to_loop
from runcue.stores.presence.peer_monitor import Trouble
from runcue.stores.sql.pruning import Deleted
from runcue.stores.sql.store_thread import StoreThread

PRUNE_EVERY = 60.0
SHORTEST_PAUSE = 0.01
"""Seconds between two steps of pruning while there is more to delete; at least as long as the step took."""


class Housekeeping:
    """Calls `prune` and `renew` when it is time. An error is logged, and the call tried again another time."""

    def __init__(
        self,
        thread: StoreThread,
        trouble: Trouble,
        lease: float,
        prune: Callable[[], tuple[list[Deleted], bool]],
        renew: Callable[[], bool],
    ) -> None:
        """`prune` deletes some of what is old; it returns that, and whether there is more. `renew` renews the leases
        of this worker; it returns whether there were any."""
        self._thread = thread
        self._trouble = trouble
        self._lease = lease
        self._prune = prune
        self._renew = renew
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.may_run = False
        """True when attempts of this process may be under way, whose leases are renewed."""
        self._renewed_at = time.monotonic()

    def begin(self) -> None:
        """Delete what is old from now on, now and then. On the loop."""
        self._prune_in(PRUNE_EVERY)

    def close(self) -> None:
        """Stop. On the loop."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _prune_in(self, seconds: float) -> None:
        if not self._is_closed:
            self._timer = self._loop.call_later(seconds, self._prune_soon)

    def _prune_soon(self) -> None:
        try:
            self._thread.put(self.prune)
        except StoreError as error:
            self._trouble("cannot delete old units", error)
            self._prune_in(PRUNE_EVERY)

    def prune(self) -> None:
        """Delete some of what is old, and again soon if there is more. In the store's thread."""
        began, is_full = time.monotonic(), False
        try:
            _, is_full = self._prune()
        except StoreError as error:
            self._trouble("cannot delete old units", error)
        pause = max(SHORTEST_PAUSE, time.monotonic() - began) if is_full else PRUNE_EVERY
        post_to_loop(self._loop, self._prune_in, pause)

    def pulse(self) -> None:
        """Have the leases renewed if it is time. In the heart's thread, so that a busy loop does not delay it."""
        if self.may_run and time.monotonic() - self._renewed_at >= self._lease / 3:
            self._renewed_at = time.monotonic()
            self._thread.put(self.renew)

    def renew(self) -> None:
        """Renew the leases of this worker. In the store's thread."""
        if not self._is_closed:
            try:
                self.may_run = self._renew()
            except StoreError as error:
                self._trouble("could not renew leases", error)
