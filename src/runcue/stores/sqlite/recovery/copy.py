"""Copying the rows of a damaged queue file into a new one, table by table, as far as they can be read.

Rules:
- What a table should look like is read from a new file, not from the damaged one. A row may lack the last columns: it
  was written before there were such.
- Rows that the tree of a table leads to come first. Rows on pages that nothing leads to are taken only if the list of
  free pages is whole: otherwise they may have been deleted, and a unit that has ended must not run again.
- Of two rows for one unit the later is kept.
"""

from __future__ import annotations

import math
from typing import Any, Final

import apsw
import msgspec

from runcue.stores.sqlite.recovery.pages import Pages, Row, Tree, Values, lost_pages
from runcue.stores.sqlite.recovery.rebuild import REBUILT, many
from runcue.stores.sqlite.schema import migrate

IDS: Final = "sqlite_autoindex_work_units_1"
"""The index with the ids of all units."""
ANYTHING: Final = (str, int, float, bytes)
KINDS: Final[dict[str, tuple[type, ...]]] = {
    "INTEGER": (int,),
    "REAL": (float, int),  # a whole number is stored as such
    "TEXT": (str,),
    "BLOB": (bytes,),
}


class Shape(msgspec.Struct):
    """A table or index as a new file has it: where its tree begins, and what its rows look like."""

    name: str
    root: int
    is_table: bool
    """True when its rows have numbers."""
    columns: tuple[str, ...] = ()
    """Empty for an index."""
    kinds: tuple[tuple[type, ...], ...] = ()
    least: int = 0
    """How many columns a row has at least."""
    number: int | None = None
    """The place of the column that is the number of the row."""

    def fits(self, values: Values) -> bool:
        """Whether these could be the values of one of its rows."""
        if not self.columns:  # a row of an index ends with the number of a row of its table
            return len(values) > 1 and isinstance(values[-1], int)
        if not self.least <= len(values) <= len(self.columns):
            return False
        return all(isinstance(value, kind) for value, kind in zip(values, self.kinds, strict=False))

    def row(self, row: Row) -> Values:
        """The values of its columns."""
        number, values = row
        if self.number is None:
            return values
        return (*values[: self.number], number, *values[self.number + 1 :])


def shapes() -> dict[str, Shape]:
    """Every table and index of a new file."""
    connection = apsw.Connection(":memory:")
    try:
        migrate(connection)
        found: list[Any] = connection.execute(
            "SELECT s.type, s.name, rootpage, coalesce(wr, 0) FROM sqlite_schema AS s "
            "LEFT JOIN pragma_table_list AS t ON t.name = s.name WHERE rootpage > 0"
        ).fetchall()
        known = {}
        for kind, name, root, is_without in found:
            shape = known[name] = Shape(name, root, kind == "table" and not is_without)
            if kind == "table":
                _describe(connection, shape)
    finally:
        connection.close()
    return known


def _describe(connection: apsw.Connection, shape: Shape) -> None:
    rows: list[Any] = connection.execute(
        'SELECT name, type, "notnull" AND dflt_value IS NULL OR pk, pk FROM pragma_table_info(?)',
        (shape.name,),
    ).fetchall()
    if not shape.is_table:
        rows.sort(key=lambda row: row[3] or math.inf)  # such a table stores the columns of its key first
    nothing = type(None)
    kinds: list[tuple[type, ...]] = []
    for place, (_, kind, is_needed, key) in enumerate(rows):
        if shape.is_table and key:
            shape.number = place
            kinds.append((nothing,))
        else:
            kinds.append((*KINDS.get(kind, ANYTHING), *(() if is_needed else (nothing,))))
        if is_needed:
            shape.least = place + 1
    shape.columns = tuple(row[0] for row in rows)
    shape.kinds = tuple(kinds)


class Copy:
    """Copies the rows that can be read into a new file."""

    def __init__(self, pages: Pages, known: dict[str, Shape], connection: apsw.Connection) -> None:
        self._pages = pages
        self._shapes = known
        self._connection = connection
        self.head: dict[str, Any] | None = None
        """The row of counters, if it could be read."""
        self.ids: set[str] = set()
        """The ids of all units, as far as the index of ids could be read."""
        self.has_all_ids = False
        self.broken: dict[str, int] = {}
        """How many pages and rows of each table could not be read."""
        self.problems: list[str] = []

    def run(self, roots: dict[str, int], is_sorted: bool) -> None:
        """Copy everything; `is_sorted` is False when the list of free pages cannot be relied on."""
        trees = {
            name: Tree(self._pages, root, self._shapes[name].is_table, self._shapes[name].fits)
            for name, root in roots.items()
        }
        for name, tree in trees.items():
            for row in tree.rows():
                self._take(name, row)
        self._take_lost(trees, is_sorted)
        for name in self._shapes:
            if self._shapes[name].columns and name not in REBUILT:
                self._report(name, trees.get(name))
        self.has_all_ids = IDS in trees and trees[IDS].is_whole

    def _report(self, name: str, tree: Tree | None) -> None:
        if tree is None:
            self.broken[name] = 1
            self.problems.append(f"Table {name} could not be found")
        elif not tree.is_whole:
            self.broken[name] = len(tree.bad) + tree.broken
            parts = [many(len(tree.bad), "page")] if tree.bad else []
            parts += [many(tree.broken, "row")] if tree.broken else []
            self.problems.append(f"{' and '.join(parts)} of table {name} cannot be read")

    def _take(self, name: str, row: Row) -> None:
        if name == IDS and isinstance(row[1][0], str):
            self.ids.add(row[1][0])
        shape = self._shapes[name]
        if name == "head":
            self.head = self.head or dict(zip(shape.columns, shape.row(row), strict=False))
        elif shape.columns and name not in REBUILT:
            self._insert(shape, shape.row(row))

    def _insert(self, shape: Shape, values: Values) -> None:
        columns = shape.columns[: len(values)]
        places = ", ".join("?" * len(values))
        statement = f"INSERT OR IGNORE INTO {shape.name} ({', '.join(columns)}) VALUES ({places})"
        self._connection.execute(statement, values)
        if shape.name == "work_units" and not self._connection.changes():
            self._insert_anew(statement, dict(zip(columns, values, strict=True)))

    def _insert_anew(self, statement: str, row: dict[str, Any]) -> None:
        """Insert a unit whose id or number another row has: under a new number, unless that row is the later one."""
        id = row["id"]
        known: Any = self._connection.execute(
            "SELECT updated_at FROM work_units WHERE id = ?", (id,)
        ).fetchone()
        if known is None or known[0] < row["updated_at"]:
            self._connection.execute("DELETE FROM work_units WHERE id = ?", (id,))
            self._connection.execute(statement, tuple((row | {"seq": None}).values()))

    def _take_lost(self, trees: dict[str, Tree], is_sorted: bool) -> None:
        """Take the rows of pages that no other page leads to."""
        free, is_whole = self._pages.free()
        claimed = set[int]().union(*(tree.claimed for tree in trees.values()))
        is_sorted = is_sorted and is_whole and not claimed & free
        left_out = 0
        for name, number, page in lost_pages(self._pages, trees, free):
            if is_sorted:
                for row in trees[name].take(number, page):
                    self._take(name, row)
            elif self._shapes[name].columns:
                left_out += 1
        if left_out:
            self.problems.append(
                f"{many(left_out, 'page')} left out: whether their rows were deleted or lost is unknown"
            )
