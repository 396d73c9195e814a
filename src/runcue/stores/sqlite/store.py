"""A queue in a SQLite file that several processes may share.

A turn passes the turnstile (a fair lock among processes), then BEGIN IMMEDIATE; it reads what others left, decides,
and commits once. Then the next process may take its turn, and the log is synced (wal_sync.py).

After the sync a turn raises nothing: that would look as if it had failed. After a failed commit or sync the next turn
opens a new connection, because SQLite makes no promise about the old one.

Reads are answered beside the turns (read_connection.py). The heart's thread checks every two seconds that the file
and the loop are still there: a process without its loop runs nothing any more, and closes the queue.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar

import apsw

from runcue.core.model.state import NO_HEAD, Head
from runcue.core.schedule.plan import Plan
from runcue.errors import StorageBusy, StorageReplaced, StoreError
from runcue.ports import Clock, Outgoing, Received
from runcue.stores.presence import posix as presence
from runcue.stores.presence.peer_monitor import EndLeftovers
from runcue.stores.sql.mailbox import Letter
from runcue.stores.sql.pruning import Deleted, forget_files
from runcue.stores.sql.store import SqlStore, crashpoint
from runcue.stores.sql.store_thread import Ticket
from runcue.stores.sql.tables import Tables
from runcue.stores.sqlite import file
from runcue.stores.sqlite.file import check_same, identity, open_file, translate, undo
from runcue.stores.sqlite.posts import FilePosts
from runcue.stores.sqlite.read_connection import ReadConnection
from runcue.stores.sqlite.schema import shown
from runcue.stores.sqlite.statements import SQLITE
from runcue.stores.sqlite.wal_checkpoint import Log
from runcue.stores.sqlite.wal_guard import note_pair
from runcue.stores.sqlite.wal_sync import Disk, untold

logger = logging.getLogger("runcue")

T = TypeVar("T")
PATIENCE = 30.0
"""Seconds that a turn is waited for before that is an error."""
CHECK_EVERY = 0.5
"""Seconds after which a turn makes sure again that the file is still the same."""


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


class SqliteStore(SqlStore):
    """The store behind `Cue("queue.db")`."""

    def __init__(
        self,
        path: str,
        *,
        durability: str,
        lease: float,
        retention: float | None = None,
        log_retention: float = 86400.0,
        insecure: bool = False,
        clock: Clock | None = None,
        end_leftovers: EndLeftovers | None = None,
        forget_files: Callable[[list[Deleted]], None] | None = None,
        is_at_work: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(
            path,
            lease=lease,
            retention=retention,
            log_retention=log_retention,
            is_on_loop=clock is not None,
            end_leftovers=end_leftovers,
            forget_files=forget_files,
            is_at_work=is_at_work,
        )
        self._durability = durability
        self._insecure = insecure
        self._disk: Disk | None = None
        with ExitStack() as made:
            connection = open_file(path, insecure=insecure)
            made.callback(connection.close)
            self.local = self._path = connection.filename  # wherever a link led: all of it lies there
            try:
                self._open(made, connection, clock)
            except (apsw.Error, OSError) as error:
                raise translate(error, path, connection) from error
            made.pop_all()
        if durability == "relaxed":
            logger.warning("durability is relaxed: what was accepted last may be lost when the machine stops")
        self._is_doubtful = False
        self._has_written = False
        """True while a commit of this process has not been synced, whether it has a new revision or not."""
        self._looked_at = 0.0

    def _open(self, made: ExitStack, connection: apsw.Connection, clock: Clock | None) -> None:
        """Open everything but the file; what is open already is closed if the next thing fails."""
        directory = presence.side_directory(self._path)
        self._identity = identity(self._path)
        self.clock = clock or FileClock(connection)
        self._turnstile = presence.Turnstile(directory)
        made.callback(self._turnstile.close)
        self._presence = presence.Presence(directory, self.worker)
        made.callback(self._presence.close)
        self._describe_myself(presence.boot_id())
        self._tables = Tables(connection, SQLITE, self.worker, FilePosts())
        self.told = self._tables.records.head().told
        note_pair(self._path)
        if self._durability == "full":
            self._disk = Disk(self._path)
            made.callback(self._disk.close)
            self._disk.open()
        self._read_connection = ReadConnection(self._path, self._identity, self._tables.beside, self._disk)
        self._log = Log(self._path, self._identity, self._trouble, self._disk)
        self._commit_to_log_only(connection)
        self._watch_peers(directory, lambda: self._tables.workers.pids)

    def _commit_to_log_only(self, connection: apsw.Connection) -> None:
        """Make commits of this connection write the log and nothing else: syncing and copying come after the turn."""
        connection.execute("PRAGMA synchronous = NORMAL")
        if not self._is_on_loop:  # on virtual time there is only the loop's thread
            self._log.watch(connection)

    @property
    def _connection(self) -> apsw.Connection:
        connection: apsw.Connection = self._tables.connection
        return connection

    # turns ------------------------------------------------------------------------------------------------

    def _transact(self, job: Callable[[], T]) -> T:
        """Do a job with the turn and the file locked, and sync the log. If the job raises, it is rolled back."""
        if not self._turnstile.acquire(PATIENCE if self._is_on_loop else None):
            raise self._held()
        connection = self._connection
        try:
            has_failed = self._disk is not None and self._disk.has_failed
            if self._is_doubtful or has_failed:
                self._renew()
                connection = self._connection
            connection.execute("BEGIN IMMEDIATE")
            try:
                if self._disk is not None and has_failed:
                    self._disk.write_anew()
                done = job()
            except BaseException:
                undo(self._connection)  # the job may have renewed it
                raise
        except (apsw.Error, OSError, UnicodeDecodeError) as error:
            self._is_doubtful |= isinstance(error, apsw.IOError)
            raise translate(error, self._path, connection) from error
        finally:
            self._turnstile.release()
        crashpoint("turn.unsynced")
        self._sync_log()
        return done

    def _claim(self) -> Ticket:
        return Ticket(PATIENCE, self._held)

    def _held(self) -> StorageBusy:
        return StorageBusy(
            f"Others have held {shown(self._path)} for {PATIENCE:g} s. Look for a stopped or hanging process "
            "that has it open, and let it go on or end it.",
            self._path,
        )

    def _sync_log(self) -> None:
        """Sync what the turn wrote or read to the disk, before anybody acts on it."""
        if self._disk is not None:
            try:
                self._disk.sync(self._tables.seen, has_more=self._has_written)
            except OSError as error:
                raise self._unknown(error.strerror or str(error)) from error
            self._has_written = False

    def _opened(self) -> tuple[Head, float, bool]:
        head = self._tables.records.head()
        return head, max(self.clock.now(), head.now), False

    def _write(self, plan: Plan, before: Head, now: float) -> None:
        tables = self._tables
        self._presence.drain()  # this turn has seen all that wake-ups announced so far: nobody else can commit
        tables.writer.write(plan, before, now, self._lease)
        tables.writer.read_answers()
        crashpoint("turn.written")
        if plan.purged:  # while nobody else can use their ids
            forget_files(self._forget_files, tables.writer.deleted, self._trouble)
        self._commit()

    def _end_unwritten(self) -> None:
        self._presence.drain()
        self._connection.execute("ROLLBACK")

    def _exchanged(self, post: Outgoing | None, claim: Ticket | None = None) -> Received:
        """Without a post and without letters this takes no lock. Letters are read after the lock is released.

        Once the post is stored nothing is raised: that would look as if it were not.
        """
        tables, is_there = self._tables, False

        def job() -> tuple[Head, frozenset[int], list[Letter]]:
            if claim is not None and not claim.take():
                raise claim.late()
            head, letters = tables.swap(post, self.clock.now())
            unread = tables.mailbox.unread()
            self._commit_exchange(post, letters)
            return head, unread, letters

        has_failed = self._disk is not None and self._disk.has_failed
        unread, is_anything, head = frozenset[int](), True, NO_HEAD
        try:
            # Otherwise the connection is renewed first.
            if post is None and not (has_failed or self._is_doubtful):
                # Before the letters: when a post is gone, its answer is there already.
                unread = tables.mailbox.unread()
                is_anything, head = tables.mailbox.glimpse()
            if is_anything:
                head, unread, letters = self._transact(job)
                tables.mailbox.hold(letters)
                is_there = post is not None
            else:
                self._sync_log()
            received = tables.mailbox.received(head, ())
        except (apsw.Error, UnicodeDecodeError, StoreError) as error:
            self._is_doubtful |= isinstance(error, apsw.IOError)
            if is_there:
                return tables.mailbox.nothing_read(head, unread)
            if isinstance(error, StoreError):
                raise
            raise translate(error, self._path, self._connection) from error
        received.unread = unread
        return received

    def _commit(self, is_there: Callable[[], bool] | None = None) -> None:
        connection = self._connection
        try:
            connection.execute("COMMIT")
        except apsw.Error as error:
            problem = translate(error, self._path, connection)
            undo(connection)
            if not isinstance(error, apsw.IOError):
                raise problem from error
            self._is_doubtful = True
            if not self._is_committed(is_there):
                raise problem if type(problem) is not StoreError else self._unknown(str(error)) from error
        self._has_written = True

    def _is_committed(self, is_there: Callable[[], bool] | None) -> bool:
        """Whether a commit that reported an error took place all the same, read through a new connection."""
        try:
            self._renew()
            if is_there is not None:
                return is_there()
            row: Any = self._connection.execute("SELECT turn FROM head").fetchone()
        except (apsw.Error, StoreError) as error:
            self._trouble("cannot ask whether a commit took place", error)
            return False
        return bool(row[0] == self._tables.writer.turn)

    def _unknown(self, said: str) -> StoreError:
        return StoreError(
            f"Whether the last commit to {shown(self._path)} lasts is unknown ({said}). Check the disk, and "
            "submit again with the same idempotency_key or id.",
            self._path,
        )

    def _renew(self) -> None:
        """Replace a connection that had trouble with the disk by a new one."""
        check_same(self._path, self._identity)
        connection, old = open_file(self._path, insecure=self._insecure), self._connection
        self._tables.use(connection)
        self._commit_to_log_only(connection)
        self._is_doubtful = False
        try:
            old.close()
        except apsw.Error as error:
            self._trouble("a connection was not closed properly", error)

    def _check(self) -> None:
        super()._check()
        now = time.monotonic()
        if now - self._looked_at >= CHECK_EVERY:
            check_same(self._path, self._identity)
            self._looked_at = now  # only if that was right: what is wrong is checked again at once

    def _is_lost(self) -> bool:
        try:
            check_same(self._path, self._identity)
        except StorageReplaced:
            self._looked_at = 0.0
            return True
        return False

    # looking, leaving -------------------------------------------------------------------------------------

    async def _read(self, look: Callable[[Tables], T]) -> T:
        def checked(tables: Tables) -> T:
            self._check()
            return look(tables)

        try:
            return checked(self._tables) if self._is_on_loop else await self._read_connection.ask(checked)
        except StorageReplaced:
            self._looked_at = 0.0  # the next turn has to notice it, too
            raise
        except OSError as error:  # the next turn repairs it
            self._peer_monitor.notice()
            raise untold(self._path, error) from error
        except (apsw.Error, UnicodeDecodeError) as error:
            raise translate(error, self._path, self._connection) from error

    def _delete_worker(self) -> None:
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                self._tables.sign_off(self.clock.now())
                connection.execute("COMMIT")
            except BaseException:
                undo(connection)
                raise
        except apsw.Error as error:
            raise translate(error, self._path, self._connection) from error

    def _disconnect(self) -> None:
        """Close the file, but keep the lock that shows that this process lives."""
        self._turnstile.close()
        self._read_connection.close()  # before the main connection, which removes the log if it is the last
        self._log.close()
        self._connection.close()
        if self._disk is not None:
            self._disk.close()
