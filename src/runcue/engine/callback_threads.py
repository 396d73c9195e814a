"""Calls a slow callback in a thread, where its time limit can be enforced."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

Answer = tuple[Any, BaseException | None]
Call = tuple[Callable[..., Any], tuple[Any, ...], asyncio.AbstractEventLoop, "asyncio.Future[Answer]"]
MOST_STUCK = 4
"""How many calls of one callback may be past their limit. The next call waits until one of them returns."""


class Overrun(Exception):
    """The call did not return within its limit, or `MOST_STUCK` earlier calls have not."""


class OwnThread:
    """Makes the calls of one callback one after the other, each within its time limit.

    A call that overruns keeps its thread until it returns, and the next call gets a new thread. So a slow call delays
    the calls behind it by no more than the limit.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._turn = asyncio.Lock()
        self._calls: SimpleQueue[Call | None] | None = None
        """The queue of the idle thread; None when there is no idle thread."""
        self._stuck: set[asyncio.Future[Answer]] = set()

    async def call(self, function: Callable[..., Any], arguments: tuple[Any, ...], limit: float) -> Any:
        """What the function returned or raised; Overrun when that takes longer than `limit`."""
        async with self._turn:
            if len(self._stuck) >= MOST_STUCK:
                await asyncio.wait(self._stuck, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
                if len(self._stuck) >= MOST_STUCK:
                    raise Overrun
            result, error = await self._call(function, arguments, limit)
        if error is not None:
            raise error
        return result

    async def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...], limit: float) -> Answer:
        loop = asyncio.get_running_loop()
        if self._calls is None:
            self._calls = _start(self._name)
        answer: asyncio.Future[Answer] = loop.create_future()
        self._calls.put((function, arguments, loop, answer))
        try:
            await asyncio.wait([answer], timeout=limit)
        finally:
            if not answer.done():
                self.close()  # the thread ends when the call returns
                self._stuck.add(answer)
                answer.add_done_callback(self._stuck.discard)
        if not answer.done():
            raise Overrun
        return answer.result()

    def close(self) -> None:
        """Let the thread end once it is idle."""
        if self._calls is not None:
            self._calls.put(None)
            self._calls = None


def _start(name: str) -> SimpleQueue[Call | None]:
    calls: SimpleQueue[Call | None] = SimpleQueue()
    threading.Thread(target=_work, args=(calls,), name=name, daemon=True).start()
    return calls


def _work(calls: SimpleQueue[Call | None]) -> None:
    while (call := calls.get()) is not None:
        function, arguments, loop, answer = call
        result: Any = None
        error: BaseException | None = None
        try:
            result = function(*arguments)
        except BaseException as raised:  # noqa: BLE001 (an application's callback may raise anything)
            error = raised
        try:
            loop.call_soon_threadsafe(_set_answer, answer, result, error)
        except RuntimeError:
            return  # the loop is closed: no more calls come


def _set_answer(answer: asyncio.Future[Answer], result: Any, error: BaseException | None) -> None:
    if not answer.done():
        answer.set_result((result, error))
