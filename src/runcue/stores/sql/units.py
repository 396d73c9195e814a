"""The units of a queue as its users see them: those that are stored, and those that were only accepted.

A unit that no turn has decided on yet is in a post (inbox.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from runcue.core.model.record import Record
from runcue.core.model.state import Head
from runcue.core.views.query import Query, by_task
from runcue.errors import StorageCorrupt
from runcue.stores.sql import finding, wire
from runcue.stores.sql.records import Records
from runcue.stores.sql.session import Session


class Units:
    """Looks for units, and counts them."""

    def __init__(self, session: Session, records: Records) -> None:
        self._session = session
        self._records = records
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
        if not rows:
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
        return found

    def latest(self, query: Query) -> list[Record]:
        """The records that a query finds, newest first, also of units that were only just accepted."""
        new = [record for record in reversed(self.accepted()) if query.finds(record)]
        dialect = self._session.dialect
        stored = self._records.sound(self._session.units(*finding.statement(query, dialect)))
        return [*new, *islice(stored, query.limit)][: query.limit]

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
        return None
