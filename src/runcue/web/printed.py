"""What a command printed, a piece at a time, with secrets hidden wherever a piece begins or ends.

Rules:
- A secret is recognized by what stands before it on its line. So only whole lines are shown, from the line in which
  the piece begins to the end of a line, and they are masked together with the lines before them.
- An unfinished line is held back while its command runs.
- A line whose beginning or end is too far away to be read is hidden.
"""

from __future__ import annotations

import re

from msgspec import Struct

from runcue.web.rows import words
from runcue.web.shapes import Output

AROUND = 8 * 1024
"""Bytes in which the beginning and the end of a line are looked for, before a piece and after it."""
HIDDEN = "***"
BREAK = re.compile(r"[\r\n]")


class Part(Struct, frozen=True):
    """Bytes of a stream: `data` from byte `begin` on, in which the piece that was asked for starts at `first`."""

    data: bytes
    begin: int
    first: int
    size: int
    """Of all that was printed."""


def shown(part: Part, limit: int, is_over: bool) -> Output:
    """The lines of that part in which the piece lies; `is_over` when its command prints no more."""
    data, at = part.data, part.first - part.begin
    if part.first >= part.size:
        return Output(text="", start=part.size, end=part.size, size=part.size)
    line = _after_last(data, 0, at)
    is_whole = line > 0 or part.begin == 0
    start = line if is_whole else at
    stop = _end_of_lines(part, at, limit, is_over)
    if stop is not None:
        text = _text(data[:stop], start, is_whole)
    elif not is_over and part.begin + len(data) >= part.size and len(data) - start <= AROUND:
        text, stop = "", start
    else:
        text, stop = HIDDEN, min(len(data), at + limit)
    return Output(text=text, start=part.begin + start, end=part.begin + stop, size=part.size)


def _end_of_lines(part: Part, at: int, limit: int, is_over: bool) -> int | None:
    """Where the last line of the piece ends; None when that is not to be seen."""
    data, is_all = part.data, is_over and part.begin + len(part.data) >= part.size
    if is_all and at + limit >= len(data):
        return len(data)
    last = _after_last(data, at, at + limit)
    if last:
        return last
    found = _after_first(data, at + limit)
    return len(data) if is_all and not found else found


def _text(data: bytes, start: int, is_whole: bool) -> str:
    """What is shown of these bytes from `start` on; without the rest of the first line, if that is not whole."""
    if is_whole:
        return _masked(data, start)
    first = _after_first(data, start)
    return HIDDEN if first is None else HIDDEN + data[first - 1 : first].decode() + _masked(data, first)


def _masked(data: bytes, first: int) -> str:
    """What is shown from the line on that begins at `first`, judged together with what is before it."""
    whole = words(data.decode("utf-8", "replace")) or ""
    ends = [found.end() for found in BREAK.finditer(whole)]
    if len(ends) != _breaks(data):  # what was hidden went across lines: which is which cannot be told
        return HIDDEN
    before = _breaks(data[:first])
    return whole[ends[before - 1] if before else 0 :]


def _breaks(data: bytes) -> int:
    return data.count(b"\n") + data.count(b"\r")


def _after_last(data: bytes, start: int, stop: int) -> int:
    """Where the line after the last end of a line there begins; 0 when there is none."""
    return max(data.rfind(b"\n", start, stop), data.rfind(b"\r", start, stop)) + 1


def _after_first(data: bytes, start: int) -> int | None:
    """Where the line after the first end of a line begins; None when there is none."""
    found = [index for end in (b"\n", b"\r") if (index := data.find(end, start)) >= 0]
    return min(found) + 1 if found else None
