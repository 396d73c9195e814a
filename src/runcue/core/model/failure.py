"""What an exception means for the unit whose handler raised it.

    throttled   the service said "slow down": RateLimited, HTTP 429, HTTP 503 or 529 with Retry-After, an AWS
                error code that means it, whatever status it came with, a stream that ends with such an error
    snoozed     the handler asked to run again later, with no attempt counted
    permanent   another attempt cannot help: Permanent, a class named ValidationError, HTTP 4xx other than
                408, 425 and 429 (but for AWS codes that mean a passing trouble), or what `retry_on` leaves out
    timeout     never made here: the engine says so when an attempt ran out of time
    error       everything else, also SystemExit and the like: the retry policy decides

HTTP libraries are recognized by the shape of their exceptions; none is imported. An exception is foreign code: its
attributes, its class and its text may raise anything, be huge or be nonsense. `classify` never raises, whatever an
exception does. No clock is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from runcue.core.limits.headers import asked, retry_after, seconds, texts
from runcue.core.model.parse import duration
from runcue.core.model.retry import RetryOn
from runcue.errors import CommandFailed, ConfigError, Permanent, RateLimited, RetryLater, Snooze

Kind: TypeAlias = Literal["error", "permanent", "throttled", "snoozed", "timeout", "late", "unbegun"]

MESSAGE_BYTES: Final = 4 * 1024
TRACEBACK_BYTES: Final = 16 * 1024
NOTE_BYTES: Final = 1024
FRAMES: Final = 50
MOST_RELATIVES: Final = 50

RETRIED_4XX: Final = frozenset({408, 425})  # besides 429, which is throttling
STATUS_SHAPES: Final = (
    ("response", "status_code"),  # httpx, requests
    ("response", "status"),  # wrappers of aiohttp and urllib3 responses
    ("status_code",),  # SDKs built on httpx
    ("status",),  # aiohttp
    ("code",),  # urllib
)
# AWS says what is wrong by a code, often with status 400, and in the midst of a stream with none at all.
# Compared in lower case and without "Exception" at the end: services differ in both.
AWS_THROTTLES: Final = frozenset({
    "throttling", "throttled", "requestthrottled", "ec2throttled", "toomanyrequests", "requestlimitexceeded",
    "bandwidthlimitexceeded", "provisionedthroughputexceeded", "slowdown",
})  # fmt: skip
AWS_TROUBLES: Final = frozenset({
    "requesttimeout", "priorrequestnotcomplete", "transactioninprogress", "limitexceeded",
})  # fmt: skip
# The `type` or `code` of exceptions in SDKs of LLMs, when a stream is throttled long after its status 200.
STREAM_THROTTLES: Final = frozenset({"rate_limit_error", "rate_limit_exceeded"})

# Control characters, and those that turn a line around or break it, would garble a terminal or a log.
ESCAPES: Final = {
    code: ascii(chr(code))[1:-1]
    for code in (*range(0x20), *range(0x7F, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A))
    if chr(code) not in "\n\t"
}


class Failure(msgspec.Struct, frozen=True):
    """A failed attempt: which kind of failure it is, what is stored of it, and when to try again."""

    kind: Kind
    message: str
    traceback: str = ""
    after: float | None = None
    service: str | None = None
    is_answer: bool = False
    """True for a failure that the service answered with: it is up, and refused this call only."""


class _Meaning(NamedTuple):
    kind: Kind
    after: float | None = None
    service: str | None = None
    is_answer: bool = False
    note: str = ""


def classify(error: BaseException, retry_on: RetryOn | type[BaseException] = None) -> Failure:
    """Decide what an exception means for its unit. Never raises, whatever the exception is."""
    message = describe(error)
    try:
        meaning = _meaning(error, retry_on)
    except ConfigError as mistake:  # such as Snooze("soon"): the mistake in the handler is what to report
        meaning, message = _Meaning("error"), describe(mistake)
    except BaseException:  # noqa: BLE001 (an exception that raises when it is looked at)
        meaning = _Meaning("error")
    kind, after, service, is_answer, note = meaning
    if note:
        message = clean(message, MESSAGE_BYTES - len(note.encode())) + note
    return Failure(kind, message, traceback_text(error), after, service, is_answer)


def describe(error: BaseException) -> str:
    """Put an exception into words that can be stored and shown: valid text of at most 4 KiB."""
    name = asked(lambda: str.__str__(type(error).__name__)) or "Exception"
    text = asked(lambda: str.__str__(str(error)))
    return clean(f"{name}: {text[:MESSAGE_BYTES]}" if text else name, MESSAGE_BYTES)


def traceback_text(error: BaseException) -> str:
    """Keep where an exception came from: the end of its traceback, at most 16 KiB."""
    text = asked(_whole_traceback, error) or asked(_own_traceback, error) or describe(error)
    return clean(text, TRACEBACK_BYTES, tail=True)


def is_kind(error: BaseException | None, kind: type[BaseException] | tuple[type[BaseException], ...]) -> bool:
    """True for an exception of that class. Unlike isinstance() it does not ask the exception, which might raise."""
    return issubclass(type(error), kind)


# --- Meaning --------------------------------------------------------------------------------------


def _meaning(error: BaseException, retry_on: RetryOn | type[BaseException]) -> _Meaning:
    match error:
        case RateLimited():
            return _Meaning("throttled", _pause(error.retry_after), _name_or_none(error.service))
        case Snooze():
            return _Meaning("snoozed", _wait(error.after, "after of Snooze"))
        case RetryLater():
            return _Meaning("error", _wait(error.after, "after of RetryLater"))
        case Permanent():
            return _Meaning("permanent")
    status = _status(error)
    if status in {429, 503, 529}:
        is_named, after = retry_after(_headers(error))
        if status == 429 or is_named:
            return _Meaning("throttled", after)
    if status is not None and status < 500 and status not in RETRIED_4XX:
        return _Meaning("permanent", is_answer=True)
    if any(base.__name__ == "ValidationError" for base in type(error).__mro__):
        return _Meaning("permanent")
    is_retried, note = _is_retried(error, retry_on)
    is_answer = isinstance(error, CommandFailed) and error.is_answer
    return _Meaning("error" if is_retried else "permanent", is_answer=is_answer, note=note)


def _is_retried(error: BaseException, retry_on: RetryOn | type[BaseException]) -> tuple[bool, str]:
    """Whether `retry_on` wants another attempt, and a note if it raised: then there is another attempt."""
    if retry_on is None:
        return True, ""
    if isinstance(retry_on, (type, tuple)):
        return isinstance(error, retry_on), ""
    try:
        return bool(retry_on(error)), ""
    except BaseException as mistake:  # noqa: BLE001 (an application's function may raise anything)
        return True, f" (retry_on raised {clean(describe(mistake), NOTE_BYTES)})"


def _wait(after: object, name: str) -> float:
    """The seconds that a handler asked for; a negative time means at once."""
    seconds = after.total_seconds() if isinstance(after, timedelta) else after
    is_past = isinstance(seconds, (int, float)) and seconds < 0
    return 0.0 if is_past else duration(after, name)


def _pause(given: object) -> float | None:
    """The seconds that RateLimited was given; a value that cannot be read must not fail the unit."""
    if isinstance(given, str) and (wait := seconds(given)) is not None:
        return wait
    try:
        return None if given is None else _wait(given, "retry_after")
    except ConfigError:
        return None


def _name_or_none(service: object) -> str | None:
    return str.__str__(service) if isinstance(service, str) else None


# --- HTTP, by shape -------------------------------------------------------------------------------


def _status(error: BaseException) -> int | None:
    """The HTTP status an exception carries; for an AWS error the status that says what its code means."""
    if not isinstance(error, Exception):  # SystemExit has a code, too
        return None
    response = asked(getattr, error, "response")
    code = asked(lambda: response["Error"]["Code"].lower().removesuffix("exception"))
    if code in AWS_THROTTLES:
        return 429
    if code in AWS_TROUBLES:
        return 500
    found = [asked(lambda: response["ResponseMetadata"]["HTTPStatusCode"])]
    for shape in STATUS_SHAPES:
        status: object = error
        for attribute in shape:
            status = asked(getattr, status, attribute)
        found.append(status)
    statuses = [int(status) for status in found if isinstance(status, int) and 400 <= status <= 599]
    if not statuses and any(asked(getattr, error, name) in STREAM_THROTTLES for name in ("type", "code")):
        return 429
    return statuses[0] if statuses else None


def _headers(error: BaseException) -> dict[str, str]:
    response = asked(getattr, error, "response")
    aws = asked(lambda: response["ResponseMetadata"]["HTTPHeaders"])
    return texts(asked(getattr, response, "headers")) or texts(aws) or texts(asked(getattr, error, "headers"))


# --- Foreign code and its text --------------------------------------------------------------------


def _whole_traceback(error: BaseException) -> str | None:
    """The traceback as Python would print it, with causes and groups, unless there are too many of them."""
    from traceback import TracebackException  # slow to import, and only failures need it

    if _has_many_relatives(error):
        return None
    return _joined(TracebackException(type(error), error, error.__traceback__, limit=-FRAMES).format())


def _own_traceback(error: BaseException) -> str:
    from traceback import format_tb

    return _joined([*format_tb(error.__traceback__, -FRAMES), describe(error)])


def _joined(parts: Iterable[str]) -> str:
    return "".join(part[:MESSAGE_BYTES] for part in parts)


def _has_many_relatives(error: BaseException) -> bool:
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting and len(seen) <= MOST_RELATIVES:
        relative = waiting.pop()
        if relative is not None and id(relative) not in seen:
            seen.add(id(relative))
            waiting += [relative.__cause__, relative.__context__]
            if isinstance(relative, BaseExceptionGroup):
                waiting += relative.exceptions
    return len(seen) > MOST_RELATIVES


def clean(text: str, limit: int, *, tail: bool = False) -> str:
    """Valid text without control characters, cut to `limit` bytes at its end or, for a tail, at its start."""
    data = text.translate(ESCAPES).encode("utf-8", "backslashreplace")
    if len(data) <= limit:
        return data.decode()
    ellipsis = "…"
    room = limit - len(ellipsis.encode())
    if tail:
        return ellipsis + data[-room:].decode("utf-8", "ignore")
    return data[:room].decode("utf-8", "ignore") + ellipsis
