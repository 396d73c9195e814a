"""The units of a queue as its users see them: those that are stored, and those that were only accepted.

A unit that no turn has decided on yet is in a post (inbox.py), or was submitted from outside (submissions.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from heapq import merge
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from runcue.core.model.group import GroupCounts
from runcue.core.model.record import Record, WorkState
from runcue.core.model.state import Head
from runcue.core.views.query import Query, Row, by_task, first_since
from runcue.errors import StorageCorrupt
from runcue.stores.sql import codec, finding, statements, wire
from runcue.stores.sql.columns import ENDINGS
from runcue.stores.sql.records import Records
from runcue.stores.sql.session import Session
from runcue.stores.sql.submissions import Submissions


class Units:
    """Looks for units, and counts them."""

    def __init__(self, session: Session, records: Records) -> None:
        self._session = session
        self._records = records
        self._outside = Submissions(session)
        self.has_seen_post = False
        """True once this look has found a unit that was only accepted: it may be newer than the last revision."""

    def begin_look(self) -> None:
        """A look begins, in which no unit was found yet that was only accepted."""
        self.has_seen_post = False

    def one(self, work_id: str) -> Record | None:
        """That unit, also if it was only just accepted; raises when it is damaged."""
        return self._records.one(work_id) or self._submitted(work_id)

    def some(self, ids: Iterable[str]) -> dict[str, Record]:
        """These units, also those that were only just accepted, but for those that are unknown."""
        wanted = list(ids)
        found = self._records.by_id(wanted)
        for work_id in wanted:
            if work_id not in found and (record := self._submitted(work_id)) is not None:
                found[work_id] = record
        return found

    def accepted(self) -> list[Record]:
        """The units that were accepted and not decided on, in order, after all others."""
        rows: list[Any] = self._session.execute(self._session.dialect.submitted, ('"submit"',)).fetchall()
        outside = self._outside.records(0)
        if not rows and not outside:
            return []
        self.has_seen_post = True
        found: list[Record] = []
        seq = self._records.head().seq
        for at, body in rows:
            try:
                specs = wire.accepted(body)
            except (ValueError, StorageCorrupt):  # the deciding process reports it
                continue
            found += [
                Record(one.id, one, seq + len(found) + n, at, at, since=at) for n, one in enumerate(specs, 1)
            ]
        return found + [replace(one, seq=seq + len(found) + one.seq) for one in outside]

    def latest(self, query: Query) -> list[Record]:
        """The records that a query finds, newest first, also of units that were only just accepted."""
        new = [record for record in reversed(self.accepted()) if query.finds(record)]
        dialect = self._session.dialect
        found = finding.statements(query, dialect, self._first(query))
        stored = merge(
            *(self._records.sound(self._session.units(*one)) for one in found),
            key=lambda record: record.seq,
            reverse=True,
        )
        return [*new, *islice(stored, query.limit)][: query.limit]

    def numbers(self, query: Query) -> dict[WorkState, int]:
        """How many units that are kept the query finds in each state."""
        found: Counter[WorkState] = Counter(one.state for one in self.accepted() if query.finds(one))
        is_of_mark_alone = query == Query(limit=query.limit, tags=query.tags, group=query.group)
        if is_of_mark_alone and len(query.marks) == 1:
            return dict(found + self._tagged(query))
        for statement, bindings in finding.counting(query, self._session.dialect, self._first(query)):
            rows: Any = self._session.execute(statement, bindings)
            found.update({codec.read_state("", state): number for state, number in rows})
        return dict(found)

    def _tagged(self, query: Query) -> Counter[WorkState]:
        """How many units with one tag are in each state, counted without reading them, but for those that run."""
        rows: Any = self._session.execute(statements.TAG_COUNT, query.marks[0])
        endings = {int(ending): int(number) for ending, number in rows}
        running = replace(query, state=WorkState.RUNNING)
        [(text, bindings)] = finding.counting(running, self._session.dialect)
        runs = sum(number for _, number in self._session.execute(text, bindings).fetchall())
        found = Counter({state: endings.get(ending, 0) for state, ending in ENDINGS.items()})
        found[WorkState.RUNNING] = runs
        found[WorkState.PENDING] = endings.get(0, 0) - runs
        return found

    def groups(self, names: Iterable[str]) -> dict[str, GroupCounts]:
        """The counts of these groups, with units that were only just accepted, but for those that are unknown."""
        wanted = set(names)
        found = self._records.groups(wanted)
        new = Counter(one.spec.group for one in self.accepted() if one.spec.group in wanted)
        for name, number in new.items():
            assert name is not None
            found[name] = found.get(name, GroupCounts()).plus(number)
        return found

    def _first(self, query: Query) -> int | None:
        """The number from which on units may have been submitted in the time of a query."""
        if query.since is None:
            return None

        def row_from(number: int) -> Row | None:
            row: Any = self._session.execute(statements.NEXT_NUMBER, (number,)).fetchone()
            return None if row is None else Row(*row)

        return first_since(query.since, self._records.head().seq, row_from)

    def counted(self) -> Head:
        """The counters, with the units that were only just accepted."""
        head, new = self._records.head(), len(self.accepted())
        return replace(head, pending=head.pending + new) if new else head

    def live_by_task(self) -> dict[str, dict[str, int]]:
        """How many units of each task are pending and running, with those that were only just accepted."""
        rows: Any = self._session.execute(self._session.dialect.tally)
        found = by_task(rows)
        for record in self.accepted():
            found["pending"][record.spec.task] = found["pending"].get(record.spec.task, 0) + 1
        return found

    def _submitted(self, work_id: str) -> Record | None:
        name = msgspec.json.encode(work_id).decode()
        for at, body in self._session.execute(self._session.dialect.submitted, (name,)).fetchall():
            try:
                spec = wire.submitted(body, work_id)
            except (ValueError, StorageCorrupt):  # whoever decides says so
                continue
            if spec is not None:
                self.has_seen_post = True
                places = {record.id: record.seq for record in self.accepted()}
                seq = places.get(work_id) or self._records.head().seq + 1
                return Record(spec.id, spec, seq, at, at, since=at)
        found = self._outside.record(work_id, self._records.head().seq + 1)
        self.has_seen_post |= found is not None
        return found
