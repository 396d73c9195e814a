"""The tables of a queue in PostgreSQL: those of a file, but for what is asked in another way there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from runcue.core.model import Record
from runcue.core.query import Query
from runcue.core.state import Head
from runcue.errors import StoreError
from runcue.stores import codec, finding, states
from runcue.stores.connection import Row
from runcue.stores.postgres.address import Address
from runcue.stores.postgres.link import Link
from runcue.stores.postgres.texts import escaped
from runcue.stores.tables import Questions, Tables

_decode = msgspec.json.Decoder(list[list[dict[str, Any]] | None]).decode

SPARE: Final = 20
"""How many rows more than wanted are read, since some of them may be damaged."""
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


def _together(questions: Questions) -> str:
    parts = [f"(SELECT json_agg(q) FROM ({statement}) AS q)" for statement, _ in questions]
    return f"json_build_array({', '.join(parts)})::text"


def _bindings(questions: Questions) -> list[Any]:
    return [value for _, values in questions for value in values]


def _answers(text: str) -> list[list[Any]]:
    return [[tuple(found.values()) for found in answer or ()] for answer in _decode(text)]


class PostgresTables(Tables):
    """The tables behind one connection."""

    page_select = PAGE
    _heard: str | None = None

    def check_history(self, head: Head, address: Address) -> None:
        """Refuse to go on with what was seen before, if commits were lost since: an older copy came into place."""
        if self._seen is not None and head.revision < self._seen:
            raise StoreError(
                f"{address.shown} has lost commits that it had answered, as an older copy of it would. What is "
                "there is read anew.",
                address.plain,
            )

    def opening(self) -> str:
        """The statement with which a turn begins: what there is to know, and what others did since the last one."""
        questions = () if self._seen is None else self._questions()
        link: Link = self.connection
        if not questions:
            return f"SELECT {BEGIN}, NULL FROM head"
        news = f"CASE WHEN revision = ? THEN NULL ELSE {_together(questions)} END"
        return link.prepared(f"SELECT {BEGIN}, {news} FROM head", (self._seen, *_bindings(questions)))

    def hear(self, news: str | None) -> None:
        """What the opening of the turn under way found of others."""
        self._heard = news

    def _told(self) -> list[list[Any]]:
        heard, self._heard = self._heard, None
        return super()._told() if heard is None else _answers(heard)

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
