"""Looks at a queue in a file from outside.

Rules:
- Nothing is ever created or changed. While no process has the queue open its file is read as it stands, because
  SQLite would leave a log beside it otherwise; if the file changes meanwhile it is read again.
- Every answer is one moment of the queue, and no snapshot is held between two calls. What others committed is shown
  once it is on the disk.
- For one thread at a time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import apsw
import msgspec

from runcue.core.model.state import Head, Worker
from runcue.errors import StorageBusy, StorageReplaced, StoreError, quoted
from runcue.stores.presence import presence
from runcue.stores.sql import health, jobs_view
from runcue.stores.sql.jobs_view import JobQuery
from runcue.stores.sql.snapshot_reader import Life, life_here
from runcue.stores.sql.tables import Tables
from runcue.stores.sqlite.file import bytes_in, identity, open_file, translate
from runcue.stores.sqlite.owner import check_queue
from runcue.stores.sqlite.schema import JOBS, VERSION, check_tables, version_of
from runcue.stores.sqlite.statements import SQLITE
from runcue.stores.sqlite.wal_sync import Disk, untold

T = TypeVar("T")
TRIES: Final = 100
"""How often a file that changes while it is read is read again before that is an error."""
MOST_PROBLEMS: Final = 20

Stamp = tuple[int, int, int, int]
"""The device, inode, size and time of change of a file."""


class FileSnapshotReader:
    """A queue in a file."""

    def __init__(self, path: str, *, insecure: bool = False) -> None:
        """With `insecure` it may be anybody's, and anybody may write to it."""
        self.where = path
        self._insecure = insecure
        self._disk: Disk | None = None
        self._connection: apsw.Connection | None = None
        self._still: Stamp | None = None
        """How the file looked when it was opened as it stands; None when it is read through its log."""
        self._connect()
        self.beside = os.path.realpath(path)  # wherever a link led
        self._identity = identity(path)

    def read(self, look: Callable[[Tables], T]) -> T:
        """An answer that was true at one moment."""
        path = self.where
        if identity(path) != self._identity:
            raise StorageReplaced(f"{quoted(path)} was exchanged for another file. Make a new Reader.", path)
        for _ in range(TRIES):
            try:
                answer = self._looked(look)
            except (apsw.Error, StoreError, UnicodeDecodeError) as error:
                if not self._has_moved():
                    raise translate(error, path, self._connection) from error
            else:
                if not self._has_moved():
                    return answer
            self._connect()
        raise StorageBusy(f"{quoted(path)} changes faster than it can be read. Try again.", path)

    def _looked(self, look: Callable[[Tables], T]) -> T:
        if self._connection is None:
            self._connect()
        connection = self._connection
        assert connection is not None
        connection.execute("BEGIN")
        try:
            tables = Tables(connection, SQLITE)
            tables.units.begin_look()
            found, revision = look(tables), tables.records.revision()
        finally:
            connection.execute("ROLLBACK")
        self._sync_log(None if tables.units.has_seen_post else revision)
        return found

    def _sync_log(self, revision: int | None) -> None:
        try:
            if self._disk is not None:
                self._disk.sync(revision)
        except FileNotFoundError:
            pass  # without a log everything is in the file
        except OSError as error:
            self.close()
            raise untold(self.where, error) from error

    def times(self, tables: Tables, head: Head) -> tuple[float, float]:
        """Queue time goes on with the host's clock since the last boot that somebody worked in."""
        row: Any = tables.connection.execute(
            "SELECT anchor_epoch, anchor_boottime, boot FROM head"
        ).fetchone()
        epoch, boottime, boot = row
        if epoch is None or boot != presence.boot_id():
            return head.now, time.time()
        return max(head.now, float(epoch) - float(boottime) + presence.boottime()), time.time()

    def lives(self, tables: Tables, workers: Sequence[Worker], lease: float) -> list[Life]:
        """Who was there before this boot is gone; of the others the locks tell."""
        directory = presence.side_directory(self.where)
        boot = presence.boot_id()
        return [
            life_here(directory, one.id, lease) if one.boot == boot else ("gone", None) for one in workers
        ]

    def jobs(self, tables: Tables, wanted: JobQuery) -> list[dict[str, Any]]:
        """Rows of the view `jobs`."""
        ids = None if wanted.ids is None else msgspec.json.encode(wanted.ids).decode()
        among = ("id IN (SELECT value FROM json_each({}))", ids)
        rows = tables.connection.execute(*jobs_view.statement(JOBS, wanted, among))
        return [dict(zip(jobs_view.COLUMNS, row, strict=True)) for row in rows]

    def health(self, tables: Tables, head: Head) -> dict[str, Any]:
        """How the file is, which is read whole for that."""
        connection = tables.connection
        real = os.path.realpath(self.where)  # beside which SQLite has the log, whatever link led there
        damage = [str(row[0]) for row in connection.execute(f"PRAGMA integrity_check({MOST_PROBLEMS})")]
        problems = [] if damage == ["ok"] else [f"SQLite: {line}" for line in damage]
        problems += health.quarantined(connection)
        return {
            "sqlite": apsw.sqlite_lib_version(),
            "schema": VERSION,
            "size": bytes_in(real),
            "log_size": bytes_in(f"{real}-wal"),
            "problems": problems or health.miscounted(connection, head),
        }

    def close(self) -> None:
        """Close the file."""
        if self._disk is not None:
            self._disk.close()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connect(self) -> None:
        self.close()
        self._disk = None
        self._still = stamp = _stillness(self.where)
        self._connection = (
            None if stamp is None else _as_it_stands(self.where, stamp, insecure=self._insecure)
        )
        if self._connection is None:
            self._still = None
            self._connection = open_file(self.where, read_only=True, insecure=self._insecure)
            self._disk = Disk(self.where)

    def _has_moved(self) -> bool:
        """True when a file that is read as it stands is no longer what it was."""
        return self._still is not None and _stillness(self.where) != self._still


def _stillness(path: str) -> Stamp | None:
    """What a file looks like that nobody has open; None when somebody has, or when it is no plain file."""
    try:
        real = Path(os.path.realpath(path))
        if any(real.with_name(real.name + suffix).exists() for suffix in ("-wal", "-journal")):
            return None
        found = real.stat()
        if not real.is_file() or not found.st_size:
            return None
    except (OSError, ValueError):  # whoever opens it says what is wrong
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _as_it_stands(path: str, stamp: Stamp, *, insecure: bool) -> apsw.Connection | None:
    """A connection that takes no lock and leaves no log; None when the file needs a closer look.

    Of one that is damaged a closer look tells no more, and leaves a log beside it.
    """
    real = os.path.realpath(path)
    name = f"file:{quote(real)}?immutable=1"
    connection = None
    try:
        if not insecure:
            check_queue(path, real)
        connection = apsw.Connection(name, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        if version_of(connection) == VERSION:
            check_tables(connection)
            return connection
    except (apsw.Error, StoreError) as error:
        if connection is not None:
            connection.close()
        if isinstance(error, apsw.CorruptError) and _stillness(path) == stamp:
            raise translate(error, path) from error
        return None
    connection.close()
    return None
