"""Hands the answers of turns to the callers that wait for them."""

from __future__ import annotations

import asyncio
from typing import Any

from runcue.core.schedule.plan import Item, Submit


class Replies:
    """The futures of waiting callers, by item."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[int, tuple[Item, asyncio.Future[Any]]] = {}
        self._given_up: dict[int, tuple[Item, Any]] = {}
        """Submissions whose callers gave up waiting for room, each with its answer if one came after all."""

    def items(self) -> list[Item]:
        """The items that are not answered yet."""
        return [item for item, _ in self._waiting.values()]

    def awaited(self) -> set[int]:
        """The ids (`id()`) of items whose answer may still matter, those that are being withdrawn included."""
        return {*self._waiting, *self._given_up}

    def all(self) -> list[asyncio.Future[Any]]:
        """The futures of all waiting callers."""
        return [future for _, future in self._waiting.values()]

    async def to(self, item: Item) -> Any:
        """Wait for the answer to an item; raise it if it is an exception."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting[id(item)] = item, future
        try:
            return await future
        except asyncio.CancelledError:
            if type(item) is Submit and item.may_wait:
                answer = None if future.cancelled() else future.exception() or future.result()
                self._given_up.setdefault(id(item), (item, answer))
            raise
        finally:
            self._waiting.pop(id(item), None)

    def late(self, item: Item) -> Any:
        """The answer that came after the caller gave up, if one did; it is forgotten after this."""
        return self._given_up.pop(id(item), (item, None))[1]

    def answer(self, item: Item, answer: Any) -> None:
        """Hand the answer to an item to its caller."""
        _, future = self._waiting.pop(id(item), (None, None))
        if future is None:
            if id(item) in self._given_up:
                self._given_up[id(item)] = item, answer
        elif future.done():  # its caller has been cancelled and has not run since
            if type(item) is Submit and item.may_wait:
                self._given_up[id(item)] = item, answer
        elif isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
