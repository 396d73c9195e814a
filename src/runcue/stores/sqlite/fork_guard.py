"""Refuses files that were open when this process was forked.

SQLite records its locks by process and file. A forked child inherits the records, but none of the locks: a connection
that it opens to such a file believes that it holds what its parent holds, and locks nothing. Then another process
deletes the log that the child writes, and what the child accepted is lost. Nothing can repair that.
"""

from __future__ import annotations

import os
from weakref import WeakKeyDictionary

import apsw

from runcue.errors import ForkedConnection
from runcue.host.descriptors import at_fork, forking
from runcue.stores.sqlite.schema import shown

_open: WeakKeyDictionary[Connection, tuple[int, int]] = WeakKeyDictionary()
_inherited: set[tuple[int, int]] = set()


class Connection(apsw.Connection):
    """A connection that is listed while it is open."""

    def close(self, force: bool = False) -> None:
        """Close it."""
        super().close(force)
        _open.pop(self, None)


def connect(name: str, flags: int, statements: int) -> Connection:
    """A new connection, to a file that is there."""
    with forking:  # no fork between opening it and listing it
        connection = Connection(name, flags=flags, statementcachesize=statements)
        found = os.stat(connection.filename)  # noqa: PTH116 (as SQLite gives it)
        _open[connection] = found.st_dev, found.st_ino
    return connection


def check_inherited(path: str) -> None:
    """Refuse a file that was open when this process was forked."""
    try:
        found = os.stat(path)  # noqa: PTH116 (asked of every file that is opened)
    except OSError:
        return  # opening it says what is wrong
    if (found.st_dev, found.st_ino) in _inherited:
        raise ForkedConnection(
            f"{shown(path)} was open when this process was forked, and cannot be opened here: SQLite would take no "
            "lock, and lose what is written. Start a new process (multiprocessing: 'spawn' or 'forkserver'), or fork "
            "before the queue is first used.",
            path,
        )


def _inherit() -> None:
    _inherited.update(_open.values())
    _open.clear()


at_fork(after_in_child=_inherit)
