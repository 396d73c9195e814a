"""`queuectl logs` and `runcue logs`: what a job printed, from the files beside the queue.

Rules:
- What a job printed to stdout goes to our stdout, what it printed to stderr to our stderr. A stream that `--stdout`
  or `--stderr` selects goes to stdout. So a pipe gets what the job would have written into it.
- Output is made safe for a terminal: colours are removed, other control characters are spelled out, and a carriage
  return ends a line, because it could hide one. A pipe gets the same, unless `--raw` is given.
"""

from __future__ import annotations

import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import click

from runcue.cli.completion import any_job, any_work
from runcue.cli.failure import bad_input, not_found
from runcue.cli.groups import F, declared, verb
from runcue.cli.home import Home
from runcue.cli.lookup import the_job
from runcue.cli.place import File, Place, on_file
from runcue.cli.screen import clean, counted, is_terminal, note, say, styled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runcue import Reader, Work

PIECE = 1024 * 1024
LONGEST_LINE = 64 * 1024
"""Bytes of a line without an end that are held back at most."""
SHORTEST = 0.05
LONGEST = 0.25
"""Seconds between two looks at a job that is followed."""
TELL_EVERY = 1.0
"""Seconds between two messages about missing output."""

_sequence = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_breaks = re.compile(rb"\r\n|\n|\r")


def _options(one: str) -> Callable[[F], F]:
    at = "Which attempt to show.  [default: the last]"
    return declared(
        click.option("-f", "--follow", is_flag=True, help=f"Keep printing until the {one} has ended."),
        click.option("--stdout", "stream", flag_value="stdout", help="Only what it printed to stdout."),
        click.option(
            "--stderr", "stream", flag_value="stderr", help="Only what it printed to stderr, on stdout."
        ),
        click.option("--attempt", type=click.IntRange(1), metavar="N", help=at),
        click.option(
            "-n", "--lines", type=click.IntRange(0, 10_000_000), metavar="N", help="Only the last N lines."
        ),
        click.option(
            "--raw", is_flag=True, help="Print the bytes as they are, whatever they do to a terminal."
        ),
    )


@verb(
    "logs",
    examples=[
        "queuectl logs job1",
        "queuectl logs job1 --follow",
        "queuectl logs job1 --stderr --lines 20",
        "queuectl logs job1 --stdout --raw > result.bin",
    ],
)
@click.argument("id", shell_complete=any_job)
@_options("job")
@click.pass_obj
def command(home: Home, /, id: str, **flags: Any) -> None:
    """Show what a job printed, in its last attempt or an earlier one.

    Its stdout goes to stdout and its stderr to stderr. Control characters are
    spelled out, in a pipe as on a terminal; --raw leaves them.
    """
    _logs(home, id, **flags)


@on_file("logs", examples=["runcue logs queue.db build-3", "runcue logs queue.db build-3 --follow"])
@click.argument("id", shell_complete=any_work)
@_options("unit")
def logs(place: File, id: str, **flags: Any) -> None:
    """Show what the command of a unit printed, in its last attempt or an earlier one.

    Its stdout goes to stdout and its stderr to stderr. What functions print goes to their program. Control characters
    are spelled out, in a pipe as on a terminal; --raw leaves them.
    """
    _logs(place, id, **flags)


def _logs(
    place: Place, id: str, follow: bool, stream: str | None, attempt: int | None, lines: int | None, raw: bool
) -> None:
    if follow and attempt is not None:
        raise bad_input(
            f"--follow goes with the {place.words.one} from attempt to attempt. Leave --attempt out."
        )
    with the_job(place, id) as (reader, work, _):
        if attempt is not None and attempt > work.attempt:
            has_run = work.started_at is not None or bool(work.history)
            last = f"the last is {work.attempt}" if has_run else "it has not run yet"
            raise not_found(f"{id} has had no attempt {attempt}: {last}.")
        printed = _Printed(reader, id, stream, raw)
        printed.show(attempt or work.attempt, lines)
        if follow:
            work = _followed(reader, work, printed)
        printed.finish()
        if not printed.has_shown:
            is_shared = isinstance(place, File) and place.is_server
            note(_nothing(work, attempt, _elsewhere(reader, work) if is_shared else ""))


def _followed(reader: Reader, work: Work, printed: _Printed) -> Work:
    """Show what a job prints until it has ended; returns the ended job."""
    pause = SHORTEST
    while not work.state.is_final:
        time.sleep(pause)
        found = reader.get(work.id)
        if found is None:
            raise not_found(f"{work.id} is gone: it was purged, or is no longer kept.")
        if found.attempt != work.attempt:
            printed.show(work.attempt)
            printed.finish()
            note(f"Attempt {found.attempt}")
        work = found
        pause = SHORTEST if printed.show(work.attempt) else min(pause * 1.5, LONGEST)
    return work


def _elsewhere(reader: Reader, work: Work) -> str:
    """Where else output may be: each host that shares a queue keeps what its own commands printed."""
    host = next((one["host"] for one in reader.workers() if one["id"] == work.worker), None)
    return ", or it lies on the host that ran it" if host is None else f", or it lies on {clean(host)}"


def _nothing(work: Work, attempt: int | None, where: str) -> str:
    if work.state.is_final or (attempt is not None and attempt < work.attempt):
        return f"{work.id} printed nothing, or it is no longer kept{where}."
    state = "running" if work.state == "running" else "not running"
    return f"{work.id} has printed nothing yet{where}: it is {state}."


class _Printed:
    """Shows the streams of a job piece by piece."""

    def __init__(self, reader: Reader, id: str, stream: str | None, raw: bool) -> None:
        self._reader = reader
        self._id = id
        self._raw = raw
        self._names = ("stdout", "stderr") if stream is None else (stream,)
        self._attempt = 0
        self._at: dict[str, int] = {}
        self._left: dict[str, bytes] = {}
        self._lost: dict[str, int] = {}
        """Bytes of a stream that were deleted before they were read; `_told` is how many of them were reported."""
        self._told: dict[str, int] = {}
        self._tell_at = 0.0
        self._last = ""
        self.has_shown = False

    def show(self, attempt: int, lines: int | None = None) -> bool:
        """Show what is new of that attempt, or only its last lines; returns True when there was anything."""
        if attempt != self._attempt:
            self._attempt, self._at = attempt, {}
        is_new = False
        for name in self._names:
            pieces = self._pieces(name)
            for piece in pieces if lines is None else _last_lines(pieces, lines):
                is_new = self.has_shown = True
                self._put(name, piece)
        return is_new

    def finish(self) -> None:
        """Show what was held back because its line has no end, and report missing output."""
        for name in self._names:
            if rest := self._left.pop(name, b""):
                self._write(name, rest)
            if self._lost.get(name) != self._told.get(name):
                self._tell_lost(name, is_last=True)
        self._lost, self._told = {}, {}

    def _pieces(self, name: str) -> Iterator[bytes]:
        while True:
            start = self._at.get(name, 0)
            found = self._reader.output(self._id, name, attempt=self._attempt, start=start, limit=PIECE)
            if not found.data:
                return
            if found.start > start:
                self._lost[name] = self._lost.get(name, 0) + found.start - start
                self._tell_lost(name)
            self._at[name] = found.end
            yield found.data

    def _tell_lost(self, name: str, *, is_last: bool = False) -> None:
        """Report how much of a stream is missing, at most every `TELL_EVERY` seconds."""
        now = time.monotonic()
        if name in self._lost and (is_last or now >= self._tell_at):
            verb = "is" if self._lost[name] == 1 else "are"
            note(f"({counted(self._lost[name], 'byte')} of {name} {verb} no longer kept)")
            self._tell_at = now + TELL_EVERY
            self._told[name] = self._lost[name]

    def _put(self, name: str, piece: bytes) -> None:
        if self._raw:
            self._write_raw(name, piece)
            return
        data = self._left.pop(name, b"") + piece
        end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1  # a last \r may be half of \r\n
        if len(data) - end > LONGEST_LINE:
            end = len(data)
        if end:
            self._write(name, data[:end])
        if end < len(data):
            self._left[name] = data[end:]

    def _write(self, name: str, data: bytes) -> None:
        lines = _breaks.split(data.removesuffix(b"\n").removesuffix(b"\r"))
        text = "\n".join(map(safe, lines))
        self._head(name)
        (note if name == "stderr" and len(self._names) > 1 else say)(text)

    def _write_raw(self, name: str, data: bytes) -> None:
        stream = sys.stderr if name == "stderr" and len(self._names) > 1 else sys.stdout
        if stream is not None:
            stream.buffer.write(data)
            stream.buffer.flush()

    def _head(self, name: str) -> None:
        """Print the name of the stream where both go to one terminal."""
        if name != self._last and len(self._names) > 1 and is_terminal():
            if self._last or name == "stderr":
                note(styled(f"--- {name} ---", dim=True))
            self._last = name


def safe(line: bytes) -> str:
    """A line of output that no terminal obeys."""
    text = line.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "\t".join(map(clean, _sequence.sub("", text).split("\t")))


def _last_lines(pieces: Iterator[bytes], number: int) -> Iterator[bytes]:
    """The last lines of a stream; no more than those are kept in memory."""
    kept: deque[bytes] = deque(maxlen=number)
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        kept.extend(line + b"\n" for line in whole)
    if rest:
        kept.append(rest)
    if kept:
        yield b"".join(kept)
