"""The answer of a function, packed in the worker process: what the function returned or raised.

- A result that cannot be pickled becomes an exception that says so. An exception that cannot be pickled, or not be
  unpickled, is replaced by one like it: with its name, text, plain attributes, and the nearest class that can be.
- Packing an exception never raises, whatever foreign code does.
- The traceback travels as text.

The owner reads it with answer_reader.py. Workers import this module: it needs no loop.
"""

from __future__ import annotations

import pickle
from itertools import islice
from types import CoroutineType, SimpleNamespace, TracebackType
from typing import Any, NamedTuple

from runcue.core.limits.headers import asked
from runcue.core.model.failure import describe, traceback_text
from runcue.errors import Permanent

LARGEST_ERROR = 1024 * 1024
PLAIN_ATTRIBUTES = ("status_code", "status", "code", "retry_after")
MOST_HEADERS = 100


class PackedError(NamedTuple):
    """An exception on its way to the owner: pickled if that is possible, and in words."""

    pickled: bytes | None
    name: str
    message: str
    traceback: str
    attributes: dict[str, Any]
    nearest: bytes | None
    """The nearest of its classes that can be pickled, where the exception cannot be."""


def pack_result(result: object) -> bytes:
    """What a function returned, as bytes."""
    if type(result) is CoroutineType:
        result.close()
        raise TypeError("the handler returned a coroutine: declare it with `def`, or leave out the executor")
    try:
        return pickle.dumps(result)
    except BaseException as error:
        raise Permanent(
            f"its result cannot be sent to another process ({describe(error)}): return plain values"
        ) from error


def plain(value: object) -> int | float | str | None:
    """A number or a text without its subclass; None for anything else."""
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    return str.__str__(value) if isinstance(value, str) else None


def pack_error(error: BaseException, ours: str) -> bytes:
    """What a function raised, as bytes; the traceback leaves out frames of the file `ours`, which called it."""
    asked(lambda: error.with_traceback(_without(ours, error.__traceback__)))
    pickled, nearest = _pickled(error), None
    attributes = _plain_attributes(error)
    if (response := _plain_attributes(asked(getattr, error, "response"))) != {}:
        attributes["response"] = SimpleNamespace(**response)
    if pickled is None:
        classes = asked(lambda: type(error).__mro__) or ()
        nearest = next((data for kind in classes if (data := asked(pickle.dumps, kind))), None)
    name, _, message = describe(error).partition(": ")
    return pickle.dumps(PackedError(pickled, name, message, traceback_text(error), attributes, nearest))


def _without(ours: str, traceback: TracebackType | None) -> TracebackType | None:
    """The traceback from the user's function on; all of it when the function was never reached."""
    inner = traceback
    while inner is not None and inner.tb_frame.f_code.co_filename == ours:
        inner = inner.tb_next
    return inner or traceback


def _plain_attributes(holder: object) -> dict[str, Any]:
    """The attributes that retries go by (status, retry_after, headers), where they are plain values."""
    found = {name: asked(plain, asked(getattr, holder, name)) for name in PLAIN_ATTRIBUTES}
    attributes: dict[str, Any] = {name: value for name, value in found.items() if value is not None}
    if headers := asked(_headers, holder):
        attributes["headers"] = headers
    return attributes


def _headers(holder: Any) -> dict[str, str]:
    shown = islice(holder.headers.items(), MOST_HEADERS)
    return {str.__str__(str(name)): str.__str__(str(value)) for name, value in shown}


def _pickled(error: BaseException) -> bytes | None:
    """The pickled exception, if unpickling gives an exception of its class."""
    try:
        data = pickle.dumps(error)
        if len(data) > LARGEST_ERROR or type(pickle.loads(data)) is not type(error):
            return None
    except BaseException:  # noqa: BLE001 (pickling runs the exception's own code; its words are sent in any case)
        return None
    return data
