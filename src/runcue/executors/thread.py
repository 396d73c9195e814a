"""Runs plain functions in threads of its own, never in the loop's default pool.

The threads are daemons: a handler that never returns must not keep the interpreter from ending. They start on demand
and are used again. The scheduler limits how many there are: it starts a unit only when a thread is free. A function
cannot be stopped: when its work unit is given up, it runs on in its thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import CoroutineType
from typing import Any

from runcue.host.loops import hold, post_to_loop
from runcue.ports import Clock, Entering, Registered

Job = Callable[[], None]

KEPT_IDLE = 5.0
"""Seconds after which an idle thread ends."""


class ThreadExecutor:
    """Calls `def` handlers in threads."""

    can_stop = False
    grace = 0.0

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._idle = 0
        self._threads = 0
        self._lock = threading.Lock()

    async def run(self, work: Any, task: Registered, entered: Entering | None) -> Any:
        """Hand the call to a thread and wait for its answer, however long that takes."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
        context = contextvars.copy_context()

        def deliver(result: Any, error: BaseException | None) -> None:
            release()
            if not outcome.done():
                outcome.set_result((result, error))  # as a value: a future does not accept every exception

        def job() -> None:
            result, error = None, None
            try:
                if work.cancelled:  # the unit was given up while it waited for this thread
                    raise asyncio.CancelledError
                if entered is not None:
                    entered.check()
                    loop.call_soon_threadsafe(entered, self._clock.now())
                result = context.run(task.call, work)
                if type(result) is CoroutineType:  # isinstance() runs code of the result, which may raise
                    result.close()
                    raise TypeError("the handler returned a coroutine: declare it with `async def`")
            except BaseException as raised:  # noqa: BLE001 (anything that a handler raises is its outcome)
                error = raised
            self._be_idle()  # before the answer: it may bring the next job for this thread
            post_to_loop(loop, deliver, result, error)

        self._put(job)
        # Virtual time stands still meanwhile; the answer comes in a later step of the loop.
        release = hold(loop)
        result, error = await outcome
        if error is not None:
            raise error
        return result

    def is_busy(self) -> bool:
        """True while a handler runs; may be called from any thread."""
        with self._lock:
            return self._threads > self._idle

    async def close(self) -> None:
        """End idle threads now, busy ones when their handler returns."""
        with self._lock:
            for _ in range(self._threads):
                self._jobs.put(None)

    def _put(self, job: Job) -> None:
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                name = f"runcue-{self._threads + 1}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
                self._threads += 1  # after start(), which fails when the system has no room
        self._jobs.put(job)

    def _be_idle(self) -> None:
        with self._lock:
            self._idle += 1

    def _work(self) -> None:
        while (job := self._next()) is not None:
            job()
            del job  # and with it the result: an idle thread must not keep it alive
        with self._lock:
            self._threads -= 1

    def _next(self) -> Job | None:
        """The next job; None when none came for `KEPT_IDLE` seconds and this thread may end."""
        while True:
            try:
                return self._jobs.get(timeout=KEPT_IDLE)
            except Empty:
                with self._lock:
                    if self._idle:
                        self._idle -= 1
                        return None
