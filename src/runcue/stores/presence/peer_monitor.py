"""Receives wake-ups from the other processes on a queue, and notices their death.

Rules:
- Only its lock shows whether a process lives (presence.py). The system reports the end of a process that is watched
  (by a pidfd, or a handle), as a hint to check its lock at once. Besides, locks are checked twice a second; those of
  watched processes every 1.5 s.
- A dead worker is reported only when nothing that it had begun runs any more. Ending that may take a while, so it
  happens in a thread of its own (on virtual time on the loop itself).
- While this process waits for a turn or has one, wake-ups are ignored: the turn reads everything anyway.
- Errors here stop no work. They are logged, once a minute.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from runcue.errors import StoreError
from runcue.host.loops import post_to_loop
from runcue.host.shortage import start_thread
from runcue.host.system import wake
from runcue.stores.presence.presence import URGENT, Presence

logger = logging.getLogger("runcue")

LOOK_AROUND = 0.5
"""Seconds between two checks of the other processes."""
ASKED = 3
"""A process that is watched has its lock checked once in so many checks."""
MANY = 4096
"""With so many pokes at once there may have been no room for more, and an urgent one lost."""
TROUBLE_EVERY = 60.0

EndLeftovers = Callable[[str], bool]
"""Ends what a dead worker left running, without waiting for it: True when nothing of it runs any more."""


class Trouble:
    """Logs errors that stop no work: each kind once a minute at most, however often it happens."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._told: dict[str, float] = {}

    def __call__(self, what: str, error: Exception) -> None:
        """Log that something could not be done."""
        now = time.monotonic()
        if now - self._told.get(what, -TROUBLE_EVERY) >= TROUBLE_EVERY:
            self._told[what] = now
            logger.warning("%r: %s: %s", self._path, what, error)


class PeerMonitor:
    """Listens to the other processes on a queue, and watches whether they live. For the loop's thread."""

    def __init__(
        self,
        presence: Presence,
        peers: Callable[[], Mapping[str, int]],
        trouble: Trouble,
        end_leftovers: EndLeftovers | None,
        *,
        is_on_loop: bool,
    ) -> None:
        self._presence = presence
        self._peers = peers
        self._trouble = trouble
        self._end_leftovers = end_leftovers
        self._is_on_loop = is_on_loop
        self._loop = asyncio.get_running_loop()
        self._changed: Callable[[bool], None] = _nobody
        self._lost: Callable[[str], None] = _nobody
        self._timer: asyncio.TimerHandle | None = None
        self._turn_at = 0.0
        self._looks = 0
        self._watches: dict[str, wake.Watch | None] = {}
        """For each worker the watch over its process, if there is one."""
        self._ending: set[str] = set()
        self._is_listening = False
        self._is_deaf = False
        """True while pokes cannot be heard, though they should be."""
        self._is_closed = False

    def listen(self, changed: Callable[[bool], None], lost: Callable[[str], None]) -> None:
        """Call `changed` when another process has committed something, and `lost` when one has died."""
        self._changed, self._lost = changed, lost
        self._is_listening = True
        self._hear()

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """Ignore wake-ups while a turn is taken, which reads everything."""
        if self._is_listening and not self._is_closed:
            self._presence.ear.detach(self._loop)
        try:
            yield
        finally:
            self._hear()

    def _hear(self) -> None:
        if self._is_listening and not self._is_closed and not self._loop.is_closed():
            try:
                self._presence.ear.attach(self._loop, self._poked)
                self._is_deaf = False
            except OSError as error:  # `meet` tries again; until then the regular checks have to do
                self._is_deaf = True
                self._trouble("cannot listen to the other processes", error)

    def meet(self) -> None:
        """After a turn or an exchange: begin the regular checks if there are other processes."""
        self._turn_at = self._loop.time()
        if self._is_deaf:
            self._hear()
        if self._timer is None and not self._is_closed and self._others():
            self._look_around()

    def notice(self) -> None:
        """Have a turn taken that finds out what has changed."""
        if not self._is_closed:
            self._changed(True)

    def close(self) -> None:
        """Stop listening and watching."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if not self._loop.is_closed():
            self._presence.ear.detach(self._loop)
        for worker in list(self._watches):
            self._unwatch(worker)

    def _others(self) -> dict[str, int]:
        return {name: pid for name, pid in self._peers().items() if name != self._presence.worker_id}

    def _poked(self) -> None:
        said = self._presence.drain()
        self._changed(URGENT in said or len(said) >= MANY)

    def _look_around(self) -> None:
        """Check regularly which of the others died, as long as there are others."""
        self._timer = None
        others = self._others()
        for worker in self._watches.keys() - others.keys():
            self._unwatch(worker)
        if others:
            self._timer = self._loop.call_later(LOOK_AROUND, self._look_around)
            if self._loop.time() - self._turn_at >= LOOK_AROUND:  # a turn has read everything until then
                self._changed(True)
        self._looks += 1
        for number, (worker, pid) in enumerate(others.items(), self._looks):
            self._watch(worker, pid)
            if self._watches[worker] is None or number % ASKED == 0:
                self._ask(worker)

    def _watch(self, worker: str, pid: int) -> None:
        if worker not in self._watches:
            watch = self._watches[worker] = None if pid == os.getpid() else self._presence.watch(pid)
            if watch is not None:
                try:
                    watch.attach(self._loop, self._hinted, worker)
                except OSError:  # no room for it: the regular check notices it a little later
                    self._watches[worker] = None
                    watch.close()

    def _hinted(self, worker: str) -> None:
        """The process that had the pid of that worker has ended."""
        self._unwatch(worker)
        self._watches[worker] = None
        self._ask(worker)

    def _unwatch(self, worker: str) -> None:
        watch = self._watches.pop(worker)
        if watch is not None:
            watch.close()

    def _ask(self, worker: str) -> None:
        try:
            is_alive = self._presence.is_alive(worker)
        except StoreError as error:
            self._trouble("cannot find out which processes are alive", error)
            return
        if is_alive or worker in self._ending:
            return
        if self._end_leftovers is None:
            self._lost(worker)
        elif self._is_on_loop:
            self._ended(worker, self._is_over(self._end_leftovers, worker))
        else:
            self._ending.add(worker)
            try:
                start_thread(self._end, "runcue-leftovers", self._end_leftovers, worker)
            except StoreError as error:  # the next look tries again
                self._ending.discard(worker)
                self._trouble("cannot end what a dead process left running", error)

    def _end(self, end_leftovers: EndLeftovers, worker: str) -> None:
        is_over = self._is_over(end_leftovers, worker)
        post_to_loop(self._loop, self._ended, worker, is_over)

    def _is_over(self, end_leftovers: EndLeftovers, worker: str) -> bool:
        try:
            return end_leftovers(worker)
        except Exception as error:  # noqa: BLE001 (its work must stay where it is, and we go on)
            self._trouble("cannot end what a dead process left running", error)
            return False

    def _ended(self, worker: str, is_over: bool) -> None:
        self._ending.discard(worker)
        if is_over and not self._is_closed:
            self._lost(worker)


def _nobody(*_: object) -> None:
    """Stands in until `listen` is called."""
