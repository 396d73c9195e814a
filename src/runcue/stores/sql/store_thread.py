"""Runs the errands of a loop in a thread of their own, one after the other.

While an errand takes long, a busy loop sleeps for a moment now and then, which lends the interpreter lock to the
thread: beside a loop that never rests a thread can otherwise wait for it for seconds. An idle loop has nothing to
lend, and is disturbed less and less often.

If the loop is closed while an errand runs and others wait, the result of the one is dropped, and the others are not
run: nobody would act on what they decided.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from runcue.host.loops import post_to_loop
from runcue.host.shortage import start_thread

logger = logging.getLogger("runcue")

T = TypeVar("T")
LEND_AFTER = 0.003
LENT = 0.0003
SELDOM = 16
"""An idle loop is disturbed once in so many times LEND_AFTER at least; tickets are checked for lateness then."""


class Ticket:
    """Stands for a turn that is waited for: it is taken once, either by the turn or by giving the wait up."""

    def __init__(self, patience: float, late: Callable[[], Exception]) -> None:
        """`late` makes the error for a caller that has waited for `patience` seconds."""
        self.patience = patience
        self.late = late
        self._lock = threading.Lock()

    @property
    def is_taken(self) -> bool:
        """True when the turn has begun, or was given up."""
        return self._lock.locked()

    def take(self) -> bool:
        """True for the first caller, in any thread: the waiting side to give up, or the turn to begin."""
        return self._lock.acquire(blocking=False)


class StoreThread:
    """Runs errands in order; the thread is started with the first of them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._waiting: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.is_started = False
        """False as long as there is no thread."""
        self._guard = threading.Lock()
        self._awaited = 0
        self._done = 0
        self._lending: asyncio.TimerHandle | None = None
        self._times = 1
        self._claims: dict[Ticket, tuple[asyncio.Future[Any], float]] = {}
        """The tickets of errands that are waited for: the future, and since when."""

    async def do(self, errand: Callable[[], T], claim: Ticket | None = None, *, is_last: bool = False) -> T:
        """Run an errand, and wait for its result. On the loop only.

        With a ticket the errand takes it first; waiting ends with an error if that takes too long. The last errand
        runs even if the loop is closed by then, and the thread ends after it.
        """
        loop = self._loop
        future: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            if loop.is_closed() and not is_last:
                return
            try:
                result = errand()
            except BaseException as error:  # noqa: BLE001 (it belongs to whoever waits)
                post_to_loop(loop, _fail, future, error)
            else:
                post_to_loop(loop, _answer, future, result)
            if is_last:
                self.close()

        self.put(run)
        self._awaited += 1
        if claim is not None:
            self._claims[claim] = future, loop.time()
        if self._lending is None:
            self._lend_later()
        try:
            return await future  # cancelling the caller does not cancel the errand
        finally:
            if claim is not None:
                claim.take()  # if it has not begun by now, its result would go nowhere
                del self._claims[claim]
            self._awaited -= 1
            self._done += 1
            if not self._awaited and self._lending is not None:
                self._lending.cancel()
                self._lending = None

    def put(self, errand: Callable[[], None]) -> None:
        """Run an errand that raises nothing and has no result. From any thread.

        StoreError when no thread can be started for it; it is not run then.
        """
        if not self.is_started:
            with self._guard:
                if not self.is_started:
                    start_thread(self._work, self._name)
                    self.is_started = True
        self._waiting.put(errand)

    def after_all(self, errand: Callable[[], None]) -> None:
        """Run an errand after all that wait; in this thread, where none was started."""
        (self.put if self.is_started else _do)(errand)

    def close(self) -> None:
        """End the thread after the errands that wait."""
        self._waiting.put(None)

    def _lend_later(self) -> None:
        after = self._times * LEND_AFTER
        self._lending = self._loop.call_later(after, self._lend, self._done, time.thread_time())

    def _lend(self, done: int, spent: float) -> None:
        is_busy = time.thread_time() - spent > self._times * LEND_AFTER / 2
        if done == self._done and is_busy:
            time.sleep(LENT)  # lends the interpreter lock to this thread
        self._times = 1 if is_busy else min(2 * self._times, SELDOM)
        now = self._loop.time()
        for claim, (future, since) in self._claims.items():
            if now - since >= claim.patience and claim.take():
                _fail(future, claim.late())
        self._lend_later()

    def _work(self) -> None:
        while (errand := self._waiting.get()) is not None:
            try:
                errand()
            except Exception:  # the next errands run all the same
                logger.exception("an errand of %s failed: this is a mistake in runcue", self._name)
            del errand  # with its result, which an idle thread must not keep alive


def _do(errand: Callable[[], None]) -> None:
    errand()


def _answer(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
