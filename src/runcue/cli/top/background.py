"""Runs slow functions in a daemon thread, so that the program can end while they still run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_background(work: Callable[[], T]) -> T:
    """Call a function in a thread of its own; returns what it returns, raises what it raises.

    The thread of an executor would keep the program from ending, however long the disk takes.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if answer.cancelled():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type]  # None is a T here

    def run() -> None:
        result, raised = None, None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 (it is raised where it is waited for)
            raised = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, raised)

    threading.Thread(target=run, name="runcue-top", daemon=True).start()
    return await answer
