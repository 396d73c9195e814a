"""Hides secrets in the texts that people see: pages, command lines, logs.

A value is hidden because of its name, a password in a URL because of its place. To hide too much is better than to
hide too little: a person who needs the value can read the queue itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

HIDDEN: Final = "***"
DEEPEST: Final = 100
SECRET: Final = re.compile(
    r"passw|pass_?(phrase|code|key)|pwd|secret|token|credential|authorization|cookie|session|signature|private|"
    r"(^|[^a-z])((auth(?!or)|bearer|jwt|otp)|(pass|pin|salt|dsn)([^a-z]|$))|"
    r"(api|access|account|ssh|signing|encryption)[-_ ]?key",
    re.IGNORECASE,
)
IN_CAPITALS: Final = re.compile(r"[A-Z0-9_]_(KEY|PW|PASS)$")
COUNTED: Final = re.compile(r"(^|_)tokens(_(?!secret)|$)|^token_(count|limit|budget|usage)", re.IGNORECASE)
"""Names that count the tokens of a language model, which are no secret."""
ENVIRONMENT: Final = frozenset({"env", "environ", "environment"})
"""Names under which a whole mapping is secret."""

WORD: Final = (
    r"(?:passw(?:or)?d|pass_?(?:phrase|code)|pwd|secret|"
    r"token(?!s\b|s?[-_]?(?:count|limit|budget|usage|used|left))|"
    r"(?:api|access|private)[-_]?key|credentials?|authorization)[\w.-]{0,24}"
)
"""The name before a secret inside a text."""
VALUE: Final = (
    r"""(\\["'][^"'\n]{0,4096}\\["']|(?:"(?:[^"\\\n]|\\.){0,4096}"|'(?:[^'\\\n]|\\.){0,4096}'){1,8}|"""
    r"""["']?[^\s&"']{1,4096})"""
)
SAID: Final = r"""(?:\\?["']?\s{0,4}[=:]|["'],)\s{0,4}"""
"""The separator between name and value."""
IN_TEXT: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(\w://[^\s/:@]{0,256}:)([^\s/]{1,256})(?=@)",
        r"(\w://[^\s/:@]{0,256}:)((?!\d{1,5}/)[^\s@]{1,256})(?=@)",
        r"(https?://)((?!git@)[^\s/:@]{1,256})(?=@)",
        r"""(\b(?:set-)?cookie["']?\s{0,4}:\s{0,4})("[^"\n]{0,4096}"|'[^'\n]{0,4096}'|[^\r\n]{1,4096})""",
        rf"({WORD}{SAID}(?:(?:bearer|basic)\s{{1,4}})?){VALUE}",
        rf"((?<![-\w])--[\w-]{{0,40}}?{WORD}\s{{1,4}}){VALUE}",
        r"((?<![-\w])-u\s{1,4}[^\s:]{1,64}:)(\S{1,4096})",
        r"""([?&](?:sig|signature|key|auth|code|x-amz-signature|x-amz-security-token)=)([^\s&"']{1,4096})""",
        r"(\bbearer\s{1,4})([\w.~+/=-]{6,4096})",
    )
)


def mask(value: Any) -> Any:
    """A copy of the value with `***` in place of secrets, in nested dicts and lists and inside texts."""
    return _masked(value, 0)


def _masked(value: Any, depth: int) -> Any:
    if depth > DEEPEST:
        return HIDDEN
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return {key: _under(key, one, depth) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        if len(value) == 2 and isinstance(value[1], str) and is_secret(value[0]):  # a header, say
            return [value[0], HIDDEN]
        return [_masked(one, depth + 1) for one in value]
    return value


def _under(name: object, value: Any, depth: int) -> Any:
    """The masked form of a value under this name."""
    if is_secret(name):
        return value if value is None or value == "" or isinstance(value, bool) else HIDDEN
    if isinstance(name, str) and name.lower() in ENVIRONMENT and isinstance(value, Mapping):
        return dict.fromkeys(value, HIDDEN)
    return _masked(value, depth + 1)


def is_secret(name: object) -> bool:
    """True when a value under this name is a secret."""
    if not isinstance(name, str):
        return False
    is_named_so = SECRET.search(name) is not None or IN_CAPITALS.search(name) is not None
    return is_named_so and COUNTED.search(name) is None


def _text(text: str) -> str:
    for pattern in IN_TEXT:
        text = pattern.sub(_hidden, text)
    return text


def _hidden(found: re.Match[str]) -> str:
    value = found[2]
    if value[0] == "\\" and value[-1] in "\"'":
        return f"{found[1]}{value[:2]}{HIDDEN}{value[-2:]}"
    quote = value[0] if value[0] in "\"'" and value[0] == value[-1] else ""
    return f"{found[1]}{quote}{HIDDEN}{quote}"
