"""Texts as PostgreSQL can keep them: it takes every sign but NUL, which is written as two others here.

The sign that begins such a pair is one for private use, and is written as a pair itself.
"""

from __future__ import annotations

from typing import Final

SIGN: Final = "\uf8ff"


def escaped(text: str) -> str:
    """A text without NUL."""
    if "\0" not in text and SIGN not in text:
        return text
    return text.replace(SIGN, f"{SIGN}1").replace("\0", f"{SIGN}0")


def unescaped(text: str) -> str:
    """The text that `escaped` was given."""
    if SIGN not in text:
        return text
    return text.replace(f"{SIGN}0", "\0").replace(f"{SIGN}1", SIGN)
