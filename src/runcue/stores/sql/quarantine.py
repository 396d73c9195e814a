"""Keeps damaged units apart: they stop nobody, stay as they are, and come back once they are repaired.

Rules:
- A damaged row is logged once. A turn that reads it moves its index key into the table `quarantine`, and no longer
  counts it. So no turn finds it again, and nothing waits for it.
- A unit in quarantine is not counted as pending or running. A turn that writes it counts it again.
- The first turn of a process puts back units that could start and can be read again. A unit that waited for others or
  was running stays in quarantine until a person cancels or retries it: what it waited for may have ended meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from runcue.core.model.record import Record, WorkState
from runcue.core.model.state import Head
from runcue.errors import StorageCorrupt
from runcue.stores.sql import statements
from runcue.stores.sql.columns import COLUMNS
from runcue.stores.sql.connection import Connection, Row, rows_of

logger = logging.getLogger("runcue")

RUNNING = "running/"
STAYING = (RUNNING, "held/", "blocked")


class Quarantine:
    """The damaged rows that this process has read."""

    def __init__(self) -> None:
        self._named: set[int] = set()
        self._taken: list[str] = []
        self.index_keys: set[str] = set()
        """Index keys that a row was taken from or put back to in this turn."""
        self._in_quarantine: dict[int, str] = {}
        """The units in quarantine by number, with the index key that each had."""

    def name(self, row: Row, error: StorageCorrupt) -> None:
        """Log once what is wrong with a row."""
        if row[1] not in self._named:
            self._named.add(row[1])
            logger.error("left out, and not run: %s", error)

    def take(self, connection: Connection, row: Row) -> None:
        """Put a row into quarantine. In a turn."""
        seq, index_key = row[1], row[COLUMNS.index("index_key")]
        if connection.execute(statements.QUARANTINE, (seq,)).fetchall():
            self._taken.append(str(index_key))
            self._in_quarantine[seq] = str(index_key)
        connection.execute(statements.INDEX_KEY_DROP, (seq,))
        self.index_keys.add(str(index_key))

    def put_back(self, connection: Connection, head: Head, read: Callable[[Row], Record]) -> Head:
        """Give units that can be read again their index keys back, and count them. In a first turn."""
        noted: list[Any] = connection.execute(statements.QUARANTINED).fetchall()
        self.learn(noted)
        for seq, index_key, watch_at in noted:
            rows = list(rows_of(connection, statements.SELECT_NUMBER, (seq,), COLUMNS))
            try:
                record = read(rows[0]) if rows else None
            except StorageCorrupt as error:
                self.name(rows[0], error)
                continue
            if record is not None and not record.state.is_final:
                if record.state is not WorkState.PENDING or str(index_key).startswith(STAYING):
                    continue
                connection.execute(statements.INDEX_KEY_RESTORE, (index_key, watch_at, seq))
                self.index_keys.add(str(index_key))
                head = replace(head, pending=head.pending + 1)
            connection.execute(statements.QUARANTINE_END, (seq,))
            del self._in_quarantine[seq]
            self._named.discard(seq)
        return head

    def learn(self, noted: Iterable[Row]) -> None:
        """These rows of QUARANTINED are there: between two turns of a process only others change them."""
        self._in_quarantine = {seq: str(index_key) for seq, index_key, _ in noted}

    def counted(self, connection: Connection, head: Head, written: Iterable[Record]) -> Head:
        """The counters of a turn, without what it put into quarantine, and with what it wrote that had been there."""
        noted = self._in_quarantine
        if not noted:
            return head
        changes = [(index_key, -1) for index_key in self._taken]
        for record in written:
            if record.seq in noted:
                changes.append((noted.pop(record.seq), 1))
                connection.execute(statements.QUARANTINE_END, (record.seq,))
        if not changes:
            return head
        running = sum(change for index_key, change in changes if index_key.startswith(RUNNING))
        pending = sum(change for _, change in changes) - running
        return replace(head, pending=max(0, head.pending + pending), running=max(0, head.running + running))

    def done(self) -> None:
        """The turn is over."""
        self.index_keys.clear()
        self._taken.clear()
