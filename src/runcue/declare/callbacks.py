"""Ready-made callbacks, for `cue.priority(…)` and `cue.dependency_satisfied(…)`.

Rules:
- Whatever becomes part of a path or a statement is checked when the callback is made: places are `{id}` and `{task}`
  only, identifiers are plain words. What comes later, with an id, is only a value.
- A file counts only if it is under its base after all links are followed.
- A database is opened read-only and has a tenth of a second to answer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from runcue.core.model.parse import LONGEST_NAME, number
from runcue.core.model.record import PriorityContext
from runcue.errors import ConfigError, InvalidOption
from runcue.host.address import is_address, plain

HALF_WAY: Final = 3600.0
"""A unit that has waited this long, one hour, scores 0.5."""

ANSWER_WITHIN: Final = 0.1
STEPS_BETWEEN_LOOKS: Final = 1000

_place = re.compile(r"\{(id|task)\}")
_identifier = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}", re.ASCII).fullmatch


# --- Priority -------------------------------------------------------------------------------------


def priority_by_wait_time(ctx: PriorityContext) -> float:
    """Start the unit that waited longest first: its score grows from 0 towards 1, and is 0.5 after an hour."""
    waited = max(0.0, ctx.wait_time)
    return waited / (waited + HALF_WAY)


def priority_constant(score: float) -> Callable[[PriorityContext], float]:
    """Give every unit the same score, so that the order of submission decides."""
    constant = number(score, "score", low=0, high=1)

    def priority(ctx: PriorityContext) -> float:
        return constant

    return priority


# --- Dependencies: a file exists ------------------------------------------------------------------


class FileCheck(msgspec.Struct, frozen=True):
    """A callback that counts a dependency as satisfied when its output exists."""

    pattern: str
    base: str

    @property
    def wants_task(self) -> bool:
        """True when the pattern needs the task's name beside the id."""
        return "{task}" in self.pattern

    def __call__(self, work_id: str, task: str | None = None) -> bool:
        """True when the file of that unit exists under the base, all links followed."""
        if self.wants_task and task is None:
            return False  # an unknown unit has no output
        values = {"id": work_id, "task": task or ""}
        used = _place.findall(self.pattern)
        if not all(_is_plain(values[key]) for key in used):
            return False
        relative = _place.sub(lambda place: values[place[1]], self.pattern)
        return not _climbs(relative) and _exists_under(self.base, relative)


def dependency_check_file(pattern: str, base: str | os.PathLike[str] = ".") -> FileCheck:
    """Check for a file under `base`, as in `dependency_check_file("done/{task}/{id}.json")`.

    An id that is no plain file name (it has a slash, or is "..") is never satisfied.
    """
    return FileCheck(_pattern(pattern), _path(base, "base", "a folder, as text or a Path"))


def _pattern(value: object) -> str:
    if not isinstance(value, str) or not _place.search(value):
        raise InvalidOption("pattern", value, "text with the place {id} in it, as in 'done/{id}.json'")
    rest = _place.sub("x", value)
    if "{" in rest or "}" in rest or not rest.isprintable():
        raise InvalidOption("pattern", value, "no other place than {id} and {task}, and printable text")
    if _climbs(rest) or rest[0] in "/\\" or ":" in rest[:2]:
        raise InvalidOption("pattern", value, "a path below base, without '..'; base= may be any folder")
    return str.__str__(value)


def _path(value: object, option: str, expected: str) -> str:
    from pathlib import Path

    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidOption(option, value, expected)
    if is_address(text):
        raise InvalidOption(option, plain(text), f"{expected}, and no address")
    return str(Path(text).absolute())


def _is_plain(value: object) -> bool:
    """True for a name of one file, without a separator."""
    is_name = isinstance(value, str) and 1 <= len(value) <= LONGEST_NAME and value.isprintable()
    return is_name and not any(sign in str(value) for sign in "/\\")


def _climbs(path: str) -> bool:
    return any(part in {".", ".."} for part in re.split(r"[/\\]", path))


def _exists_under(base: str, relative: str) -> bool:
    from pathlib import Path

    try:
        root = Path(base).resolve(strict=True)
        return (root / relative).resolve(strict=True).is_relative_to(root)
    except (FileNotFoundError, NotADirectoryError):
        return False


# --- Dependencies: a row exists -------------------------------------------------------------------


class DatabaseCheck(msgspec.Struct, frozen=True):
    """A callback that counts a dependency as satisfied when a table has a row with its id."""

    table: str
    column: str
    database: str | None = None

    def bind(self, path: str | None) -> DatabaseCheck:
        """The check for a Cue whose own file is `path` (None when it has none), ready to be called."""
        database = self.database or path
        if database is None:
            raise ConfigError(
                "dependency_check_db has no database: this Cue is in no file. "
                "Name one: dependency_check_db(table, column, database='results.db')."
            )
        _driver()
        return DatabaseCheck(self.table, self.column, database)

    def __call__(self, work_id: str) -> bool:
        """True when there is such a row; a missing file or table raises."""
        if self.database is None:
            raise ConfigError("dependency_check_db was never given a database. Name one with database=….")
        apsw = _driver()
        connection = apsw.Connection(self.database, flags=apsw.SQLITE_OPEN_READONLY)
        try:
            connection.set_busy_timeout(int(ANSWER_WITHIN * 1000))
            connection.set_progress_handler(_stopwatch(), STEPS_BETWEEN_LOOKS)
            # Qualified, because SQLite takes a lone quoted name for text when there is no such column.
            statement = f'SELECT 1 FROM "{self.table}" WHERE "{self.table}"."{self.column}" = ? LIMIT 1'
            return connection.execute(statement, (work_id,)).fetchone() is not None
        finally:
            connection.close()


def dependency_check_db(
    table: str, column: str, database: str | os.PathLike[str] | None = None
) -> DatabaseCheck:
    """Check for a row whose `column` is the id, in an SQLite file; None is the Cue's own file."""
    _check_identifier(table, "table")
    _check_identifier(column, "column")
    if database is None:
        return DatabaseCheck(table, column)
    expected = "the path of an SQLite file, as text or a Path"
    if isinstance(database, str) and database == ":memory:":
        raise InvalidOption("database", database, expected)
    return DatabaseCheck(table, column, _path(database, "database", expected))


def _check_identifier(name: object, option: str) -> None:
    if not isinstance(name, str) or not _identifier(name):
        raise InvalidOption(option, name, "a plain name: letters, digits and _, at most 63")


def _stopwatch() -> Callable[[], bool]:
    from time import monotonic

    deadline = monotonic() + ANSWER_WITHIN
    return lambda: monotonic() > deadline


def _driver() -> Any:
    # The library that the stores use: a second copy of SQLite in a process would drop the file locks of the first.
    from importlib import import_module

    try:
        return import_module("apsw")
    except ImportError:
        raise ConfigError("dependency_check_db needs apsw. Install it: pip install apsw.") from None
