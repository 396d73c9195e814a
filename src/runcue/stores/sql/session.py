"""The connection that all parts of the tables use, until trouble with the disk or the network replaces it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from runcue.stores.sql.columns import COLUMNS
from runcue.stores.sql.connection import Connection, Row, Rows, rows_of
from runcue.stores.sql.statements import Dialect


class Session:
    """A connection and its dialect, for the process `worker` ("" for one that only reads)."""

    def __init__(self, connection: Connection, dialect: Dialect, worker: str) -> None:
        self.dialect = dialect
        self.worker = worker
        self.use(connection)

    def use(self, connection: Connection) -> None:
        """Go on with another connection to the same queue."""
        self.connection: Any = connection  # of either database
        self.execute: Callable[..., Rows] = connection.execute
        self.executemany: Callable[..., Any] = self.dialect.many(connection)

    @property
    def is_turn(self) -> bool:
        """True while this process has a transaction in which it may change anything."""
        return bool(self.worker) and self.connection.in_transaction

    def one(self, statement: str, bindings: Row = ()) -> Row:
        """The row that a statement finds, which always finds one."""
        row: Any = self.execute(statement, bindings).fetchone()
        assert isinstance(row, tuple)
        return row

    def units(self, statement: str, bindings: Any) -> Iterator[Row]:
        """The rows of SELECT that a statement finds."""
        return rows_of(self.connection, statement, bindings, COLUMNS)
