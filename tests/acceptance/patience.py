"""How acceptance tests wait: for something that happens, never for a time that should be enough."""

import asyncio
from collections.abc import Callable

BOUND = 240.0
"""Seconds until a test gives up. Far more than anything here takes, so that a slow machine fails nothing."""


async def happens(event: asyncio.Event) -> None:
    """Wait until the event is set."""
    async with asyncio.timeout(BOUND):
        await event.wait()


async def becomes_true(condition: Callable[[], object]) -> None:
    """Wait until a condition holds that nobody announces."""
    async with asyncio.timeout(BOUND):
        while not condition():  # noqa: ASYNC110 (a plain value changes, perhaps in another thread)
            await asyncio.sleep(0.005)
