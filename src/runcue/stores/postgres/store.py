"""A queue in PostgreSQL that processes on many machines share.

Turns are those of transaction.py, exchanges those of exchange.py. Reads are answered beside them, on a connection and
in a thread of their own.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any, Final, TypeVar

import psycopg

from runcue.errors import StoreError
from runcue.ports import Insertion, Outgoing, Received
from runcue.stores.postgres import schema, statements
from runcue.stores.postgres.address import Address
from runcue.stores.postgres.beats import Beats, note
from runcue.stores.postgres.exchange import Exchange
from runcue.stores.postgres.insertion import insertion_into
from runcue.stores.postgres.link import (
    ONE_MOMENT,
    Link,
    cause_of,
    is_gone,
    is_passing,
    replaced,
    translate,
    translate_use,
)
from runcue.stores.postgres.place import boot_of, make_place, place_of
from runcue.stores.postgres.transaction import PostgresTransaction
from runcue.stores.presence import presence
from runcue.stores.presence.peer_monitor import Trouble
from runcue.stores.sql.database import StoreOptions, poke_here, sweep_unknown
from runcue.stores.sql.statements import FIRST_SUBMISSION
from runcue.stores.sql.store import SqlStore
from runcue.stores.sql.store_thread import StoreThread, Ticket
from runcue.stores.sql.submission_watch import First
from runcue.stores.sql.tables import Tables

logger = logging.getLogger("runcue")

T = TypeVar("T")
TRIES: Final = 3
"""How often opening is tried when the connection is lost meanwhile."""
LEAVING: Final = 5.0
"""Seconds that signing off may take."""
LOOK: Final = 1.0
"""Seconds between two looks at the queue while workers elsewhere use it, in case a notification was missed."""


def postgres_store(address: Address, **options: Any) -> SqlStore:
    """The store behind `Cue("postgresql://…")`; the options are those of StoreOptions."""
    some = StoreOptions(**options)
    return SqlStore(PostgresDatabase(address, some), some)


class PostgresDatabase:
    """A queue in PostgreSQL, opened by this process."""

    def __init__(self, address: Address, options: StoreOptions) -> None:
        self.place = address.plain
        self.worker = presence.new_worker_id()
        self.trouble = Trouble(address.plain)
        self._address = address
        self._options = options
        self._read_connection = StoreThread("runcue-looking")
        self._guard = threading.Lock()
        self._reading: Tables | None = None
        self._beats: Beats | None = None
        self._notice: Callable[[], None] = lambda: None
        self._loop = asyncio.get_running_loop()
        self._look_timer: asyncio.TimerHandle | None = None
        self._is_stopped = False
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
        if options.durability == "relaxed":
            logger.warning("durability is relaxed: what was accepted last may be lost when the server stops")

    def _open(self, made: ExitStack) -> None:
        """Open everything; what is open already is closed if the next thing fails."""
        link = Link(self._address, self._options.durability)
        made.callback(link.close)
        for warning in schema.check_server(link):
            logger.warning(warning)
        schema.migrate(link)
        asked_at = presence.boottime()
        row = link.execute(f"SELECT {statements.BEGIN} FROM head").fetchall()[0]
        self.local = place_of(str(row[-3]))
        make_place(self.local)
        directory = presence.side_directory(self.local)
        self.presence = presence.Presence(directory, self.worker)
        made.callback(self.presence.close)
        self.boot = str(boot_of(directory))
        self.transaction = PostgresTransaction(
            link,
            self._address,
            self.worker,
            options=self._options,
            lock=self.presence,
            trouble=self.trouble,
            asked_at=asked_at,
            row=row,
        )
        self.tables = self.transaction.tables
        self.clock = self.transaction.clock
        self.last_event_seq = self.transaction.head.last_event_seq
        self._exchange = Exchange(self.transaction, self._address, self.worker)
        sweep_unknown(self.presence, self.trouble, directory, self.tables)

    def ticket(self) -> Ticket | None:
        """None: the store's thread does not wait for longer than a turn may be waited for."""
        return None

    def exchange(self, post: Outgoing | None, ticket: Ticket | None) -> Received:
        """Leave a post, and take the letters of this process."""
        return self._exchange(post)

    def check(self) -> None:
        """Nothing: each turn looks which queue this is."""

    def is_lost(self) -> bool:
        """No: each turn looks which queue this is."""
        return False

    # looking ----------------------------------------------------------------------------------------------

    async def read(self, look: Callable[[Tables], T], check: Callable[[], None]) -> T:
        """What `look` finds in the tables, read beside the turns."""

        def looked() -> T:
            with self._guard:
                check()
                return self._looked(look)

        return looked() if self._options.clock is not None else await self._read_connection.do(looked)

    def _looked(self, look: Callable[[Tables], T]) -> T:
        """Read one moment of the queue, once more if the connection was lost meanwhile."""
        for is_last in (False, True):
            if self._is_stopped and self._reading is None:
                raise StoreError(f"{self._address.shown} is closed. Open the queue anew.", self.place)
            try:
                link = self._link_to_read()
                assert self._reading is not None
                (identity,) = link.begin_with(ONE_MOMENT, "SELECT identity FROM head", locked=0.0)
                try:
                    if str(identity) != self.transaction.identity:
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
                    raise translate_use(error, self._address) from cause_of(error, self._address)
        raise AssertionError("the second try returns or raises")

    @property
    def insertion(self) -> Insertion:
        """How anybody submits to this queue from outside."""
        return insertion_into(self._address, self.transaction.identity)

    def first_submission(self) -> First:
        """The first row that was submitted from outside, and which process decides. In any thread."""
        with self._guard:
            if self._is_stopped:
                return None, None
            try:
                found: Any = self._link_to_read().execute(FIRST_SUBMISSION).fetchone()
            except psycopg.Error as error:
                self._close_reading()
                raise translate_use(error, self._address) from cause_of(error, self._address)
        return found[0], found[1]

    def _link_to_read(self) -> Link:
        if self._reading is None:
            self._reading = Tables(Link(self._address, read_only=True), statements.POSTGRES)
        link: Link = self._reading.connection
        return link

    def _close_reading(self) -> None:
        beside, self._reading = self._reading, None
        if beside is not None:
            beside.connection.close()

    # the other processes ----------------------------------------------------------------------------------

    def peers(self) -> Mapping[str, int]:
        """The workers of this host that were last read, with their pids."""
        return {one.id: one.pid for one in self.tables.workers.known if one.boot == self.boot}

    def poke(self, workers: Iterable[str], urgent: Iterable[str]) -> None:
        """Wake these workers: those of this host by their files, all others by NOTIFY."""
        named, here = set(workers) - {self.worker}, self.peers()
        poke_here(self.presence, self.trouble, named & here.keys(), urgent)
        away = named - here.keys()
        if away and self._beats is not None and self._beats.are_others_elsewhere:
            text = note(self.worker, away & set(urgent))
            try:
                self.transaction.link.execute(statements.NOTIFY, (self._address.schema, text))
            except psycopg.Error as error:  # they look by themselves a little later
                self.trouble("cannot wake processes elsewhere", error)

    def is_elsewhere(self, worker: str) -> bool:
        """True for a worker of another host: it counts as alive until its row is gone."""
        return any(one.id == worker and one.boot != self.boot for one in self.tables.workers.known)

    def listen(
        self, notice: Callable[[], None], hear: Callable[[bool], None], lost: Callable[[str], None]
    ) -> None:
        """Give signs of life, and listen to the workers elsewhere."""
        self._notice = notice
        if self._options.clock is None:
            self._beats = Beats(
                self._address, self.worker, self.boot, self._options.lease, self.trouble, hear, lost
            )

    def look_around(self) -> None:
        """After each turn or exchange, on the loop."""
        if self._look_timer is None:
            self._look_later()

    def _look_later(self) -> None:
        """While workers elsewhere use the queue, look at it regularly: a notification may be missed."""
        self._look_timer = None
        if not self._is_stopped and any(one.boot != self.boot for one in self.tables.workers.known):
            self._look_timer = self._loop.call_later(LOOK, self._look)

    def _look(self) -> None:
        self._notice()
        self._look_later()

    def stop(self) -> None:
        """Stop what listens and looks."""
        self._is_stopped = True
        if self._look_timer is not None:
            self._look_timer.cancel()
        if self._beats is not None:
            self._beats.close()

    def sign_off(self) -> None:
        """Delete this worker from the tables."""
        try:
            link = self.transaction.living_link()
            with link.timed(LEAVING):
                link.begin_with("SELECT 1")
                self.tables.sign_off(self.clock.now())
                for statement in statements.FORGET:
                    link.execute(statement, ([self.worker],))
                link.commit()
        except psycopg.Error as error:
            raise translate_use(error, self._address) from cause_of(error, self._address)

    def disconnect(self, thread: StoreThread) -> None:
        """Close the database, but keep the lock that shows that this process lives.

        Each connection is closed by the thread that uses it; one that is in use now is cut.
        """
        beside, transaction = self._reading, self.transaction
        if beside is not None and self._guard.locked():
            beside.connection.hang_up()
        if transaction.is_in_use:
            transaction.link.hang_up()
        if self._options.clock is not None:
            self._close_reading()
            transaction.link.close()
        else:
            self._read_connection.after_all(self._close_reading)
            thread.after_all(transaction.link.close)
        self._read_connection.close()
