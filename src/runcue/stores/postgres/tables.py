"""The tables of a queue in PostgreSQL: those of a file, but for what is asked in another way there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from runcue.core.model import Record
from runcue.core.query import Query
from runcue.core.state import Head
from runcue.errors import StoreError
from runcue.stores import codec, finding
from runcue.stores.postgres.address import Address
from runcue.stores.postgres.texts import escaped
from runcue.stores.records import Row
from runcue.stores.tables import Tables

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


class PostgresTables(Tables):
    """The tables behind one connection."""

    page_select = PAGE

    def check_history(self, head: Head, address: Address) -> None:
        """Refuse to go on with what was seen before, if commits were lost since: an older copy came into place."""
        if self._seen is not None and head.revision < self._seen:
            raise StoreError(
                f"{address.shown} has lost commits that it had answered, as an older copy of it would. What is "
                "there is read anew.",
                address.plain,
            )

    def _ask(self, *questions: tuple[str, Row]) -> list[list[Any]]:
        """All in one statement, as one text: each statement of its own would cost as much as all of them."""
        parts = [f"(SELECT json_agg(q) FROM ({statement}) AS q)" for statement, _ in questions]
        bindings = [value for _, values in questions for value in values]
        row = self._execute(f"SELECT json_build_array({', '.join(parts)})::text", bindings).fetchone()
        return [[tuple(found.values()) for found in answer or ()] for answer in _decode(row[0])]

    def find(self, query: Query) -> list[Record]:
        """The records that are asked for, newest first; a text is searched among the newest only."""
        statement, named = finding.statement(query, NARROW)
        names = list(named)
        for number, name in enumerate(names, 1):
            statement = statement.replace(f":{name}", f"?{number}")
        rows = self._execute(
            f"{statement} LIMIT {query.limit + SPARE}", [named[name] for name in names]
        ).fetchall()
        return list(self._sound(rows))[: query.limit]

    def config(self) -> dict[str, str]:
        """What the application keeps with its queue."""
        rows = self._execute("SELECT key, value FROM config WHERE value IS NOT NULL")
        return {str(key): str(value) for key, value in rows}

    def _among(self, column: str, texts: Iterable[str]) -> Iterator[tuple[str, Row]]:
        wanted = [escaped(text) for text in texts]
        if wanted:
            yield f"{column} = ANY(?)", (wanted,)
