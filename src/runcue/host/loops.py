"""What others need of a loop besides asyncio: time that stands still, real seconds, and word from threads.

On a loop with virtual time (`runcue.testing`) what happens outside takes none: as long as somebody holds the loop,
its clock does not move. On other loops there is nothing to hold.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol


class Timer(Protocol):
    """Something that was set to happen."""

    def cancel(self) -> None:
        """Let it not happen."""
        ...


def hold(loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
    """Let no virtual time pass until the returned function is called, on the loop."""
    take: Callable[[], None] | None = getattr(loop, "hold", None)
    if take is None:
        return _nothing
    take()
    release: Callable[[], None] = loop.release  # type: ignore[attr-defined]
    return release


def _nothing() -> None:
    """Releases what was not held."""


def later(loop: asyncio.AbstractEventLoop, seconds: float, callback: Callable[[], None]) -> Timer:
    """Call back after real seconds, on virtual time too."""
    if not hasattr(loop, "hold"):
        return loop.call_later(seconds, callback)
    timer = threading.Timer(seconds, post_to_loop, (loop, callback))
    timer.daemon = True
    timer.start()
    return timer


@asynccontextmanager
async def within(seconds: float | None) -> AsyncIterator[asyncio.Timeout]:
    """`asyncio.timeout`, which before Python 3.11.3 was a cancellation in a task that was being cancelled already."""
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
    """Call back on that loop, from any thread; nothing happens when it is closed: nobody waits there any more."""
    try:
        loop.call_soon_threadsafe(callback, *arguments)
    except RuntimeError:
        if not loop.is_closed():
            raise
