"""Statements for many rows at once, in PostgreSQL's way.

SQLite likes one statement for each row; PostgreSQL pays for each statement. Here the rows travel as one JSON text
and one statement takes them all, which is three to four times cheaper. A statement that has no such form here is
sent row by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from runcue.stores import codec, states
from runcue.stores.postgres.texts import SIGN, escaped

Row = Sequence[Any]

_encode = msgspec.json.Encoder().encode

TYPES: Final[dict[str, str]] = {
    **dict.fromkeys(
        ("priority", "run_at", "delay", "timeout", "dependency_timeout", "rank", "since", "place", "watch_at",
         "lease_expires_at", "created_at", "updated_at", "started_at", "completed_at", "next_retry_at",
         "throttled_since", "amount", "at", "duration"),
        "double precision",
    ),
    **dict.fromkeys(
        ("seq", "missing", "attempt", "spent", "failures", "crashes", "token", "history", "number"), "bigint"
    ),
    **dict.fromkeys(("is_named", "skipped"), "boolean"),
}  # fmt: skip
"""What each column holds; text where nothing is said. A boolean is kept as 0 or 1, as in SQLite."""


class Bulk:
    """One statement for many rows."""

    def __init__(self, statement: str, amount: int) -> None:
        """The statement takes rows of that many values."""
        self.statement = statement
        self._names = _names(amount)

    def packed(self, rows: Iterable[Row]) -> str:
        """The rows as the one binding of the statement; what is NULL is left out."""
        names = self._names
        packed = [
            {name: value for name, value in zip(names, row, strict=True) if value is not None} for row in rows
        ]
        text = _encode(packed).decode()
        if "\\u0000" in text or SIGN in text:  # mostly because of a text inside a text, which needs no escape
            packed = [
                {name: escaped(value) if isinstance(value, str) else value for name, value in row.items()}
                for row in packed
            ]
            text = _encode(packed).decode()
        return text


def _names(amount: int) -> tuple[str, ...]:
    """What values are called on their way: briefly, because each row says it."""
    return tuple(f"c{number}" for number in range(amount))


def inserting(table: str, columns: Sequence[str], others: Mapping[str, str] | None = None) -> Bulk:
    """INSERT of rows with these columns, and others that are the same in each, as SQL says them."""
    fixed = others or {}
    values = ", ".join((*_values(columns), *fixed.values()))
    statement = f"INSERT INTO {table} ({', '.join((*columns, *fixed))}) SELECT {values} FROM {_rows(columns)}"
    return Bulk(statement, len(columns))


def updating(table: str, columns: Sequence[str], keys: Sequence[str]) -> Bulk:
    """UPDATE of these columns in the rows that the keys name, which come last in each row."""
    everything = (*columns, *keys)
    values = _values(everything)
    changes = ", ".join(f"{name} = {value}" for name, value in zip(columns, values, strict=False))
    where = " AND ".join(
        f"{table}.{key} = {value}" for key, value in zip(keys, values[len(columns) :], strict=True)
    )
    return Bulk(f"UPDATE {table} SET {changes} FROM {_rows(everything)} WHERE {where}", len(everything))


def _rows(columns: Sequence[str]) -> str:
    names = _names(len(columns))
    typed = (f"{name} {_type(column)}" for name, column in zip(names, columns, strict=True))
    return f"json_to_recordset($1::json) AS v({', '.join(typed)})"


def _values(columns: Sequence[str]) -> list[str]:
    names = _names(len(columns))
    return [
        f"v.{name}::int" if _type(column) == "boolean" else f"v.{name}"
        for name, column in zip(names, columns, strict=True)
    ]


def _type(column: str) -> str:
    return TYPES.get(column, "text")


BULKS: Final[dict[str, Bulk]] = {
    codec.INSERT: inserting("work_units", codec.WRITTEN),
    codec.INSERT_PLAIN: inserting("work_units", codec.PLAIN, codec.AT_FIRST),
    codec.START: updating("work_units", codec.STARTED, ("seq", "id")),
    codec.FINISH: updating("work_units", codec.FINISHED, ("seq", "id")),
    codec.UPDATE: updating("work_units", codec.CHANGED, ("id",)),
    codec.ATTEMPT_INSERT: inserting("attempts", codec.ATTEMPT),
    states.GRANT_INSERT: inserting("service_log", states.GRANT),
}
"""The everyday statements of a turn."""
