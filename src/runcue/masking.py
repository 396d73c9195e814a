"""Hides secrets in what people are shown: pages, command lines, logs.

A value is hidden for the name it stands under, a password in a URL for its place. It is better to hide too much than
too little: who needs the value can read the queue itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

HIDDEN: Final = "***"
DEEPEST: Final = 100
SECRET: Final = re.compile(
    r"passw|passphrase|pwd|secret|token|credential|authorization|cookie|session|signature|private|"
    r"(^|[^a-z])(auth|bearer|jwt|pass|pin|otp|salt|dsn)([^a-z]|$)|"
    r"(api|access|account|ssh|signing|encryption)[-_ ]?key",
    re.IGNORECASE,
)
COUNTED: Final = re.compile(r"(^|_)tokens(_|$)|^token_(count|limit|budget|usage)", re.IGNORECASE)
"""Tokens of a model are no secret."""

WORD: Final = (
    r"(?:passw(?:or)?d|passphrase|pwd|secret|token(?!s\b|s?[-_]?(?:count|limit|budget|usage|used|left))|"
    r"(?:api|access|private)[-_]?key|credentials?|authorization)[\w.-]{0,24}"
)
"""What stands before a secret inside a text."""
VALUE: Final = r"""("(?:[^"\\\n]|\\.){0,4096}"|'(?:[^'\\\n]|\\.){0,4096}'|["']?[^\s&"']{1,4096})"""
NAMED: Final = re.compile(
    rf"""({WORD}["']?\s{{0,4}}[=:]\s{{0,4}}(?:(?:bearer|basic)\s{{1,4}})?){VALUE}""", re.IGNORECASE
)
OPTION: Final = re.compile(rf"((?<![-\w])--[\w-]{{0,40}}?{WORD}\s{{1,4}}){VALUE}", re.IGNORECASE)
BEARER: Final = re.compile(r"(\bbearer\s{1,4})([\w.~+/=-]{8,4096})", re.IGNORECASE)
COOKIE: Final = re.compile(r"""(\b(?:set-)?cookie["']?\s{0,4}:\s{0,4})([^\r\n]{1,4096})""", re.IGNORECASE)
IN_URL: Final = re.compile(r"(\w://[^\s/:@]{0,256}:)((?!\d{1,5}/)[^\s@]{1,256})(?=@)")
ALONE_IN_URL: Final = re.compile(r"(\w://)([^\s/:@]{16,256})(?=@)")


def mask(value: Any) -> Any:
    """The same with `***` in place of secrets, in nested dicts and lists and inside texts."""
    return _masked(value, 0)


def _masked(value: Any, depth: int) -> Any:
    if depth > DEEPEST:
        return HIDDEN
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return {
            key: HIDDEN if is_secret(key) and one not in (None, "", False, True) else _masked(one, depth + 1)
            for key, one in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_masked(one, depth + 1) for one in value]
    return value


def is_secret(name: object) -> bool:
    """True when what stands under that name is nobody's business."""
    return isinstance(name, str) and SECRET.search(name) is not None and COUNTED.search(name) is None


def _text(text: str) -> str:
    for pattern in (IN_URL, ALONE_IN_URL, COOKIE, NAMED, OPTION, BEARER):
        text = pattern.sub(_hidden, text)
    return text


def _hidden(found: re.Match[str]) -> str:
    quote = found[2][0] if found[2][0] in "\"'" and found[2][0] == found[2][-1] else ""
    return f"{found[1]}{quote}{HIDDEN}{quote}"
