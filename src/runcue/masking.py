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
    r"(^|[^a-z])(auth|bearer|jwt|pin|otp|salt|dsn)([^a-z]|$)|(api|access|account|ssh|signing|encryption)[-_ ]?key",
    re.IGNORECASE,
)
COUNTED: Final = re.compile(r"(^|_)tokens(_|$)|^token_(count|limit|budget|usage)", re.IGNORECASE)
"""Tokens of a model are no secret."""
IN_URL: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]{0,30}://[^\s/:@]{0,256}:)[^\s/@]{1,1024}(@)")
IN_TEXT: Final = re.compile(
    r"((?:passw(?:or)?d|passphrase|secret|token|api[-_]?key|access[-_]?key|authorization)[\"']?\s{0,4}[=:]\s{0,4}"
    r"(?:bearer\s{1,4}|basic\s{1,4})?[\"']?)[^\s\"'&,;]{1,4096}",
    re.IGNORECASE,
)


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
    return IN_TEXT.sub(rf"\1{HIDDEN}", IN_URL.sub(rf"\1{HIDDEN}\2", text))
