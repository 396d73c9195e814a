"""What a command printed, as text: whole characters, the last line, and the end of a stream that arrives in parts."""

from __future__ import annotations

import re

KEEP = 64 * 1024
"""Bytes of each stream, from its end, that become the result."""
LINE = 200
"""Characters of a line that are reported as progress."""


def as_text(data: bytes, *, is_cut: bool) -> str:
    """Printed bytes as text; where the beginning was cut off, it begins with a whole character."""
    if is_cut:
        data = data[next((at for at, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0) :]
    return data.decode("utf-8", "backslashreplace")


def last_line(text: str) -> str:
    """The last line of a text that is not blank, fit for a terminal."""
    return next(filter(None, map(shown, reversed(re.split(r"[\r\n]+", text)))), "")


def shown(text: str) -> str:
    """A text as one short line without control characters."""
    text = "".join(character if character.isprintable() else " " for character in text).strip()
    return text if len(text) <= LINE else text[:LINE] + "…"


class Tail:
    """Keeps the last bytes of a stream that arrives in parts."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._is_cut = False

    def add(self, data: bytes) -> None:
        """Append a part."""
        self._kept += data
        if len(self._kept) > 2 * KEEP:
            del self._kept[:-KEEP]
            self._is_cut = True

    def text(self) -> str:
        """The last bytes as text, beginning with a whole character."""
        return as_text(bytes(self._kept[-KEEP:]), is_cut=self._is_cut or len(self._kept) > KEEP)

    def last_line(self, *, is_whole: bool = False) -> str:
        """The last line that is not blank; with `is_whole`, the last that has ended."""
        data = bytes(self._kept[-8 * LINE :])
        if is_whole:
            data = data[: data.rfind(b"\n") + 1]
        return last_line(as_text(data, is_cut=True))
