"""The answer of a function, read by its owner: what the function returned, or an exception like the one it raised.

- Reading never raises, whatever foreign code does. An answer is a function that returns the result or raises
  the error.
- The traceback of the worker process is the cause of the exception that the owner sees.
- A large answer is read in a thread: on the loop, everything else would wait for it.
"""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable
from typing import Any

from runcue.core.limits.headers import asked
from runcue.core.model.failure import describe
from runcue.errors import Permanent
from runcue.executors.process.answer import PackedError
from runcue.host.loops import post_to_loop

Answer = Callable[[], Any]
"""Returns what the function returned, or raises what it raised."""

LARGE = 64 * 1024
"""Bytes from which on an answer is read in a thread."""


class RemoteError(Exception):
    """Stands for an exception that could not be brought here from a worker process: its name, text and traceback."""


class RemoteTraceback(Exception):
    """The cause of an exception that was raised in a worker process: its notes say where that was."""

    def __init__(self, text: str) -> None:
        super().__init__("raised in a worker process:")
        self.add_note(text)


def read_answer(
    loop: asyncio.AbstractEventLoop,
    read: Callable[[memoryview], Answer],
    body: memoryview,
    settle: Callable[[Answer], None],
) -> None:
    """Read an answer with `read_result` or `read_error` and settle it, on the loop: a large one a little later."""
    if len(body) <= LARGE:
        settle(read(body))
        return

    def work() -> None:
        post_to_loop(loop, settle, read(body))

    try:
        threading.Thread(target=work, name="runcue-answer", daemon=True).start()
    except RuntimeError:  # the system has no room for a thread: the loop has to wait
        work()


def read_result(body: memoryview) -> Answer:
    """The answer of a function that returned."""
    try:
        value = pickle.loads(body)
    except BaseException as error:  # noqa: BLE001 (unpickling runs code of the result's classes)
        text = f"its result came from a worker process and cannot be read here ({describe(error)})"
        return raising(Permanent(f"{text}: return plain values"))
    return lambda: value


def read_error(body: memoryview) -> Answer:
    """The answer of a function that raised: its exception, or one that looks like it, with its traceback as cause."""
    packed = PackedError(*pickle.loads(body))
    error = asked(_as_itself, packed)
    return raising(_look_alike(packed) if error is None else error)


def _as_itself(packed: PackedError) -> BaseException | None:
    if packed.pickled is None:
        return None
    error: BaseException = pickle.loads(packed.pickled)
    assert issubclass(type(error), BaseException)
    error.__cause__ = RemoteTraceback(packed.traceback)
    return error


def _look_alike(packed: PackedError) -> BaseException:
    """An exception with the name of the original, derived from the nearest class that can be imported here."""
    error: BaseException
    try:
        nearest = pickle.loads(packed.nearest) if packed.nearest is not None else Exception
        own = {"__module__": __name__, "__init__": _remember, "__str__": Exception.__str__}
        error = type(packed.name, (RemoteError, nearest), own)(packed.message)
    except BaseException:  # noqa: BLE001 (a class that cannot be derived from, or that needs other arguments)
        error = type(packed.name, (RemoteError,), {"__module__": __name__})(packed.message)
    for name, value in packed.attributes.items():
        asked(setattr, error, name, value)  # the class may refuse the attribute
    asked(setattr, error, "__cause__", RemoteTraceback(packed.traceback))
    return error


def _remember(self: BaseException, *args: object) -> None:
    self.args = args


def raising(error: BaseException) -> Answer:
    """The answer that raises this exception."""

    def settle() -> Any:
        raise error

    return settle
