"""Handlers for tests in which it does not matter what a handler does."""

import asyncio
from collections.abc import Awaitable, Callable

from runcue import Work


async def no_op(work: Work) -> None:
    """Do nothing."""


def taking(seconds: float) -> Callable[[Work], Awaitable[None]]:
    """A handler that takes so many seconds."""

    async def take(work: Work) -> None:
        await asyncio.sleep(seconds)

    return take
