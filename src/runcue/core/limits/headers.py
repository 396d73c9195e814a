"""What the headers of an HTTP response say about the limits of the service: how much is left, and when that renews.

    OpenAI         x-ratelimit-remaining-tokens: 149984     x-ratelimit-reset-tokens: 6m0s
    Anthropic      anthropic-ratelimit-tokens-remaining: 8  anthropic-ratelimit-tokens-reset: 2026-01-31T12:00:00Z
    GitHub, …      x-ratelimit-remaining: 12                x-ratelimit-reset: 1767225600 (or seconds from now)
    IETF           RateLimit: "default";r=50;t=30           or RateLimit-Remaining: 50, RateLimit-Reset: 30
    any            Retry-After: 120 (or a date)             nothing is left until then

- Times are relative to the Date header if there is one, else to the caller's clock. No clock is read here.
- A header that cannot be parsed is ignored, and so is a remainder without its reset. No reset is further than a day.
- Headers are not trusted: only the first 100 are read, and none that is longer than 1,000 characters.
- Several values for one quantity are several limits: all of them hold.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

import msgspec

MOST_HEADERS: Final = 100
LONGEST_HEADER: Final = 1000
LONGEST_TIME: Final = 64
LONGEST_WAIT: Final = 86400.0
FIRST_EPOCH: Final = 1e9  # a reset from here on is a moment, not a wait: in seconds,
FIRST_EPOCH_MS: Final = 1e11  # or in milliseconds

REQUESTS: Final = frozenset({"req", "request", "requests"})
PERIODS: Final = frozenset({"second", "minute", "hour", "day", "month"})
LISTS: Final = frozenset({"ratelimit", "ratelimit-policy"})
UNITS: Final = {
    "d": 86400.0,
    "h": 3600.0,
    "m": 60.0,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "ns": 1e-9,
}

WORDS: Final = r"(?P<words>(?:-[a-z0-9_]{1,64}){0,6})"
FIELD: Final = r"(?P<field>remaining|reset)"
FAMILIES: Final = (
    re.compile(rf"(?P<family>(?:x-)?rate-?limit)-{FIELD}{WORDS}"),
    re.compile(rf"(?P<family>anthropic-ratelimit){WORDS}-{FIELD}"),
)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
COUNT: Final = re.compile(r"[0-9]{1,18}")
NUMBER: Final = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,15})?")
STEP: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)(ms|us|µs|ns|d|h|m|s)")
STEPS: Final = re.compile(f"(?:{STEP.pattern}){{1,8}}")
MEMBERS: Final = re.compile(r'(?:"(?:[^"\\]|\\.)*"|[^",])+')
PARAMETERS: Final = re.compile(r'(?:"(?:[^"\\]|\\.)*"|[^";])+')


class Left(msgspec.Struct, frozen=True):
    """How much of a quantity is left until it renews."""

    quantity: str
    """What is counted, such as "tokens" or "input_tokens"; "" for requests."""
    remaining: int
    resets_in: float
    """Seconds, from 0 to a day."""


def read(headers: Mapping[str, str], now: float) -> list[Left]:
    """Read what a response says about limits; `now` is wall time. Never raises, whatever the headers are."""
    found = texts(headers)
    clock = moment(found.get("date", ""))
    clock = now if clock is None else clock
    left = [*_pairs(found, clock), *_standard(found, clock)]
    _, after = retry_after(found, clock)
    if after is not None:
        left.append(Left("", 0, after))
    return list(dict.fromkeys(left))


def retry_after(found: Mapping[str, str], clock: float | None = None) -> tuple[bool, float | None]:
    """Whether the headers name a wait, and how long it is if that is known; `clock` is used without a Date header."""
    milliseconds = seconds(found.get("retry-after-ms", ""), scale=0.001)
    if milliseconds is not None:
        return True, milliseconds
    value = found.get("retry-after", "")
    wait = seconds(value)
    if wait is not None:
        return True, wait
    end, sent = moment(value), moment(found.get("date", ""))
    since = clock if sent is None else sent
    return end is not None, None if end is None or since is None else clamped(end - since)


def texts(headers: object, most: int = MOST_HEADERS) -> dict[str, str]:
    """Headers by lower-case name as plain text, whatever kind of mapping holds them."""
    found: dict[str, str] = {}
    for name, text in asked(lambda: list(_plain(headers, most))) or ():
        if name in LISTS and name in found:
            text = f"{found[name]}, {text}"
        if len(text) <= LONGEST_HEADER:
            found[name] = text
    return found


def seconds(text: str, scale: float = 1.0) -> float | None:
    """A wait written as a number of seconds, within a day."""
    try:
        return clamped(float(text[:LONGEST_TIME]) * scale)
    except ValueError:
        return None


def moment(text: str) -> float | None:
    """The epoch seconds of a date as HTTP writes it, in any of the three forms; None for anything else."""
    if not text:
        return None
    from email.utils import parsedate_to_datetime  # slow to import, and rarely needed

    when: float | None = asked(lambda: _epoch(parsedate_to_datetime(text[:LONGEST_TIME])))
    return when


def clamped(wait: float) -> float | None:
    """A wait brought within 0 and a day; None when it is no number."""
    return None if math.isnan(wait) else min(max(0.0, wait), LONGEST_WAIT)


def asked(function: Callable[..., Any], *arguments: object) -> Any:
    """Call code that may raise anything, even a KeyboardInterrupt of its own: None if it does."""
    try:
        return function(*arguments)
    except BaseException:  # noqa: BLE001 (a property or a __str__ may raise anything at all)
        return None


def _plain(headers: Any, most: int) -> Iterator[tuple[str, str]]:
    for name, value in islice(headers.items(), most):
        yield _text(name).lower(), _text(value).strip()


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str.__str__(str(value))


# --- A header for what is left, and one for when that renews --------------------------------------


def _pairs(found: Mapping[str, str], clock: float) -> Iterator[Left]:
    remaining: dict[tuple[str, str], int] = {}
    resets: dict[tuple[str, str], float] = {}
    for name, text in found.items():
        match = next(filter(None, (family.fullmatch(name) for family in FAMILIES)), None)
        if match is None:
            continue
        limit = match["family"], match["words"]
        if match["field"] == "reset":
            if (wait := _wait(text, clock)) is not None:
                resets[limit] = wait
        elif (count := _count(text)) is not None:
            remaining[limit] = count
    for limit, count in remaining.items():
        if limit in resets:
            yield Left(_quantity(limit[1].removeprefix("-")), count, resets[limit])


def _quantity(name: str) -> str:
    """What a limit counts: "input-tokens-minute" is about input_tokens, "requests" and "day" are about requests."""
    words = name.split("-")
    if words[-1] in PERIODS:
        words.pop()
    quantity = "_".join(words)
    return "" if quantity in REQUESTS else quantity


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and COUNT.fullmatch(text) else None


def _wait(text: str, clock: float) -> float | None:
    """Seconds until a reset that is written as a wait ("30", "6m0s") or as a moment (epoch, RFC 3339, HTTP date)."""
    if NUMBER.fullmatch(text):
        number = float(text)
        if number >= FIRST_EPOCH_MS:
            number /= 1000
        return clamped(number - clock if number >= FIRST_EPOCH else number)
    if STEPS.fullmatch(text):
        return clamped(sum(float(number) * UNITS[unit] for number, unit in STEP.findall(text)))
    end: float | None = asked(lambda: _epoch(datetime.fromisoformat(text)))
    if end is None:
        end = moment(text)
    return None if end is None else clamped(end - clock)


def _epoch(when: datetime) -> float:
    """Epoch seconds; the zone of a time without one is UTC, as HTTP has it."""
    aware = when.replace(tzinfo=UTC) if when.tzinfo is None else when
    return (aware - EPOCH).total_seconds()


# --- The standard: members of a list, each with parameters -----------------------------------------


def _standard(found: Mapping[str, str], clock: float) -> Iterator[Left]:
    units = {name: given.get("qu", "") for name, given in _members(found.get("ratelimit-policy", ""))}
    loose: dict[str, str] = {}  # an older draft: "limit=100, remaining=50, reset=30"
    for name, given in _members(found.get("ratelimit", "")):
        field, _, value = name.partition("=")
        loose[field] = value
        count, wait = _count(given.get("r")), _wait(given.get("t", ""), clock)
        if count is not None and wait is not None:
            yield Left(_quantity(units.get(name, "")), count, wait)
    count, wait = _count(loose.get("remaining")), _wait(loose.get("reset", ""), clock)
    if count is not None and wait is not None:
        yield Left("", count, wait)


def _members(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    for member in MEMBERS.findall(text):
        name, *parameters = PARAMETERS.findall(member) or [""]
        pairs = (parameter.partition("=") for parameter in parameters)
        yield _bare(name), {key.strip(): _bare(value) for key, _, value in pairs}


def _bare(text: str) -> str:
    return text.strip().strip('"')
