"""A Reader in a thread of its own, which answers one question at a time.

Rules:
- A question that is not answered in time raises Unavailable. A question whose asker has gone is not begun.
- A file that is locked, damaged, deleted or replaced raises Unavailable, and so does a server that cannot be reached.
  The next question opens a new Reader, so that the dashboard recovers together with the file or the server.
- The thread is a daemon, so that a program can end while its Reader waits for a disk that hangs. It only reads.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from msgspec import Struct

from runcue import ForkedConnection, Reader, StorageReplaced, StoreError, mask
from runcue.host.address import is_postgres
from runcue.web.source import Unavailable

T = TypeVar("T")
PATIENCE = 5.0
"""Seconds until an answer that does not come makes the queue unavailable."""
GONE = "The file is gone. It is looked for again."
REPLACED = "The file was replaced; looking again."
OTHER_QUEUE = "There is another queue now; looking again."
NO_THREAD = "The system starts no more threads just now; looking again."
DEFAULT = "default"


class Errand(Struct):
    """Something for the thread of a desk to do, and where its answer goes."""

    function: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]
    is_done: bool = False

    def run(self) -> None:
        """Call the function, and hand its answer to the loop that waits for it."""
        try:
            tell = partial(self.answer.set_result, self.function())
        except Exception as error:  # noqa: BLE001 (whoever asked is told)
            tell = partial(self.answer.set_exception, error)
        self.is_done = True
        with suppress(RuntimeError):  # the loop has ended, and nobody is left to be told
            self.loop.call_soon_threadsafe(tell)


def _start() -> SimpleQueue[Errand | None]:
    """A new thread, as what it is given to do; None ends it."""
    errands: SimpleQueue[Errand | None] = SimpleQueue()

    def work() -> None:
        while (errand := errands.get()) is not None:
            errand.run()

    try:
        threading.Thread(target=work, name="runcue-web", daemon=True).start()
    except RuntimeError as error:
        raise Unavailable(NO_THREAD) from error
    return errands


class Desk:
    """A Reader in a thread, which answers one question at a time."""

    def __init__(
        self,
        path: str,
        name: str = DEFAULT,
        slow: str = "{path} does not answer: it is locked, or its disk or network is slow.",
    ) -> None:
        self._path = path
        self._name = name
        self._is_file = not is_postgres(path)
        self._slow = slow.format(path=without_password(path))
        self._errands: SimpleQueue[Errand | None] | None = None
        """What its thread has to do, while there is one."""
        self._latest: Errand | None = None
        self._reader: Reader | None = None
        self._was_there = False
        self._late: asyncio.Future[Any] | None = None

    async def ask(self, question: Callable[[Reader], T]) -> T:
        """The answer, or Unavailable when there is none in time."""
        if self._late is not None and not self._late.done():
            raise Unavailable(self._slow)
        left = threading.Event()
        answer = self._have_done(partial(self._answer, question, left))
        try:
            await asyncio.wait({answer}, timeout=PATIENCE)
        finally:
            if not answer.done():
                left.set()
                answer.add_done_callback(_heard)
        if not answer.done():
            self._late = answer
            raise Unavailable(self._slow)
        found: T = answer.result()
        return found

    def _answer(self, question: Callable[[Reader], T], left: threading.Event) -> T:
        if left.is_set():
            raise Unavailable(self._slow)
        try:
            if self._reader is None:
                self._reader = Reader(self._path, name=DEFAULT if self._is_file else self._name)
                self._was_there = True
            return question(self._reader)
        except StoreError as error:
            self._let_go()
            raise Unavailable(self._told(error)) from error

    def _told(self, error: StoreError) -> str:
        """What to tell of that: all is done here that has to be done about a file which is not what it was."""
        if self._is_file and self._was_there and not os.path.lexists(self._path):
            return GONE
        if isinstance(error, (StorageReplaced, ForkedConnection)):
            return REPLACED if self._is_file else OTHER_QUEUE
        return str(error)

    def _let_go(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _have_done(self, function: Callable[[], T]) -> asyncio.Future[T]:
        if self._errands is None:
            self._errands = _start()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._latest = Errand(function, loop, answer)
        self._errands.put(self._latest)
        return answer

    async def close(self) -> None:
        """Let go of the queue, unless it does not answer just now: that is not waited for."""
        if self._errands is None or self._latest is None:
            return
        is_idle = self._latest.is_done
        done = self._have_done(self._let_go)
        self._errands.put(None)
        self._errands = None
        if is_idle:
            await done
        else:
            done.add_done_callback(_heard)


def without_password(path: str) -> str:
    """A path as it is, an address without its password."""
    return str(mask(path)) if is_postgres(path) else path


def _heard(late: asyncio.Future[Any]) -> None:
    """Take the exception of an answer that came too late, lest asyncio logs it."""
    if not late.cancelled():
        late.exception()
