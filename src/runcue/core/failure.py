"""What an exception means for the work whose handler raised it.

    throttled   the far side said "slow down": RateLimited, HTTP 429, HTTP 503 with Retry-After
    snoozed     the handler asked to run again later, with no attempt counted
    permanent   another attempt cannot help: Permanent, a class named ValidationError, HTTP 4xx other than
                408, 425 and 429, or what `retry_on` leaves out
    timeout     never made here: the engine says so when an attempt ran out of time
    error       everything else, also SystemExit and the like: the retry policy decides

HTTP libraries are known by the shape of their exceptions; none is imported. An exception is foreign code: its
attributes and its text may raise, be huge or be nonsense, so it is asked through `_ask`. No clock is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from runcue.core.parse import duration
from runcue.core.retry import RetryOn
from runcue.errors import CommandFailed, ConfigError, Permanent, RateLimited, RetryLater, Snooze

Kind: TypeAlias = Literal["error", "permanent", "throttled", "snoozed", "timeout", "late"]

MESSAGE_BYTES: Final = 4 * 1024
TRACEBACK_BYTES: Final = 16 * 1024
NOTE_BYTES: Final = 1024
FRAMES: Final = 50
MOST_RELATIVES: Final = 50
MOST_HEADERS: Final = 1000
LONGEST_HEADER: Final = 64
LONGEST_PAUSE: Final = 86400.0

WANTED_HEADERS: Final = frozenset({"retry-after", "retry-after-ms", "date"})
RETRIED_4XX: Final = frozenset({408, 425})  # besides 429, which is throttling
STATUS_SHAPES: Final = (
    ("response", "status_code"),  # httpx, requests
    ("response", "status"),  # wrappers of aiohttp and urllib3 responses
    ("status_code",),  # SDKs built on httpx
    ("status",),  # aiohttp
    ("code",),  # urllib
)

# Control characters, and those that turn a line around or break it, would garble a terminal or a log.
ESCAPES: Final = {
    code: ascii(chr(code))[1:-1]
    for code in (*range(0x20), *range(0x7F, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A))
    if chr(code) not in "\n\t"
}


class Failure(msgspec.Struct, frozen=True):
    """What a failed attempt comes to: what kind it is, what to keep of it, and when to go on."""

    kind: Kind
    message: str
    traceback: str = ""
    after: float | None = None
    service: str | None = None
    is_answer: bool = False
    """True for a failure that the far side itself answered with: it is up, only not for this."""


class _Meaning(NamedTuple):
    kind: Kind
    after: float | None = None
    service: str | None = None
    is_answer: bool = False
    note: str = ""


def classify(error: BaseException, retry_on: RetryOn | type[BaseException] = None) -> Failure:
    """Decide what an exception means for its work; whatever the exception is, this does not raise."""
    message = describe(error)
    try:
        meaning = _meaning(error, retry_on)
    except ConfigError as mistake:  # such as Snooze("soon"): the handler is wrong, and that is the news
        meaning, message = _Meaning("error"), describe(mistake)
    except Exception:  # noqa: BLE001 (a class so strange that it cannot even be asked what it is)
        meaning = _Meaning("error")
    kind, after, service, is_answer, note = meaning
    if note:
        message = clean(message, MESSAGE_BYTES - len(note.encode())) + note
    return Failure(kind, message, traceback_text(error), after, service, is_answer)


def describe(error: BaseException) -> str:
    """Put an exception into words that can be stored and shown: valid text of at most 4 KiB."""
    name = _ask(lambda: str.__str__(type(error).__name__)) or "Exception"
    text = _ask(lambda: str.__str__(str(error)))
    return clean(f"{name}: {text[:MESSAGE_BYTES]}" if text else name, MESSAGE_BYTES)


def traceback_text(error: BaseException) -> str:
    """Keep where an exception came from: the end of its traceback, at most 16 KiB."""
    parts = _ask(_whole_traceback, error) or _ask(_own_traceback, error) or ()
    return clean("".join(part[:MESSAGE_BYTES] for part in parts), TRACEBACK_BYTES, tail=True)


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
    if status in {429, 503}:
        is_asked, after = _retry_after(error)
        if status == 429 or is_asked:
            return _Meaning("throttled", after)
    if status is not None and status < 500 and status not in RETRIED_4XX:
        return _Meaning("permanent", is_answer=True)
    if any(base.__name__ == "ValidationError" for base in type(error).__mro__):
        return _Meaning("permanent")
    is_retried, note = _is_retried(error, retry_on)
    is_answer = isinstance(error, CommandFailed) and error.is_answer
    return _Meaning("error" if is_retried else "permanent", is_answer=is_answer, note=note)


def _is_retried(error: BaseException, retry_on: RetryOn | type[BaseException]) -> tuple[bool, str]:
    """What `retry_on` says, and a note when it failed: that does not take the work's chance away."""
    if retry_on is None:
        return True, ""
    if isinstance(retry_on, (type, tuple)):
        return isinstance(error, retry_on), ""
    try:
        return bool(retry_on(error)), ""
    except KeyboardInterrupt:  # the user's, at the terminal
        raise
    except BaseException as mistake:  # noqa: BLE001 (an application's function may raise anything)
        return True, f" (retry_on raised {clean(describe(mistake), NOTE_BYTES)})"


def _wait(after: object, name: str) -> float:
    """The time a handler asked for; a computed moment that has already passed means at once."""
    is_past = isinstance(after, (int, float)) and after < 0
    return 0.0 if is_past else duration(after, name)


def _pause(retry_after: object) -> float | None:
    """The time RateLimited was given; what nobody can read must not fail the work."""
    if isinstance(retry_after, str) and (seconds := _header_seconds(retry_after)) is not None:
        return seconds
    try:
        return None if retry_after is None else _wait(retry_after, "retry_after")
    except ConfigError:
        return None


def _name_or_none(service: object) -> str | None:
    return service if isinstance(service, str) else None


# --- HTTP, by shape -------------------------------------------------------------------------------


def _status(error: BaseException) -> int | None:
    if not isinstance(error, Exception):  # SystemExit has a code, too
        return None
    for shape in STATUS_SHAPES:
        status: object = error
        for attribute in shape:
            status = _ask(getattr, status, attribute)
        if isinstance(status, int) and 400 <= status <= 599:
            return int(status)
    return None


def _retry_after(error: BaseException) -> tuple[bool, float | None]:
    """Whether a time to wait was named, and how long it is, if that can be known."""
    headers = _headers(_ask(getattr, error, "response")) or _headers(error)
    milliseconds = _header_seconds(headers.get("retry-after-ms", ""), scale=0.001)
    if milliseconds is not None:
        return True, milliseconds
    value = headers.get("retry-after", "")
    seconds = _header_seconds(value)
    if seconds is not None:
        return True, seconds
    return _until(value, headers.get("date", ""))


def _headers(holder: Any) -> dict[str, str]:
    """The few headers that matter here, by lower-case name, whatever kind of mapping holds them."""
    return _ask(lambda: dict(_wanted(holder.headers.items()))) or {}


def _wanted(pairs: Iterable[tuple[object, object]]) -> Iterator[tuple[str, str]]:
    for name, value in islice(pairs, MOST_HEADERS):
        lower = _header_text(name).lower()
        if lower in WANTED_HEADERS:
            yield lower, _header_text(value)


def _header_text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _header_seconds(text: str, scale: float = 1.0) -> float | None:
    try:
        seconds = float(text[:LONGEST_HEADER]) * scale
    except ValueError:
        return None
    return _clamped(seconds)


def _until(value: str, date: str) -> tuple[bool, float | None]:
    """Whether Retry-After is a date, and the wait it means by the far side's own clock: its Date, if it came."""
    if not value:
        return False, None
    from email.utils import parsedate_to_datetime as moment  # slow to import, and rarely needed

    end = _ask(moment, value[:LONGEST_HEADER])
    wait = _ask(lambda: end - moment(date[:LONGEST_HEADER]))
    return end is not None, None if wait is None else _clamped(wait.total_seconds())


def _clamped(seconds: float) -> float | None:
    return None if math.isnan(seconds) else min(max(0.0, seconds), LONGEST_PAUSE)


# --- Foreign code and its text --------------------------------------------------------------------


def _ask(function: Callable[..., Any], *arguments: object) -> Any:
    """Call what may be hostile: None for an answer if it raises."""
    try:
        return function(*arguments)
    except KeyboardInterrupt:  # the user's, at the terminal
        raise
    except BaseException:  # noqa: BLE001 (a property or a __str__ may raise anything at all)
        return None


def _whole_traceback(error: BaseException) -> list[str] | None:
    """The traceback as Python would print it, with causes and groups, unless there are too many of them."""
    from traceback import TracebackException  # slow to import, and only failures need it

    if _has_many_relatives(error):
        return None
    return list(TracebackException(type(error), error, error.__traceback__, limit=-FRAMES).format())


def _own_traceback(error: BaseException) -> list[str]:
    from traceback import format_tb

    return [*format_tb(error.__traceback__, -FRAMES), describe(error)]


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
