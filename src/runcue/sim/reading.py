"""What people write becomes exact values here, and every refusal says where it stands and what would be right.

    Given({"rate": "60/min"}, "services.api").take("rate", rate)

Rules:
- Nothing is guessed: an unknown key, a key given twice, a wrong unit or a number out of range is a `BadConfig`.
- A number without a unit is seconds, or works in a second.
- What is quoted from the outside is cut short: it may be huge.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, TypeVar

T = TypeVar("T")
D = TypeVar("D")

UNITS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
LONGEST = 366 * 86400.0
"""No time in a configuration is longer than a year."""
LONGEST_TEXT = 64
LONGEST_NAME = 128
HIGHEST_RATE = 1_000_000_000

DURATION_FORMS = "a time such as 200ms, 90s, 5m, 24h, 7d, or seconds"
RATE_FORMS = "a rate such as 60/min, 100/10s or 5/s"

_duration = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)", re.ASCII).fullmatch
_rate = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kM]?)/([0-9]+(?:\.[0-9]+)?)?([a-z]*)", re.ASCII).fullmatch

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60
_short.maxlist = _short.maxdict = 3
_short.maxlevel = 2


class BadConfig(Exception):
    """A configuration that cannot be run: where it is wrong, what was expected there, and what was given."""

    def __init__(
        self,
        path: str,
        expected: str,
        given: object = None,
        *,
        is_given: bool = True,
        names: Iterable[str] = (),
    ) -> None:
        """`names` are those that would have been right: if one of them is near, it may be meant."""
        self.path = path
        self.expected = expected
        self.given = quoted(given) if is_given else ""
        near = nearest(str(given), names) if is_given else None
        got = f", got {self.given}" if is_given else ""
        hint = f"; did you mean {near}?" if near else ""
        super().__init__(f"{path or 'the configuration'}: expected {expected}{got}{hint}")


def quoted(value: object) -> str:
    """A value from the outside in few words."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"
    return _short.repr(value)


def nearest(name: str, names: Iterable[str], share: float = 0.6) -> str | None:
    """The name that may be meant by a misspelt one, if any is near."""
    near = get_close_matches(name[:LONGEST_TEXT], list(names), 1, share)
    return near[0] if near else None


class Given:
    """A mapping from the outside, read key by key. What is left at the end is a key that nobody knows."""

    def __init__(self, value: object, path: str, expected: str = "keys and values") -> None:
        if not isinstance(value, dict):
            raise BadConfig(path, expected, value)
        self._left = dict(value)
        self._path = path
        self._known: list[str] = []

    def at(self, name: object) -> str:
        """The path of a key in here."""
        return f"{self._path}.{name}" if self._path else str(name)

    def has(self, *names: str) -> bool:
        """True when one of these names of a key was given and not read yet."""
        return any(name in self._left for name in names)

    def take(self, names: str, read: Callable[[Any, str], T], default: D) -> T | D:
        """Read a key by its name, or by one of its other names (`"behaviour behavior"`)."""
        several = names.split()
        self._known += several
        found = [name for name in several if name in self._left]
        if len(found) > 1:
            raise BadConfig(self.at(found[1]), f"one of {' and '.join(found)}, not both", is_given=False)
        if not found:
            return default
        return read(self._left.pop(found[0]), self.at(found[0]))

    def left(self) -> list[Any]:
        """The keys that were not read yet, in the order they were written."""
        return list(self._left)

    def peek(self, name: object) -> Any:
        """The value of a key that was not read yet, as it was given."""
        return self._left[name]

    def is_almost_known(self, name: str) -> bool:
        """True for a key that is probably another one, misspelt."""
        return nearest(name, self._known, 0.8) is not None

    def rest(self) -> dict[Any, Any]:
        """All that was not read, in the order it was written."""
        left, self._left = self._left, {}
        return left

    def end(self) -> None:
        """Refuse what nobody asked for."""
        for name in self._left:
            path = self.at(name) if isinstance(name, str) and len(name) <= LONGEST_NAME else self._path
            is_near = nearest(str(name), self._known) is not None
            expected = "a known key" if is_near else f"a known key ({', '.join(self._known)})"
            raise BadConfig(path, expected, name, names=self._known)


# --- readers of single values --------------------------------------------------------------------------------


def number(low: float = -math.inf, high: float = math.inf) -> Callable[[object, str], float]:
    """Reads a finite number within bounds."""

    def read(value: object, path: str) -> float:
        exact = _finite(value)
        if exact is None or not low <= exact <= high:
            raise BadConfig(path, f"a number{_between(low, high)}", value)
        return exact

    return read


def whole(low: int, high: int) -> Callable[[object, str], int]:
    """Reads a whole number within bounds."""

    def read(value: object, path: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise BadConfig(path, f"a whole number{_between(low, high)}", value)
        return value

    return read


def share(value: object, path: str) -> float:
    """Reads a probability: 0.05, or "5%"."""
    given = value
    if isinstance(value, str) and value.endswith("%"):
        value = _number_of(value[:-1])
        value = None if value is None else value / 100
    exact = _finite(value)
    if exact is None or not 0 <= exact <= 1:
        raise BadConfig(path, "a share from 0 to 1", given)
    return exact


def duration(low: float = 0.0, high: float = LONGEST) -> Callable[[object, str], float]:
    """Reads a length of time within bounds, as seconds."""

    def read(value: object, path: str) -> float:
        seconds = _finite(value)
        if isinstance(value, str):
            match = _duration(value) if len(value) <= LONGEST_TEXT else None
            if match is not None and match[2] in UNITS:
                seconds = float(match[1]) * UNITS[match[2]]
            else:
                seconds = _number_of(value)
        if seconds is None:
            raise BadConfig(path, DURATION_FORMS, value)
        if not low <= seconds <= high:
            raise BadConfig(path, f"a time from {span(low)} to {span(high)}", value)
        return seconds

    return read


def optional(read: Callable[[Any, str], T]) -> Callable[[Any, str], T | None]:
    """Reads the same, or nothing (`null`)."""
    return lambda value, path: None if value in (None, "none") else read(value, path)


def flag(value: object, path: str) -> bool:
    """Reads true or false."""
    if not isinstance(value, bool):
        raise BadConfig(path, "true or false", value)
    return value


def choice(*words: str) -> Callable[[object, str], str]:
    """Reads one of some words."""

    def read(value: object, path: str) -> str:
        if not isinstance(value, str) or value not in words:
            raise BadConfig(path, f"one of {', '.join(words)}", value, names=words)
        return value

    return read


def name(value: object, path: str) -> str:
    """Reads a name that can be shown."""
    if (
        isinstance(value, str)
        and 1 <= len(value) <= LONGEST_NAME
        and value.isprintable()
        and value == value.strip()
    ):
        return value
    raise BadConfig(path, f"a name of 1 to {LONGEST_NAME} printable characters", value)


def several(read: Callable[[Any, str], T], most: int = 1000) -> Callable[[object, str], list[T]]:
    """Reads a list, or a single value as a list of one."""

    def read_all(value: object, path: str) -> list[T]:
        if not isinstance(value, list):
            return [read(value, path)]
        if len(value) > most:
            raise BadConfig(path, f"at most {most:,} entries", len(value))
        return [read(item, f"{path}[{place}]") for place, item in enumerate(value)]

    return read_all


def rate(value: object, path: str) -> str:
    """Reads a limit on starts in a window, and spells it as runcue takes it: `60/60s`."""
    limit, per = rate_of(value, path)
    if limit != int(limit):
        raise BadConfig(path, "a whole number of starts in a window", value)
    return f"{int(limit)}/{per:g}s"


def rate_of(value: object, path: str = "rate") -> tuple[float, float]:
    """How many in how many seconds: of `60/min`, `20/1` (in one second), or a pair of numbers."""
    match = _rate(value) if isinstance(value, str) and len(value) <= LONGEST_TEXT else None
    if isinstance(value, list) and len(value) == 2:
        limit, per = _finite(value[0]), _finite(value[1])
    elif match is None or (match[4] and match[4] not in UNITS) or not (match[3] or match[4]):
        limit = per = None
    else:
        limit = float(match[1]) * {"": 1, "k": 1e3, "M": 1e6}[match[2]]
        per = float(match[3] or 1) * UNITS[match[4] or "s"]
    if limit is None or per is None or not (0 < limit <= HIGHEST_RATE and 0.001 <= per <= LONGEST):
        raise BadConfig(path, RATE_FORMS, value)
    return limit, per


def speed(value: object, path: str) -> float:
    """Reads how much arrives: works in a second, or text such as `48/min`."""
    exact = _finite(value)
    if exact is None:
        limit, per = rate_of(value, path)
        exact = limit / per
    if not 0 < exact <= 100_000:
        raise BadConfig(path, "more than 0 and at most 100,000 works in a second", value)
    return exact


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        exact = float(value)
    except OverflowError:
        return None
    return exact if math.isfinite(exact) else None


def _number_of(text: str) -> float | None:
    try:
        return _finite(float(text)) if len(text) <= LONGEST_TEXT else None
    except ValueError:
        return None


def _between(low: float, high: float) -> str:
    if math.isinf(low) and math.isinf(high):
        return ""
    if math.isinf(high):
        return f" of {low:,} or more"
    return f" from {low:,} to {high:,}"


# --- the other way round -------------------------------------------------------------------------------------


def span(seconds: float) -> str:
    """A length of time for people: 0 s, 240 ms, 2.4 s, 5 m, 1 h 30 m, 1 d."""
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
    """A rate as people would write it: 60/min."""
    limit, per = rate_of(text)
    unit = {1.0: "s", 60.0: "min", 3600.0: "h", 86400.0: "day"}.get(per, f"{per:g}s")
    if limit >= 100_000 and not limit % 1000:
        return f"{limit / 1e6:g}M/{unit}" if not limit % 1e6 else f"{limit / 1e3:g}k/{unit}"
    return f"{limit:g}/{unit}"


def amount(count: int, one: str, many: str | None = None) -> str:
    """How many of something there are, in words that fit: 1 start, 2 starts, 2 retries."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def unique(names: Iterable[str]) -> list[str]:
    """The same without repetition, in order."""
    return list(dict.fromkeys(names))
