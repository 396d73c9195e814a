"""Signs of life and wake-ups between machines, by a thread with a connection of its own.

Processes of one host see each other by the files of presence.py: who lives there is never taken for dead. Here is
what reaches further. Rules:
- Every worker gives a sign of life three times a lease, from a thread that no busy loop can starve.
- A worker elsewhere is lost when it has given none for a whole lease, while the server was up and this process was
  connected to it all the time: a server that was away must not make everybody look dead to everybody.
- Commits are told by NOTIFY after they were made, so that they wait for nobody. Who misses one looks around twice a
  second anyway.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import psycopg

from runcue.errors import StoreError
from runcue.loops import tell
from runcue.stores.neighbours import Trouble
from runcue.stores.postgres.address import Address
from runcue.stores.postgres.link import Link, translate

logger = logging.getLogger("runcue")

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 2.0
"""Seconds between two tries to connect."""
CLOSING: Final = 1.0
"""Seconds to wait for the thread when it is to end; it may be stuck in a dead network for longer."""
LOOK: Final = 0.5
"""Seconds between two looks at who else is there."""
BEAT: Final = (
    "INSERT INTO beats VALUES (?, extract(epoch FROM clock_timestamp())) "
    "ON CONFLICT (worker) DO UPDATE SET at = excluded.at"
)
SEEN: Final = (
    "SELECT workers.id, greatest(coalesce(beats.at, 0), extract(epoch FROM pg_postmaster_start_time())), "
    "extract(epoch FROM clock_timestamp()) FROM workers LEFT JOIN beats ON worker = workers.id WHERE boot != ?"
)
"""When everybody elsewhere was last seen, and what the clock of the server says."""
CLEAR: Final = "DELETE FROM beats WHERE worker NOT IN (SELECT id FROM workers)"


class Beats:
    """Beats for one worker, and listens to the others."""

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
        self._waking, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.link: Link | None = None
        self.are_others_elsewhere = False
        """Whether somebody can be reached by NOTIFY alone."""
        self._thread = threading.Thread(target=self._work, name="runcue-beats", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread. In a forked child: nothing, there is none."""
        if self._pid != os.getpid() or self._is_closed:
            return
        self._is_closed = True
        os.write(self._waker, b".")
        self._thread.join(CLOSING)

    def _work(self) -> None:
        try:
            self._connected()
        finally:
            os.close(self._waking)
            os.close(self._waker)

    def _connected(self) -> None:
        """Live on one connection after the other."""
        pause = FIRST_PAUSE
        while not self._is_closed:
            try:
                link = Link(self._address)
            except StoreError as error:
                self._trouble("cannot listen to the others", error)
                self._rest(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            pause = FIRST_PAUSE
            self.link = link
            try:
                self._live(link)
            except psycopg.Error as error:
                self._trouble("the connection for signs of life was lost", translate(error, self._address))
            finally:
                self.link = None
                link.close()

    def _live(self, link: Link) -> None:
        """Beat, listen and look around, as long as this connection lasts."""
        link.raw.execute(f"LISTEN {self._address.schema}")
        row: Any = link.execute("SELECT extract(epoch FROM clock_timestamp())").fetchone()
        since = float(row[0])
        tell(self._loop, self._changed, True)  # what was told meanwhile was not heard
        beat_at = look_at = 0.0
        while not self._is_closed:
            now = time.monotonic()
            if now >= beat_at:
                with link.timed():
                    link.execute(BEAT, (self._worker,))
                beat_at = now + self._lease / 3
            if now >= look_at:
                with link.timed():
                    self._look_around(link, since)
                look_at = now + LOOK
            self._listen(link, min(beat_at, look_at) - time.monotonic())

    def _listen(self, link: Link, seconds: float) -> None:
        connection = link.raw
        readable, _, _ = select.select([connection.fileno(), self._waking], [], [], max(0.0, seconds))
        if connection.fileno() not in readable:
            return
        heard = [note.payload for note in connection.notifies(timeout=0)]
        others = [text.split(" ") for text in heard if not text.startswith(self._worker)]
        if others:
            tell(self._loop, self._changed, any(self._worker in words for words in others))

    def _look_around(self, link: Link, since: float) -> None:
        rows: list[Any] = link.execute(SEEN, (self._boot,)).fetchall()
        if self.are_others_elsewhere or rows:
            tell(self._loop, self._changed, True)
        self.are_others_elsewhere = bool(rows)
        for worker, seen_at, now in rows:
            if float(now) - max(float(seen_at), since) > self._lease:
                tell(self._loop, self._lost, worker)

    def _rest(self, seconds: float) -> None:
        select.select([self._waking], [], [], seconds)
