"""Reads the posts of a queue in PostgreSQL: mostly the statement that opens a turn has found them already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from runcue.stores.postgres import statements
from runcue.stores.sql.connection import Connection, Row

_decode = msgspec.json.Decoder(list[dict[str, Any]]).decode


class OpeningPosts:
    """The posts that a turn finds (a PostSource)."""

    found: str | None = None
    """What the opening of the turn under way found, as JSON."""

    def may_have_posts(self, connection: Connection) -> bool:
        """Yes: whether there are any is known already."""
        return True

    def rows(self, connection: Connection, limit: int, *, anew: bool) -> Iterator[Row]:
        """The posts that were left first, as far as one turn takes them."""
        found, self.found = self.found, None
        if anew:
            return iter(connection.execute(statements.INBOX, (limit,)).fetchall())
        return (tuple(post.values()) for post in _decode(found or "[]"))

    def turn_over(self) -> None:
        """Each turn asks for itself."""

    forget = turn_over
