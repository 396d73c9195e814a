"""Coroutines on the loop itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from runcue.ports import Handler


class CoroutineExecutor:
    """Awaits `async def` handlers where everything else runs."""

    can_stop = True

    def run(
        self, work: Any, handler: Handler, entered: Callable[[float | None], None] | None
    ) -> Awaitable[Any]:
        """The handler's own coroutine: awaiting it is running it."""
        if (
            entered is not None
        ):  # told after the first step: the far side must never see it earlier than we count
            asyncio.get_running_loop().call_soon(entered, None)
        awaitable: Awaitable[Any] = handler(work)
        return awaitable

    async def close(self) -> None:
        """Nothing is held."""
