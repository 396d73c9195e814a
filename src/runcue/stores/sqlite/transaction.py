"""Turns on a queue file.

A turn passes the turnstile (a fair lock among processes), then BEGIN IMMEDIATE; it reads what others left, decides,
and commits once. Then the next process may take its turn, and the log is synced (wal_sync.py).

After the sync a turn raises nothing: that would look as if it had failed. After a failed commit or sync the next turn
opens a new connection, because SQLite makes no promise about the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

import apsw

from runcue.core.model.state import NO_HEAD, Head
from runcue.core.schedule.plan import Plan
from runcue.errors import StorageBusy, StoreError
from runcue.ports import Clock, Outgoing, Received
from runcue.stores.presence.peer_monitor import Trouble
from runcue.stores.presence.presence import Presence, Turnstile
from runcue.stores.sql.connection import Connection, Row, rows_of
from runcue.stores.sql.database import StoreOptions, commit_exchange, crashpoint
from runcue.stores.sql.pruning import forget_files
from runcue.stores.sql.store_thread import Ticket
from runcue.stores.sql.tables import Tables
from runcue.stores.sqlite.file import check_same, open_file, translate, undo
from runcue.stores.sqlite.schema import shown
from runcue.stores.sqlite.statements import DATA_VERSION
from runcue.stores.sqlite.wal_checkpoint import Log
from runcue.stores.sqlite.wal_sync import Disk

INBOX_COLUMNS: Final = ("id", "worker", "number", "body")
INBOX: Final = f"SELECT {', '.join(INBOX_COLUMNS)} FROM inbox ORDER BY id LIMIT $1"
PATIENCE = 30.0
"""Seconds that a turn is waited for before that is an error."""


class FilePosts:
    """The posts in a file (a PostSource)."""

    may_have_submissions = True
    """Whoever commits may have left a post or submitted something: which of the two, the file does not tell."""
    _version: int | None = None
    _version_now: int | None = None

    def may_have_posts(self, connection: Connection) -> bool:
        """Whether another connection has committed anything since the last turn of this one."""
        self._version_now = connection.execute(DATA_VERSION).fetchone()[0]
        return bool(self._version_now != self._version)

    def rows(self, connection: Connection, limit: int, *, anew: bool) -> Iterator[Row]:
        """The posts that were left first."""
        return rows_of(connection, INBOX, (limit,), INBOX_COLUMNS)

    def turn_over(self) -> None:
        """The turn has taken what it read."""
        self._version = self._version_now

    def forget(self) -> None:
        """The next turn reads posts, whether others committed anything or not."""
        self._version = self._version_now = None


class FileTransaction:
    """The turns of one process, and its exchanges, on a connection that is replaced after trouble."""

    def __init__(
        self,
        path: str,
        identity: tuple[int, int],
        tables: Tables,
        *,
        insecure: bool,
        options: StoreOptions,
        clock: Clock,
        turnstile: Turnstile,
        presence: Presence,
        disk: Disk | None,
        log: Log,
        trouble: Trouble,
    ) -> None:
        self._path = path
        self._identity = identity
        self._tables = tables
        self._insecure = insecure
        self._options = options
        self._clock = clock
        self._turnstile = turnstile
        self._presence = presence
        self._disk = disk
        self._log = log
        self._trouble = trouble
        self._is_on_loop = options.clock is not None
        self._is_doubtful = False
        self._has_written = False
        """True while a commit of this process has not been synced, whether it has a new revision or not."""
        self._commit_to_log_only(self._connection)

    def _commit_to_log_only(self, connection: apsw.Connection) -> None:
        """Make commits of this connection write the log and nothing else: syncing and copying come after the turn."""
        connection.execute("PRAGMA synchronous = NORMAL")
        if not self._is_on_loop:  # on virtual time there is only the loop's thread
            self._log.watch(connection)

    @property
    def _connection(self) -> apsw.Connection:
        connection: apsw.Connection = self._tables.connection
        return connection

    @contextmanager
    def begin(self) -> Iterator[FileTransaction]:
        """A turn: the turnstile and the file are locked within this context, and the log is synced after it."""
        if not self._turnstile.acquire(PATIENCE if self._is_on_loop else None):
            raise self.held()
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
                yield self
            except BaseException:
                undo(self._connection)  # it may have been renewed
                raise
        except (apsw.Error, OSError, UnicodeDecodeError) as error:
            self._is_doubtful |= isinstance(error, apsw.IOError)
            raise translate(error, self._path, connection) from error
        finally:
            self._turnstile.release()
        crashpoint("turn.unsynced")
        self._sync_log()

    def held(self) -> StorageBusy:
        """The error of a turn that did not come in time."""
        return StorageBusy(
            f"Others have held {shown(self._path)} for {PATIENCE:g} s. Look for a stopped or hanging process "
            "that has it open, and let it go on or end it.",
            self._path,
        )

    def opened(self) -> tuple[Head, float, bool]:
        """The counters, queue time, and that nothing has to be written for their sake."""
        head = self._tables.records.head()
        return head, max(self._clock.now(), head.now), False

    def batch(self) -> AbstractContextManager[None]:
        """Nothing: here each statement is answered at once."""
        return nullcontext()

    def write(self, plan: Plan, before: Head, now: float) -> None:
        """Write what was decided, delete the files of what was purged, and commit."""
        tables = self._tables
        self._presence.drain()  # this turn has seen all that wake-ups announced so far: nobody else can commit
        tables.writer.write(plan, before, now, self._options.lease)
        tables.writer.read_answers()
        crashpoint("turn.written")
        if plan.purged:  # while nobody else can use their ids
            forget_files(self._options.forget_files, tables.writer.deleted, self._trouble)
        self.commit()

    def leave(self) -> None:
        """End a turn that wrote nothing."""
        self._presence.drain()
        self._connection.execute("ROLLBACK")

    def commit(self, is_there: Callable[[], bool] | None = None) -> None:
        """Commit; after an error of the disk, find out whether the commit took place."""
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

    def exchange(self, post: Outgoing | None, ticket: Ticket | None) -> Received:
        """Leave a post and take the letters of this process. Without a post and without letters this takes no lock.
        Letters are read after the lock is released.

        Once the post is stored nothing is raised: that would look as if it were not.
        """
        tables, is_there = self._tables, False
        has_failed = self._disk is not None and self._disk.has_failed
        unread, is_anything, head = frozenset[int](), True, NO_HEAD
        try:
            # Otherwise the connection is renewed first.
            if post is None and not (has_failed or self._is_doubtful):
                # Before the letters: when a post is gone, its answer is there already.
                unread = tables.mailbox.unread()
                is_anything, head = tables.mailbox.glimpse()
            if is_anything:
                with self.begin() as turn:
                    if ticket is not None and not ticket.take():
                        raise ticket.late()
                    head, letters = tables.swap(post, self._clock.now())
                    unread = tables.mailbox.unread()
                    commit_exchange(turn, tables, post, letters)
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

    def _sync_log(self) -> None:
        """Sync what the turn wrote or read to the disk, before anybody acts on it."""
        if self._disk is not None:
            try:
                self._disk.sync(self._tables.seen, has_more=self._has_written)
            except OSError as error:
                raise self._unknown(error.strerror or str(error)) from error
            self._has_written = False

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
