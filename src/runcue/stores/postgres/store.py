"""The store behind `Cue("postgresql://…")`.

A turn is one transaction that holds the lock of its namespace: it reads what others left, decides, and commits, in
two or three round trips. It runs in the store's own thread. While it decides, no statement is unanswered: only then
does the server notice that a session stands still, and end it.

If the answer to a commit is lost, a new connection finds out whether it took place: each turn writes its number into
`commits`. The new connection takes the lock of the namespace first, which the old session holds until it has ended.

After a commit a turn raises nothing: that would look as if it had failed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final, TypeVar

import psycopg
from psycopg import errors

from runcue.core.model.state import Head
from runcue.core.schedule.plan import Plan
from runcue.errors import StorageReplaced, StoreError
from runcue.ports import Clock, Outgoing, Received
from runcue.stores.postgres import schema, statements
from runcue.stores.postgres.address import Address
from runcue.stores.postgres.beats import Beats, note
from runcue.stores.postgres.clock import ServerClock
from runcue.stores.postgres.exchange import Exchange, Swapped
from runcue.stores.postgres.link import (
    ONE_MOMENT,
    Link,
    cause_of,
    is_gone,
    is_passing,
    lost_commits,
    replaced,
    told,
    translate,
    unknown,
)
from runcue.stores.postgres.place import boot_of, make_place, place_of
from runcue.stores.postgres.posts import OpeningPosts
from runcue.stores.presence import posix as presence
from runcue.stores.presence.peer_monitor import EndLeftovers
from runcue.stores.sql import states
from runcue.stores.sql.pruning import Deleted, forget_files
from runcue.stores.sql.store import SqlStore, crashpoint
from runcue.stores.sql.store_thread import StoreThread, Ticket
from runcue.stores.sql.tables import Tables

logger = logging.getLogger("runcue")

T = TypeVar("T")
TRIES: Final = 3
"""How often opening is tried when the connection is lost meanwhile."""
PATIENCE: Final = 30.0
"""Seconds that a turn is waited for before that is an error."""
ASKING: Final = 5.0
"""Seconds to go on finding out whether a commit took place."""
LEAVING: Final = 5.0
"""Seconds that signing off may take."""
LOOK: Final = 1.0
"""Seconds between two looks at the queue while workers elsewhere use it, in case a notification was missed."""
PASSED_FOR_DEAD: Final = StoreError("this process passed for dead meanwhile")


class PostgresStore(SqlStore):
    """A queue in PostgreSQL that processes on many machines share."""

    def __init__(
        self,
        address: Address,
        *,
        durability: str,
        lease: float,
        retention: float | None = None,
        log_retention: float = 86400.0,
        clock: Clock | None = None,
        end_leftovers: EndLeftovers | None = None,
        forget_files: Callable[[list[Deleted]], None] | None = None,
        is_at_work: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(
            address.plain,
            lease=lease,
            retention=retention,
            log_retention=log_retention,
            is_on_loop=clock is not None,
            end_leftovers=end_leftovers,
            forget_files=forget_files,
            is_at_work=is_at_work,
        )
        self._address = address
        self._durability = durability
        self._server_clock = ServerClock() if clock is None else None
        self.clock = clock or self._server_clock  # type: ignore[assignment] # one of them is given
        self._asked_at = 0.0
        self._row: list[Any] = []
        """What BEGIN found in the turn under way, and when it was asked for."""
        self._is_taking_turn = False
        self._is_begun = False
        """True once a turn holds the lock: from then on it is not tried again."""
        self._kept = 0
        """The number of the last commit of this worker."""
        self._beat_at = 0.0
        self._read_connection = StoreThread("runcue-looking")
        self._guard = threading.Lock()
        self._reading: Tables | None = None
        self._beats: Beats | None = None
        self._look_timer: asyncio.TimerHandle | None = None
        for tries_left in reversed(range(TRIES)):
            with ExitStack() as made:
                try:
                    self._open(made)
                except psycopg.Error as error:
                    if not tries_left or not is_gone(error):
                        raise translate(error, address) from cause_of(error, address)
                else:
                    made.pop_all()
                    break
        if durability == "relaxed":
            logger.warning("durability is relaxed: what was accepted last may be lost when the server stops")

    def _open(self, made: ExitStack) -> None:
        """Open everything; what is open already is closed if the next thing fails."""
        link = Link(self._address, self._durability)
        made.callback(link.close)
        for warning in schema.check_server(link):
            logger.warning(warning)
        schema.migrate(link)
        asked_at = presence.boottime()
        row = link.execute(f"SELECT {statements.BEGIN} FROM head").fetchall()[0]
        self._identity = str(row[-3])
        self.local = place_of(self._identity)
        make_place(self.local)
        directory = presence.side_directory(self.local)
        self._presence = presence.Presence(directory, self.worker)
        made.callback(self._presence.close)
        self.boot = str(boot_of(directory))
        head, _, _ = self._heard(link, asked_at, row)
        self.told = head.told
        self._describe_myself(self.boot)
        self._posts = OpeningPosts()
        self._tables = Tables(link, statements.POSTGRES, self.worker, self._posts)
        self._exchange_of = Exchange(self._tables, self.worker)
        self._watch_peers(directory, self._peers)

    def _peers(self) -> dict[str, int]:
        return {one.id: one.pid for one in self._tables.workers.known if one.boot == self.boot}

    @property
    def _link(self) -> Link:
        link: Link = self._tables.connection
        return link

    # turns ------------------------------------------------------------------------------------------------

    def _transact(self, job: Callable[[], T]) -> T:
        """Do a job with the turn locked; if it raises, it is rolled back. A lost connection is replaced once."""
        for is_last in (False, True):
            self._is_taking_turn, self._is_begun = True, False
            try:
                self._begin(self._link if self._link.is_alive else self._renew())
                return job()
            except psycopg.Error as error:
                self._undo()
                if self._is_begun or is_last or not is_gone(error):
                    raise told(error, self._address) from cause_of(error, self._address)
            except BaseException:
                self._undo()
                raise
            finally:
                self._is_taking_turn = False
        raise AssertionError("the second try returns or raises")

    def _begin(self, link: Link) -> None:
        """Wait for the turn. A session that holds it and stands still is ended, if the server does not do that."""
        deadline = time.monotonic() + PATIENCE
        posts = None
        self._presence.drain()  # the turn sees all that wake-ups announced so far
        while True:
            opening = self._opening(link)
            self._asked_at = presence.boottime()
            try:
                *self._row, posts = link.begin_with(schema.turn_of(self._address), opening)
                break
            except errors.LockNotAvailable:
                link.undo()
                if time.monotonic() >= deadline:
                    raise
                schema.end_standstill(link)
        self._is_begun = True
        self._posts.found = posts
        if self._row[-3] != self._identity:
            raise replaced("holds another queue now", self._address)

    def _opening(self, link: Link) -> str:
        """The statement with which a turn begins: what there is to know, and what others left."""
        if self._tables.decided is None:
            return f"SELECT {statements.BEGIN}, NULL FROM head"
        bindings = (self._tables.decided, self.worker, self._tables.inbox.limit)
        return link.prepared("runcue_opening", statements.OPENING, bindings)

    def _undo(self) -> None:
        try:
            self._link.undo()
        except psycopg.Error:  # this connection is lost; the next turn makes another
            self._link.close()

    _head: Head
    """The counters as this process last saw them."""

    def _heard(self, link: Link, asked_at: float, row: Sequence[Any]) -> tuple[Head, float, bool]:
        """The counters, queue time, and True when the offset of the clock had to be corrected."""
        *counters, _, offset, server = row
        head = self._head = states.read_head(tuple(counters))
        if self._server_clock is None:
            return head, max(self.clock.now(), head.now), False
        now, put_right = self._server_clock.hear(asked_at, server, offset, head.now)
        if put_right != offset:
            logger.warning(
                "the clock of %s jumped by %.1f s: queue time goes on",
                self._address.shown,
                offset - put_right,
            )
            if link.in_transaction:
                link.execute(statements.CLOCK_OFFSET, (put_right,))
        return head, now, put_right != offset

    def _opened(self) -> tuple[Head, float, bool]:
        before, now, is_put_right = self._heard(self._link, self._asked_at, self._row)
        if self._tables.decided is not None and before.revision < self._tables.decided:
            raise lost_commits(self._address)
        return before, now, is_put_right

    def _write(self, plan: Plan, before: Head, now: float) -> None:
        tables, link = self._tables, self._link
        with link.piped():
            tables.writer.write(plan, before, now, self._lease)
            if plan.lost:
                for statement in statements.FORGET:
                    link.execute(statement, (list(plan.lost),))
            crashpoint("turn.written")
            if plan.purged:  # while nobody else can use their ids
                forget_files(self._forget_files, tables.writer.deleted, self._trouble)
            self._commit()
        if self._link is link:
            tables.writer.read_answers()
        else:  # the commit stands, but its answer was lost
            self._read_shelves_again()

    def _end_unwritten(self) -> None:
        self._link.leave()

    # exchanges: without the lock --------------------------------------------------------------------------

    def _exchanged(self, post: Outgoing | None, claim: Ticket | None = None) -> Received:
        """Leave a post and take the letters of this process, each in one statement, if there is anything.

        Once the post is known to be stored, nothing is raised: that would look as if it were not.
        """
        tables = self._tables
        self._is_taking_turn = True
        try:
            if post is None:
                return self._taken(is_there=False)
            at = self.clock.now()
            swapped = self._exchange_once(lambda kept, queue: self._exchange_of.post(kept, queue, post, at))
            if swapped is not None and not swapped.has_letters:
                return self._read_letters(swapped.fleet, swapped.unread, is_there=True)
            try:
                return self._taken(is_there=True)
            except (psycopg.Error, StoreError):
                return tables.mailbox.nothing_read(self._head)
        finally:
            self._is_taking_turn = False

    def _taken(self, *, is_there: bool) -> Received:
        """Take the letters of this process and read them. `is_there` says that its post is stored."""
        tables = self._tables  # if an answer was lost, its letters are made up for
        swapped = self._exchange_once(self._exchange_of.take) or self._exchange_once(self._exchange_of.take)
        if swapped is None:
            return tables.mailbox.nothing_read(self._head)
        tables.mailbox.hold(swapped.letters, swapped.given)
        return self._read_letters(swapped.fleet, swapped.unread, is_there=is_there)

    def _exchange_once(self, swap: Callable[[int, str], Swapped]) -> Swapped | None:
        """Do an exchange, once more if it did not take place; None when it did and its answer was lost."""
        for is_last in (False, True):
            try:
                if not self._link.is_alive:
                    self._renew()
                self._kept += 1
                asked_at = presence.boottime()
                crashpoint("post.written")
                swapped = swap(self._kept, self._identity)
                if swapped.row[-3] != self._identity:
                    raise replaced("holds another queue now", self._address)
                self._heard(self._link, asked_at, swapped.row)
                return swapped
            except psycopg.Error as error:
                if not is_gone(error) or is_last:
                    raise told(error, self._address) from cause_of(error, self._address)
                has_swapped = self._has_swapped()
                if has_swapped is None:
                    raise unknown(PASSED_FOR_DEAD, self._address) from cause_of(error, self._address)
                if has_swapped:
                    return None
        raise AssertionError("the second try returns or raises")

    def _read_letters(self, fleet: int, unread: frozenset[int], *, is_there: bool) -> Received:
        """What the letters say that were taken. Those that cannot be read now are kept for the next time."""
        tables = self._tables
        for is_last in (False, True):
            try:
                if not self._link.is_alive:
                    self._renew()
                tables.workers.meet(fleet)
                received = tables.mailbox.received(self._head, ())
                received.unread = unread
                return received
            except (psycopg.Error, StoreError) as error:
                if not is_last and (is_gone(error) or is_passing(error)):
                    continue
                if is_there:
                    return tables.mailbox.nothing_read(self._head, unread)
                if isinstance(error, psycopg.Error):
                    raise told(error, self._address) from cause_of(error, self._address)
                raise
        raise AssertionError("the second try returns or raises")

    def _has_swapped(self) -> bool | None:
        """Whether an exchange whose answer was lost took place; if not, it never will. None when that is unknown."""
        began, is_first = time.monotonic(), True
        while True:
            try:
                self._renew()
                before, is_first = is_first, False
                return self._exchange_of.fence(self._kept, is_first=before)
            except StorageReplaced:
                raise
            except (psycopg.Error, StoreError) as error:
                if time.monotonic() - began >= ASKING:
                    self._tables.mailbox.letters_may_be_lost()
                    raise unknown(error, self._address) from cause_of(error, self._address)
                time.sleep(0.05)

    def _batch(self) -> AbstractContextManager[None]:
        return self._link.piped()

    def _commit(self, is_there: Callable[[], bool] | None = None) -> None:
        link = self._link
        self._kept += 1
        link.execute(statements.COMMITTED, (self.worker, 2 * self._kept))
        if time.monotonic() >= self._beat_at:
            self._beat_at = time.monotonic() + self._lease / 3
            link.execute(statements.BEAT, (self.worker,))
        try:
            link.commit()
        except psycopg.Error as error:
            if not is_gone(error) or not self._is_committed():
                raise
        self._exchange_of.has_committed = True

    def _is_committed(self) -> bool:
        """Whether a commit whose answer was lost took place all the same."""
        began = time.monotonic()
        while True:
            try:
                link = self._renew()
                # The old session has ended, one way or the other.
                link.begin_with(schema.turn_of(self._address))
                row: Any = link.execute(statements.LAST_COMMIT, (self.worker,)).fetchone()
                link.undo()
                if row is None and (
                    self._exchange_of.has_committed or time.monotonic() - began >= self._lease
                ):
                    raise unknown(PASSED_FOR_DEAD, self._address)
                return row is not None and row[0] == 2 * self._kept
            except StorageReplaced:
                raise
            except (psycopg.Error, StoreError) as error:
                if time.monotonic() - began >= ASKING:
                    raise unknown(error, self._address) from cause_of(error, self._address)
                time.sleep(0.05)

    def _read_shelves_again(self) -> None:
        try:
            self._tables.writer.ask_again()
        except psycopg.Error as error:  # the next change of those shelves announces them
            self._trouble("cannot ask what a commit said", error)

    def _renew(self) -> Link:
        """Replace a lost connection by a new one."""
        self._link.close()
        link = Link(self._address, self._durability)
        try:
            if schema.version_of(link) != schema.VERSION:
                raise replaced("holds no queue any more", self._address)
        except BaseException:
            link.close()
            raise
        self._tables.use(link)
        return link

    def _poke(self, workers: Iterable[str], urgent: Iterable[str]) -> None:
        """Wake these workers: those of this host by their files, all others by NOTIFY."""
        named, here = set(workers) - {self.worker}, self._peers()
        super()._poke(named & here.keys(), urgent)
        away = named - here.keys()
        if away and self._beats is not None and self._beats.are_others_elsewhere:
            text = note(self.worker, away & set(urgent))
            try:
                self._link.execute(statements.NOTIFY, (self._address.schema, text))
            except psycopg.Error as error:  # they look by themselves a little later
                self._trouble("cannot wake processes elsewhere", error)

    # looking ----------------------------------------------------------------------------------------------

    async def _read(self, look: Callable[[Tables], T]) -> T:
        def looked() -> T:
            with self._guard:
                return self._looked(look)

        return looked() if self._is_on_loop else await self._read_connection.do(looked)

    def _looked(self, look: Callable[[Tables], T]) -> T:
        """Read one moment of the queue, once more if the connection was lost meanwhile."""
        self._check()
        for is_last in (False, True):
            if self._is_closed and self._reading is None:
                raise StoreError(f"{self._address.shown} is closed. Open the queue anew.", self._place)
            try:
                if self._reading is None:
                    self._reading = Tables(Link(self._address, read_only=True), statements.POSTGRES)
                link: Link = self._reading.connection
                (identity,) = link.begin_with(ONE_MOMENT, "SELECT identity FROM head", locked=0.0)
                try:
                    if str(identity) != self._identity:
                        raise replaced("holds another queue now", self._address)
                    found = look(self._reading)
                except BaseException:
                    link.undo()
                    raise
                link.leave()
                return found
            except psycopg.Error as error:
                self._close_reading()
                if is_last or not (is_gone(error) or is_passing(error)):
                    raise told(error, self._address) from cause_of(error, self._address)
        raise AssertionError("the second try returns or raises")

    def _close_reading(self) -> None:
        beside, self._reading = self._reading, None
        if beside is not None:
            beside.connection.close()

    # the other processes ----------------------------------------------------------------------------------

    def listen(self, changed: Callable[[bool], None], lost: Callable[[str], None]) -> None:
        """Say when another process committed something, and when one died."""
        super().listen(changed, lost)
        if not self._is_on_loop:
            self._beats = Beats(
                self._address, self.worker, self.boot, self._lease, self._trouble, self._debounce.hear, lost
            )

    def is_alive(self, worker: str) -> bool:
        """False when that process is known to be dead: on this host by its lock, elsewhere when its row is gone."""
        is_away = any(one.id == worker and one.boot != self.boot for one in self._tables.workers.known)
        return is_away or super().is_alive(worker)

    def _look_around(self) -> None:
        super()._look_around()
        if self._look_timer is None:
            self._look_later()

    def _look_later(self) -> None:
        """While workers elsewhere use the queue, look at it regularly: a notification may be missed."""
        self._look_timer = None
        if not self._is_closed and any(one.boot != self.boot for one in self._tables.workers.known):
            self._look_timer = self._loop.call_later(LOOK, self._look)

    def _look(self) -> None:
        self._peer_monitor.notice()
        self._look_later()

    def _stop_background(self) -> None:
        super()._stop_background()
        if self._look_timer is not None:
            self._look_timer.cancel()
        if self._beats is not None:
            self._beats.close()

    def _delete_worker(self) -> None:
        try:
            link = self._link if self._link.is_alive else self._renew()
            with link.timed(LEAVING):
                link.begin_with("SELECT 1")
                self._tables.sign_off(self.clock.now())
                for statement in statements.FORGET:
                    link.execute(statement, ([self.worker],))
                link.commit()
        except psycopg.Error as error:
            raise told(error, self._address) from cause_of(error, self._address)

    def _disconnect(self) -> None:
        """Close the database, but keep the lock that shows that this process lives.

        Each connection is closed by the thread that uses it; one that is in use now is cut.
        """
        beside = self._reading
        if beside is not None and self._guard.locked():
            beside.connection.hang_up()
        if self._is_taking_turn:
            self._link.hang_up()
        if self._is_on_loop:
            self._close_reading()
            self._link.close()
        else:
            self._read_connection.after_all(self._close_reading)
            self._turns.after_all(self._link.close)
        self._read_connection.close()
