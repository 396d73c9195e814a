"""The keys of a job, and how each value is checked.

A check is a function of the key (for the message) and the value as it came from JSON or from a flag. It returns the
value in the form that is stored, or refuses it with one line that names the key and the rule.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from typing import Any, NoReturn

from runcue.cli.failure import advice, bad_input
from runcue.cli.screen import clean, cut
from runcue.cli.settings import seconds
from runcue.host.address import is_address, plain

MOST_RETRIES = 1_000_000
HIGHEST_PRIORITY = 1_000_000
LONGEST_NAME = 128
LONGEST_KEY = 512
LONGEST_SPAN = 1e9
YEAR_10000 = 253_402_300_800
NO_LIMIT = 0.0
"""The timeout of a job that has none, whatever the settings say."""


class LocalTime(float):
    """Epoch seconds of a time that was given without a zone, and taken as local time."""

    __slots__ = ()


ID_RULE = "1 to 128 letters, digits, '.', '_' or '-', a letter or digit first"
_is_id = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII).fullmatch
_is_number = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?", re.ASCII).fullmatch


def check(key: str, value: object) -> Any:
    """Check one field of a job; returns the value to store."""
    if key not in CHECKS:
        raise bad_input(f"There is no key {said(key)}. {advice(key, [*CHECKS])}")
    return CHECKS[key](key, value)


def job_id(text: str) -> str:
    """Check the id of a job that was typed."""
    return _id("id", text)


def duration(key: str, text: str, *, low: float = 0) -> float:
    """Read the length of time that an option was given."""
    return _span(low)(key, text)


def said(value: object) -> str:
    """A value that was given, shortened, as it is spelled in JSON."""
    if isinstance(value, str):
        return f"'{cut(clean(value[:60]), 40)}'"
    if isinstance(value, (list, tuple)):
        return f"the list of {cut(', '.join(map(said, value[:4])), 60)}" if value else "an empty list"
    if isinstance(value, dict):
        return "an object"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and abs(value) >= 2**63:
        return "a number of more than 63 bits"
    return repr(value)


def refuse(key: str, value: object, rule: str) -> NoReturn:
    """Raise the error about a value, with its key and the rule."""
    raise bad_input(f"{key} cannot be {said(value)}: expected {rule}.")


# the checks -----------------------------------------------------------------------------------------------


def unicode(key: str, value: object) -> str:
    """Check that a value is text that can be stored and passed to other processes."""
    if not isinstance(value, str):
        refuse(key, value, "text")
    if "\0" in value:
        raise bad_input(f"{key} cannot hold a NUL character.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise bad_input(f"{key} is no valid Unicode text: it cannot be kept as it is.") from None
    return value


def _command(key: str, value: object) -> str:
    text = unicode(key, value)
    if not text.strip():
        raise bad_input(f"{key} is empty: what is to be run?")
    return text


def _argv(key: str, value: object) -> list[str]:
    if not isinstance(value, (list, tuple)) or not value:
        refuse(key, value, "a list of a program and its arguments")
    return [
        _command("argv[0]", value[0]),
        *(unicode(f"argv[{at}]", one) for at, one in enumerate(value[1:], 1)),
    ]


def _id(key: str, value: object) -> str:
    if not isinstance(value, str) or _is_id(value) is None:
        refuse(key, value, ID_RULE)
    return value


def _whole(low: int, high: int) -> Callable[[str, object], int]:
    def number(key: str, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            refuse(key, value, f"a whole number from {low:,} to {high:,}")
        return value

    return number


def _span(low: float, *, may_be_none: bool = False) -> Callable[[str, object], float]:
    forms = "seconds, or a duration such as 90s, 5m, 2h or 7d" + (", or none" if may_be_none else "")

    def span(key: str, value: object) -> float:
        found = math.nan
        if isinstance(value, str):
            if may_be_none and value.strip().lower() == "none":
                return NO_LIMIT
            try:
                found = seconds(value)
            except ValueError:
                refuse(key, value, forms)
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LONGEST_SPAN:
            found = float(value)
        if not low <= found <= LONGEST_SPAN:
            refuse(key, value, f"{forms}, at least {low:g} and at most {LONGEST_SPAN:,.0f} s")
        return found

    return span


def moment(key: str, value: object) -> float:
    """Read a time; a LocalTime where it names no zone."""
    forms = "a time such as 2030-01-31T18:00:00Z, or epoch seconds"
    found = math.nan
    if isinstance(value, str) and _is_number(value) is None:
        from datetime import datetime

        try:
            time = datetime.fromisoformat(value)
            found = time.timestamp() if time.tzinfo is not None else LocalTime(time.timestamp())
        except (ValueError, OverflowError, OSError):
            refuse(key, value, forms)
    elif isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            found = float(value)
        except OverflowError:
            refuse(key, value, forms)
    if not 0 <= found < YEAR_10000:
        refuse(key, value, f"{forms}, in the years 1970 to 9999")
    return found


def name(key: str, value: object) -> str:
    """Check the name of a queue or a service."""
    if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_NAME or not value.isprintable():
        refuse(key, value, f"a name of 1 to {LONGEST_NAME} printable characters")
    return value


def _names(one: Callable[[str, object], str]) -> Callable[[str, object], list[str]]:
    def names(key: str, value: object) -> list[str]:
        if isinstance(value, str):
            return [one(key, value)]
        if not isinstance(value, (list, tuple)):
            refuse(key, value, "text, or a list of texts")
        return list(dict.fromkeys(one(key, each) for each in value))

    return names


def _key(key: str, value: object) -> str:
    text = unicode(key, value)
    if not 1 <= len(text) <= LONGEST_KEY:
        refuse(key, text, f"1 to {LONGEST_KEY} characters")
    return text


def _folder(key: str, value: object) -> str:
    text = unicode(key, value)
    if not text:
        refuse(key, text, "a folder")
    if is_address(text):
        refuse(key, plain(text), "a folder, and no address")
    return os.path.abspath(os.path.expanduser(text))  # noqa: PTH100, PTH111 (resolve() would follow links)


def _variables(key: str, value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        refuse(key, value, "an object of names and texts")
    for variable, text in value.items():
        if not variable or "=" in unicode(f"a name in {key}", variable):
            refuse(f"a name in {key}", variable, "a name without '='")
        unicode(f"{key} {said(variable)}", text)
    return value


CHECKS: dict[str, Callable[[str, object], Any]] = {
    "command": _command,
    "argv": _argv,
    "id": _id,
    "priority": _whole(-HIGHEST_PRIORITY, HIGHEST_PRIORITY),
    "max_retries": _whole(0, MOST_RETRIES),
    "timeout": _span(0.001, may_be_none=True),
    "delay": _span(0),
    "run_at": moment,
    "queue": name,
    "after": _names(_id),
    "key": _key,
    "uses": _names(name),
    "cwd": _folder,
    "env": _variables,
}
"""The keys of a job, and how each is checked."""
