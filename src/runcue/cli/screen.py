"""Everything that a command writes to a terminal, a pipe or a file.

Rules:
- Data goes to stdout, messages for people to stderr.
- Text from jobs passes `clean`: it cannot move a cursor, ring, set a title or change the direction of writing.
- Colour only where a terminal shows it (NO_COLOR, CLICOLOR_FORCE, `--color`), and always beside a word that says the
  same.
- On a terminal tables are aligned and fit: the first column stays whole as long as other columns can be shortened. In
  a pipe they are tab-separated, without a heading.
- JSON is UTF-8 in every locale. In other text, characters that the locale cannot show are spelled out.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO

import click
import msgspec

GAP = "  "
SMALL = 10
"""A column of at most this width is shown whole or left out."""
NARROWEST = 8
"""The width to which wider columns are shortened before columns are left out."""
LONGEST_NAME = 40
"""The width of the first column that is kept by leaving out other columns."""
LESS = ("PRIO", "TRIES", "PID", "SINCE", "TOOK", "DIED", "CIRCUIT", "RATE", "COMMAND", "TASK", "QUEUES")
"""The columns that are left out first, in this order; after them the last column."""

PIECE = 65536
"""Characters of a long document that are written at once."""
FEW = 3
"""How many jobs are named where there may be many."""

FIRST_ODD = "\u0300"
"""The first character whose width may be other than one column."""

STATE_COLORS = {
    "pending": "cyan",
    "processing": "blue",
    "running": "blue",
    "completed": "green",
    "failed": "yellow",
    "dead": "red",
    "cancelled": "bright_black",
    "alive": "green",
    "unresponsive": "yellow",
    "stopped": "yellow",
    "gone": "red",
}
_STYLE = re.compile(r"(\x1b\[[0-9;]*m)")
_ESCAPES = (
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*(?:[@-~]|$)|(?:\x1b[\]PX^_]|[\x9d\x90])[^\x07\x1b\n]*(?:\x07|\x1b\\|$)"
    r"|\x1b[ -/]*[0-~]|\x1b$"
)
"""A whole escape sequence, or one that the end of the text cuts off."""
_SIGNAL = r"signal:([A-Z0-9+-]+)"
_SPELLED = {"…": "...", "·": "-", "→": "->", "×": "x", "–": "-", "—": "-", "≤": "<=", "≥": ">="}
_HIDDEN = {*range(0x7F, 0xA0), *range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2070), 0xFEFF}
_JSON_SAFE = {code: f"\\u{code:04x}" for code in sorted(_HIDDEN)}


# text -----------------------------------------------------------------------------------------------------


def clean(text: str) -> str:
    """The text on one line, with characters that a terminal would obey or hide spelled out."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _spelled(character) for character in text)


def _spelled(character: str) -> str:
    if character.isspace() and ord(character) > 0x9F:
        return " "
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


def shown(path: object) -> str:
    """A path as people would type it, cleaned."""
    name = str(os.fspath(path) if isinstance(path, (str, os.PathLike)) else path)
    own = os.environ.get("HOME", "").rstrip("/")
    if own and (name == own or name.startswith(f"{own}/")):
        name = f"~{name[len(own) :]}"
    return clean(name)


def cut(text: str, width: int) -> str:
    """The text cut to that many columns, with … where it ends early."""
    if width_of(text) <= width:
        return text
    kept, left = [], width - 1
    for character in text:
        left -= width_of(character)
        if left < 0:
            break
        kept.append(character)
    return "".join(kept) + "…" if width > 0 else ""


def cut_middle(text: str, width: int) -> str:
    """The text cut to that many columns in its middle: similar names often differ only at their ends."""
    if width_of(text) <= width:
        return text
    end, left = "", width // 2
    for character in reversed(text):
        left -= width_of(character)
        if left < 0:
            break
        end = character + end
    return cut(text, width - width_of(end)) + end


def padded(text: str, width: int, seen: str | None = None) -> str:
    """The text filled up with blanks to that many columns; `seen` is a coloured text without its colour codes."""
    return text + " " * (width - width_of(text if seen is None else seen))


def cut_styled(text: str, width: int) -> str:
    """The text, which may be coloured, cut to that many columns; colour codes take no room."""
    if width_of(_STYLE.sub("", text)) <= width:
        return text
    parts, left = [], width
    for part in _STYLE.split(text):
        is_style = _STYLE.fullmatch(part) is not None
        parts.append(part if is_style else cut(part, left))
        left -= 0 if is_style else min(left, width_of(part))
    return "".join(parts)


def width_of(text: str) -> int:
    """How many columns a text takes: a wide sign takes two, an accent none."""
    if text.isascii() or max(text) < FIRST_ODD:
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(
        0 if combining(character) else 2 if east_asian_width(character) in "WF" else 1 for character in text
    )


def span(seconds: float) -> str:
    """A length of time for people: 15 ms, 0.4 s, 12 s, 4 m 10 s, 2 h 5 m, 3 d."""
    if seconds != seconds or seconds in (float("inf"), float("-inf")):  # noqa: PLR0124 (that is how NaN is told)
        return "?"
    if seconds < 0:
        return f"-{span(-seconds)}"
    if 0 < seconds < 0.1:
        return f"{max(1, round(seconds * 1000))} ms"
    if round(seconds, 1) < 10 and round(seconds, 1) != round(seconds):
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, name, part_size, part_name in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "m"),
        (60, "m", 1, "s"),
    ):
        if whole >= size:
            part = whole % size // part_size
            return f"{whole // size} {name}" + (f" {part} {part_name}" if part else "")
    return f"{whole} s"


def typed(name: str) -> str:
    """A name, quoted for a shell, as an argument of a command."""
    return f"-- {quoted(name)}" if name.startswith("-") else quoted(name)


def typed_with(name: str, options: str) -> str:
    """A name and options, quoted for a shell; a name that starts with - comes last."""
    return f"{options} {typed(name)}" if name.startswith("-") else f"{typed(name)} {options}"


def quoted(name: str) -> str:
    """A name, quoted for a shell, as the value of an option."""
    from shlex import quote

    return quote(clean(name))


def counted(number: int, what: str) -> str:
    """A number of things: 1 worker, 2,000 workers."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def listed(jobs: Sequence[str]) -> str:
    """The first few of these jobs, and how many more there are."""
    first = ", ".join(clean(job) for job in jobs[:FEW])
    return first if len(jobs) <= FEW else f"{first} and {len(jobs) - FEW:,} more"


def moment(epoch: float | None) -> str:
    """A time exactly as in the jobs view: ISO-8601, UTC, with milliseconds; nothing for None."""
    if epoch is None:
        return ""
    from datetime import UTC, datetime, timedelta

    try:
        found = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=(epoch * 1000 + 0.5) // 1)
    except (OverflowError, ValueError):
        return "?"
    return found.strftime("%Y-%m-%dT%H:%M:%S.") + f"{found.microsecond // 1000:03}Z"


def in_table(moment: str) -> str:
    """A time of `moment` in a table: to the second on a terminal, which has little room; as it is in a pipe."""
    return f"{moment[:10]} {moment[11:19]}Z" if moment and is_terminal() else moment


# where to -------------------------------------------------------------------------------------------------


def is_terminal() -> bool:
    """True when stdout is a terminal."""
    return _is_terminal(sys.stdout)


def _is_terminal(stream: IO[str] | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def is_dumb() -> bool:
    """True when the terminal can only print lines (TERM=dumb)."""
    return os.environ.get("TERM") == "dumb"


def columns() -> int:
    """The width of the terminal."""
    try:
        given = int(os.environ.get("COLUMNS", "0"))
    except ValueError:
        given = 0
    return given if given > 0 else _size().columns or 80


def lines() -> int:
    """The height of the terminal."""
    return _size().lines or 24


def _size() -> os.terminal_size:
    try:
        return os.get_terminal_size(sys.stdout.fileno())
    except (AttributeError, OSError, ValueError):
        return os.terminal_size((0, 0))


def has_color(stream: IO[str] | None) -> bool:
    """True when a stream takes colour: by --color, else NO_COLOR, else CLICOLOR_FORCE, else if it is a terminal."""
    context = click.get_current_context(silent=True)
    if context is not None and context.color is not None:
        return context.color
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("CLICOLOR_FORCE", "0") not in {"", "0"}:
        return True
    return _is_terminal(stream) and not is_dumb() and os.environ.get("CLICOLOR") != "0"


def _write(text: str, *, err: bool = False, end: str = "\n") -> None:
    stream = sys.stderr if err else sys.stdout
    if stream is None:
        return
    encoding = stream.encoding or "ascii"
    if not text.isascii() and encoding.lower().replace("_", "-") not in {"utf-8", "utf8"}:
        text = _spell(text, encoding)
    click.echo(text + end, err=err, nl=False, color=has_color(stream))


def _spell(text: str, encoding: str) -> str:
    from codecs import lookup

    try:
        lookup(encoding)
    except LookupError:
        encoding = "ascii"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        for sign, plain in _SPELLED.items():
            text = text.replace(sign, plain)
        return text.encode(encoding, "backslashreplace").decode(encoding)
    return text


def reason_of(error: str | None) -> str:
    """The first line of a job's error, without anything that a terminal would obey."""
    text = re.sub(_ESCAPES, "", error or "").removeprefix("CommandFailed: ").strip()
    if found := re.match(_SIGNAL, text):
        name = f"signal {found[1]}" if found[1].isdigit() else f"SIG{found[1]}"
        text = f"killed by {name}{text[found.end() :]}"
    return clean(text.partition("\n")[0].rstrip(" :")) or "unknown"


def say(text: str = "") -> None:
    """Print a line of data or a result. The caller has to clean text from elsewhere."""
    _write(text)


def flush() -> None:
    """Flush stdout; raises when it could not be written."""
    if sys.stdout is not None:
        sys.stdout.flush()


def note(text: str) -> None:
    """Print a message for people on stderr."""
    _write(text, err=True)


def warn(text: str) -> None:
    """Print a warning on stderr."""
    word = click.style("Warning:", fg="yellow", bold=True) if has_color(sys.stderr) else "Warning:"
    _write(f"{word} {text}", err=True)


def progress(text: str) -> None:
    """Show a line on a terminal's stderr that the next one replaces; "" removes it. Shows nothing in a pipe."""
    if _is_terminal(sys.stderr) and not is_dumb():
        _write(f"\r{cut(text, columns() - 1)}\x1b[K", err=True, end="")


def styled(text: str, *, fg: str | None = None, bold: bool = False, dim: bool = False) -> str:
    """The text in that style where stdout shows colour, and as it is elsewhere."""
    if not text or not (fg or bold or dim) or not has_color(sys.stdout):
        return text
    return click.style(text, fg=fg, bold=bold or None, dim=dim or None)


# shapes ---------------------------------------------------------------------------------------------------


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> int:
    """Clean and print rows: aligned under a heading on a terminal, tab-separated in a pipe. Returns their number.

    In a pipe each row is written as soon as it is read, as there may be any number of them.
    """
    cells = ([clean(cell) for cell in row] for row in rows)
    if is_terminal():
        known = list(cells)
        for line in aligned(columns, known) if known else ():
            say(line)
        return len(known)
    number = 0
    for row in cells:
        say("\t".join(row))
        number += 1
    return number


def aligned(heads: Sequence[str], rows: Sequence[Sequence[str]], indent: str = "") -> list[str]:
    """The lines of a table that fits the terminal: other columns give way to the first. In a pipe nothing is cut."""
    room = max(1, columns() - len(indent)) if is_terminal() else sys.maxsize
    widths = fitting(heads, [max(map(width_of, column)) for column in zip(heads, *rows, strict=True)], room)
    found = []
    for row in (heads, *rows):
        parts = []
        for place, width in widths.items():
            cell = row[place]
            text = cut(cell, width) if place or row is heads else cut_middle(cell, width)
            color = STATE_COLORS.get(cell) if heads[place] == "STATE" else None
            parts.append(padded(styled(text, fg=color, bold=row is heads), width, text))
        found.append((indent + GAP.join(parts)).rstrip())
    return found


def fitting(heads: Sequence[str], wanted: Sequence[int], room: int) -> dict[int, int]:
    """The width of each column that is shown, by its position, so that all fit into `room`."""
    least = [
        min(width, LONGEST_NAME if place == 0 else width if width <= SMALL else NARROWEST)
        for place, width in enumerate(wanted)
    ]
    widths = {place: min(width, room) for place, width in enumerate(wanted)}

    def over(each: Iterable[int]) -> int:
        return sum(each) + len(GAP) * (len(widths) - 1) - room

    spare = [heads.index(head) for head in LESS if head in heads]
    spare += [place for place in range(len(heads) - 1, 0, -1) if place not in spare]
    for place in spare:
        if over(least[kept] for kept in widths) > 0:
            del widths[place]
    while over(widths.values()) > 0:
        wide = [place for place, width in widths.items() if place and width > least[place]]
        widths[max(wide, key=widths.__getitem__, default=0)] -= 1
    return widths


def fitted(parts: Sequence[str], between: str, indent: int = 0) -> list[str]:
    """The parts, which may be coloured, on as few lines as the terminal allows; in a pipe on one."""
    room = columns() - indent if is_terminal() else sys.maxsize
    found = [parts[0]] if parts else []
    for part in parts[1:]:
        longer = found[-1] + between + part
        if width_of(_STYLE.sub("", longer)) <= room:
            found[-1] = longer
        else:
            found.append(part)
    return found


@contextmanager
def live() -> Iterator[Callable[[Sequence[str]], None]]:
    """Switch to an alternate screen and yield a function that redraws it; at the end the last picture is printed."""
    last: list[Sequence[str]] = [()]

    def draw(picture: Sequence[str]) -> None:
        fitting = [cut_styled(line, columns()) for line in picture[: lines() - 1]]
        if fitting != last[0]:
            last[0] = fitting
            _write("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in fitting) + "\x1b[J", end="")
            sys.stdout.flush()

    _write("\x1b[?1049h\x1b[?25l", end="")
    try:
        yield draw
    finally:
        _write("\x1b[?25h\x1b[?1049l", end="")
        for line in last[0]:
            say(line)


def show_json(value: object, *, pretty: bool = True) -> None:
    """Print a JSON document that no terminal obeys: on one line in a pipe, indented on a terminal."""
    _write_json(_json_of(value, pretty=pretty and is_terminal()) + "\n")


def show_json_array(values: Iterable[object]) -> int:
    """Print a JSON array of any length, element by element; returns the number of elements."""
    pretty, number, text = is_terminal(), 0, "["
    for value in values:
        one = _json_of(value, pretty=pretty)
        text += "," if number else ""
        text += "\n  " + one.replace("\n", "\n  ") if pretty else one
        number += 1
        if len(text) > PIECE:
            _write_json(text)
            text = ""
    _write_json(text + ("\n]\n" if pretty and number else "]\n"))
    return number


def show_csv(columns: Sequence[str], values: Iterable[Mapping[str, object]]) -> int:
    """Print dicts as CSV under a heading, row by row; what is no text or number is JSON. Returns their number."""
    import csv
    import io

    number, text = 0, io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(columns)
    for value in values:
        rows.writerow([_cell(value.get(name)) for name in columns])
        number += 1
        if text.tell() > PIECE:
            _write_json(text.getvalue())
            text.seek(0)
            text.truncate()
    _write_json(text.getvalue())
    return number


def _cell(value: object) -> object:
    """A value in CSV."""
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    return clean(value) if isinstance(value, str) else _json_of(value, pretty=False)


def _json_of(value: object, *, pretty: bool) -> str:
    data = msgspec.json.encode(value)
    if pretty:
        data = msgspec.json.format(data, indent=2)
    return data.decode().translate(_JSON_SAFE)


def _write_json(text: str) -> None:
    if sys.stdout is not None:
        click.echo(text.encode(), nl=False)
