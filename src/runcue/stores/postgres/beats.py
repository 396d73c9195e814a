"""Signs of life and wake-ups between machines, by a thread with a connection of its own.

Processes of one host find each other by the files of presence/presence.py, and never take a living one for dead. This
module is for processes of different hosts. Rules:
- Every worker gives a sign of life three times a lease, from this thread and with its turns.
- A worker elsewhere is lost when its sign has not changed for a whole lease, by the clock of the host that looks, and
  as long as that was connected: neither a server that was away nor a clock that jumped makes anybody look dead.
- Commits are announced by NOTIFY afterwards, so that they wait for nobody. A notification may be missed: a process
  with others elsewhere also looks regularly (store.py).
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Collection
from typing import Any, Final

from runcue.errors import StoreError
from runcue.host.loops import post_to_loop
from runcue.host.shortage import start_thread
from runcue.host.system import wake
from runcue.stores.postgres.address import Address
from runcue.stores.postgres.link import Link, translate
from runcue.stores.postgres.statements import BEAT, SEEN
from runcue.stores.presence.peer_monitor import Trouble

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 2.0
"""Seconds between two tries to connect."""
CLOSING: Final = 1.0
"""Seconds to wait for the thread when it is to end; it may be stuck in a dead network for longer."""
LOOK: Final = 0.5
"""Seconds between two checks of the workers elsewhere."""
PATIENCE: Final = 10.0
"""Seconds that a beat or a look may take before the connection counts as dead."""
ONLY: Final = ">"
ALL: Final = "*"
"""A note begins with its sender. ONLY: it is for the workers that follow alone. ALL: it is urgent for all."""
LONGEST_NOTE: Final = 7000
"""Bytes; PostgreSQL takes 8,000."""


class Signs:
    """Since when the sign of each worker elsewhere is the same, by the clock of this host."""

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._seen: dict[str, tuple[float, float]] = {}  # worker → its sign, and when that was new here

    def look(self, signs: dict[str, float], now: float) -> list[str]:
        """The workers that are lost, given the current sign of life of each worker elsewhere."""
        self._seen = {
            worker: known if (known := self._seen.get(worker)) and known[0] == sign else (sign, now)
            for worker, sign in signs.items()
        }
        return [worker for worker, (_, since) in self._seen.items() if now - since > self._lease]


def note(sender: str, urgent: Collection[str]) -> str:
    """The text of a notification: something was left for the `urgent` workers, or something changed."""
    if not urgent:
        return sender
    text = " ".join((sender, ONLY, *urgent))
    return text if len(text) <= LONGEST_NOTE else f"{sender} {ALL}"


class Beats:
    """Gives signs of life for one worker, and listens to the others."""

    def __init__(
        self,
        address: Address,
        worker: str,
        boot: str,
        lease: float,
        trouble: Trouble,
        changed: Callable[[bool], None],
        lost: Callable[[str], None],
    ) -> None:
        self._address = address
        self._worker = worker
        self._boot = boot
        self._lease = lease
        self._trouble = trouble
        self._changed = changed
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._is_closed = False
        try:
            self._waking, self._waker = socket.socketpair()  # a pipe could not be waited for everywhere
        except OSError as error:
            raise translate(error, address) from error
        for end in (self._waking, self._waker):
            end.setblocking(False)
        self.are_others_elsewhere = False
        """Whether there are workers that only NOTIFY can reach."""
        try:
            self._thread = start_thread(self._work, "runcue-beats")
        except StoreError:
            self._close_pair()
            raise

    def close(self) -> None:
        """End the thread. In a forked child: nothing, there is none."""
        if self._pid != os.getpid() or self._is_closed:
            return
        self._is_closed = True
        self._waker.send(b".")
        self._thread.join(CLOSING)
        if not self._thread.is_alive():
            self._close_pair()

    def _close_pair(self) -> None:
        self._waking.close()
        self._waker.close()

    def _work(self) -> None:
        """Give signs of life on one connection after the other, whatever happens."""
        pause = FIRST_PAUSE
        while not self._is_closed:
            try:
                self._live()
                pause = FIRST_PAUSE
            except Exception as error:  # noqa: BLE001 (who gives no sign of life passes for dead, whatever it is)
                self._trouble("signs of life cannot be given", translate(error, self._address))
                wake.readable(pause, self._waking.fileno())
                pause = min(2 * pause, LONGEST_PAUSE)

    def _live(self) -> None:
        """Beat, listen and look around, as long as a connection lasts."""
        link = Link(self._address)
        try:
            link.raw.execute(f"LISTEN {self._address.schema}")
            post_to_loop(self._loop, self._changed, True)  # notifications may have been missed meanwhile
            signs = Signs(self._lease)
            beat_at = look_at = 0.0
            while not self._is_closed:
                now = time.monotonic()
                with link.timed(PATIENCE):
                    if now >= beat_at:
                        link.execute(BEAT, (self._worker,))
                        beat_at = now + self._lease / 3
                    if now >= look_at:
                        self._look_around(link, signs)
                        look_at = now + LOOK
                self._listen(link, min(beat_at, look_at) - time.monotonic())
        finally:
            link.close()

    def _listen(self, link: Link, seconds: float) -> None:
        line = link.raw.fileno()
        if line not in wake.readable(max(0.0, seconds), self._waking.fileno(), line):
            return
        with link.timed(PATIENCE):
            heard = [note.payload.split(" ") for note in link.raw.notifies(timeout=0)]
        told = [self._worker in words or ALL in words for words in heard if self._is_meant(words)]
        if told:
            post_to_loop(self._loop, self._changed, any(told))

    def _is_meant(self, words: list[str]) -> bool:
        """Whether a note is for this worker: it is for all but its sender, or for those that it names."""
        if words[0] == self._worker:
            return False
        return words[1:2] != [ONLY] or self._worker in words or ALL in words

    def _look_around(self, link: Link, signs: Signs) -> None:
        rows: list[Any] = link.execute(SEEN, (self._boot,)).fetchall()
        self.are_others_elsewhere = bool(rows)
        for worker in signs.look(dict(rows), time.monotonic()):
            post_to_loop(self._loop, self._lost, worker)
