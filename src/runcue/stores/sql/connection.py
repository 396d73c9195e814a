"""What tables.py needs of a connection to a database: apsw's to a file has it, and postgres/link.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

Row = tuple[Any, ...]


class Rows(Protocol):
    """The answer to a statement."""

    def __iter__(self) -> Iterator[Any]:
        """The rows that were not read yet."""
        ...

    def fetchone(self) -> Any:
        """The next row, or None."""
        ...

    def fetchall(self) -> list[Any]:
        """The rows that were not read yet."""
        ...

    def close(self) -> Any:
        """Read no more of it."""
        ...


class Connection(Protocol):
    """Sends statements. Bindings are a sequence, for $1, $2 and so on."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is under way."""
        ...

    def execute(self, statement: str, bindings: Any = ..., /) -> Any:
        """Send a statement; its answer."""
        ...

    def executemany(self, statement: Any, rows: Iterable[Any], /) -> Any:
        """Send a statement of the connection's dialect for each of these rows."""
        ...


def rows_of(connection: Connection, statement: str, bindings: Any, columns: Sequence[str]) -> Iterator[Row]:
    """The rows that a statement finds, which has these columns. A text that is damaged comes as its bytes.

    A file may hold any bytes where a text was, and apsw tells no more of such a row than that. Whoever makes sense of
    rows refuses bytes, and knows which row that was.
    """
    count = 0
    try:
        for row in connection.execute(statement, bindings):
            count += 1
            yield row
    except UnicodeDecodeError:
        parts = ", ".join(f"iif(typeof({name}) = 'text', CAST({name} AS BLOB), {name})" for name in columns)
        for row in islice(connection.execute(f"SELECT {parts} FROM ({statement})", bindings), count, None):
            yield tuple(_text(value) if type(value) is bytes else value for value in row)


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
