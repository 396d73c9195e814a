"""Inserts many rows by statements of several rows each.

What is around SQLite (finding the prepared statement, giving the interpreter lock away and getting it back) costs a
statement of one row a quarter of its time, and each value that is bound costs something: what all rows of a block
share, as those of a turn mostly do, is bound once. UPDATE has no such form whose plan is certain: one that joins a
list of rows may read the whole table after ANALYZE.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain
from operator import itemgetter
from typing import Any, Final

from runcue.stores.sql.connection import Connection, Row
from runcue.stores.sql.statements import insert_into, literal

SIZE: Final = 20
"""Rows of one statement: more save nothing."""


class Blocks:
    """An INSERT of one row, the same of `SIZE` rows, and of `SIZE` rows that differ in a few columns only."""

    def __init__(
        self,
        table: str,
        columns: Iterable[str],
        usual: Mapping[str, Any] | None = None,
        *,
        own: Collection[str],
    ) -> None:
        """INSERT of rows with these columns, of which most rows of a turn share all but `own`; and with others that
        hold the same in every row."""
        names, fixed = list(columns), usual or {}
        differing = [place for place, name in enumerate(names) if name in own]
        shared = [place for place, name in enumerate(names) if name not in own]
        self.one = insert_into(table, names, fixed)
        self._own, self._shared = _taking(differing), _taking(shared)
        numbers = {place: number for number, place in enumerate(shared, 1)}
        first = f"INSERT INTO {table} ({', '.join((*names, *fixed))}) VALUES "
        ends = [*map(literal, fixed.values())]

        def row(values: Iterable[str]) -> str:
            return f"({', '.join((*values, *ends))})"

        self._whole = first + ", ".join([row("?" * len(names))] * SIZE)
        rows = []
        for number in range(SIZE):
            mine = {place: len(shared) + number * len(differing) + n for n, place in enumerate(differing, 1)}
            rows.append(row(f"?{(numbers | mine)[place]}" for place in range(len(names))))
        self._brief = first + ", ".join(rows)

    def sent(self, rows: list[Row]) -> tuple[str, list[Any]]:
        """The statement for a block of rows, and its bindings."""
        shared = self._shared(rows[0])
        if [*map(self._shared, rows)] == [shared] * len(rows):
            return self._brief, [*shared, *chain.from_iterable(map(self._own, rows))]
        return self._whole, [*chain.from_iterable(rows)]


def _taking(places: list[int]) -> Callable[[Row], Row]:
    """What takes these values of a row."""
    if len(places) == 1:
        [place] = places
        return lambda row: (row[place],)
    return itemgetter(*places)


def in_blocks(connection: Connection) -> Callable[[Any, Iterable[Row]], Any]:
    """The `executemany` of a connection, which also takes `Blocks`."""
    each, execute = connection.executemany, connection.execute

    def executemany(statement: Any, rows: Iterable[Row]) -> None:
        if type(statement) is not Blocks:
            each(statement, rows)
            return
        some = [*rows]
        whole = len(some) - len(some) % SIZE
        for place in range(0, whole, SIZE):
            execute(*statement.sent(some[place : place + SIZE]))
        if whole < len(some):
            each(statement.one, some[whole:])

    return executemany
