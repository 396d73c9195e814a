"""Cuts connections on which something takes too long: a network may be dead and not say so.

One thread of a process watches over all of them, as long as there are any.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Final, Protocol
from weakref import WeakSet

from runcue.host.shortage import start_thread

logger = logging.getLogger("runcue")

PAUSE: Final = 1.0
"""Seconds between two looks."""


class Watched(Protocol):
    """A connection that knows how long something may take."""

    def __hash__(self) -> int: ...
    @property
    def is_alive(self) -> bool:
        """False once it is closed."""
        ...

    @property
    def is_stuck(self) -> bool:
        """True when what is under way takes too long."""
        ...

    @property
    def shown(self) -> str:
        """Where it leads, in a message."""
        ...

    def hang_up(self) -> None:
        """Cut it, from any thread: whoever uses it gets an error."""
        ...


class Watch:
    """Looks after connections, from a thread that is started with the first of them."""

    def __init__(self) -> None:
        self._links: WeakSet[Watched] = WeakSet()
        self._guard = threading.Lock()
        self._pid = 0
        """The process that has the thread: a forked child has none."""

    def over(self, link: Watched) -> None:
        """Look after that one, too."""
        with self._guard:
            self._links.add(link)
            if self._pid != os.getpid():
                start_thread(self._work, "runcue-links")
                self._pid = os.getpid()

    def _work(self) -> None:
        while True:
            time.sleep(PAUSE)
            with self._guard:
                links = [link for link in self._links if link.is_alive]
                if not links:
                    self._pid = 0
                    return
            for link in links:
                if link.is_stuck:
                    logger.warning("%s says nothing any more: the connection is cut", link.shown)
                    link.hang_up()
            del links, link  # nothing here keeps one alive
