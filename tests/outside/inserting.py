"""Somebody who writes rows into a queue by hand, as another language would."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import psycopg

Execute = Callable[[str, tuple[Any, ...]], list[Any]]


class Outsider:
    """The target of a queue, and statements on its tables in transactions of their own."""

    def __init__(self, target: str, transaction: Callable[[], Any], table: str) -> None:
        self.target = target
        self.transaction = transaction
        """A context in which statements are executed; it is committed, or after an error rolled back."""
        self._table = table

    def insert(self, execute: Execute, kind: str, id: str, item: Any, at: float | None = None) -> None:
        """A row, in the transaction of that `execute`."""
        text = item if isinstance(item, str) else json.dumps(item)
        moment = f"(SELECT now FROM {self._table}head)" if at is None else repr(at)
        execute(
            f"INSERT INTO {self._table}submissions (at, kind, id, item) VALUES ({moment}, $1, $2, $3)",
            (kind, id, text),
        )

    def submit(self, id: str, task: str = "task", **fields: Any) -> None:
        """A unit, in a transaction of its own."""
        with self.transaction() as execute:
            self.insert(execute, "submit", id, {"task": task, **fields})

    def change(self, kind: str, id: str, **fields: Any) -> None:
        """Cancel or retry a unit, in a transaction of its own."""
        with self.transaction() as execute:
            self.insert(execute, kind, id, fields)

    def left(self) -> int:
        """How many rows no turn has taken."""
        with self.transaction() as execute:
            return int(execute(f"SELECT count(*) FROM {self._table}submissions", ())[0][0])


def on_file(path: Path) -> Outsider:
    """Somebody with a SQLite library."""

    @contextmanager
    def transaction() -> Iterator[Execute]:
        connection = apsw.Connection(str(path))
        connection.set_busy_timeout(60_000)
        try:
            with connection:
                yield lambda statement, bindings: connection.execute(statement, bindings).fetchall()
        finally:
            connection.close()

    return Outsider(str(path), transaction, "")


def on_postgres(dsn: str) -> Outsider:
    """Somebody with a PostgreSQL driver."""

    @contextmanager
    def transaction() -> Iterator[Execute]:
        with psycopg.connect(dsn, cursor_factory=psycopg.RawCursor) as connection:

            def execute(statement: str, bindings: tuple[Any, ...]) -> list[Any]:
                cursor = connection.execute(statement, bindings)
                return cursor.fetchall() if cursor.description else []

            yield execute

    return Outsider(dsn, transaction, "runcue.")
