"""Logs which handler or callback holds the event loop for too long.

While a unit or a callback is under way, a thread asks the loop for a sign of life. When none comes for a second, it
logs what runs on the loop, with its stack; once for each such stall.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Callable

logger = logging.getLogger("runcue")

PATIENCE = 1.0


def watched(loop: asyncio.AbstractEventLoop, describe: Callable[[], str | None]) -> Watchdog | None:
    """A watchdog; None, with a warning, where no thread can be started: units run without one."""
    try:
        return Watchdog(loop, describe)
    except RuntimeError as error:
        logger.warning("no watchdog: a handler that holds the event loop will not be reported: %s", error)
        return None


class Watchdog:
    """Watches one loop from a thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, describe: Callable[[], str | None], patience: float = PATIENCE
    ) -> None:
        self._loop = loop
        self._describe = describe
        self._patience = patience
        self._loop_thread = threading.get_ident()
        self._over = threading.Event()
        self._alive = threading.Event()
        threading.Thread(target=self._watch, name="runcue-watchdog", daemon=True).start()

    def stop(self) -> None:
        """End the thread."""
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(self._patience / 4) and not self._loop.is_closed():
            if self._describe() is None:
                continue  # nothing of this Cue is under way
            self._alive.clear()
            try:
                self._loop.call_soon_threadsafe(self._alive.set)
            except RuntimeError:
                return  # the loop is closed
            if not self._alive.wait(self._patience) and not self._over.is_set():
                self._warn()
                while not self._alive.wait(self._patience) and not self._over.is_set():
                    pass

    def _warn(self) -> None:
        holder = self._describe() or "something"
        frame = sys._current_frames().get(self._loop_thread)
        stack = "".join(traceback.format_stack(frame)[-8:]) if frame is not None else ""
        logger.warning(
            "%s holds the event loop for over %g s: nothing else can run. "
            "Use `await`, or a plain `def` handler.\n%s",
            holder,
            self._patience,
            stack,
            extra={"runcue": {"event": "loop_held", "who": holder}},
        )
