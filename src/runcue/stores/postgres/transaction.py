"""Turns on a queue in PostgreSQL.

A turn is one transaction that holds the lock of its namespace: it reads what others left, decides, and commits, in
two or three round trips. While it decides, no statement is unanswered: only then does the server notice that a
session stands still, and end it.

If the answer to a commit is lost, a new connection finds out whether it took place: each turn writes its number into
`commits`. The new connection takes the lock of the namespace first, which the old session holds until it has ended.

After a commit a turn raises nothing: that would look as if it had failed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import msgspec
import psycopg
from psycopg import errors

from runcue.core.model.state import Head
from runcue.core.schedule.plan import Plan
from runcue.errors import StorageReplaced, StoreError
from runcue.ports import Clock
from runcue.stores.postgres import schema, statements
from runcue.stores.postgres.address import Address
from runcue.stores.postgres.clock import ServerClock
from runcue.stores.postgres.link import (
    Link,
    cause_of,
    is_gone,
    lost_commits,
    replaced,
    translate_use,
    unknown,
)
from runcue.stores.presence import presence
from runcue.stores.presence.peer_monitor import Trouble
from runcue.stores.sql import states
from runcue.stores.sql.connection import Connection, Row
from runcue.stores.sql.database import StoreOptions, crashpoint
from runcue.stores.sql.pruning import forget_files
from runcue.stores.sql.tables import Tables

logger = logging.getLogger("runcue")

PATIENCE: Final = 30.0
"""Seconds that a turn is waited for before that is an error."""
ASKING: Final = 5.0
"""Seconds to go on finding out whether a commit took place."""
_decode_posts = msgspec.json.Decoder(list[dict[str, Any]]).decode
PASSED_FOR_DEAD: Final = StoreError("this process passed for dead meanwhile")


class OpeningPosts:
    """The posts that a turn finds (a PostSource)."""

    found: str | None = None
    """What the opening of the turn under way found, as JSON."""
    may_have_submissions = True
    """Whether it found that anything was submitted from outside."""

    def may_have_posts(self, connection: Connection) -> bool:
        """Yes: whether there are any is known already."""
        return True

    def rows(self, connection: Connection, limit: int, *, anew: bool) -> Iterator[Row]:
        """The posts that were left first, as far as one turn takes them."""
        found, self.found = self.found, None
        if anew:
            return iter(connection.execute(statements.INBOX, (limit,)).fetchall())
        return (tuple(post.values()) for post in _decode_posts(found or "[]"))

    def turn_over(self) -> None:
        """Each turn asks for itself."""

    forget = turn_over


class PostgresTransaction:
    """The turns of one process, on a connection that is replaced when it is lost."""

    def __init__(
        self,
        link: Link,
        address: Address,
        worker: str,
        *,
        options: StoreOptions,
        lock: presence.Presence,
        trouble: Trouble,
        asked_at: float,
        row: Sequence[Any],
    ) -> None:
        """`row` is what BEGIN found when it was asked for first, at that moment."""
        self._posts = OpeningPosts()
        self.tables = Tables(link, statements.POSTGRES, worker, self._posts)
        self._address = address
        self._worker = worker
        self._options = options
        self._presence = lock
        self._trouble = trouble
        self._server_clock = ServerClock() if options.clock is None else None
        self.clock: Clock = options.clock or self._server_clock  # type: ignore[assignment] # one of them is given
        self.identity = str(row[-3])
        """Names the queue."""
        self.head: Head
        """The counters as this process last saw them."""
        self._asked_at, self._row = asked_at, row
        """What BEGIN found in the turn under way, and when it was asked for."""
        self.is_in_use = False
        """True while a turn or an exchange is under way."""
        self.number = 0
        """The number of the last commit of this worker."""
        self.has_committed = False
        """True once this worker has committed anything, which is known until it passes for dead."""
        self._beat_at = 0.0
        self.hear(asked_at, row)

    @property
    def link(self) -> Link:
        """The connection in use, lost or not."""
        link: Link = self.tables.connection
        return link

    def living_link(self) -> Link:
        """The connection, replaced if it is lost."""
        return self.link if self.link.is_alive else self.renew()

    def next_number(self) -> int:
        """The number of the commit that comes next."""
        self.number += 1
        return self.number

    @contextmanager
    def begin(self) -> Iterator[PostgresTransaction]:
        """A turn: the lock of the namespace is held within this context."""
        with self.in_use():
            try:
                self._begin()
                yield self
            except psycopg.Error as error:
                self._undo()
                raise translate_use(error, self._address) from cause_of(error, self._address)
            except BaseException:
                self._undo()
                raise

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """A turn or an exchange is under way within this context."""
        self.is_in_use = True
        try:
            yield
        finally:
            self.is_in_use = False

    def saw_commit(self, *, is_there: bool) -> None:
        """A commit of this worker was, or (not `is_there`) was not, found in the tables."""
        self.has_committed |= is_there

    def _begin(self) -> None:
        """Wait for the turn. A lost connection is replaced once."""
        for is_last in (False, True):
            try:
                self._wait(self.living_link())
                return
            except psycopg.Error as error:
                if is_last or not is_gone(error):
                    raise
                self._undo()

    def _wait(self, link: Link) -> None:
        """Wait for the turn. A session that holds it and stands still is ended, if the server does not do that."""
        deadline = time.monotonic() + PATIENCE
        posts, has_submissions = None, True
        self._presence.drain()  # the turn sees all that wake-ups announced so far
        while True:
            opening = self._opening(link)
            self._asked_at = presence.boottime()
            try:
                *self._row, posts, has_submissions = link.begin_with(schema.turn_of(self._address), opening)
                break
            except errors.LockNotAvailable:
                link.undo()
                if time.monotonic() >= deadline:
                    raise
                schema.end_standstill(link)
        self._posts.found, self._posts.may_have_submissions = posts, has_submissions
        if self._row[-3] != self.identity:
            raise replaced("holds another queue now", self._address)

    def _opening(self, link: Link) -> str:
        """The statement with which a turn begins: what there is to know, and what others left."""
        if self.tables.decided is None:
            return f"SELECT {statements.BEGIN}, NULL, true FROM head"
        bindings = (self.tables.decided, self._worker, self.tables.inbox.limit)
        return link.prepared("runcue_opening", statements.OPENING, bindings)

    def _undo(self) -> None:
        try:
            self.link.undo()
        except psycopg.Error:  # this connection is lost; the next turn makes another
            self.link.close()

    def hear(self, asked_at: float, row: Sequence[Any]) -> tuple[Head, float, bool]:
        """The counters, queue time, and True when the offset of the clock had to be corrected."""
        *counters, _, offset, server = row
        head = self.head = states.read_head(tuple(counters))
        if self._server_clock is None:
            return head, max(self.clock.now(), head.now), False
        now, put_right = self._server_clock.hear(asked_at, server, offset, head.now)
        if put_right != offset:
            logger.warning(
                "the clock of %s jumped by %.1f s: queue time goes on",
                self._address.shown,
                offset - put_right,
            )
            if self.link.in_transaction:
                self.link.execute(statements.CLOCK_OFFSET, (put_right,))
        return head, now, put_right != offset

    def opened(self) -> tuple[Head, float, bool]:
        """The counters, queue time, and True when the offset of the clock had to be corrected."""
        before, now, is_put_right = self.hear(self._asked_at, self._row)
        if self.tables.decided is not None and before.revision < self.tables.decided:
            raise lost_commits(self._address)
        return before, now, is_put_right

    def write(self, plan: Plan, before: Head, now: float) -> None:
        """Write what was decided, delete the files of what was purged, and commit."""
        tables, link = self.tables, self.link
        with link.piped():
            tables.writer.write(plan, before, now, self._options.lease)
            if plan.lost:
                for statement in statements.FORGET:
                    link.execute(statement, (list(plan.lost),))
            crashpoint("turn.written")
            if plan.purged:  # while nobody else can use their ids
                forget_files(self._options.forget_files, tables.writer.deleted, self._trouble)
            self.commit()
        if self.link is link:
            tables.writer.read_answers()
        else:  # the commit stands, but its answer was lost
            self._read_index_heads_again()

    def batch(self) -> AbstractContextManager[None]:
        """A context in which statements are sent without waiting for their answers."""
        return self.link.piped()

    def leave(self) -> None:
        """End a turn that wrote nothing."""
        self.link.leave()

    def commit(self, is_there: Callable[[], bool] | None = None) -> None:
        """Commit. If the answer is lost, a new connection finds out whether it took place, by its number alone."""
        link = self.link
        link.execute(statements.COMMITTED, (self._worker, 2 * self.next_number()))
        if time.monotonic() >= self._beat_at:
            self._beat_at = time.monotonic() + self._options.lease / 3
            link.execute(statements.BEAT, (self._worker,))
        try:
            link.commit()
        except psycopg.Error as error:
            if not is_gone(error) or not self._is_committed():
                raise
        self.has_committed = True

    def _is_committed(self) -> bool:
        """Whether a commit whose answer was lost took place all the same."""
        began = time.monotonic()
        while True:
            try:
                link = self.renew()
                # The old session has ended, one way or the other.
                link.begin_with(schema.turn_of(self._address))
                row: Any = link.execute(statements.LAST_COMMIT, (self._worker,)).fetchone()
                link.undo()
                if row is None and (self.has_committed or time.monotonic() - began >= self._options.lease):
                    raise unknown(PASSED_FOR_DEAD, self._address)
                return row is not None and row[0] == 2 * self.number
            except StorageReplaced:
                raise
            except (psycopg.Error, StoreError) as error:
                if time.monotonic() - began >= ASKING:
                    raise unknown(error, self._address) from cause_of(error, self._address)
                time.sleep(0.05)

    def _read_index_heads_again(self) -> None:
        try:
            self.tables.writer.ask_again()
        except psycopg.Error as error:  # the next change of those index keys announces them
            self._trouble("cannot ask what a commit said", error)

    def renew(self) -> Link:
        """Replace a lost connection by a new one."""
        self.link.close()
        link = Link(self._address, self._options.durability)
        try:
            if schema.version_of(link) != schema.VERSION:
                raise replaced("holds no queue any more", self._address)
        except BaseException:
            link.close()
            raise
        self.tables.use(link)
        return link
