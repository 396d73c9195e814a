"""The tables of a queue in PostgreSQL: those of a file, but for what is asked in another way there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from runcue.core.model import Record
from runcue.core.query import Query
from runcue.stores import codec, finding
from runcue.stores.postgres.texts import SIGN, escaped, unescaped
from runcue.stores.records import Row
from runcue.stores.tables import Tables

SPARE: Final = 20
"""How many rows more than wanted are read, since some of them may be damaged."""
NARROW: Final[Mapping[str, str]] = {
    **finding.NARROW,
    "service": "(strpos(services, :service) > 0 OR strpos(services, left(:service, -1) || '[') > 0)",
    "search": "seq > coalesce(:before::bigint, (SELECT max(seq) + 1 FROM work_units)) - 1 - :most AND "
    "strpos(lower(concat_ws(chr(10), id, target, last_error, params)), lower(:text)) > 0",
}


TEXTS: Final = tuple(
    codec.COLUMNS.index(name)
    for name in ("id", "target", "idempotency_key", "last_error", "traceback", "queue")
)
"""The columns with texts from outside; all others hold names and JSON."""


class PostgresTables(Tables):
    """The tables behind one connection."""

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
        return {unescaped(key): unescaped(value) for key, value in rows}

    def _record(self, row: Row) -> Record:
        for place in TEXTS:
            text = row[place]
            if text is not None and SIGN in text:
                row = tuple(unescaped(value) if isinstance(value, str) else value for value in row)
                break
        return super()._record(row)

    def _among(self, column: str, texts: Iterable[str]) -> Iterator[tuple[str, Row]]:
        wanted = [escaped(text) for text in texts]
        if wanted:
            yield f"{column} = ANY(?)", (wanted,)
