"""The live records that a process has loaded, and how it loads more of them.

A store that nobody shares has every live record loaded (`is_complete`). With a library, which is a store that several
processes share, the working set holds what runs, wherever that is, the first records under each index key that could
start, and for one turn whatever a decision needs (`transient`). One process decides for all, and a process that takes
over reads everything anew: so a loaded record is never outdated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from runcue.core.ledger.current import CurrentTurn
from runcue.core.ledger.lookups import Lookups
from runcue.core.model.record import Record, WorkState
from runcue.core.schedule.graph import Graph
from runcue.core.schedule.lane import Lane
from runcue.core.schedule.line import READY, Page
from runcue.core.schedule.plan import Key

DAY = 86400.0
_made = re.compile(r"[0-9a-f]{27}")

PAGE = 256
"""How many records are read at once where all of some kind are wanted."""


class WorkingSet:
    """Live records, and edges between them."""

    __slots__ = ("_lookups", "_transient", "_turn", "graph", "heads", "is_complete", "records")

    def __init__(self, turn: CurrentTurn, lookups: Lookups, *, is_complete: bool) -> None:
        self._turn = turn
        self._lookups = lookups
        self.is_complete = is_complete
        self.records: dict[str, Record] = {}
        self.graph = Graph()
        self.heads: dict[str, Key] = {}
        """The first under each index key of pending work, as far as it is known; only with a library."""
        self._transient: set[str] = set()
        """Ids of records that were loaded for this turn only."""

    # one record ---------------------------------------------------------------------------------------------

    def latest(self, work_id: str) -> Record | None:
        """The newest record of that unit: live, ended in this turn, or stored."""
        return (
            self.records.get(work_id)
            or self._turn.plan.records.get(work_id)
            or self._lookups.found.records.get(work_id)
        )

    def live(self, work_id: str) -> Record | None:
        """That unit, if it is pending or running: loaded for this turn if it was not."""
        record = self.records.get(work_id)
        if record is None and self._turn.reader is not None:
            record = self._turn.plan.records.get(work_id) or self._lookups.look_up(work_id)
            if record is None or record.state.is_final:
                return None
            self._load(record)
        return record

    def _load(self, record: Record) -> None:
        self.records[record.id] = record
        self._transient.add(record.id)

    def write(self, record: Record) -> None:
        """This is how a live unit stands from now on."""
        plan = self._turn.plan
        self.records[record.id] = record
        plan.records[record.id] = record
        plan.rewritten.add(record.id)

    def add(self, fresh: dict[str, Record]) -> None:
        """These units are new."""
        plan = self._turn.plan
        self.records.update(fresh)
        if plan.records:
            plan.records.update(fresh)
        else:
            plan.records = fresh

    def unload(self, record: Record) -> None:
        """That unit has ended, or is read again when it is needed."""
        del self.records[record.id]

    def amend(self, record: Record) -> Record:
        """This is how a live unit stands until it is written, in this same turn."""
        self.records[record.id] = record
        return record

    def state_of(self, work_id: str) -> WorkState | None:
        """How that unit stands, live, stored or pruned; None when it was never submitted."""
        record = self.latest(work_id)
        if record is not None:
            return record.state
        state = self._lookups.found.forgotten.get(work_id)
        if state is None and self._is_made(work_id):
            return WorkState.COMPLETED  # an id of our own that is not stored: it ended well long ago
        return state

    def _is_made(self, work_id: str) -> bool:
        """True for an id that this queue has made: of this process, or of whoever had the file open by now."""
        if self.is_complete:
            return len(work_id) == 27 and work_id[11:19] == self._turn.worker
        return _made.fullmatch(work_id) is not None and int(work_id[:11], 16) / 1000 <= self._turn.wall + DAY

    # records for one turn -------------------------------------------------------------------------------------

    def only_this_turn(self, work_id: str) -> None:
        """That record need not stay loaded beyond this turn."""
        self._transient.add(work_id)

    def stays(self, work_id: str) -> None:
        """That record stays loaded beyond this turn."""
        self._transient.discard(work_id)

    def transient(self) -> list[Record]:
        """The records that were loaded for this turn only, and are neither running nor gone."""
        some = (self.records.get(work_id) for work_id in self._transient)
        return [record for record in some if record is not None and not record.token]

    def evict(self, records: Iterable[Record]) -> None:
        """The turn is over: these records are no longer loaded, and edges are read anew."""
        for record in records:
            del self.records[record.id]
        self._transient.clear()
        self.graph = Graph()

    # the first under each index key --------------------------------------------------------------------------

    def set_head(self, name: str, first: Key | None) -> None:
        """That is the first under an index key, or (None) there is nothing."""
        if first is None:
            self.heads.pop(name, None)
        else:
            self.heads[name] = first

    def note_head(self, name: str, key: Key) -> None:
        """Something with that place came under an index key."""
        known = self.heads.get(name)
        self.heads[name] = key if known is None else min(known, key)

    # units that wait for others -------------------------------------------------------------------------------

    def waiters(self, work_id: str) -> list[Record]:
        """The units that wait for that one, in the order they came."""
        ids = self.graph.waiters(work_id)
        reader = self._turn.reader
        if reader is not None:
            ids = list(dict.fromkeys((*reader.dependents(work_id), *ids)))
            known = (self.records, self._turn.plan.records)
            self._lookups.look_up_all(one for one in ids if not any(one in some for some in known))
        records = (self.live(one) for one in ids)
        return [record for record in records if record is not None and record.missing]

    def missing(self, record: Record) -> list[str]:
        """What that unit still waits for."""
        if self._turn.reader is None:
            return self.graph.missing(record.id, record.spec.depends_on)
        for need in record.spec.depends_on:
            self._lookups.look_up(need)
        return [need for need in record.spec.depends_on if self.state_of(need) is not WorkState.COMPLETED]

    # pages of the library -------------------------------------------------------------------------------------

    def read_lane(self, lane: Lane, after: Key | None, limit: int) -> Page:
        """The next records of a lane, loaded; but for those that this turn has changed already."""
        assert self._turn.reader is not None
        page = self._turn.reader.page(lane.shelf, after, limit)
        fresh: list[Record] = []
        for one in page:
            if one.id in self._turn.plan.records:
                continue
            known = self.records.get(one.id)
            if known is None:
                self.records[one.id] = one
                fresh.append(one)
            elif one.id in self._transient:  # loaded for another reason, and not in the line yet
                fresh.append(known)
        end = (page[-1].place, page[-1].seq) if page else after
        return fresh, end, len(page) >= limit

    def shelf(self, name: str) -> Iterator[Record]:
        """All records under an index key, in order, as it stands now; what is taken off meanwhile does no harm."""
        assert self._turn.reader is not None
        after: Key | None = None
        while True:
            page = self._turn.reader.page(name, after, PAGE)
            for record in page:
                after = (record.place, record.seq)
                if record.id not in self._turn.plan.records:
                    known = self.records.get(record.id)
                    if known is None:
                        self._load(record)
                    yield known or record
            if len(page) < PAGE:
                return

    def all_pending(self) -> Iterator[Record]:
        """All pending units; with a library that is a long walk."""
        if self._turn.reader is None:
            yield from [record for record in self.records.values() if not record.token]
            return
        plan = self._turn.plan
        names = {*self.heads, *(name for name in plan.shelves if name.startswith(READY))}
        known = [record for record in plan.records.values() if record.state is WorkState.PENDING]
        yield from known
        for name in sorted(names):
            yield from self.shelf(name)
