"""Submits to a queue in a file without being one of its processes."""

from __future__ import annotations

import apsw

from runcue.errors import StoreError
from runcue.ports import Insertion
from runcue.stores.presence import presence
from runcue.stores.sql.statements import REVISION
from runcue.stores.sqlite.file import check_same, identity, open_file, translate, undo
from runcue.stores.sqlite.insertion import insertion_into
from runcue.stores.sqlite.schema import shown
from runcue.stores.sqlite.wal_guard import note_pair


class FileInserter:
    """A connection of its own to the file, which is made if it is not there. For one thread at a time."""

    def __init__(self, path: str, *, insecure: bool) -> None:
        """With `insecure` the file may be anybody's, and anybody may write to it."""
        self._path = path
        self._connection = open_file(path, insecure=insecure)
        self._identity = identity(path)
        presence.make_directory(presence.side_directory(path))
        self._connection.execute(REVISION).fetchall()  # from now on there is a log
        note_pair(path)

    @property
    def insertion(self) -> Insertion:
        """How anybody submits to this queue."""
        return insertion_into(self._connection.filename)

    def insert(self, rows: str) -> None:
        """Insert rows, and commit and sync them."""
        connection, insertion = self._connection, self.insertion
        check_same(self._path, self._identity)
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                connection.execute(insertion.statement.replace("{}", "?"), insertion.values(rows))
                if not connection.changes():
                    raise StoreError(f"{shown(self._path)} has moved. Make a new Client.", self._path)
                connection.execute("COMMIT")
            except BaseException:
                undo(connection)
                raise
        except apsw.Error as error:
            raise translate(error, self._path, connection) from error

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
