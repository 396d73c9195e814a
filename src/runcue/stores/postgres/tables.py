"""The tables of a queue in PostgreSQL: those of a file, but for what is asked in another way there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from runcue.core.model.record import Record
from runcue.core.model.state import Head
from runcue.core.views.query import Query
from runcue.errors import StoreError
from runcue.ports import Outgoing
from runcue.stores.postgres.address import Address
from runcue.stores.postgres.link import Link
from runcue.stores.postgres.texts import escaped
from runcue.stores.sql import codec, finding, states, wire
from runcue.stores.sql.connection import Row
from runcue.stores.sql.mailbox import MOST_POSTS, MOST_SIGNS, Letter
from runcue.stores.sql.tables import Tables

_decode = msgspec.json.Decoder(list[list[dict[str, Any]] | None]).decode

SPARE: Final = 20
"""How many rows more than wanted are read, since some of them may be damaged."""
LATELY: Final = 1000
"""How many letters are remembered: more than are read in the half a second that a server takes to make it last."""
NARROW: Final[Mapping[str, str]] = {
    **finding.NARROW,
    "service": "(strpos(services, :service) > 0 OR strpos(services, left(:service, -1) || '[') > 0)",
    "search": "seq > coalesce(:before::bigint, (SELECT max(seq) + 1 FROM work_units)) - 1 - :most AND "
    "strpos(lower(concat_ws(chr(10), id, target, last_error, params)), lower(:text)) > 0",
}


PAGE: Final = f"{codec.SELECT} WHERE shelf = ?1 AND (place, seq) > (?2, ?3) ORDER BY place, seq LIMIT ?4"
"""The next rows of a shelf, by its index alone: of two parts joined it would read and sort all that is left."""


BEGIN: Final = f"{states.HEAD}, identity, clock_offset, extract(epoch FROM clock_timestamp())::float8"
"""The counters, which queue this is, how far the server's clock is from queue time, and what that clock says."""


INBOX: Final = (
    "SELECT id, worker, number, body FROM (SELECT id, worker, number, body, "
    "sum(length(body)) OVER (ORDER BY id) - length(body) AS before "
    "FROM (SELECT * FROM inbox ORDER BY id LIMIT ?) AS first) AS found "
    f"WHERE before <= {MOST_SIGNS} ORDER BY id"
)
"""As many posts as one turn may take."""
OPENING: Final = (
    f"SELECT {BEGIN}, CASE WHEN revision = ? AND decider = ? "
    f"THEN (SELECT json_agg(q) FROM ({INBOX}) AS q)::text END FROM head"
)
"""All that a turn has to know of who goes on deciding: the counters, and what others left for it."""
_KEPT: Final = (
    "ON CONFLICT (worker) DO UPDATE SET turn = excluded.turn "
    "WHERE commits.turn < excluded.turn RETURNING turn"
)
_UNREAD: Final = "ARRAY(SELECT number FROM inbox WHERE worker = $1)"
POST: Final = (
    f"WITH kept AS (INSERT INTO commits SELECT $1::text, $2::bigint FROM head WHERE identity = $3::text {_KEPT}), "
    "posted AS (INSERT INTO inbox (worker, number, at, body) "
    "SELECT $1, $4::bigint, $5::float8, $6::text FROM kept) "
    f"SELECT (SELECT turn FROM kept), {_UNREAD}, EXISTS (SELECT 1 FROM letters WHERE worker = $1), "
    f"fleet, {BEGIN} FROM head"
)
"""Leaves a post: $1 is whose it is, $2 twice the number of its commit, $4 to $6 are the post. Finds whether there are
letters, too. In another queue than $3 it does nothing, nor when it comes late, after its answer was given up and
asked for (FENCE)."""
TAKE: Final = (
    "WITH kept AS (INSERT INTO commits SELECT $1::text, $2::bigint + 1 FROM head WHERE identity = $3::text "
    f"AND EXISTS (SELECT 1 FROM letters WHERE worker = $1) {_KEPT}), "
    "taken AS (DELETE FROM letters WHERE worker = $1 AND EXISTS (SELECT 1 FROM kept) RETURNING id, kind, body), "
    f"given AS ({codec.SELECT} WHERE shelf = 'running/' || $1 AND token > $4::bigint "
    "AND EXISTS (SELECT 1 FROM taken WHERE kind = 'start')) "
    f"SELECT (SELECT turn FROM kept), {_UNREAD}, "
    "CASE WHEN row_number() OVER () = 1 THEN (SELECT json_agg(t ORDER BY id) FROM taken AS t)::text END, "
    "CASE WHEN NOT EXISTS (SELECT 1 FROM letters WHERE worker = $1 AND kind = 'start') "
    "THEN set_config('synchronous_commit', 'off', true) END, "
    f"stand.*, given.* FROM (SELECT fleet, {BEGIN} FROM head) AS stand LEFT JOIN given ON true"
)
"""Takes the letters of a worker, if there are any; $1 to $3 are as in POST, but that `commits` gets one more than $2.
With starts come the works that this worker runs, from the token $4 on, each in a row with all the rest, but for the
letters. That starts were read is synced, as a post is: a server that crashes would give them once more, to this
worker or, taken back, to another. That words were read need not last: what this worker read lately it knows when it
comes again (`_unseen`)."""
FENCE: Final = (
    "INSERT INTO commits VALUES (?, ?) ON CONFLICT (worker) DO UPDATE SET turn = excluded.turn "
    "WHERE commits.turn < excluded.turn - 1 RETURNING xmax = 0"
)
"""Finds a row when an exchange has not taken place, and never will; waits for one that is under way. True when
nothing was known of this worker: what it had committed, if anything, was forgotten."""


class Swapped(NamedTuple):
    """What an exchange finds: the counters, how often workers changed, which posts are unread, and letters; or, with
    a post, whether there are any."""

    row: Row
    fleet: int
    unread: frozenset[int]
    letters: list[Letter]
    has_letters: bool = False


_decode_rows = msgspec.json.Decoder(list[dict[str, Any]]).decode


def _together(questions: tuple[tuple[str, Row], ...]) -> str:
    parts = [f"(SELECT json_agg(q) FROM ({statement}) AS q)" for statement, _ in questions]
    return f"json_build_array({', '.join(parts)})::text"


def _bindings(questions: tuple[tuple[str, Row], ...]) -> list[Any]:
    return [value for _, values in questions for value in values]


def _answers(text: str) -> list[list[Any]]:
    return [[tuple(found.values()) for found in answer or ()] for answer in _decode(text)]


class PostgresTables(Tables):
    """The tables behind one connection."""

    page_select = PAGE
    submitted_select = "SELECT at, body FROM inbox WHERE strpos(body, ?) > 0 ORDER BY id"
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
        super().__init__(connection, worker)
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
            return f"SELECT {BEGIN}, NULL FROM head"
        return link.prepared(OPENING, (self._seen, self._worker, MOST_POSTS + len(self._unfamiliar)))

    def hear(self, posts: str | None) -> None:
        """What the opening of the turn under way found of posts."""
        self._heard = posts

    def _may_have_posts(self) -> bool:
        return True

    def _inbox(self, limit: int) -> Iterator[Row]:
        heard, self._heard = self._heard, None
        if self._is_new:
            return iter(self._execute(INBOX, (limit,)).fetchall())
        return (tuple(found.values()) for found in _decode_rows(heard or "[]"))

    def _delete_posts(self) -> None:
        self._execute("DELETE FROM inbox WHERE id = ANY(?)", (self._taken,))

    def post(self, kept: int, queue: str, post: Outgoing, at: float) -> Swapped:
        """Leave a post, if this is that queue."""
        bindings = (self._worker, 2 * kept, queue, post.number, at, wire.items_text(post.items))
        [(turn, numbers, has_letters, fleet, *counters)] = self._execute(POST, bindings).fetchall()
        if turn is None and counters[-3] == queue:
            raise StoreError("A post was not kept: another process uses the name of this worker.")
        self.has_committed |= turn is not None
        self._lately.clear()  # a post is synced, and with it all that was read before
        return Swapped(tuple(counters), fleet, frozenset((*numbers, post.number)), [], has_letters)

    def take(self, kept: int, queue: str) -> Swapped:
        """Take the letters of this worker, if this is that queue."""
        rows: Any = self._execute(TAKE, (self._worker, 2 * kept, queue, self._token)).fetchall()
        turn, numbers, taken, off, fleet, *counters = rows[0][: -len(codec.COLUMNS)]
        given = [row[-len(codec.COLUMNS) :] for row in rows]
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
        found = self._execute(FENCE, (self._worker, 2 * kept + 1)).fetchall()
        if found and found[0][0] and self.has_committed:
            self._missed = True
            return None
        if found:
            return False
        [(turn,)] = self._execute("SELECT turn FROM commits WHERE worker = ?", (self._worker,)).fetchall()
        self._missed |= bool(turn % 2)
        return True if is_first or turn % 2 == 0 else None

    def _ask(self, *questions: tuple[str, Row]) -> list[list[Any]]:
        """All in one statement, as one text: each statement of its own would cost as much as all of them."""
        row: Any = self._execute(f"SELECT {_together(questions)}", _bindings(questions)).fetchone()
        return _answers(row[0])

    def find(self, query: Query) -> list[Record]:
        """The records that are asked for, newest first; a text is searched among the newest only."""
        statement, named = finding.statement(query, NARROW)
        names = list(named)
        for number, name in enumerate(names, 1):
            statement = statement.replace(f":{name}", f"?{number}")
        bindings = [*(named[name] for name in names), query.limit + SPARE]
        rows = self._execute(f"{statement} LIMIT ?{len(bindings)}", bindings).fetchall()
        return list(self._sound(rows))[: query.limit]

    def config(self) -> dict[str, str]:
        """What the application keeps with its queue."""
        rows = self._execute("SELECT key, value FROM config WHERE value IS NOT NULL")
        return {str(key): str(value) for key, value in rows}

    def _among(self, column: str, texts: Iterable[str]) -> Iterator[tuple[str, Row]]:
        wanted = [escaped(text) for text in texts]
        if wanted:
            yield f"{column} = ANY(?)", (wanted,)
