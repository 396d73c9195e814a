"""The settings of a queue: names, rules and defaults.

They are stored in the queue's file as text, and checked when they are written and again when they are read. A damaged
row causes a warning, and the default is used instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from runcue.cli.failure import advice, bad_input
from runcue.cli.screen import clean, cut, warn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runcue.cli.home import Home

KIB = 1024
MIB = KIB * KIB
DAY = 86400.0
LONGEST = 3650 * DAY
NEVER = "none"
UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": DAY}
SIZES = {"": 1, "b": 1, "k": KIB, "kib": KIB, "kb": 1000, "m": MIB, "mib": MIB, "mb": 1000**2,
         "g": KIB * MIB, "gib": KIB * MIB, "gb": 1000**3}  # fmt: skip
_NUMBER = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s?([A-Za-z]{0,3})", re.ASCII)


class Key(msgspec.Struct, frozen=True):
    """One setting: how its text is read (a ValueError says what is allowed), how a value is written, and its help."""

    read: Callable[[str], Any]
    write: Callable[[Any], str]
    line: str


def seconds(text: str) -> float:
    """Read a length of time such as 90, 0.5s, 5m, 2h, 7d; raises ValueError for any other text."""
    found = _NUMBER.fullmatch(text.strip())
    if found is None or found[2].lower() not in UNITS:
        raise ValueError("a duration such as 90, 90s, 5m, 2h or 7d")
    return float(found[1]) * UNITS[found[2].lower()]


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text.strip(), re.ASCII) or not low <= int(text) <= high:
            raise ValueError(f"a whole number from {low} to {high:,}")
        return int(text)

    return read


def _amount(units: Mapping[str, float], low: float, high: float, rule: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        found = _NUMBER.fullmatch(text.strip())
        amount = -1.0 if found is None else float(found[1]) * units.get(found[2].lower(), -1)
        if not low <= amount <= high:
            raise ValueError(rule)
        return amount

    return read


def _number(low: float, high: float) -> Callable[[str], float]:
    return _amount({"": 1}, low, high, f"a number from {low:g} to {high:,.0f}")


def _duration(low: float, *, optional: bool) -> Callable[[str], float | None]:
    def read(text: str) -> float | None:
        forms = "a duration such as 90, 90s, 5m, 2h or 7d" + (", or none" if optional else "")
        if optional and text.strip().lower() == NEVER:
            return None
        try:
            found = seconds(text)
        except ValueError:
            raise ValueError(forms) from None
        if not low <= found <= LONGEST:
            raise ValueError(f"{forms}, from {low:g} s to {LONGEST / DAY:,.0f} days")
        return found

    return read


def _size(low: int, high: int) -> Callable[[str], int]:
    rule = f"a size such as 512k or 10M, from {_size_text(low)} to {_size_text(high)}"
    read = _amount(SIZES, low, high, rule)
    return lambda text: int(read(text))


def _plain(value: float | None) -> str:
    if value is None:
        return NEVER
    return f"{value:.9f}".rstrip("0").rstrip(".")


def _length_text(value: float | None) -> str:
    for unit, size in (("d", DAY), ("h", 3600.0), ("m", 60.0)):
        if value and value % size == 0:
            return f"{value / size:.0f}{unit}"
    return _plain(value)


def _size_text(value: int) -> str:
    for unit, size in (("G", KIB * MIB), ("M", MIB), ("k", KIB)):
        if value % size == 0:
            return f"{value // size}{unit}"
    return str(value)


KEYS: dict[str, Key] = {
    "max_retries": Key(_whole(0, 1_000_000), _plain, "How often a job is tried in all (0 is 1)."),
    "backoff_base": Key(
        _number(0.001, 1_000_000), _plain, "A retry waits base ** failed attempts, in seconds."
    ),
    "max_delay": Key(_duration(0, optional=False), _plain, "No retry waits longer, in seconds."),
    "timeout": Key(_duration(0.001, optional=True), _plain, "How long a job may run, in seconds."),
    "retention": Key(_duration(0, optional=True), _length_text, "How long ended jobs are kept."),
    "log_limit": Key(_size(128 * KIB, 900 * MIB), _size_text, "How much is kept of what a job prints."),
}


class Settings(msgspec.Struct, frozen=True):
    """The values; times are seconds, sizes bytes."""

    max_retries: int = 3
    backoff_base: float = 2
    max_delay: float = 300
    timeout: float | None = None
    retention: float | None = 7 * DAY
    log_limit: int = 10 * MIB

    @classmethod
    def of(cls, stored: Mapping[str, str]) -> Settings:
        """The stored settings, and defaults for the rest; warns about a damaged row, and uses its default."""
        found: dict[str, Any] = {}
        for name, text in stored.items():
            if name not in KEYS:
                continue
            try:
                found[name] = KEYS[name].read(text)
            except ValueError as error:
                default = cls().text(name)
                shown = cut(clean(text), 40)
                warn(f"The setting {name} is damaged ('{shown}' is not {error}); {default} is used instead.")
        return cls(**found)

    def text(self, name: str) -> str:
        """One value as it is stored and shown."""
        return KEYS[name].write(getattr(self, name))

    def number(self, name: str) -> int | float | None:
        """One value as a number (seconds, bytes or a count); None where there is no limit."""
        value: int | float | None = getattr(self, name)
        return int(value) if isinstance(value, float) and value.is_integer() else value


def settings_of(home: Home) -> Settings:
    """The stored settings of a queue; the defaults while the queue does not exist."""
    if not home.exists:
        return Settings()
    with home.reader() as reader:
        return Settings.of(reader.config())


def key_of(name: str) -> str:
    """The name of a setting as typed, with `-` or `_`; exit code 2 when there is no such setting."""
    found = name.replace("-", "_")
    if found in KEYS:
        return found
    raise bad_input(f"No setting '{cut(clean(name), 40)}'. {advice(found, [*KEYS])}")


def check(key: str, text: str) -> str:
    """The text to store for a setting; exit code 2, with the key and the rule, when the value is not allowed."""
    name = key_of(key)
    try:
        return KEYS[name].write(KEYS[name].read(text))
    except ValueError as error:
        raise bad_input(f"{name} cannot be '{cut(clean(text), 40)}': expected {error}.") from error
