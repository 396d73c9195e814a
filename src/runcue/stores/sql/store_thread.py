"""A thread of its own that does errands for a loop, one after the other.

While nothing comes of one for a while, a busy loop lends the interpreter to that thread now and then: a thread that
wants the interpreter beside a loop that never rests can otherwise wait for seconds. A loop that rests has nothing to
lend, and is disturbed less and less often.

A loop may be closed while an errand is under way and others wait. Then nobody hears what came of the one, and the
others are not done at all: what they decided nobody would do.
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
"""Times as long as LEND_AFTER: how long a loop that rests is left alone at most. Patience is looked at as often."""


class Ticket:
    """On something that may be long in coming: once it is there it is taken, unless it was given up before."""

    def __init__(self, patience: float, late: Callable[[], Exception]) -> None:
        """`late` is what to say to who waited for `patience` seconds."""
        self.patience = patience
        self.late = late
        self._lock = threading.Lock()

    @property
    def is_taken(self) -> bool:
        """True when it was given up, or has begun."""
        return self._lock.locked()

    def take(self) -> bool:
        """True for the first who calls this, in whatever thread: who waits, to give it up, or who has got it."""
        return self._lock.acquire(blocking=False)


class StoreThread:
    """Does what it is given, in order; the thread is started with the first errand."""

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
        """Those that errands under way have not taken, as far as is known: who waits, and since when."""

    async def do(self, errand: Callable[[], T], claim: Ticket | None = None, *, is_last: bool = False) -> T:
        """Have an errand done, and wait for what comes of it. On the loop only.

        With a claim the errand takes it before it does anything, and is not waited for when that takes too long. The
        last errand is done though the loop is closed by then, and the thread ends with it.
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
            return await future  # who gives up waiting leaves the errand alone
        finally:
            if claim is not None:
                claim.take()  # if it has not begun by now, nobody would hear what came of it
                del self._claims[claim]
            self._awaited -= 1
            self._done += 1
            if not self._awaited and self._lending is not None:
                self._lending.cancel()
                self._lending = None

    def put(self, errand: Callable[[], None]) -> None:
        """Have an errand done that raises nothing and that nobody waits for. From any thread.

        StoreError when no thread can be started for it; nothing is done then.
        """
        if not self.is_started:
            with self._guard:
                if not self.is_started:
                    start_thread(self._work, self._name)
                    self.is_started = True
        self._waiting.put(errand)

    def after_all(self, errand: Callable[[], None]) -> None:
        """Have an errand done after those that it was given so far; here and now, where there is no thread."""
        (self.put if self.is_started else _do)(errand)

    def close(self) -> None:
        """End the thread once it has done what it was given so far."""
        self._waiting.put(None)

    def _lend_later(self) -> None:
        after = self._times * LEND_AFTER
        self._lending = self._loop.call_later(after, self._lend, self._done, time.thread_time())

    def _lend(self, done: int, spent: float) -> None:
        is_busy = time.thread_time() - spent > self._times * LEND_AFTER / 2
        if done == self._done and is_busy:
            time.sleep(LENT)  # gives the interpreter to the thread that works for this loop
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
            except Exception:  # those that wait behind it are done all the same
                logger.exception("an errand of %s failed: this is a mistake in runcue", self._name)
            del errand  # and with it what it answered, which an idle thread must not keep


def _do(errand: Callable[[], None]) -> None:
    errand()


def _answer(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
