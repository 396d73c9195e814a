"""A queue in a SQLite file that several processes may share.

Turns are those of transaction.py. Reads are answered beside them (read_connection.py). Twice a second a turn checks
that the file is still the one that was opened, and so does the heart's thread every two seconds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any, TypeVar

import apsw

from runcue.errors import StorageReplaced
from runcue.ports import Clock, Insertion, Outgoing, Received
from runcue.stores.presence import presence
from runcue.stores.presence.peer_monitor import Trouble
from runcue.stores.sql.database import StoreOptions, poke_here, sweep_unknown
from runcue.stores.sql.store import SqlStore
from runcue.stores.sql.store_thread import StoreThread, Ticket
from runcue.stores.sql.submission_watch import First
from runcue.stores.sql.tables import Tables
from runcue.stores.sqlite import file, transaction
from runcue.stores.sqlite.file import check_same, identity, open_file, translate, undo
from runcue.stores.sqlite.insertion import insertion_into
from runcue.stores.sqlite.read_connection import ReadConnection
from runcue.stores.sqlite.statements import SQLITE
from runcue.stores.sqlite.transaction import FilePosts, FileTransaction
from runcue.stores.sqlite.wal_checkpoint import Log
from runcue.stores.sqlite.wal_guard import note_pair
from runcue.stores.sqlite.wal_sync import Disk, untold

logger = logging.getLogger("runcue")

T = TypeVar("T")
CHECK_EVERY = 0.5
"""Seconds after which a turn makes sure again that the file is still the same."""


def sqlite_store(path: str, *, insecure: bool = False, **options: Any) -> SqlStore:
    """The store behind `Cue("queue.db")`; the options are those of StoreOptions."""
    some = StoreOptions(**options)
    return SqlStore(FileDatabase(path, some, insecure=insecure), some)


class FileClock:
    """Queue time by the host's boot-time clock, anchored in the file: it never jumps, and goes on after a reboot."""

    def __init__(self, connection: apsw.Connection) -> None:
        boot = presence.boot_id()
        anchor = _anchor(connection, boot)
        if anchor is None:
            file.be_patient(connection, file.OPENING)
            connection.execute("BEGIN IMMEDIATE")
            try:
                anchor = _anchor(connection, boot) or _drop_anchor(connection, boot)
                connection.execute("COMMIT")
            except BaseException:
                undo(connection)
                raise
            file.be_patient(connection, file.PATIENCE)
        epoch, boottime = anchor
        self._offset: float = epoch - boottime

    def now(self) -> float:
        """Queue time."""
        return self._offset + presence.boottime()

    def wall(self) -> float:
        """What the host believes the time of day is."""
        return time.time()


def _anchor(connection: apsw.Connection, boot: str) -> tuple[float, float] | None:
    """A moment of queue time and the same moment of this boot's clock, if a process has stored them."""
    row: Any = connection.execute("SELECT anchor_epoch, anchor_boottime, boot FROM head").fetchone()
    epoch, boottime, known = row
    return None if known != boot or epoch is None else (epoch, boottime)


def _drop_anchor(connection: apsw.Connection, boot: str) -> tuple[float, float]:
    row: Any = connection.execute("SELECT now FROM head").fetchone()
    epoch, boottime = row[0] or time.time(), presence.boottime()
    connection.execute(
        "UPDATE head SET anchor_epoch = ?, anchor_boottime = ?, boot = ?", (epoch, boottime, boot)
    )
    return epoch, boottime


class FileDatabase:
    """A queue file, opened by this process."""

    def __init__(self, path: str, options: StoreOptions, *, insecure: bool = False) -> None:
        self.place = path
        self.worker = presence.new_worker_id()
        self.boot = presence.boot_id()
        self.trouble = Trouble(path)
        self._options = options
        self._insecure = insecure
        self._disk: Disk | None = None
        self._looked_at = 0.0
        self._notice: Callable[[], None] = lambda: None
        with ExitStack() as made:
            connection = open_file(path, insecure=insecure)
            made.callback(connection.close)
            self.local = self._path = connection.filename  # wherever a link led: all of it lies there
            try:
                self._open(made, connection)
            except (apsw.Error, OSError) as error:
                raise translate(error, path, connection) from error
            made.pop_all()
        if options.durability == "relaxed":
            logger.warning("durability is relaxed: what was accepted last may be lost when the machine stops")

    def _open(self, made: ExitStack, connection: apsw.Connection) -> None:
        """Open everything but the file; what is open already is closed if the next thing fails."""
        directory = presence.side_directory(self._path)
        self._identity = identity(self._path)
        self.clock: Clock = self._options.clock or FileClock(connection)
        self._turnstile = presence.Turnstile(directory)
        made.callback(self._turnstile.close)
        self.presence = presence.Presence(directory, self.worker)
        made.callback(self.presence.close)
        self.tables = Tables(connection, SQLITE, self.worker, FilePosts())
        self.last_event_seq = self.tables.records.head().last_event_seq
        note_pair(self._path)
        if self._options.durability == "full":
            self._disk = Disk(self._path)
            made.callback(self._disk.close)
            self._disk.open()
        self._read_connection = ReadConnection(self._path, self._identity, self.tables.beside, self._disk)
        self._log = Log(self._path, self._identity, self.trouble, self._disk)
        self.transaction = FileTransaction(
            self._path,
            self._identity,
            self.tables,
            insecure=self._insecure,
            options=self._options,
            clock=self.clock,
            turnstile=self._turnstile,
            presence=self.presence,
            disk=self._disk,
            log=self._log,
            trouble=self.trouble,
        )
        sweep_unknown(self.presence, self.trouble, directory, self.tables)

    def ticket(self) -> Ticket:
        """A ticket with which the loop can give up waiting: the store's thread waits in the kernel."""
        return Ticket(transaction.PATIENCE, self.transaction.held)

    def exchange(self, post: Outgoing | None, ticket: Ticket | None) -> Received:
        """Leave a post, and take the letters of this process."""
        return self.transaction.exchange(post, ticket)

    async def read(self, look: Callable[[Tables], T], check: Callable[[], None]) -> T:
        """What `look` finds in the tables, read beside the turns."""

        def checked(tables: Tables) -> T:
            check()
            return look(tables)

        try:
            if self._options.clock is not None:
                return checked(self.tables)
            return await self._read_connection.ask(checked)
        except StorageReplaced:
            self._looked_at = 0.0  # the next turn has to notice it, too
            raise
        except OSError as error:  # the next turn repairs it
            self._notice()
            raise untold(self._path, error) from error
        except (apsw.Error, UnicodeDecodeError) as error:
            raise translate(error, self._path, self.tables.connection) from error

    @property
    def insertion(self) -> Insertion:
        """How anybody submits to this queue from outside."""
        return insertion_into(self._path)

    def first_submission(self) -> First:
        """The first row that was submitted from outside, and which process decides. In any thread."""
        return self._read_connection.first_submission()

    def check(self) -> None:
        """Refuse another file than the one that was opened."""
        now = time.monotonic()
        if now - self._looked_at >= CHECK_EVERY:
            check_same(self._path, self._identity)
            self._looked_at = now  # only if that was right: what is wrong is checked again at once

    def is_lost(self) -> bool:
        """Whether the file is no longer the one that was opened."""
        try:
            check_same(self._path, self._identity)
        except StorageReplaced:
            self._looked_at = 0.0
            return True
        return False

    def peers(self) -> Mapping[str, int]:
        """All workers, since they are on this host, with their pids."""
        return self.tables.workers.pids

    def poke(self, workers: Iterable[str], urgent: Iterable[str]) -> None:
        """Wake these workers."""
        poke_here(self.presence, self.trouble, workers, urgent)

    def is_elsewhere(self, worker: str) -> bool:
        """Never: all workers are on this host."""
        return False

    def listen(
        self, notice: Callable[[], None], hear: Callable[[bool], None], lost: Callable[[str], None]
    ) -> None:
        """Call `notice` when a turn has to repair something; the files of the workers tell the rest."""
        self._notice = notice

    def look_around(self) -> None:
        """Nothing: everybody is on this host."""

    def stop(self) -> None:
        """Nothing: there is nothing that listens."""

    def sign_off(self) -> None:
        """Delete this worker from the tables."""
        connection = self.tables.connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                self.tables.sign_off(self.clock.now())
                connection.execute("COMMIT")
            except BaseException:
                undo(connection)
                raise
        except apsw.Error as error:
            raise translate(error, self._path, connection) from error

    def disconnect(self, thread: StoreThread) -> None:
        """Close the file, but keep the lock that shows that this process lives."""
        self._turnstile.close()
        self._read_connection.close()  # before the main connection, which removes the log if it is the last
        self._log.close()
        self.tables.connection.close()
        if self._disk is not None:
            self._disk.close()
