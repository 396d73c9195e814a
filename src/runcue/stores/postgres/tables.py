"""The tables of a queue in PostgreSQL: those of a file, but for what is asked in another way there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from runcue.core.model.record import Record
from runcue.core.model.state import Head
from runcue.core.views.query import Query
from runcue.errors import StoreError
from runcue.ports import Outgoing
from runcue.stores.postgres import statements
from runcue.stores.postgres.address import Address
from runcue.stores.postgres.link import Link
from runcue.stores.sql import finding, wire
from runcue.stores.sql.columns import COLUMNS
from runcue.stores.sql.connection import Row
from runcue.stores.sql.mailbox import MOST_POSTS, Letter
from runcue.stores.sql.tables import Tables

_decode = msgspec.json.Decoder(list[list[dict[str, Any]] | None]).decode

SPARE: Final = 20
"""How many rows more than wanted are read, since some of them may be damaged."""
LATELY: Final = 1000
"""How many letters are remembered: more than are read in the half a second that a server takes to make it last."""


class Swapped(NamedTuple):
    """What an exchange finds: the counters, how often workers changed, which posts are unread, and letters; or, with
    a post, whether there are any."""

    row: Row
    fleet: int
    unread: frozenset[int]
    letters: list[Letter]
    has_letters: bool = False


_decode_rows = msgspec.json.Decoder(list[dict[str, Any]]).decode


class PostgresTables(Tables):
    """The tables behind one connection."""

    _heard: str | None = None
    _given: dict[str, Record]
    """The works that the last exchange found that this worker was given."""
    _token = 0
    """The last token that it was given and has read."""
    _lately: dict[int, int]
    """Letters that were read lately, by number: a mark of what each said."""
    has_committed = False
    """True once this worker has committed anything, which is known until it passes for dead."""

    def __init__(self, connection: Link, worker: str = "") -> None:
        super().__init__(connection, statements.POSTGRES, worker)
        self._given, self._lately = {}, {}

    def check_history(self, head: Head, address: Address) -> None:
        """Refuse to go on with what was seen before, if commits were lost since: an older copy came into place."""
        if self._seen is not None and head.revision < self._seen:
            raise StoreError(
                f"{address.shown} has lost commits that it had answered, as an older copy of it would. What is "
                "there is read anew.",
                address.plain,
            )

    def opening(self) -> str:
        """The statement with which a turn begins: what there is to know, and what others left."""
        link: Link = self.connection
        if self._seen is None:
            return f"SELECT {statements.BEGIN}, NULL FROM head"
        return link.prepared(
            "runcue_opening",
            statements.OPENING,
            (self._seen, self._worker, MOST_POSTS + len(self._unfamiliar)),
        )

    def hear(self, posts: str | None) -> None:
        """What the opening of the turn under way found of posts."""
        self._heard = posts

    def _may_have_posts(self) -> bool:
        return True

    def _inbox(self, limit: int) -> Iterator[Row]:
        heard, self._heard = self._heard, None
        if self._is_new:
            return iter(self._execute(statements.INBOX, (limit,)).fetchall())
        return (tuple(found.values()) for found in _decode_rows(heard or "[]"))

    def _delete_posts(self) -> None:
        self._execute(statements.POSTS_DELETE, (self._taken,))

    def post(self, kept: int, queue: str, post: Outgoing, at: float) -> Swapped:
        """Leave a post, if this is that queue."""
        bindings = (self._worker, 2 * kept, queue, post.number, at, wire.items_text(post.items))
        [(turn, numbers, has_letters, fleet, *counters)] = self._execute(statements.POST, bindings).fetchall()
        if turn is None and counters[-3] == queue:
            raise StoreError("A post was not kept: another process uses the name of this worker.")
        self.has_committed |= turn is not None
        self._lately.clear()  # a post is synced, and with it all that was read before
        return Swapped(tuple(counters), fleet, frozenset((*numbers, post.number)), [], has_letters)

    def take(self, kept: int, queue: str) -> Swapped:
        """Take the letters of this worker, if this is that queue."""
        rows: Any = self._execute(statements.TAKE, (self._worker, 2 * kept, queue, self._token)).fetchall()
        turn, numbers, taken, off, fleet, *counters = rows[0][: -len(COLUMNS)]
        given = [row[-len(COLUMNS) :] for row in rows]
        self._given = {one.id: one for one in self._sound([row for row in given if row[0] is not None])}
        self.has_committed |= turn is not None
        found = _decode_rows(taken or "[]")
        self._claimed = bool(found)
        letters = self._unseen(found, is_lasting=off is None)
        return Swapped(tuple(counters), fleet, frozenset(numbers), letters)

    def _loaded(self, ids: list[str]) -> dict[str, Record]:
        given, self._given = self._given, {}
        self._token = max((self._token, *(record.token for record in given.values())))
        return given | super()._loaded([work_id for work_id in ids if work_id not in given])

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
        found = self._execute(statements.FENCE, (self._worker, 2 * kept + 1)).fetchall()
        if found and found[0][0] and self.has_committed:
            self._missed = True
            return None
        if found:
            return False
        [(turn,)] = self._execute(statements.LAST_COMMIT, (self._worker,)).fetchall()
        self._missed |= bool(turn % 2)
        return True if is_first or turn % 2 == 0 else None

    def _ask(self, *questions: str) -> list[list[Any]]:
        """All in one statement, as one text: each statement of its own would cost as much as all of them."""
        parts = ", ".join(f"(SELECT json_agg(q) FROM ({statement}) AS q)" for statement in questions)
        answers = _decode(self._one(f"SELECT json_build_array({parts})::text")[0])
        return [[tuple(found.values()) for found in answer or ()] for answer in answers]

    def find(self, query: Query) -> list[Record]:
        """The records that are asked for, newest first; a text is searched among the newest only."""
        statement, bindings = finding.statement(query, statements.POSTGRES)
        rows = self._execute(f"{statement} LIMIT {query.limit + SPARE}", bindings).fetchall()
        return list(self._sound(rows))[: query.limit]
