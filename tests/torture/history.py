"""What was seen: lines that every actor appends to a file of its own.

A line is one JSON object and one `write()` to a file opened with O_APPEND: what was written before a kill -9 stays
in the page cache, and the last line of a killed actor may be torn. Nothing here asks the queue; a history holds
only calls, answers, and what handlers witnessed. Actors have names that are never used twice, pids may be.

The operations, and what their lines carry:

    submit   invoke, ok, fail   data: tags (one for each item, from its params), key, deps; ok: ids in order
    cancel   invoke, ok, fail   work; ok: data answer
    look     ok                 work, data state: what `get()` said
    start    info               witness: work, attempt, services, token, data task, tag
    end      info               witness: the same token, data outcome ok/fail/stopped
    up       info               this actor is a worker and runs from now on
    down     info               this actor starts nothing from now on
    stop     info               somebody stopped (SIGSTOP) the actor in data target
    go       info               and let it go on (SIGCONT)
    death    info               data target, after (the earliest it can have died), clean (it ended by itself)
    share    info               data since, share: what part of that time the machine left to the actors;
                                spent: the processor time that all actors had so far
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

Kind = Literal["invoke", "ok", "fail", "info"]

CLOCK: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
ENDING: Final = ".history"


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that happened, as one actor saw it."""

    t: float
    pid: int
    actor: str
    kind: Kind
    op: str
    call: int = 0
    """Joins an answer to its invocation, within one actor."""
    work: str | None = None
    attempt: int = 0
    token: str | None = None
    services: tuple[str, ...] = ()
    data: dict[str, Any] = msgspec.field(default_factory=dict)


class TornHistory(ValueError):
    """Says that a line other than the last of a file cannot be read."""


def now() -> float:
    """Seconds on a clock that all processes of this host share and that never jumps."""
    return time.monotonic() if CLOCK is None else time.clock_gettime(CLOCK)


class Log:
    """One actor's file of lines."""

    def __init__(self, folder: Path, actor: str) -> None:
        self.actor = actor
        self._calls = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        self._file = os.open(folder / f"{actor}{ENDING}", flags, 0o600)
        self._pid = os.getpid()

    def write(
        self,
        kind: Kind,
        op: str,
        *,
        call: int = 0,
        work: str | None = None,
        attempt: int = 0,
        token: str | None = None,
        services: tuple[str, ...] = (),
        t: float | None = None,
        **data: Any,
    ) -> Line:
        """Append one line; the time is taken first."""
        moment = now() if t is None else t
        line = Line(moment, self._pid, self.actor, kind, op, call, work, attempt, token, services, data)
        text = msgspec.json.encode(line, enc_hook=str) + b"\n"  # a handle is its id
        if os.write(self._file, text) != len(text):
            raise OSError(f"the history of {self.actor} is cut short: is the disk full?")
        return line

    def invoke(self, op: str, *, work: str | None = None, **data: Any) -> int:
        """Say that a call is about to be made; the number its answer is to carry."""
        self._calls += 1
        self.write("invoke", op, call=self._calls, work=work, **data)
        return self._calls

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


def read(folder: Path) -> list[Line]:
    """Every line of every actor, in the order of time; a torn last line counts as not written."""
    lines: list[Line] = []
    for file in sorted(folder.glob(f"*{ENDING}")):
        lines += _read_one(file)
    lines.sort(key=lambda line: line.t)
    return lines


def _read_one(file: Path) -> list[Line]:
    *whole, torn = file.read_bytes().split(b"\n")
    decoder = msgspec.json.Decoder(Line)
    try:
        lines = [decoder.decode(text) for text in whole]
    except msgspec.DecodeError as error:
        raise TornHistory(f"{file.name}: {error}") from error
    if torn:
        try:
            lines.append(decoder.decode(torn))
        except msgspec.DecodeError:
            return lines
    return lines
