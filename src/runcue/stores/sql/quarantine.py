"""Rows of work that cannot be read: they hold up nobody, stay as they are, and come back when they are mended.

Rules:
- A row is named in the log once. A turn that comes across it takes it off its shelf and out of the counters, and
  notes where it was. So nobody finds it again, and nobody waits for it.
- What is noted is not counted as pending or running; whoever writes such work again counts it in with that.
- The first turn of a process puts back what could start and can be read again. Work that waited for others or was
  running stays aside until somebody cancels or retries it: what it waited for may have ended meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from runcue.core.model.record import Record, WorkState
from runcue.core.model.state import Head
from runcue.errors import StorageCorrupt
from runcue.stores.sql import codec
from runcue.stores.sql.connection import Connection, Row, rows_of

logger = logging.getLogger("runcue")

RUNNING = "running/"
STAYING = (RUNNING, "held/", "blocked")
NOTE = (
    "INSERT INTO set_aside SELECT seq, shelf, watch_at FROM work_units "
    "WHERE seq = ? AND shelf IS NOT NULL ON CONFLICT DO NOTHING RETURNING 1"
)
NOTED = "SELECT seq, shelf, watch_at FROM set_aside"
TAKE = "UPDATE work_units SET shelf = NULL, watch_at = NULL WHERE seq = ?"
BRING = "UPDATE work_units SET shelf = ?, watch_at = ? WHERE seq = ?"
DROP = "DELETE FROM set_aside WHERE seq = ?"


class Aside:
    """The damaged rows that this process came across."""

    def __init__(self) -> None:
        self._named: set[int] = set()
        self._taken: list[str] = []
        self.shelves: set[str] = set()
        """Shelves that a row was taken from or put back to in this turn."""
        self._noted: dict[int, str] = {}
        """What is aside, by its number, and the shelf that it was on."""

    def name(self, row: Row, error: StorageCorrupt) -> None:
        """Say once what is wrong with a row."""
        if row[1] not in self._named:
            self._named.add(row[1])
            logger.error("left out, and not run: %s", error)

    def take(self, connection: Connection, row: Row) -> None:
        """Take a row off its shelf, in a turn."""
        seq, shelf = row[1], row[codec.COLUMNS.index("shelf")]
        if connection.execute(NOTE, (seq,)).fetchall():
            self._taken.append(str(shelf))
            self._noted[seq] = str(shelf)
        connection.execute(TAKE, (seq,))
        self.shelves.add(str(shelf))

    def put_back(self, connection: Connection, head: Head, read: Callable[[Row], Record]) -> Head:
        """Put what can be read again where it was, in the first turn of a process; the counters with it."""
        noted: list[Any] = connection.execute(NOTED).fetchall()
        self.learn(noted)
        for seq, shelf, watch_at in noted:
            rows = list(rows_of(connection, f"{codec.SELECT} WHERE seq = ?", (seq,), codec.COLUMNS))
            try:
                record = read(rows[0]) if rows else None
            except StorageCorrupt as error:
                self.name(rows[0], error)
                continue
            if record is not None and not record.state.is_final:
                if record.state is not WorkState.PENDING or str(shelf).startswith(STAYING):
                    continue
                connection.execute(BRING, (shelf, watch_at, seq))
                self.shelves.add(str(shelf))
                head = replace(head, pending=head.pending + 1)
            connection.execute(DROP, (seq,))
            del self._noted[seq]
            self._named.discard(seq)
        return head

    def learn(self, noted: Iterable[Row]) -> None:
        """These rows of NOTED are there: between two turns of a process only others change them."""
        self._noted = {seq: str(shelf) for seq, shelf, _ in noted}

    def counted(self, connection: Connection, head: Head, written: Iterable[Record]) -> Head:
        """The counters of a turn, without what it took off its shelf, and with what it wrote that was aside."""
        noted = self._noted
        if not noted:
            return head
        changes = [(shelf, -1) for shelf in self._taken]
        for record in written:
            if record.seq in noted:
                changes.append((noted.pop(record.seq), 1))
                connection.execute(DROP, (record.seq,))
        if not changes:
            return head
        running = sum(change for shelf, change in changes if shelf.startswith(RUNNING))
        pending = sum(change for _, change in changes) - running
        return replace(head, pending=max(0, head.pending + pending), running=max(0, head.running + running))

    def done(self) -> None:
        """The turn is over."""
        self.shelves.clear()
        self._taken.clear()
