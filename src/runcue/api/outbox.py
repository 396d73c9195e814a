"""Outbox: submits in a transaction of a database that the queue is not in.

Rules:
- What is asked for is a row of one table there, inserted in the transaction of whoever asks. A relay (relay.py) moves
  rows into the queue, where they are committed before they are deleted here. A unit that is moved twice is one unit,
  since its id is that of the row, and an exact repetition is dropped.
- Rows are moved in the order of their numbers, which grow with the clock, and always within one process: so a unit is
  submitted before it is cancelled.
- The table is made by `create` alone: some databases commit whatever is under way when a table is made.
"""

from __future__ import annotations

import re
import secrets
import sys
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Unpack

from runcue.api.signature import OUTBOX
from runcue.api.unsettled import Unsettled
from runcue.declare import arguments
from runcue.declare.unit import Unit
from runcue.errors import ConfigError, SubmitError, quoted
from runcue.stores.sql.submissions import CANCEL, RETRY, Row, change_row

if TYPE_CHECKING:
    from runcue.api.signature import SubmitOptions

MOST: Final = 500
MOST_SIGNS: Final = 8_000_000
"""How many rows are moved at once, and about how much text."""
PLACEHOLDERS: Final = {"qmark": "?", "format": "%s", "pyformat": "%s", "numeric": ":{}", "named": ":{}"}
"""How the values of a statement are written, by the `paramstyle` of a driver."""
COLUMNS: Final = "number, kind, id, item"
_TABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?")


class Gathered(NamedTuple):
    """A row that was not moved yet, and its number."""

    number: str
    row: Row


class Numbers:
    """Numbers of rows: each is greater than the one before, whatever the clock does. From any thread."""

    def __init__(self) -> None:
        self._last = 0
        self._one_at_a_time = threading.Lock()

    def next(self) -> str:
        """The next number, with a random end that no other process has."""
        with self._one_at_a_time:
            self._last = max(self._last + 1, time.time_ns() // 1000)
            return f"{self._last:016x}{secrets.token_hex(8)}"


_numbers: Final = Numbers()


class Outbox:
    """Submits in the transaction of a DB-API connection: SQLite, MySQL, MariaDB, PostgreSQL and others.

    `Outbox(connection).submit("confirm", params={"order": 3})`, and elsewhere `runcue relay`, `cue.relay` or
    `client.relay`. `Outbox(connection).create()` makes its table, once.
    """

    def __init__(self, connection: Any, *, table: str = OUTBOX) -> None:
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
        modules = [kind.__module__.lower() for kind in type(self._connection).__mro__]
        is_mysql = any("mysql" in module or "mariadb" in module for module in modules)
        text, options = ("LONGTEXT", " CHARACTER SET utf8mb4") if is_mysql else ("TEXT", "")
        self._execute(
            f"CREATE TABLE IF NOT EXISTS {self._table} (number VARCHAR(32) NOT NULL PRIMARY KEY, "
            f"kind VARCHAR(16) NOT NULL, id VARCHAR(128) NOT NULL, item {text} NOT NULL){options}"
        ).close()
        self._connection.commit()

    def submit(self, task: str | Unit[Any], **options: Unpack[SubmitOptions]) -> str:
        """Submit a unit and return its id, with the options of `cue.submit()`. It exists once it was committed here
        and moved to the queue; its age counts from then."""
        if "connection" in options:
            raise SubmitError("An Outbox has a connection already. Leave connection= out.")
        row = self._unsettled.row(task, options)
        self._insert(row)
        return row.id

    def cancel(self, work_id: str, *, cascade: bool = False) -> None:
        """Ask that a pending or running unit is cancelled."""
        self._insert(change_row(CANCEL, arguments.work_id(work_id), cascade=cascade))

    def retry(self, work_id: str, *, cascade: bool = False) -> None:
        """Ask that a failed or cancelled unit is tried again with all its attempts."""
        self._insert(change_row(RETRY, arguments.work_id(work_id), cascade=cascade))

    def waiting(self) -> list[Gathered]:
        """The first rows that were not moved yet. A relay asks for them."""
        found: list[Gathered] = []
        signs = 0
        cursor = self._execute(f"SELECT {COLUMNS} FROM {self._table} ORDER BY number LIMIT {MOST}")
        for values in cursor.fetchall():
            number, *row = values.values() if isinstance(values, Mapping) else values
            found.append(Gathered(number, Row(*row)))
            signs += len(found[-1].row.item)
            if signs > MOST_SIGNS:
                break
        cursor.close()
        return found

    def delete(self, rows: list[Gathered]) -> None:
        """Delete rows that were moved, and commit. A relay calls it."""
        for one in rows:
            self._execute(
                f"DELETE FROM {self._table} WHERE number = {self._values(1)}", (one.number,)
            ).close()
        self._connection.commit()

    def _insert(self, row: Row) -> None:
        statement = f"INSERT INTO {self._table} ({COLUMNS}) VALUES ({self._values(4)})"
        self._execute(statement, (_numbers.next(), *row)).close()

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
