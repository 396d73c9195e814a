"""Runs coroutines on the loop of the Cue."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from runcue.ports import Entering, Registered


class CoroutineExecutor:
    """Awaits `async def` handlers."""

    can_stop = True
    grace = 0.0

    def run(self, work: Any, task: Registered, entered: Entering | None) -> Awaitable[Any]:
        """The handler's coroutine: awaiting it runs it."""
        # The moment after the first step counts: an earlier one would let the next call start too early.
        if entered is not None:
            entered.soon()
        awaitable: Awaitable[Any] = task.call(work)
        return awaitable

    async def close(self) -> None:
        """Do nothing: this executor holds nothing."""
