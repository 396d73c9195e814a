"""Who asked for something and waits for the turn that answers it: futures by item."""

from __future__ import annotations

import asyncio
from typing import Any

from runcue.core.schedule.plan import Item, Submit


class Replies:
    """Futures of what turns answer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[int, tuple[Item, asyncio.Future[Any]]] = {}
        self._given_up: dict[int, tuple[Item, Any]] = {}
        """Submissions whose callers no longer wait for room, each with its answer if one came all the same."""

    def items(self) -> list[Item]:
        """What was asked for and is not answered yet."""
        return [item for item, _ in self._waiting.values()]

    def awaited(self) -> set[int]:
        """What an answer may still be wanted of, by identity: also of what somebody gave up and withdraws."""
        return {*self._waiting, *self._given_up}

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
            if type(item) is Submit and item.may_wait:
                answer = None if future.cancelled() else future.exception() or future.result()
                self._given_up.setdefault(id(item), (item, answer))
            raise
        finally:
            self._waiting.pop(id(item), None)

    def late(self, item: Item) -> Any:
        """The answer that came though its caller gave up waiting, if one did; none is kept after this."""
        return self._given_up.pop(id(item), (item, None))[1]

    def answer(self, item: Item, answer: Any) -> None:
        """A turn has this to say to that item."""
        _, future = self._waiting.pop(id(item), (None, None))
        if future is None:
            if id(item) in self._given_up:
                self._given_up[id(item)] = item, answer
        elif future.done():  # its caller gives up, and is about to hear of that
            if type(item) is Submit and item.may_wait:
                self._given_up[id(item)] = item, answer
        elif isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
