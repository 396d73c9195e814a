"""What tables.py needs of a connection to a database: apsw's to a file has it, and postgres/link.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol


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
    """Sends statements. Bindings are a sequence, for ? in turn or for ?1, ?2 and so on."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is under way."""
        ...

    def execute(self, statement: str, bindings: Any = ..., /) -> Any:
        """Send a statement; its answer."""
        ...

    def executemany(self, statement: str, rows: Iterable[Any], /) -> Any:
        """Send a statement for each of these rows."""
        ...
