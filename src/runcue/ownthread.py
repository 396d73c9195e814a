"""A thread for one callback that was seen to be slow."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

Call = tuple[Callable[..., Any], tuple[Any, ...], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class OwnThread:
    """Calls in it come one after the other; while one is stuck, those behind it are too late as well."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Call] = SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    async def call(self, function: Callable[..., Any], arguments: tuple[Any, ...], limit: float) -> Any:
        """What the function returned or raised; TimeoutError when that takes longer than `limit`."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._calls.put((function, arguments, loop, answer))
        async with asyncio.timeout(limit):
            return await answer

    def _work(self) -> None:
        while True:
            function, arguments, loop, answer = self._calls.get()
            if answer.done():  # given up before its turn came
                continue
            result: Any = None
            error: Exception | None = None
            try:
                result = function(*arguments)
            except Exception as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(_settle, answer, result, error)
            except RuntimeError:
                return  # the loop is closed: nobody asks any more


def _settle(answer: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)
