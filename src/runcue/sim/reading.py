"""Reads configurations into exact values; every refusal names the key and what is expected there.

    class Kill(msgspec.Struct):
        at: Annotated[float, duration()] = 0.0

    record(Kill, {"at": "5m"}, "kills[0]")

Rules:
- Each field of a struct carries the reader of its value. A reader takes the value and its path.
- Nothing is guessed: an unknown key, a key given twice, a wrong unit or a number out of range raises `BadConfig`.
- A number without a unit is seconds, or units in a second.
- A message quotes what was given, cut short: it may be huge.
- msgspec does not decode here, because its messages do not name the keys of a mapping (`$.services[...].rate`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec

from runcue import errors
from runcue.core.model import parse

T = TypeVar("T")
K = TypeVar("K")
S = TypeVar("S", bound=msgspec.Struct)
Reader = Callable[[Any, str], T]

MOST_KEYS = 10_000
LONGEST = 366 * 86400.0
"""No time in a configuration is longer than a year."""

ALSO = {"rate": "rates", "max_concurrent": "concurrent", "behavior": "behaviour"}
"""Other names of keys, and the fields that they stand for."""

DURATION_FORMS = "a time such as 200ms, 90s, 5m, 24h, 7d, or seconds"
RATE_FORMS = "a rate such as 60/min, 100/10s or 5/s"

_rate = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kM]?)/([0-9][0-9.]*[a-z]*|[a-z]+)", re.ASCII).fullmatch
_NOT_SAID = object()


class BadConfig(Exception):
    """Says where a configuration is wrong, what was expected there, and what was given."""

    def __init__(
        self, path: str, expected: str, given: object = _NOT_SAID, *, names: Iterable[str] = ()
    ) -> None:
        """`names` are the right ones: the message suggests the one that is nearest to what was given."""
        is_given = given is not _NOT_SAID
        self.path = path
        self.expected = expected
        self.given = quoted(given) if is_given else ""
        near = nearest(str(given), names) if is_given else None
        got = f", got {self.given}" if is_given else ""
        hint = f"; did you mean {near}?" if near else ""
        super().__init__(f"{path or 'the configuration'}: expected {expected}{got}{hint}")


def quoted(value: object) -> str:
    """Show a value inside a message, in the words of YAML and cut short."""
    if value is None:
        return "nothing"
    return str(value).lower() if isinstance(value, bool) else errors.quoted(value)


def nearest(name: str, names: Iterable[str], share: float = 0.6) -> str | None:
    """Find the name that a misspelt one probably means."""
    near = get_close_matches(name[: parse.LONGEST_TEXT], list(names), 1, share)
    return near[0] if near else None


# --- readers of mappings and lists ---------------------------------------------------------------------------


def at(path: str, key: object) -> str:
    """Name the path of a key below another path."""
    return f"{path}.{key}" if path else str(key)


def record(
    kind: type[S], value: object, path: str, expected: str = "keys and values", *, also: Iterable[str] = ()
) -> S:
    """Read a mapping into a struct; `also` are further keys, which the caller has read and taken out."""
    if not isinstance(value, dict):
        raise BadConfig(path, expected, value)
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    found: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    for key, item in value.items():
        field = fields.get(key) or fields.get(ALSO.get(key, ""))
        if field is None:
            raise _unknown(key, path, [*known_keys(kind), *also])
        if field.name in found:
            raise BadConfig(at(path, key), f"one of {spelled[field.name]} and {key}, not both")
        (read,) = field.type.__metadata__
        found[field.name] = read(item, at(path, key))
        spelled[field.name] = key
    return kind(**found)


def struct(kind: type[S], expected: str) -> Reader[S]:
    """Read a mapping into a struct."""
    return lambda value, path: record(kind, value, path, expected)


def known_keys(kind: type[msgspec.Struct]) -> list[str]:
    """List the keys that a struct is read from, with their other names."""
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    return names + [other for other, name in ALSO.items() if name in names]


def _unknown(key: object, path: str, known: list[str]) -> BadConfig:
    where = at(path, key) if isinstance(key, str) and len(key) <= parse.LONGEST_NAME else path
    is_near = nearest(str(key), known) is not None
    expected = "a known key" if is_near else f"a known key ({', '.join(known)})"
    return BadConfig(where, expected, key, names=known)


def mapping(key: Reader[K], read: Reader[T], expected: str) -> Reader[dict[K, T]]:
    """Read a mapping whose keys are free."""

    def read_all(value: object, path: str) -> dict[K, T]:
        if not isinstance(value, dict):
            raise BadConfig(path, expected, value)
        return {key(name, path): read(item, at(path, name)) for name, item in value.items()}

    return read_all


def weights(key: Reader[K], expected: str) -> Reader[dict[K, float]]:
    """Read a weight for each key, or a list of keys that weigh the same; not all weights may be 0."""
    weigh = mapping(key, number(0, 1e9), expected)

    def read(value: object, path: str) -> dict[K, float]:
        if isinstance(value, list):
            return dict.fromkeys(several(key, MOST_KEYS)(value, path), 1.0)
        found = weigh(value, path)
        if found and not sum(found.values()):
            raise BadConfig(path, "a weight of more than 0")
        return found

    return read


def several(read: Reader[T], most: int = 1000) -> Reader[list[T]]:
    """Read a list, or a single value as a list of one."""

    def read_all(value: object, path: str) -> list[T]:
        if not isinstance(value, list):
            return [read(value, path)]
        if len(value) > most:
            raise BadConfig(path, f"at most {most:,} entries", len(value))
        return [read(item, f"{path}[{place}]") for place, item in enumerate(value)]

    return read_all


def optional(read: Reader[T]) -> Reader[T | None]:
    """Read a value that may be absent (`null` or `none`)."""
    return lambda value, path: None if value in (None, "none") else read(value, path)


# --- readers of single values --------------------------------------------------------------------------------


def number(low: float = -math.inf, high: float = math.inf) -> Reader[float]:
    """Read a finite number within bounds."""

    def read(value: object, path: str) -> float:
        exact = _finite(value)
        if exact is None or not low <= exact <= high:
            raise BadConfig(path, f"a number{_between(low, high)}", value)
        return exact

    return read


def whole(low: int, high: int) -> Reader[int]:
    """Read a whole number within bounds."""

    def read(value: object, path: str) -> int:
        try:
            return parse.number(value, path, low, high, whole=True)
        except errors.InvalidOption:
            raise BadConfig(path, f"a whole number{_between(low, high)}", value) from None

    return read


def share(value: object, path: str) -> float:
    """Read a probability: 0.05, or "5%"."""
    is_percent = isinstance(value, str) and value.endswith("%")
    exact = _number_of(str(value)[:-1]) if is_percent else _finite(value)
    if exact is not None and is_percent:
        exact /= 100
    if exact is None or not 0 <= exact <= 1:
        raise BadConfig(path, "a share from 0 to 1", value)
    return exact


def duration(low: float = 0.0, high: float = LONGEST) -> Reader[float]:
    """Read a length of time within bounds, as seconds."""

    def read(value: object, path: str) -> float:
        seconds = _seconds(value) if isinstance(value, str) else _finite(value)
        if seconds is None:
            raise BadConfig(path, DURATION_FORMS, value)
        if not low <= seconds <= high:
            raise BadConfig(path, f"a time from {span(low)} to {span(high)}", value)
        return seconds

    return read


def moment(value: object, path: str) -> str:
    """Read a moment of wall time, such as 2026-11-23T08:00+01:00."""
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
        if found is not None:
            parse.moment(found, path)
            return str(value)
    except (ValueError, errors.InvalidOption):
        pass
    raise BadConfig(path, "a moment with its time zone, such as 2026-11-23T08:00+01:00", value)


def flag(value: object, path: str) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise BadConfig(path, "true or false", value)
    return value


def choice(*words: str) -> Reader[str]:
    """Read one of some words."""

    def read(value: object, path: str) -> str:
        if not isinstance(value, str) or value not in words:
            raise BadConfig(path, f"one of {', '.join(words)}", value, names=words)
        return value

    return read


def name(value: object, path: str) -> str:
    """Read a name that can be shown."""
    try:
        if parse.name(value, "") == str(value).strip():
            return str(value)
    except errors.InvalidOption:
        pass
    raise BadConfig(path, f"a name of 1 to {parse.LONGEST_NAME} printable characters", value)


def rate(value: object, path: str) -> str:
    """Read a limit on starts in a window, and spell it as runcue takes it: `60/60s`."""
    limit, per = rate_of(value, path)
    if limit != int(limit):
        raise BadConfig(path, "a whole number of starts in a window", value)
    return f"{int(limit)}/{per:g}s"


def rate_of(value: object, path: str = "rate") -> tuple[float, float]:
    """Read how many in how many seconds: `60/min`, `20/1` (in one second), or a pair of numbers."""
    match = _rate(value) if isinstance(value, str) and len(value) <= parse.LONGEST_TEXT else None
    limit = per = None
    if isinstance(value, list) and len(value) == 2:
        limit, per = map(_finite, value)
    elif match is not None:
        limit = float(match[1]) * parse.MULTIPLES[match[2]]
        per = _seconds(match[3] if match[3][0].isdigit() else f"1{match[3]}")
    if limit is None or per is None or not (0 < limit <= parse.HIGHEST_LIMIT and 0.001 <= per <= LONGEST):
        raise BadConfig(path, RATE_FORMS, value)
    return limit, per


def speed(value: object, path: str) -> float:
    """Read how much arrives: units in a second, or text such as `48/min`."""
    exact = _finite(value)
    if exact is None:
        limit, per = rate_of(value, path)
        exact = limit / per
    if not 0 < exact <= 100_000:
        raise BadConfig(path, "more than 0 and at most 100,000 units in a second", value)
    return exact


def _finite(value: object) -> float | None:
    try:
        return parse.number(value, "")
    except errors.InvalidOption:
        return None


def _number_of(text: str) -> float | None:
    try:
        return _finite(float(text)) if len(text) <= parse.LONGEST_TEXT else None
    except ValueError:
        return None


def _seconds(text: str) -> float | None:
    """Read text as seconds: a bare number, or a number and a unit with or without a space between them."""
    exact = _number_of(text)
    if exact is not None:
        return exact
    try:
        return parse.duration("".join(text.rsplit(maxsplit=1)), "")
    except errors.InvalidOption:
        return None


def _between(low: float, high: float) -> str:
    return "" if math.isinf(high) else f" from {low:,} to {high:,}"


# --- the other way round -------------------------------------------------------------------------------------


def span(seconds: float) -> str:
    """Show a length of time: 0 s, 240 ms, 2.4 s, 5 m, 1 h 30 m, 1 d."""
    if seconds < 0:
        return f"-{span(-seconds)}"
    if seconds == 0:
        return "0 s"
    if round(seconds, 3) < 1:
        return f"{seconds * 1000:.3g} ms" if seconds * 1000 < 99.95 else f"{seconds * 1000:.0f} ms"
    if round(seconds, 1) < 60:
        return f"{seconds:.3g} s"
    left = round(seconds)
    parts = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        amount, left = divmod(left, size)
        if amount:
            parts.append(f"{amount} {unit}")
    return " ".join(parts[:2])


def pretty_rate(text: str) -> str:
    """Show a rate: 60/min."""
    limit, per = rate_of(text)
    unit = {1.0: "s", 60.0: "min", 3600.0: "h", 86400.0: "day"}.get(per, f"{per:g}s")
    if limit >= 100_000 and not limit % 1000:
        return f"{limit / 1e6:g}M/{unit}" if not limit % 1e6 else f"{limit / 1e3:g}k/{unit}"
    return f"{limit:g}/{unit}"


def amount(count: int, one: str, many: str | None = None) -> str:
    """Show a count with its noun: 1 start, 2 starts, 2 retries."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
