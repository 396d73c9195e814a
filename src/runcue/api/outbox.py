"""Outbox: submits in a transaction of a database that the queue is not in.

Rules:
- A unit is a row of one table there, inserted in the transaction of whoever submits. `Client.relay` moves rows into
  the queue, where they are committed before they are deleted here. A row that is moved twice is one unit, since its
  id is the unit's, and an exact repetition is dropped.
- The table is made by `create` alone: some databases commit whatever is under way when a table is made.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, Final, Unpack

from runcue.api.unsettled import Unsettled
from runcue.declare.unit import Unit
from runcue.errors import ConfigError, SubmitError, quoted
from runcue.stores.sql.submissions import SUBMIT, Row

if TYPE_CHECKING:
    from runcue.api.signature import SubmitOptions

TABLE: Final = "runcue_outbox"
MOST: Final = 500
"""How many rows are moved at once."""
PLACEHOLDERS: Final = {"qmark": "?", "format": "%s", "pyformat": "%s", "numeric": ":{}", "named": ":{}"}
"""How the values of a statement are written, by the `paramstyle` of a driver."""
_TABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?")


class Outbox:
    """Submits in the transaction of a DB-API connection: SQLite, MySQL, MariaDB, PostgreSQL and others.

    `Outbox(connection).submit("confirm", params={"order": 3})`, and elsewhere `client.relay(connection)` again and
    again. `Outbox(connection).create()` makes its table, once.
    """

    def __init__(self, connection: Any, *, table: str = TABLE) -> None:
        if _TABLE.fullmatch(table) is None:
            raise ConfigError(
                f"table={quoted(table)} is no name of a table. Use letters, digits and underscores."
            )
        self._connection = connection
        self._table = table
        self._placeholder = _placeholder(connection)
        self._unsettled = Unsettled()

    def create(self) -> None:
        """Make the table, if it is not there. In some databases this commits what is under way."""
        is_mysql = any("mysql" in kind.__module__.lower() for kind in type(self._connection).__mro__)
        text = "LONGTEXT" if is_mysql else "TEXT"
        self._execute(
            f"CREATE TABLE IF NOT EXISTS {self._table} "
            f"(id VARCHAR(128) NOT NULL PRIMARY KEY, item {text} NOT NULL)"
        )
        self._connection.commit()

    def submit(self, task: str | Unit[Any], **options: Unpack[SubmitOptions]) -> str:
        """Submit a unit and return its id, with the options of `cue.submit()`. It exists once it was committed here
        and moved to the queue; its age counts from then."""
        if "connection" in options:
            raise SubmitError("An Outbox has a connection already. Leave connection= out.")
        row = self._unsettled.row(task, options)
        self._execute(f"INSERT INTO {self._table} (id, item) VALUES ({self._values(2)})", (row.id, row.item))
        return row.id

    def waiting(self) -> list[Row]:
        """The first rows that were not moved yet. `Client.relay` is for that."""
        cursor = self._execute(f"SELECT id, item FROM {self._table} ORDER BY id LIMIT {MOST}")
        rows = [Row(SUBMIT, id, item) for id, item in cursor.fetchall()]
        cursor.close()
        return rows

    def delete(self, rows: list[Row]) -> None:
        """Delete rows that were moved, and commit. `Client.relay` is for that."""
        for row in rows:
            self._execute(f"DELETE FROM {self._table} WHERE id = {self._values(1)}", (row.id,))
        self._connection.commit()

    def _values(self, amount: int) -> str:
        return ", ".join(self._placeholder.format(number) for number in range(1, amount + 1))

    def _execute(self, statement: str, values: tuple[str, ...] = ()) -> Any:
        cursor = self._connection.cursor()
        cursor.execute(statement, values)
        return cursor


def _placeholder(connection: Any) -> str:
    """How that connection's driver has values written: as its module says, or one that it is part of."""
    for kind in type(connection).__mro__:
        name = kind.__module__
        while name:
            style = getattr(sys.modules.get(name), "paramstyle", None)
            if style in PLACEHOLDERS:
                return PLACEHOLDERS[style]
            name = name.rpartition(".")[0]
    raise ConfigError(
        f"An Outbox takes a DB-API connection, such as that of sqlite3 or PyMySQL, not {type(connection).__name__}."
    )
