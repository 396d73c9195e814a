"""Who asked for something and waits for the turn that answers it: futures by item."""

from __future__ import annotations

import asyncio
from typing import Any

from runcue.core.plan import Item, Submit


class Replies:
    """Futures of what turns answer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[int, tuple[Item, asyncio.Future[Any]]] = {}
        self._late: dict[int, Any] = {}

    def items(self) -> list[Item]:
        """What was asked for and is not answered yet."""
        return [item for item, _ in self._waiting.values()]

    def all(self) -> list[asyncio.Future[Any]]:
        """Every future that somebody waits for."""
        return [future for _, future in self._waiting.values()]

    async def to(self, item: Item) -> Any:
        """The answer to that item, which may be an exception to raise."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting[id(item)] = item, future
        try:
            return await future
        except asyncio.CancelledError:
            if not future.cancelled() and type(item) is Submit and item.may_wait:
                self._late[id(item)] = future.exception() or future.result()
            raise
        finally:
            self._waiting.pop(id(item), None)

    def late(self, item: Item) -> Any:
        """The answer that came at the very moment its caller gave up waiting, if one did."""
        return self._late.pop(id(item), None)

    def answer(self, item: Item, answer: Any) -> None:
        """A turn has this to say to that item."""
        _, future = self._waiting.pop(id(item), (None, None))
        if future is None:
            return
        if future.done():
            if type(item) is Submit and item.may_wait:
                self._late[id(item)] = answer
        elif isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
