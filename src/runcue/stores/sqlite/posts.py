"""Reads the posts in a queue file, if anybody may have left some."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from runcue.stores.sql.connection import Connection, Row, rows_of

COLUMNS: Final = ("id", "worker", "number", "body")
INBOX: Final = f"SELECT {', '.join(COLUMNS)} FROM inbox ORDER BY id LIMIT $1"
VERSION: Final = "PRAGMA data_version"
"""Finds a number that changes when another connection has committed anything."""


class FilePosts:
    """The posts in a file (a PostSource)."""

    _version: int | None = None
    _version_now: int | None = None

    def may_have_posts(self, connection: Connection) -> bool:
        """Whether another connection has committed anything since the last turn of this one."""
        self._version_now = connection.execute(VERSION).fetchone()[0]
        return bool(self._version_now != self._version)

    def rows(self, connection: Connection, limit: int, *, anew: bool) -> Iterator[Row]:
        """The posts that were left first."""
        return rows_of(connection, INBOX, (limit,), COLUMNS)

    def turn_over(self) -> None:
        """The turn has taken what it read."""
        self._version = self._version_now

    def forget(self) -> None:
        """The next turn reads posts, whether others committed anything or not."""
        self._version = self._version_now = None
