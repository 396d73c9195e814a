"""A thread for one callback that was seen to be slow."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

Answer = tuple[Any, BaseException | None]
Call = tuple[Callable[..., Any], tuple[Any, ...], asyncio.AbstractEventLoop, "asyncio.Future[Answer]"]


class Overrun(Exception):
    """The function did not return within its limit, or one before it is stuck."""


class OwnThread:
    """Calls come one after the other, and each has its limit from its own beginning.

    While one is stuck, those behind it wait for as long again, and are then too late as well.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._turn = asyncio.Lock()
        self._answer: asyncio.Future[Answer] | None = None
        self._began_at = 0.0
        threading.Thread(target=self._work, name=name, daemon=True).start()

    async def call(self, function: Callable[..., Any], arguments: tuple[Any, ...], limit: float) -> Any:
        """What the function returned or raised; Overrun when that takes longer than `limit`."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            if self._answer is not None:  # given up, and still going on
                await self._within(self._answer, self._began_at + 2 * limit - loop.time())
            self._began_at = loop.time()
            self._answer = loop.create_future()
            self._calls.put((function, arguments, loop, self._answer))
            result, error = await self._within(self._answer, limit)
        if error is not None:
            raise error
        return result

    async def _within(self, answer: asyncio.Future[Answer], limit: float) -> Answer:
        await asyncio.wait([answer], timeout=max(0.0, limit))
        if not answer.done():
            raise Overrun
        self._answer = None
        return answer.result()

    def close(self) -> None:
        """Let the thread go once it has nothing to do."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            function, arguments, loop, answer = call
            result: Any = None
            error: BaseException | None = None
            try:
                result = function(*arguments)
            except BaseException as raised:  # noqa: BLE001 (an application's callback may raise anything)
                error = raised
            try:
                loop.call_soon_threadsafe(_settle, answer, result, error)
            except RuntimeError:
                return  # the loop is closed: nobody asks any more


def _settle(answer: asyncio.Future[Answer], result: Any, error: BaseException | None) -> None:
    if not answer.done():
        answer.set_result((result, error))
