"""A connection to PostgreSQL that leaves nothing in its session, and expects nothing there.

A pooler such as pgbouncer may give each transaction another session (`pool_mode=transaction`). So nothing is prepared
and nothing is set but for one transaction; a Cue, which does both, is refused there (schema.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import psycopg
from psycopg import RawCursor

from runcue.errors import StoreError
from runcue.ports import Insertion
from runcue.stores.postgres import schema
from runcue.stores.postgres.address import Address
from runcue.stores.postgres.insertion import insertion_into
from runcue.stores.postgres.link import CONNECTING, SILENCE, Row, TextAsWritten, cause_of, plain, translate


class SessionlessLink:
    """One connection, for one thread at a time."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.in_transaction = False
        try:
            self.raw = psycopg.connect(
                address.url,
                autocommit=True,
                prepare_threshold=None,
                cursor_factory=RawCursor,
                connect_timeout=CONNECTING,
                keepalives_idle=5,
                keepalives_interval=5,
                keepalives_count=2,
                tcp_user_timeout=SILENCE * 1000,
            )
        except (psycopg.Error, UnicodeError, ValueError) as error:
            raise translate(error, address) from cause_of(error, address)
        self.raw.adapters.register_loader("text", TextAsWritten)

    def begin_with(self, *statements: str) -> Row:
        """Begin a transaction with these statements, in one round trip; the row that the last of them found."""
        *first, last = statements
        found = f"SET LOCAL search_path = {self.address.schema}; SET LOCAL jit = off", last
        self.in_transaction = True
        cursor = self.raw.execute(";".join(("BEGIN", *first, *found)))
        while cursor.nextset():
            pass
        row = cursor.fetchone()
        assert row is not None
        return tuple(row)

    def execute(self, statement: str, bindings: Sequence[Any] = ()) -> RawCursor[Row]:
        """Send a statement."""
        cursor: RawCursor[Row] = RawCursor(self.raw)
        return cursor.execute(statement, [plain(value) for value in bindings])

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Send a statement for each of these rows."""
        for row in rows:
            self.execute(statement, row)

    def leave(self) -> None:
        """End a transaction that wrote nothing."""
        self.in_transaction = False
        self.raw.execute("COMMIT")

    def undo(self) -> None:
        """Roll back what is under way, if the connection still can."""
        is_under_way, self.in_transaction = self.in_transaction, False
        if is_under_way and not self.raw.closed:
            self.raw.execute("ROLLBACK")

    def close(self) -> None:
        """Let go of it."""
        self.raw.close()


def connected(address: Address) -> SessionlessLink:
    """A connection to a queue that is there, and up to date."""
    link = SessionlessLink(address)
    try:
        link.begin_with("SELECT 1")
        schema.check_to_read(link)
        link.leave()
    except psycopg.Error as error:
        link.close()
        raise translate(error, address) from cause_of(error, address)
    except BaseException:
        link.close()
        raise
    return link


class PostgresInserter:
    """A connection of its own to a queue that is there. For one thread at a time."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._link = connected(address)
        (self._identity,) = self._link.begin_with("SELECT identity FROM head")
        self._link.leave()

    @property
    def insertion(self) -> Insertion:
        """How anybody submits to this queue."""
        return insertion_into(self._address, str(self._identity))

    def insert(self, rows: str) -> None:
        """Insert rows and commit them. A lost connection is made anew, but nothing is sent twice."""
        insertion = self.insertion
        try:
            if self._link.raw.closed:
                self._link = connected(self._address)
            done = self._link.execute(insertion.statement.format("$1", "$2"), insertion.values(rows))
        except psycopg.Error as error:
            self._link.close()
            raise translate(error, self._address) from cause_of(error, self._address)
        if not done.rowcount:
            where = self._address.shown
            raise StoreError(f"{where} holds another queue now. Make a new Client.", where)

    def close(self) -> None:
        """Close the connection."""
        self._link.close()
