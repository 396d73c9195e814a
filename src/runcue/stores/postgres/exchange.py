"""Exchanges: a process leaves a post, or takes its letters, in one statement and without the lock of the turn."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from runcue.core.model.record import Record
from runcue.errors import StoreError
from runcue.ports import Outgoing
from runcue.stores.postgres import statements
from runcue.stores.sql import wire
from runcue.stores.sql.columns import COLUMNS
from runcue.stores.sql.connection import Row
from runcue.stores.sql.mailbox import Letter
from runcue.stores.sql.tables import Tables

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
    """The exchanges of one worker."""

    def __init__(self, tables: Tables, worker: str) -> None:
        self._tables = tables
        self._worker = worker
        self._lately: dict[int, int] = {}
        """Letters that were read lately, by number: a mark of what each said."""
        self.has_committed = False
        """True once this worker has committed anything, which is known until it passes for dead."""

    def post(self, kept: int, queue: str, post: Outgoing, at: float) -> Swapped:
        """Leave a post, if this is that queue."""
        bindings = (self._worker, 2 * kept, queue, post.number, at, wire.items_text(post.items))
        rows = self._tables.connection.execute(statements.POST, bindings).fetchall()
        [(turn, numbers, has_letters, fleet, *counters)] = rows
        if turn is None and counters[-3] == queue:
            raise StoreError("A post was not kept: another process uses the name of this worker.")
        self.has_committed |= turn is not None
        self._lately.clear()  # a post is synced, and with it all that was read before
        return Swapped(tuple(counters), fleet, frozenset((*numbers, post.number)), [], {}, has_letters)

    def take(self, kept: int, queue: str) -> Swapped:
        """Take the letters of this worker, if this is that queue."""
        mailbox = self._tables.mailbox
        bindings = (self._worker, 2 * kept, queue, mailbox.last_given)
        rows: Any = self._tables.connection.execute(statements.TAKE, bindings).fetchall()
        turn, numbers, taken, off, fleet, *counters = rows[0][: -len(COLUMNS)]
        given = [row[-len(COLUMNS) :] for row in rows]
        records = self._tables.records.sound([row for row in given if row[0] is not None])
        given_records = {record.id: record for record in records}
        self.has_committed |= turn is not None
        found = _decode_rows(taken or "[]")
        mailbox.is_claimed = bool(found)
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

    def fence(self, kept: int, *, is_first: bool = True) -> bool | None:
        """Whether that exchange took place; from now on it never will. None when nobody knows: this worker passed
        for dead meanwhile, or it may be this very question, asked before, that is found. Notes when letters may have
        gone with it."""
        found = self._tables.connection.execute(statements.FENCE, (self._worker, 2 * kept + 1)).fetchall()
        if found and found[0][0] and self.has_committed:
            self._tables.mailbox.letters_may_be_lost()
            return None
        if found:
            return False
        [(turn,)] = self._tables.connection.execute(statements.LAST_COMMIT, (self._worker,)).fetchall()
        if turn % 2:
            self._tables.mailbox.letters_may_be_lost()
        return True if is_first or turn % 2 == 0 else None
