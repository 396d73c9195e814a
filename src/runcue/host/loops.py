"""Helpers for event loops: holding virtual time, real timers, timeouts, calls from other threads.

On a loop with virtual time (`runcue.testing`) code outside the loop takes no time: while it holds the loop, the
clock stands still. Other loops have no `hold`, and holding does nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

Timer = asyncio.TimerHandle | threading.Timer


def hold(loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
    """Stop virtual time until the returned function is called, on the loop."""
    take: Callable[[], None] | None = getattr(loop, "hold", None)
    if take is None:
        return _nothing
    take()
    release: Callable[[], None] = loop.release  # type: ignore[attr-defined]
    return release


def _nothing() -> None:
    """Release a loop that has no virtual time."""


def later(loop: asyncio.AbstractEventLoop, seconds: float, callback: Callable[[], None]) -> Timer:
    """Call back after so many real seconds, even where the loop's time is virtual."""
    if not hasattr(loop, "hold"):
        return loop.call_later(seconds, callback)
    timer = threading.Timer(seconds, post_to_loop, (loop, callback))
    timer.daemon = True
    timer.start()
    return timer


@asynccontextmanager
async def within(seconds: float | None) -> AsyncIterator[asyncio.Timeout]:
    """`asyncio.timeout` that raises TimeoutError also in a task under cancellation: before 3.11.3 it did not."""
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield limit
    except asyncio.CancelledError:
        if limit.expired() and task is not None and task.cancelling() <= before:
            raise TimeoutError from None
        raise


def post_to_loop(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *arguments: Any) -> None:
    """Call back on that loop, from any thread; on a closed loop do nothing."""
    try:
        loop.call_soon_threadsafe(callback, *arguments)
    except RuntimeError:
        if not loop.is_closed():
            raise
