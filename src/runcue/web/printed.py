"""The output of a command in pieces, without secrets, wherever a piece begins or ends.

Rules:
- A secret is recognized by the text before it on its line. So only whole lines are shown, from the line in which the
  piece begins, and they are masked together with the lines before them.
- An unfinished line is held back while its command runs.
- A line whose beginning or end is farther away than `AROUND` is hidden.
"""

from __future__ import annotations

import re

from msgspec import Struct

from runcue.web.rows import words
from runcue.web.shapes import Output

AROUND = 8 * 1024
"""Bytes before and after a piece in which the beginning and the end of its lines are looked for."""
HIDDEN = "***"
BREAK = re.compile(r"[\r\n]")


class Part(Struct, frozen=True):
    """Bytes of a stream: `data` begins at byte `begin`, the requested piece at byte `first`."""

    data: bytes
    begin: int
    first: int
    size: int
    """Bytes of the whole stream."""


def shown(part: Part, limit: int, is_over: bool) -> Output:
    """The lines in which the requested piece lies; `is_over` says that the command prints no more."""
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
    """Where the last line of the piece ends; None when its end is not in `data`."""
    data, is_all = part.data, is_over and part.begin + len(part.data) >= part.size
    if is_all and at + limit >= len(data):
        return len(data)
    last = _after_last(data, at, at + limit)
    if last:
        return last
    found = _after_first(data, at + limit)
    return len(data) if is_all and not found else found


def _text(data: bytes, start: int, is_whole: bool) -> str:
    """The masked text from `start` on; a first line that is not whole is hidden."""
    if is_whole:
        return _masked(data, start)
    first = _after_first(data, start)
    return HIDDEN if first is None else HIDDEN + data[first - 1 : first].decode() + _masked(data, first)


def _masked(data: bytes, first: int) -> str:
    """The masked text of the lines from `first` on; the lines before them are masked with them."""
    whole = words(data.decode("utf-8", "replace")) or ""
    ends = [found.end() for found in BREAK.finditer(whole)]
    if len(ends) != _breaks(data):  # a secret spans several lines: which masked line is which is not known
        return HIDDEN
    before = _breaks(data[:first])
    return whole[ends[before - 1] if before else 0 :]


def _breaks(data: bytes) -> int:
    return data.count(b"\n") + data.count(b"\r")


def _after_last(data: bytes, start: int, stop: int) -> int:
    """The position after the last line break between `start` and `stop`; 0 when there is none."""
    return max(data.rfind(b"\n", start, stop), data.rfind(b"\r", start, stop)) + 1


def _after_first(data: bytes, start: int) -> int | None:
    """The position after the first line break from `start` on; None when there is none."""
    found = [index for end in (b"\n", b"\r") if (index := data.find(end, start)) >= 0]
    return min(found) + 1 if found else None
