"""Reads the units and the events of a queue from its tables, in a turn or between turns.

Rules:
- A damaged row is left out, and a turn puts it into quarantine (quarantine.py). Asking for it by its id raises.
- A page has as many records as were asked for, if there are so many, even where damaged rows are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from runcue.core.model.events import EVERY_EVENT, Event, EventFilter, Passage
from runcue.core.model.group import GroupCounts
from runcue.core.model.record import Record, WorkState
from runcue.core.model.state import Grant, Head
from runcue.core.schedule.plan import Key, ReadRequest, ReadResult, Spent
from runcue.errors import StorageCorrupt, quoted
from runcue.stores.sql import codec, journal, statements, states
from runcue.stores.sql.columns import COLUMNS
from runcue.stores.sql.connection import Row
from runcue.stores.sql.quarantine import Quarantine
from runcue.stores.sql.session import Session

MOST_TURNS = 1000
"""Of how many turns at most events are read at once."""
BEFORE_ALL: Key = (float("-inf"), 0)


class Records:
    """What is read through one connection. In turns, damaged rows are put into quarantine."""

    def __init__(self, session: Session, quarantine: Quarantine) -> None:
        self._session = session
        self._quarantine = quarantine
        self._may_take = True

    def head(self) -> Head:
        """The counters."""
        return states.read_head(self._session.one(statements.HEAD_SELECT))

    def revision(self) -> int | None:
        """The revision that is being read; None when the counters are damaged."""
        found = self._session.one(statements.REVISION)[0]
        return found if type(found) is int else None

    def records(self, statement: str, bindings: Row = ()) -> list[Record]:
        """The records that a statement finds, but for those that are damaged."""
        return list(self.sound(list(self._session.units(statement, bindings))))

    def sound(self, rows: Iterable[Row]) -> Iterator[Record]:
        """The records in rows of SELECT, but for those that are damaged."""
        for row in rows:
            try:
                yield self.read_row(row)
            except StorageCorrupt as error:
                self._quarantine.name(row, error)
                if self._may_take and self._session.is_turn:
                    self._quarantine.take(self._session.connection, row)

    def _filled(
        self, fetch: Callable[[Key, int], Iterable[Row]], column: str, after: Key, limit: int
    ) -> list[Record]:
        """As many records as wanted, if there are so many: for damaged rows the next ones are read."""
        found: list[Record] = []
        while limit > len(found):
            asked = limit - len(found)
            rows = list(fetch(after, asked))
            found += self.sound(rows)
            if len(rows) < asked:
                break
            after = (rows[-1][COLUMNS.index(column)], rows[-1][1])
        return found

    def read_row(self, row: Row) -> Record:
        """The record in a row of SELECT; raises when it is damaged."""
        if not row[-1] or type(row[-1]) is not int:
            return codec.read_row(row)
        lines = self._session.execute(statements.ATTEMPT_SELECT, (row[0], row[-1]))
        return codec.read_row(row, codec.read_attempts(row[0], lines))

    def one(self, work_id: str) -> Record | None:
        """That unit; raises when it is damaged."""
        rows = list(self._session.units(statements.SELECT_ONE, (work_id,)))
        return self.read_row(rows[0]) if rows else None

    def running(self, worker: str) -> list[Record]:
        """What this worker runs."""
        return self.records(statements.SELECT_RUNNING, (f"running/{worker}",))

    def by_id(self, ids: Iterable[str]) -> dict[str, Record]:
        """These units, but for those that are unknown or damaged."""
        found = self._session.dialect.any_of("id", ids)
        parts = (self.records(f"{statements.SELECT} WHERE {where}", bindings) for where, bindings in found)
        return {record.id: record for part in parts for record in part}

    def peek(self, ids: list[str]) -> dict[str, Record]:
        """These units, but for those that are unknown or damaged, which stay where they are."""
        self._may_take = False
        try:
            return self.by_id(ids) if ids else {}
        finally:
            self._may_take = True

    def forgotten(self, ids: Iterable[str]) -> dict[str, WorkState]:
        """How those of these units ended that were deleted, where that is still needed."""
        found: dict[str, WorkState] = {}
        for where, bindings in self._session.dialect.any_of("id", ids):
            rows = self._session.execute(statements.FORGOTTEN.format(where), bindings)
            found.update((name, codec.read_state(name, state)) for name, state in rows)
        return found

    def read(self, request: ReadRequest) -> ReadResult:
        """The stored records a decision names."""
        found = ReadResult(records=self.by_id(request.ids))
        found.forgotten = self.forgotten(request.ids - found.records.keys())
        found.keys = self._owners(request.keys)
        found.unique_keys = self._newest(request.unique_keys)
        for need in request.dependents_of:
            found.dependents[need] = self.records(statements.SELECT_DEPENDENTS, (need,))
        return found

    def _owners(self, keys: Iterable[str]) -> dict[str, Record]:
        """The newest unit with each of these idempotency keys."""
        found: dict[str, Record] = {}
        for where, bindings in self._session.dialect.any_of("idempotency_key", keys):
            records = self.records(f"{statements.SELECT} WHERE {where} ORDER BY seq", bindings)
            found.update((str(one.spec.idempotency_key), one) for one in records)
        return found

    def _newest(self, keys: Iterable[str]) -> dict[str, Record]:
        """The newest unit with each of these unique keys: a key may have had thousands."""
        parts = (
            self.records(f"{statements.SELECT} WHERE {where}", bindings)
            for where, bindings in self._session.dialect.newest_of(keys)
        )
        return {str(record.spec.unique_key): record for part in parts for record in part}

    def page(self, index_key: str, after: Key | None, limit: int) -> list[Record]:
        """The next records under an index key."""

        def fetch(after: Key, amount: int) -> Iterable[Row]:
            return self._session.units(self._session.dialect.page, (index_key, *after, amount))

        return self._filled(fetch, "sort_key", after or BEFORE_ALL, limit)

    def groups(self, names: Iterable[str]) -> dict[str, GroupCounts]:
        """The counts of these groups, but for those that are unknown."""
        found: dict[str, GroupCounts] = {}
        for where, bindings in self._session.dialect.any_of("name", names):
            for name, *numbers in self._session.execute(statements.GROUPS.format(where), bindings):
                found[name] = codec.value_of(GroupCounts, tuple(numbers), f"group {quoted(name)}")
        return found

    def latest_groups(self, limit: int) -> dict[str, GroupCounts]:
        """Groups with live units, and those that were done last."""
        names = [name for (name,) in self._session.execute(statements.GROUPS_LATEST, (limit,)).fetchall()]
        found = self.groups(names)
        return {name: found[name] for name in names}

    def group_names(self, limit: int) -> list[str]:
        """Some of the names of groups."""
        return [str(name) for (name,) in self._session.execute(statements.GROUP_NAMES, (limit,))]

    def dependents(self, work_id: str) -> list[str]:
        """The ids of all units that ever depended on this one, in the order in which they were submitted."""
        found = self._session.execute(statements.DEPENDENTS, (work_id,))
        return [name for (name,) in found]

    def watched(self, until: float, limit: int, after: Key | None = None) -> list[Record]:
        """Records that have to be looked at by a moment, most urgent first; the next after (time, number)."""

        def fetch(after: Key, amount: int) -> Iterable[Row]:
            return self._session.units(statements.WATCHED, (*after, until, amount))

        return self._filled(fetch, "watch_at", after or BEFORE_ALL, limit)

    def next_watch(self, after: float) -> float:
        """When the next record after a moment has to be looked at; infinity when there is none."""
        return read_watch(self._session.execute(statements.NEXT_WATCH, (after,)).fetchall())

    def oldest(self, after: int, limit: int) -> list[Record]:
        """The pending records that came first, after that number."""

        def fetch(after: Key, amount: int) -> Iterable[Row]:
            return self._session.units(self._session.dialect.oldest, (after[1], amount))

        return self._filled(fetch, "seq", (0.0, after), limit)

    def starts(self, since: Mapping[str, float]) -> list[Grant]:
        """What was granted of each of these services after that moment, in order, less what was given back."""
        moments: dict[float, list[str]] = {}
        for name, moment in since.items():
            moments.setdefault(moment, []).append(name)
        found: list[Grant] = []
        for moment, names in moments.items():
            for where, bindings in self._session.dialect.any_of("service", names, 2):
                rows = self._session.execute(statements.STARTS.format(where), (moment, *bindings))
                found += map(states.read_grant, rows)
        return found

    def spent(self, work_id: str, service: str, since: float) -> dict[str, Spent]:
        """What was counted of each quantity ("": of calls) of a service for the latest start of a unit since then."""
        rows = self._session.execute(statements.SPENT, (service, since, work_id)).fetchall()
        return {name: Spent(amount, at) for name, amount, at in rows}

    def started(self) -> list[str]:
        """The services of which anything was granted that is still in the log."""
        return [name for (name,) in self._session.execute(statements.STARTED)]

    def events(self, after: int, limit: int, wanted: EventFilter = EVERY_EVENT) -> Passage:
        """Events after that number, in order: of whole turns, at least `limit` events if there are so many, or of a
        great many turns. For those that are no longer kept there is one that says how many are missed.
        """
        head = self.head()
        after = max(0, after)
        if after >= head.last_event_seq:
            return Passage([], after)
        first: Any = self._session.execute(statements.EVENT_FIRST).fetchone()
        start, at = first or (head.last_event_seq + 1, head.now)
        found: list[Event] = []
        if start > after + 1:
            found.append(Event("gap", start - 1, at, data={"missed": start - 1 - after}))
            after = start - 1
        most = max(1, limit) if wanted is EVERY_EVENT else MOST_TURNS
        rows = self._session.execute(statements.EVENTS, (after + 1, most))
        until = after
        for body, first_seq, at, amount in rows:
            events = journal.unpack(body, first_seq, at, self._result_of, wanted)
            found += [event for event in events if event.seq > after]
            until = first_seq + amount - 1
            if len(found) >= limit:
                rows.close()
                break
        return Passage(found, until)

    def events_before(self, at: float) -> int:
        """The number of the last event before that moment, found in a few steps: events are numbered in order."""
        low, high = 1, self.head().last_event_seq + 1
        while low < high:
            middle = (low + high) // 2
            row: Any = self._session.execute(statements.EVENTS_FROM, (middle,)).fetchone()
            if row is None or row[1] >= at:
                high = middle
            else:
                low = row[0] + 1
        return low - 1

    def _result_of(self, work_id: str) -> Any:
        record = self.by_id([work_id]).get(work_id)
        return None if record is None else record.result


def read_watch(rows: Sequence[Row]) -> float:
    """When a record has to be looked at, as NEXT_WATCH found it; infinity when none has to."""
    at: float | None = rows[0][0]
    return math.inf if at is None else float(at)
