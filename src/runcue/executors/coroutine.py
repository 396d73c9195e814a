"""Coroutines on the loop itself."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from runcue.ports import Entering, Registered


class CoroutineExecutor:
    """Awaits `async def` handlers where everything else runs."""

    can_stop = True
    grace = 0.0

    def run(self, work: Any, task: Registered, entered: Entering | None) -> Awaitable[Any]:
        """The handler's own coroutine: awaiting it is running it."""
        if entered is not None:  # after the first step: the far side must never see it earlier than we count
            entered.soon()
        awaitable: Awaitable[Any] = task.handler(work)
        return awaitable

    async def close(self) -> None:
        """Nothing is held."""
