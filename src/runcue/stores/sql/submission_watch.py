"""Notices what was submitted from outside: nobody is notified of it, since that would hold up other transactions.

The deciding process looks seven times a second, in a thread of its own: a look costs some microseconds with a file,
and a round trip with a server. The others look once a second, and speak up only if a row is still there the next
time: the deciding process may be stopped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from runcue.errors import StoreError
from runcue.host.shortage import start_thread
from runcue.stores.presence.peer_monitor import Trouble

EVERY: Final = 0.14
"""Seconds between two looks of the deciding process."""
SELDOM: Final = 1.0
"""Seconds between two looks of another process, and after an error."""
CLOSING: Final = 1.0
"""Seconds to wait for the end of the thread, which may be waiting for a server."""

First = tuple[int | None, str | None]
"""The number of the first row that no turn has taken, and the process that decides."""


class SubmissionWatch:
    """Looks for submissions from outside until it is closed."""

    def __init__(
        self, first: Callable[[], First], worker: str, submitted: Callable[[], None], trouble: Trouble
    ) -> None:
        """`submitted` is called in the thread of the watch."""
        self._first = first
        self._worker = worker
        self._submitted = submitted
        self._trouble = trouble
        self._end = threading.Event()
        self._thread = start_thread(self._watch, "runcue-submissions")

    def close(self) -> None:
        """End the thread. In a forked child there is none."""
        self._end.set()
        self._thread.join(CLOSING)

    def _watch(self) -> None:
        before: int | None = None
        pause = EVERY
        while not self._end.wait(pause):
            try:
                number, decider = self._first()
            except StoreError as error:
                if not self._end.is_set():
                    self._trouble("cannot look for submissions", error)
                pause = SELDOM
                continue
            is_due = decider is None or decider == self._worker
            if number is not None and (is_due or number == before):
                self._submitted()
            before = number
            pause = EVERY if is_due else SELDOM
