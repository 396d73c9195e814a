"""Exchanges: a process leaves a post and takes its letters, each in one statement, without the lock of the turn.

Once the post is known to be stored, nothing is raised: that would look as if it were not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
import psycopg

from runcue.core.model.record import Record
from runcue.errors import StorageReplaced, StoreError
from runcue.ports import Outgoing, Received
from runcue.stores.postgres import statements
from runcue.stores.postgres.address import Address
from runcue.stores.postgres.link import cause_of, is_gone, is_passing, replaced, translate_use, unknown
from runcue.stores.postgres.transaction import ASKING, PASSED_FOR_DEAD, PostgresTransaction
from runcue.stores.presence import presence
from runcue.stores.sql import wire
from runcue.stores.sql.columns import COLUMNS
from runcue.stores.sql.connection import Row
from runcue.stores.sql.database import crashpoint
from runcue.stores.sql.mailbox import Letter

LATELY: Final = 1000
"""How many letters are remembered: more than are read in the half a second that a server takes to make it last."""


class Swapped(NamedTuple):
    """What an exchange finds: the counters, how often workers changed, which posts are unread, and letters with the
    records that came with them; or, with a post, whether there are any letters."""

    row: Row
    fleet: int
    unread: frozenset[int]
    letters: list[Letter]
    given: dict[str, Record]
    has_letters: bool = False


_decode_rows = msgspec.json.Decoder(list[dict[str, Any]]).decode


class Exchange:
    """The exchanges of one process, on the connection of its turns."""

    def __init__(self, transaction: PostgresTransaction, address: Address, worker: str) -> None:
        self._transaction = transaction
        self._tables = transaction.tables
        self._address = address
        self._worker = worker
        self._lately: dict[int, int] = {}
        """Letters that were read lately, by number: a mark of what each said."""

    def __call__(self, post: Outgoing | None) -> Received:
        """Leave a post, and take the letters of this process if there are any."""
        with self._transaction.in_use():
            if post is None:
                return self._taken(is_there=False)
            at = self._transaction.clock.now()
            swapped = self._once(lambda number: self._post(number, post, at))
            if swapped is not None and not swapped.has_letters:
                return self._read_letters(swapped.fleet, swapped.unread, is_there=True)
            try:
                return self._taken(is_there=True)
            except (psycopg.Error, StoreError):
                return self._tables.mailbox.nothing_read(self._transaction.head)

    def _taken(self, *, is_there: bool) -> Received:
        """Take the letters of this process and read them. `is_there` says that its post is stored."""
        mailbox = self._tables.mailbox
        # If an answer was lost, its letters are made up for.
        swapped = self._once(self._take) or self._once(self._take)
        if swapped is None:
            return mailbox.nothing_read(self._transaction.head)
        mailbox.hold(swapped.letters, swapped.given)
        return self._read_letters(swapped.fleet, swapped.unread, is_there=is_there)

    def _once(self, swap: Callable[[int], Swapped]) -> Swapped | None:
        """Do an exchange, once more if it did not take place; None when it did and its answer was lost."""
        transaction = self._transaction
        for is_last in (False, True):
            try:
                transaction.living_link()
                number = transaction.next_number()
                asked_at = presence.boottime()
                crashpoint("post.written")
                swapped = swap(number)
                if swapped.row[-3] != transaction.identity:
                    raise replaced("holds another queue now", self._address)
                transaction.hear(asked_at, swapped.row)
                return swapped
            except psycopg.Error as error:
                if not is_gone(error) or is_last:
                    raise translate_use(error, self._address) from cause_of(error, self._address)
                has_swapped = self._has_swapped()
                if has_swapped is None:
                    raise unknown(PASSED_FOR_DEAD, self._address) from cause_of(error, self._address)
                if has_swapped:
                    return None
        raise AssertionError("the second try returns or raises")

    def _read_letters(self, fleet: int, unread: frozenset[int], *, is_there: bool) -> Received:
        """What the letters say that were taken. Those that cannot be read now are kept for the next time."""
        mailbox = self._tables.mailbox
        for is_last in (False, True):
            try:
                self._transaction.living_link()
                self._tables.workers.meet(fleet)
                received = mailbox.received(self._transaction.head, ())
                received.unread = unread
                return received
            except (psycopg.Error, StoreError) as error:
                if not is_last and (is_gone(error) or is_passing(error)):
                    continue
                if is_there:
                    return mailbox.nothing_read(self._transaction.head, unread)
                if isinstance(error, psycopg.Error):
                    raise translate_use(error, self._address) from cause_of(error, self._address)
                raise
        raise AssertionError("the second try returns or raises")

    def _has_swapped(self) -> bool | None:
        """Whether an exchange whose answer was lost took place; if not, it never will. None when that is unknown."""
        began, is_first = time.monotonic(), True
        while True:
            try:
                self._transaction.renew()
                before, is_first = is_first, False
                return self._fence(self._transaction.number, is_first=before)
            except StorageReplaced:
                raise
            except (psycopg.Error, StoreError) as error:
                if time.monotonic() - began >= ASKING:
                    self._tables.mailbox.letters_may_be_lost()
                    raise unknown(error, self._address) from cause_of(error, self._address)
                time.sleep(0.05)

    def _post(self, number: int, post: Outgoing, at: float) -> Swapped:
        """Leave a post, if this is that queue."""
        queue, body = self._transaction.identity, wire.items_text(post.items)
        bindings = (self._worker, 2 * number, queue, post.number, at, body)
        rows = self._tables.connection.execute(statements.POST, bindings).fetchall()
        [(turn, numbers, has_letters, fleet, *counters)] = rows
        if turn is None and counters[-3] == queue:
            raise StoreError("A post was not kept: another process uses the name of this worker.")
        self._transaction.saw_commit(is_there=turn is not None)
        self._lately.clear()  # a post is synced, and with it all that was read before
        return Swapped(tuple(counters), fleet, frozenset((*numbers, post.number)), [], {}, has_letters)

    def _take(self, number: int) -> Swapped:
        """Take the letters of this worker, if this is that queue."""
        mailbox = self._tables.mailbox
        bindings = (self._worker, 2 * number, self._transaction.identity, mailbox.last_given)
        rows: Any = self._tables.connection.execute(statements.TAKE, bindings).fetchall()
        turn, numbers, taken, off, fleet, *counters = rows[0][: -len(COLUMNS)]
        given = [row[-len(COLUMNS) :] for row in rows]
        records = self._tables.records.sound([row for row in given if row[0] is not None])
        given_records = {record.id: record for record in records}
        self._transaction.saw_commit(is_there=turn is not None)
        found = _decode_rows(taken or "[]")
        mailbox.claimed(found)
        letters = self._unseen(found, is_lasting=off is None)
        return Swapped(tuple(counters), fleet, frozenset(numbers), letters, given_records)

    def _unseen(self, found: list[dict[str, Any]], *, is_lasting: bool) -> list[Letter]:
        """Those letters that this worker has not read before. A server that crashed gives words once more, if it did
        not last that they were read; with what lasts, so does all that was read before."""
        letters: list[Letter] = []
        for letter in found:
            mark = hash(letter["body"])
            if self._lately.get(letter["id"]) != mark:
                letters.append((letter["kind"], letter["body"]))
            self._lately[letter["id"]] = mark
        if is_lasting:
            self._lately.clear()
        while len(self._lately) > LATELY:
            del self._lately[next(iter(self._lately))]
        return letters

    def _fence(self, number: int, *, is_first: bool = True) -> bool | None:
        """Whether that exchange took place; from now on it never will. None when nobody knows: this worker passed
        for dead meanwhile, or it may be this very question, asked before, that is found. Notes when letters may have
        gone with it."""
        found = self._tables.connection.execute(statements.FENCE, (self._worker, 2 * number + 1)).fetchall()
        if found and found[0][0] and self._transaction.has_committed:
            self._tables.mailbox.letters_may_be_lost()
            return None
        if found:
            return False
        [(turn,)] = self._tables.connection.execute(statements.LAST_COMMIT, (self._worker,)).fetchall()
        if turn % 2:
            self._tables.mailbox.letters_may_be_lost()
        return True if is_first or turn % 2 == 0 else None
