"""Copies the write-ahead log of a queue file into the file, beside the turns and not within them.

By default the commit that makes the log long enough copies all of it. Here a thread with a connection of its own
copies it, which delays nobody. The little that is committed meanwhile is copied by the next commit, and the log
starts over. A commit copies everything itself only if the log has grown `TOO_LONG`, when the thread cannot keep up or
fails. A failure is logged and tried again; no commit fails because of it. A log that could not be synced is not
copied: if half of it reached the file and the log were lost, the file would be damaged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import apsw

from runcue.stores.sql.store_thread import StoreThread
from runcue.stores.sqlite.file import CHECKPOINT_PAGES, open_beside
from runcue.stores.sqlite.wal_sync import Disk

TOO_LONG: Final = 8 * CHECKPOINT_PAGES


class Log:
    """Keeps the log of one queue file short."""

    def __init__(
        self,
        path: str,
        identity: tuple[int, int],
        trouble: Callable[[str, Exception], None],
        disk: Disk | None,
    ) -> None:
        self._path = path
        self._identity = identity
        self._trouble = trouble
        self._disk = disk
        self._thread = StoreThread("runcue-log")
        self._connection: apsw.Connection | None = None
        self._guard = threading.Lock()
        self._is_closed = False
        self._is_copying = False
        self._is_copied = False
        """True when all but the last commits are in the file."""

    def watch(self, connection: apsw.Connection) -> None:
        """Look after the log that this connection writes."""
        connection.set_wal_hook(self._grown)

    def close(self) -> None:
        """Close the file, once nothing is being copied. From any thread."""
        with self._guard:
            self._is_closed = True
            self._let_go()
        self._thread.close()

    def _grown(self, connection: apsw.Connection, name: str, pages: int) -> int:
        """A commit was written; the log has so many pages now. In the thread that committed."""
        try:
            self._see_to(connection, pages)
        except apsw.BusyError:
            pass  # another process is at it
        except Exception as error:  # noqa: BLE001 (the commit is done, whatever this is, and the next one tries again)
            self._trouble("the log cannot be copied into the file", error)
        return apsw.SQLITE_OK

    def _see_to(self, connection: apsw.Connection, pages: int) -> None:
        if pages >= TOO_LONG or (self._is_copied and not self._is_copying):
            self._is_copied = False
            self._copy_by(connection)
        elif pages >= CHECKPOINT_PAGES and not self._is_copying:
            self._is_copying = True
            try:
                self._thread.put(self._copy)
            except BaseException:
                self._is_copying = False
                raise

    def _copy(self) -> None:
        with self._guard:
            try:
                if not self._is_closed:
                    if self._connection is None:
                        self._connection = open_beside(self._path, self._identity)
                        # Before its first look a connection does not know that there is a log, and copies nothing.
                        self._connection.execute("SELECT revision FROM head").fetchall()
                    self._copy_by(self._connection)
                    self._is_copied = True
            except apsw.BusyError:
                pass  # another process is at it
            except Exception as error:  # noqa: BLE001 (whatever it is, a commit has it done once more)
                self._trouble("the log cannot be copied beside the turns", error)
                self._let_go()
            finally:
                self._is_copying = False

    def _copy_by(self, connection: apsw.Connection) -> None:
        # SQLite syncs the log, too, but its new connections are not told what went wrong before.
        if self._disk is not None:
            self._disk.sync(None)
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
