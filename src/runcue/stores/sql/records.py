"""Reading the works and the events of a queue from its tables, inside a turn or between turns.

Rules:
- A row that cannot be read holds up nobody: it is left out, and a turn sets it aside (quarantine.py). Who asks for it
  by its id is told.
- A page is as long as it was asked for if there is so much, whatever had to be left out.
- The statements are written for SQLite; what PostgreSQL says in another way is in postgres/tables.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from runcue.core.model.events import Event
from runcue.core.model.record import Record, WorkState
from runcue.core.model.state import Grant, Head
from runcue.core.schedule.plan import Key, ReadRequest, ReadResult
from runcue.core.views.query import Query, by_task
from runcue.errors import StorageCorrupt
from runcue.stores.sql import codec, finding, journal, states
from runcue.stores.sql.connection import Connection, Row, Rows, rows_of
from runcue.stores.sql.quarantine import Aside

BEFORE_ALL: Key = (float("-inf"), 0)
OLDEST = (
    f"{codec.SELECT} INDEXED BY work_units_pending WHERE seq > ? AND state = 'pending' ORDER BY seq LIMIT ?"
)
WATCHED = (
    f"{codec.SELECT} WHERE watch_at BETWEEN ?1 AND ?3 AND (watch_at > ?1 OR seq > ?2) "
    "ORDER BY watch_at, seq LIMIT ?4"
)
NEXT_WATCH = "SELECT min(watch_at) FROM work_units WHERE watch_at > ?"
MANY = 500
"""How many ids are asked for in one statement."""


class Records:
    """What is read through one connection. `may_take` is for a process that takes turns: it sets rows aside."""

    page_select = codec.SELECT_PAGE

    def __init__(self, connection: Connection, *, may_take: bool) -> None:
        self.use(connection)
        self._may_take = may_take
        self._aside = Aside()

    def use(self, connection: Connection) -> None:
        """Go on with another connection to the same queue."""
        self.connection: Any = connection  # for those who know which kind it is
        self._execute: Callable[..., Rows] = connection.execute

    def head(self) -> Head:
        """The counters."""
        return states.read_head(self._one(states.HEAD_SELECT))

    def revision(self) -> int | None:
        """Of the moment that is looked at; None when the counters are damaged."""
        found = self._one("SELECT revision FROM head")[0]
        return found if type(found) is int else None

    def records(self, where: str, bindings: Row = ()) -> list[Record]:
        """The records that a condition finds, but for those that are damaged."""
        return list(self._sound(list(self._works(f"{codec.SELECT} WHERE {where}", bindings))))

    def _works(self, statement: str, bindings: Any) -> Iterator[Row]:
        """The rows of SELECT that a statement finds."""
        return rows_of(self.connection, statement, bindings, codec.COLUMNS)

    def _sound(self, rows: Iterable[Row]) -> Iterator[Record]:
        for row in rows:
            try:
                yield self._record(row)
            except StorageCorrupt as error:
                self._aside.name(row, error)
                if self._may_take and self.connection.in_transaction:
                    self._aside.take(self.connection, row)

    def _filled(
        self, fetch: Callable[[Key, int], Iterable[Row]], column: str, after: Key, limit: int
    ) -> list[Record]:
        """As many records as wanted if there are so many, whatever has to be left out among them."""
        found: list[Record] = []
        while limit > len(found):
            asked = limit - len(found)
            rows = list(fetch(after, asked))
            found += self._sound(rows)
            if len(rows) < asked:
                break
            after = (rows[-1][codec.COLUMNS.index(column)], rows[-1][1])
        return found

    def _record(self, row: Row) -> Record:
        if not row[-1] or type(row[-1]) is not int:
            return codec.read_row(row)
        lines = self._execute(codec.ATTEMPT_SELECT, (row[0], row[-1]))
        return codec.read_row(row, codec.read_attempts(row[0], lines))

    def one(self, work_id: str) -> Record | None:
        """That work; raises when it is damaged."""
        rows = list(self._works(f"{codec.SELECT} WHERE id = ?", (work_id,)))
        return self._record(rows[0]) if rows else None

    def by_id(self, ids: Iterable[str]) -> dict[str, Record]:
        """Those of these works that there are, but for those that are damaged."""
        parts = (self.records(where, bindings) for where, bindings in self._among("id", ids))
        return {record.id: record for part in parts for record in part}

    def forgotten(self, ids: Iterable[str]) -> dict[str, WorkState]:
        """How those of these works ended that are no longer kept, as far as that matters."""
        found: dict[str, WorkState] = {}
        for where, bindings in self._among("id", ids):
            rows = self._execute(f"SELECT id, state FROM forgotten WHERE {where}", bindings)
            found.update((name, codec.read_state(name, state)) for name, state in rows)
        return found

    def read(self, lacks: ReadRequest) -> ReadResult:
        """The stored records a decision names."""
        found = ReadResult(records=self.by_id(lacks.ids))
        found.forgotten = self.forgotten(lacks.ids - found.records.keys())
        found.keys = self._owners(lacks.keys)
        for need in lacks.dependents_of:
            found.dependents[need] = self.records(
                "id IN (SELECT work_id FROM dependencies WHERE needs = ?) ORDER BY seq", (need,)
            )
        return found

    def _owners(self, keys: Iterable[str]) -> dict[str, Record]:
        """The newest work of each of these keys, if there is one."""
        found: dict[str, Record] = {}
        for where, bindings in self._among("idempotency_key", keys):
            records = self.records(f"{where} ORDER BY seq", bindings)
            found.update((str(one.spec.idempotency_key), one) for one in records)
        return found

    def _among(self, column: str, texts: Iterable[str]) -> Iterator[tuple[str, Row]]:
        """Conditions that find a column with one of these texts, as many in each as one statement may name."""
        wanted = list(texts)
        for start in range(0, len(wanted), MANY):
            some = tuple(wanted[start : start + MANY])
            yield f"{column} IN ({','.join('?' * len(some))})", some

    def page(self, shelf: str, after: Key | None, limit: int) -> list[Record]:
        """The next records of a shelf."""

        def fetch(after: Key, amount: int) -> Iterable[Row]:
            return self._works(self.page_select, (shelf, *after, amount))

        return self._filled(fetch, "place", after or BEFORE_ALL, limit)

    def dependents(self, work_id: str) -> list[str]:
        """The ids of everybody who ever depended on that work, in the order they came."""
        found = self._execute(
            "SELECT work_id FROM dependencies JOIN work_units ON id = work_id WHERE needs = ? ORDER BY seq",
            (work_id,),
        )
        return [name for (name,) in found]

    def watched(self, until: float, limit: int, after: Key | None = None) -> list[Record]:
        """Records that somebody has to look at by then, most urgent first; the next after (time, number)."""

        def fetch(after: Key, amount: int) -> Iterable[Row]:
            return self._works(WATCHED, (*after, until, amount))

        return self._filled(fetch, "watch_at", after or BEFORE_ALL, limit)

    def next_watch(self, after: float) -> float:
        """When somebody has to look at a record after that moment; infinity when there is none."""
        return read_watch(self._execute(NEXT_WATCH, (after,)).fetchall())

    def oldest(self, after: int, limit: int) -> list[Record]:
        """The pending records that came first, after that number."""

        def fetch(after: Key, amount: int) -> Iterable[Row]:
            return self._works(OLDEST, (after[1], amount))

        return self._filled(fetch, "seq", (0.0, after), limit)

    def starts(self, since: Mapping[str, float]) -> list[Grant]:
        """What was granted of each of these services after that moment, in order, less what was given back."""
        moments: dict[float, list[str]] = {}
        for name, moment in since.items():
            moments.setdefault(moment, []).append(name)
        found: list[Grant] = []
        for moment, names in moments.items():
            for where, bindings in self._among("service", names):
                rows = self._execute(states.STARTS.format(where), (*bindings, moment))
                found += map(states.read_grant, rows)
        return found

    def spent(self, work_id: str, service: str, since: float) -> dict[str, float]:
        """How much of each quantity of a service was counted for a work from that moment on."""
        return dict(self._execute(states.SPENT, (service, since, work_id)).fetchall())

    def started(self) -> list[str]:
        """The services of which anything was granted that is still in the log."""
        return [name for (name,) in self._execute(states.STARTED)]

    def find(self, query: Query) -> list[Record]:
        """The records that are asked for, newest first; a text is searched among the newest only."""
        return list(islice(self._sound(self._works(*finding.statement(query))), query.limit))

    def tally(self) -> dict[str, dict[str, int]]:
        """How many works of each task are pending and running."""
        rows: Any = self._execute(finding.TALLY)
        return by_task(rows)

    def events(self, after: int, limit: int) -> list[Event]:
        """Events after that number, in order: whole turns, at least `limit` events if there are so many.

        For those that are no longer kept there is one that says how many are missed.
        """
        head = self.head()
        after = max(0, after)
        if after >= head.told:
            return []
        first: Any = self._execute("SELECT first_seq, at FROM events ORDER BY first_seq LIMIT 1").fetchone()
        start, at = first or (head.told + 1, head.now)
        found: list[Event] = []
        if start > after + 1:
            found.append(Event("gap", start - 1, at, data={"missed": start - 1 - after}))
            after = start - 1
        rows = self._execute(
            "SELECT body, first_seq, at FROM events WHERE first_seq + amount > ? AND first_seq > "
            "coalesce((SELECT max(first_seq) FROM events WHERE first_seq <= ?), 0) - 1 ORDER BY first_seq LIMIT ?",
            (after + 1, after + 1, max(1, limit)),
        )
        for body, first_seq, at in rows:
            found += [
                event for event in journal.unpack(body, first_seq, at, self._result_of) if event.seq > after
            ]
            if len(found) >= limit:
                rows.close()
                break
        return found

    def _result_of(self, work_id: str) -> Any:
        record = self.by_id([work_id]).get(work_id)
        return None if record is None else record.result

    def _one(self, statement: str, bindings: tuple[Any, ...] = ()) -> tuple[Any, ...]:
        row: Any = self._execute(statement, bindings).fetchone()
        assert isinstance(row, tuple)
        return row


def read_watch(rows: Sequence[Row]) -> float:
    """When somebody has to look at a record, as NEXT_WATCH said; infinity when nobody has."""
    at: float | None = rows[0][0]
    return math.inf if at is None else float(at)
