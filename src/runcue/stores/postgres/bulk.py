"""Statements for many rows at once, in PostgreSQL's way.

SQLite likes one statement for each row; PostgreSQL pays for each statement. Here the rows travel as one JSON text
and one statement takes them all, which is three to four times cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from runcue.stores.postgres.texts import SIGN, escaped
from runcue.stores.sql import columns
from runcue.stores.sql.statements import literal

Row = Sequence[Any]
Own = Sequence[Collection[str]]
"""Sets of columns: rows that differ in one of these sets only are sent more briefly. The smallest set first."""

_encode = msgspec.json.Encoder().encode

_KINDS: Final = {str: "text", int: "bigint", float: "double precision", bool: "boolean"}
TYPES: Final = {
    **{column.name: _KINDS[column.plain_kind] for column in columns.EVERY},
    **{
        name: _KINDS[kind]
        for table in (columns.ATTEMPT, columns.GRANT, columns.LETTER, columns.TAG)
        for name, kind in table.items()
    },
}
"""What each column holds. A boolean is stored as 0 or 1, as in SQLite."""


class Bulk:
    """One statement for many rows, and shorter ones for rows that differ in a few columns only, as those of a turn
    mostly do: what all rows share travels once, which halves the work of both sides."""

    def __init__(self, columns: Sequence[str], own: Own, make: Callable[[list[str], str], str]) -> None:
        """Rows have these columns. `make` writes a statement of values."""
        self._names = _names(len(columns))
        self._whole = make(*_given(columns, columns))
        self._briefs = [
            (
                make(*_given(columns, some)),
                [place for place, column in enumerate(columns) if column in some],
                [place for place, column in enumerate(columns) if column not in some],
            )
            for some in own
        ]

    def sent(self, rows: Iterable[Row]) -> tuple[str, list[str]]:
        """The statement for these rows, and its bindings."""
        columns = list(zip(*rows, strict=True))
        for brief, own, others in self._briefs:
            if all(_is_one(columns[place]) for place in others):
                shared = {self._names[place]: columns[place][0] for place in others}
                return brief, [self._packed(columns, own), _text([shared])[1:-1]]
        return self._whole, [self._packed(columns, range(len(columns)))]

    def _packed(self, columns: Sequence[tuple[Any, ...]], places: Sequence[int]) -> str:
        names = [self._names[place] for place in places]
        rows = zip(*(columns[place] for place in places), strict=True)
        return _text(
            [
                {name: value for name, value in zip(names, row, strict=True) if value is not None}
                for row in rows
            ]
        )


def _is_one(values: tuple[Any, ...]) -> bool:
    return values.count(values[0]) == len(values)


def _text(rows: list[dict[str, Any]]) -> str:
    """Rows as JSON."""
    text = _encode(rows).decode()
    if "\\u0000" in text or SIGN in text:  # often only in a text inside a text, which needs no escape
        rows = [
            {name: escaped(value) if isinstance(value, str) else value for name, value in row.items()}
            for row in rows
        ]
        text = _encode(rows).decode()
    return text


def _names(amount: int) -> tuple[str, ...]:
    """The names of values in JSON: short, because each row repeats them."""
    return tuple(f"c{number}" for number in range(amount))


class ByKey:
    """One statement for rows of one value each, which it takes as a list."""

    def __init__(self, statement: str) -> None:
        self._statement = statement

    def sent(self, rows: Iterable[Row]) -> tuple[str, list[Any]]:
        """The statement for these rows, and its bindings."""
        return self._statement, [[value for (value,) in rows]]


def inserting(
    table: str, columns: Iterable[str], usual: Mapping[str, Any] | None = None, *, own: Own = ()
) -> Bulk:
    """INSERT of rows with these columns, and with others that hold the same in every row."""
    columns, fixed = tuple(columns), usual or {}

    def make(values: list[str], origin: str) -> str:
        wanted = ", ".join((*values, *map(literal, fixed.values())))
        return f"INSERT INTO {table} ({', '.join((*columns, *fixed))}) SELECT {wanted} FROM {origin}"

    return Bulk(columns, own, make)


def updating(
    table: str, columns: Sequence[str], keys: Sequence[str], *, own: Own = (), also: str = "true"
) -> Bulk:
    """UPDATE of these columns in the rows that the keys name, which come last in each row; `also` must hold, too."""

    def make(values: list[str], origin: str) -> str:
        changes = ", ".join(f"{name} = {value}" for name, value in zip(columns, values, strict=False))
        where = " AND ".join(
            f"{table}.{key} = {value}" for key, value in zip(keys, values[len(columns) :], strict=True)
        )
        return f"UPDATE {table} SET {changes} FROM {origin} WHERE {where} AND {also}"

    return Bulk((*columns, *keys), own, make)


def _given(columns: Sequence[str], own: Collection[str]) -> tuple[list[str], str]:
    """The expressions of the values, and the FROM that they refer to: the rows, and what the rows share."""
    values: list[str] = []
    rows: list[str] = []
    shared: list[str] = []
    for name, column in zip(_names(len(columns)), columns, strict=True):
        kind = TYPES[column]
        place, origin = ("v", rows) if column in own else ("k", shared)
        origin.append(f"{name} {kind}")
        values.append(f"{place}.{name}::int" if kind == "boolean" else f"{place}.{name}")
    origins = f"json_to_recordset($1::json) AS v({', '.join(rows)})"
    if shared:
        origins += f", json_to_record($2::json) AS k({', '.join(shared)})"
    return values, origins
