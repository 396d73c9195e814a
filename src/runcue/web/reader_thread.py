"""A Reader in a thread of its own, which answers one question at a time.

Rules:
- A question that is not answered in time raises Unavailable. A question whose asker no longer waits is not begun.
- A file that is locked, damaged, deleted or replaced raises Unavailable, and so does a server that cannot be reached.
  The next question opens a new Reader, so that the dashboard recovers together with the file or the server.
- The thread is a daemon, so that a program can end while its Reader waits for a disk that hangs. It only reads.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from msgspec import Struct

from runcue import ForkedConnection, Reader, StorageReplaced, StoreError, mask
from runcue.host.address import is_server
from runcue.host.loops import post_to_loop
from runcue.web.source import Unavailable

T = TypeVar("T")
PATIENCE = 5.0
"""Seconds without an answer after which the queue counts as unavailable."""
GONE = "The file is gone. It is looked for again."
REPLACED = "The file was replaced; looking again."
OTHER_QUEUE = "There is another queue now; looking again."
NO_THREAD = "The system starts no more threads just now; looking again."
DEFAULT = "default"


class Call(Struct):
    """A function that the thread is to call, and the future for its answer."""

    function: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]
    is_done: bool = False

    def run(self) -> None:
        """Call the function, and settle the future on its loop."""
        try:
            settle = partial(self.answer.set_result, self.function())
        except Exception as error:  # noqa: BLE001 (it is the answer)
            settle = partial(self.answer.set_exception, error)
        self.is_done = True
        post_to_loop(self.loop, settle)


def _start() -> SimpleQueue[Call | None]:
    """Start a thread; returns the queue of its calls, in which None ends it."""
    calls: SimpleQueue[Call | None] = SimpleQueue()

    def work() -> None:
        while (call := calls.get()) is not None:
            call.run()

    try:
        threading.Thread(target=work, name="runcue-web", daemon=True).start()
    except RuntimeError as error:
        raise Unavailable(NO_THREAD) from error
    return calls


class ReaderThread:
    """A Reader in a thread, which answers one question at a time."""

    def __init__(
        self,
        path: str,
        name: str = DEFAULT,
        slow: str = "{path} does not answer: it is locked, or its disk or network is slow.",
    ) -> None:
        self._path = path
        self._name = name
        self._is_file = not is_server(path)
        self._slow = slow.format(path=without_password(path))
        self._calls: SimpleQueue[Call | None] | None = None
        """The calls for the thread, while there is one."""
        self._latest: Call | None = None
        self._reader: Reader | None = None
        self._was_there = False
        self._late: asyncio.Future[Any] | None = None

    async def ask(self, question: Callable[[Reader], T]) -> T:
        """Ask the Reader; Unavailable when it does not answer in time."""
        if self._late is not None and not self._late.done():
            raise Unavailable(self._slow)
        is_given_up = threading.Event()
        answer = self._post(partial(self._answer, question, is_given_up))
        try:
            await asyncio.wait({answer}, timeout=PATIENCE)
        finally:
            if not answer.done():
                is_given_up.set()
                answer.add_done_callback(_mark_seen)
        if not answer.done():
            self._late = answer
            raise Unavailable(self._slow)
        found: T = answer.result()
        return found

    def _answer(self, question: Callable[[Reader], T], is_given_up: threading.Event) -> T:
        if is_given_up.is_set():
            raise Unavailable(self._slow)
        try:
            if self._reader is None:
                self._reader = Reader(self._path, name=DEFAULT if self._is_file else self._name)
                self._was_there = True
            return question(self._reader)
        except StoreError as error:
            self._drop_reader()
            raise Unavailable(self._reason(error)) from error

    def _reason(self, error: StoreError) -> str:
        """What people are shown: that a new Reader is opened, where that mends it, else the error's own text."""
        if self._is_file and self._was_there and not os.path.lexists(self._path):
            return GONE
        if isinstance(error, (StorageReplaced, ForkedConnection)):
            return REPLACED if self._is_file else OTHER_QUEUE
        return str(error)

    def _drop_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _post(self, function: Callable[[], T]) -> asyncio.Future[T]:
        if self._calls is None:
            self._calls = _start()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._latest = Call(function, loop, answer)
        self._calls.put(self._latest)
        return answer

    async def close(self) -> None:
        """Close the Reader and end the thread; do not wait for a question that is not answered yet."""
        if self._calls is None or self._latest is None:
            return
        is_idle = self._latest.is_done
        done = self._post(self._drop_reader)
        self._calls.put(None)
        self._calls = None
        if is_idle:
            await done
        else:
            done.add_done_callback(_mark_seen)


def without_password(path: str) -> str:
    """A path as it is, an address without its password."""
    return str(mask(path)) if is_server(path) else path


def _mark_seen(late: asyncio.Future[Any]) -> None:
    """Take the exception of an answer that came too late, or asyncio would log it."""
    if not late.cancelled():
        late.exception()
