"""Reads a queue file beside its turns: a read waits for no turn, whoever holds it and for how long.

A connection of its own reads, in a thread of its own; the first read makes both. Every answer is one moment of the
queue, and is given once that moment is on the disk; no snapshot is held between two. After any error the connection
is replaced.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import apsw

from runcue.errors import StoreError
from runcue.stores.sql.statements import FIRST_SUBMISSION
from runcue.stores.sql.store_thread import StoreThread
from runcue.stores.sql.submission_watch import First
from runcue.stores.sql.tables import Tables
from runcue.stores.sqlite.file import check_same, open_beside, translate, undo
from runcue.stores.sqlite.schema import shown
from runcue.stores.sqlite.statements import DATA_VERSION
from runcue.stores.sqlite.wal_sync import Disk

T = TypeVar("T")


class ReadConnection:
    """Answers questions about the queue in a file that this process has open."""

    def __init__(
        self,
        path: str,
        identity: tuple[int, int],
        tables: Callable[[apsw.Connection], Tables],
        disk: Disk | None,
    ) -> None:
        self._path = path
        self._identity = identity
        self._make_tables = tables
        self._disk = disk
        self._tables: Tables | None = None
        self._thread = StoreThread("runcue-looking")
        self._guard = threading.Lock()
        self._is_closed = False
        self._version: int | None = None
        """What said that nobody has committed anything since `_first` was read."""
        self._first: First = (None, None)

    async def ask(self, look: Callable[[Tables], T]) -> T:
        """What `look` finds in the tables."""
        return await self._thread.do(lambda: self._looked(look))

    def close(self) -> None:
        """Close the file, once no read is under way. From any thread."""
        with self._guard:
            self._is_closed = True
            self._let_go()
        self._thread.close()

    def _looked(self, look: Callable[[Tables], T]) -> T:
        with self._guard:
            if self._is_closed:
                raise StoreError(f"{shown(self._path)} is closed. Open the queue anew.", self._path)
            tables = self._opened()
            connection = tables.connection
            try:
                connection.execute("BEGIN DEFERRED")  # this connection cannot write, and needs no lock
                try:
                    tables.units.begin_look()
                    found, revision = look(tables), tables.records.revision()
                finally:
                    undo(connection)
                if self._disk is not None:
                    self._disk.sync(revision, has_more=tables.units.has_seen_post)
                return found
            except (apsw.Error, UnicodeDecodeError) as error:
                problem = translate(error, self._path, connection)
                self._let_go()
                # A file that was moved away makes SQLite fail in many ways.
                check_same(self._path, self._identity)
                raise problem from error

    def _opened(self) -> Tables:
        if self._tables is None:
            self._tables = self._make_tables(open_beside(self._path, self._identity))
        return self._tables

    def first_submission(self) -> First:
        """The first row that was submitted from outside, and which process decides. In any thread."""
        with self._guard:
            if self._is_closed:
                return None, None
            connection = self._opened().connection
            try:
                version = connection.execute(DATA_VERSION).fetchone()[0]
                if version != self._version:
                    self._first = connection.execute(FIRST_SUBMISSION).fetchone()
                    self._version = version
            except apsw.Error as error:
                problem = translate(error, self._path, connection)
                self._let_go()
                raise problem from error
            return self._first

    def _let_go(self) -> None:
        self._version = None
        tables, self._tables = self._tables, None
        if tables is not None:
            tables.connection.close()
