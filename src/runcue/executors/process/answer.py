"""What a function returned or raised, on its way from a worker process to the owner of the pool.

- A result or an exception that cannot be pickled, or not be made again from its pickle, is never lost: it becomes an
  exception that says so, or one that looks like it (name, text, plain attributes, the nearest known class).
- An answer never raises where it is packed or read, whatever foreign code does. It raises where it is asked for.
- The traceback travels as text, and is the cause of the exception that the owner sees.
- Workers import this: nothing here needs a loop.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import islice
from types import SimpleNamespace, TracebackType
from typing import Any, NamedTuple

from runcue.core.limits.headers import asked
from runcue.core.model.failure import describe, traceback_text
from runcue.errors import Permanent

LARGEST_ERROR = 1024 * 1024
TOLD_ATTRIBUTES = ("status_code", "status", "code", "retry_after")
MOST_HEADERS = 100


class EventDraft(NamedTuple):
    """An exception on its way to the owner: as itself if it can be pickled, and in words."""

    pickled: bytes | None
    name: str
    message: str
    traceback: str
    attributes: dict[str, Any]
    bases: bytes | None
    """The nearest class of it that the owner may know, pickled."""


class RemoteError(Exception):
    """Stands for an exception that could not be brought here from a worker process: its name, text and traceback."""


class RemoteTraceback(Exception):
    """The cause of an exception that was raised in a worker process: its notes say where that was."""

    def __init__(self, text: str) -> None:
        super().__init__("raised in a worker process:")
        self.add_note(text)


# --- In the worker --------------------------------------------------------------------------------------


def pack_result(result: object) -> bytes:
    """What a function returned, as bytes."""
    try:
        return pickle.dumps(result)
    except BaseException as error:
        raise Permanent(
            f"its result cannot be sent to another process ({describe(error)}): return plain values"
        ) from error


def plain(value: object) -> int | float | str | None:
    """A number or a text as just that, whatever class it has; None for anything else."""
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    return str.__str__(value) if isinstance(value, str) else None


def pack_error(error: BaseException, ours: str) -> bytes:
    """What a function raised, as bytes, whatever it is; frames of the file that called it are left out."""
    asked(lambda: error.with_traceback(_without(ours, error.__traceback__)))
    pickled, bases = _pickled(error), None
    attributes = _plain_attributes(error)
    if (response := _plain_attributes(asked(getattr, error, "response"))) != {}:
        attributes["response"] = SimpleNamespace(**response)
    if pickled is None:
        classes = asked(lambda: type(error).__mro__) or ()
        bases = next((data for kind in classes if (data := asked(pickle.dumps, kind))), None)
    name, _, message = describe(error).partition(": ")
    return pickle.dumps(EventDraft(pickled, name, message, traceback_text(error), attributes, bases))


def _without(ours: str, traceback: TracebackType | None) -> TracebackType | None:
    """A traceback from the user's function on; the whole of it when it never came there."""
    inner = traceback
    while inner is not None and inner.tb_frame.f_code.co_filename == ours:
        inner = inner.tb_next
    return inner or traceback


def _plain_attributes(holder: object) -> dict[str, Any]:
    """What the far side of an API said, as far as plain values tell it."""
    found = {name: asked(plain, asked(getattr, holder, name)) for name in TOLD_ATTRIBUTES}
    attributes: dict[str, Any] = {name: value for name, value in found.items() if value is not None}
    if headers := asked(_headers, holder):
        attributes["headers"] = headers
    return attributes


def _headers(holder: Any) -> dict[str, str]:
    shown = islice(holder.headers.items(), MOST_HEADERS)
    return {str.__str__(str(name)): str.__str__(str(value)) for name, value in shown}


def _pickled(error: BaseException) -> bytes | None:
    """The exception itself, if it comes out of its pickle as what it was."""
    try:
        data = pickle.dumps(error)
        if len(data) > LARGEST_ERROR or type(pickle.loads(data)) is not type(error):
            return None
    except BaseException:  # noqa: BLE001 (its own code is asked, and may raise anything; the words remain)
        return None
    return data


# --- In the owner ---------------------------------------------------------------------------------------


def read_result(body: memoryview) -> Callable[[], Any]:
    """What a function returned."""
    try:
        value = pickle.loads(body)
    except BaseException as error:  # noqa: BLE001 (whatever its classes do when they are made again)
        text = f"its result came from a worker process and cannot be read here ({describe(error)})"
        return raising(Permanent(f"{text}: return plain values"))
    return lambda: value


def read_error(body: memoryview) -> Callable[[], Any]:
    """What a function raised: the exception itself, or one that looks like it, with its traceback as its cause."""
    told = EventDraft(*pickle.loads(body))
    error = asked(_as_itself, told)
    return raising(_look_alike(told) if error is None else error)


def _as_itself(told: EventDraft) -> BaseException | None:
    if told.pickled is None:
        return None
    error: BaseException = pickle.loads(told.pickled)
    assert issubclass(type(error), BaseException)
    error.__cause__ = RemoteTraceback(told.traceback)
    return error


def _look_alike(told: EventDraft) -> BaseException:
    """An exception of the same name, related to the nearest class that is known here."""
    error: BaseException
    try:
        nearest = pickle.loads(told.bases) if told.bases is not None else Exception
        own = {"__module__": __name__, "__init__": _remember, "__str__": Exception.__str__}
        error = type(told.name, (RemoteError, nearest), own)(told.message)
    except BaseException:  # noqa: BLE001 (a class that cannot be derived from, or that wants more to be made)
        error = type(told.name, (RemoteError,), {"__module__": __name__})(told.message)
    for name, value in told.attributes.items():
        asked(setattr, error, name, value)  # a class may have a mind of its own
    asked(setattr, error, "__cause__", RemoteTraceback(told.traceback))
    return error


def _remember(self: BaseException, *args: object) -> None:
    self.args = args


def raising(error: BaseException) -> Callable[[], Any]:
    """An answer that is an exception."""

    def settle() -> Any:
        raise error

    return settle
