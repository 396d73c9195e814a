"""The live records that a process has loaded, and how it loads more of them.

Where nobody shares the store, every live record is loaded (`is_complete`). With a shared store the working set holds
the running units of all processes, the first records under each index key that could start, and for one turn whatever
a decision needs (`transient`). One process decides for all, and a process that takes over reads everything anew: so a
loaded record is never outdated.
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
"""How many records are read at once by those who read all of a kind."""


class WorkingSet:
    """The live records that are loaded, and the dependencies between them."""

    __slots__ = ("_lookups", "_transient", "_turn", "graph", "heads", "is_complete", "records")

    def __init__(self, turn: CurrentTurn, lookups: Lookups, *, is_complete: bool) -> None:
        self._turn = turn
        self._lookups = lookups
        self.is_complete = is_complete
        self.records: dict[str, Record] = {}
        self.graph = Graph()
        self.heads: dict[str, Key] = {}
        """The place of the first pending unit under each index key, as far as known; only with a shared store."""
        self._transient: set[str] = set()
        """Ids of units that were loaded for this turn only."""

    # one record ---------------------------------------------------------------------------------------------

    def latest(self, work_id: str) -> Record | None:
        """The newest record of that unit: live, ended in this turn, or stored."""
        return (
            self.records.get(work_id)
            or self._turn.plan.records.get(work_id)
            or self._lookups.found.records.get(work_id)
        )

    def live(self, work_id: str) -> Record | None:
        """The record of a pending or running unit, loaded for this turn if it was not."""
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
        """Plan a changed record of a live unit."""
        plan = self._turn.plan
        self.records[record.id] = record
        plan.records[record.id] = record
        plan.rewritten.add(record.id)

    def add(self, fresh: dict[str, Record]) -> None:
        """Plan the records of new units."""
        plan = self._turn.plan
        self.records.update(fresh)
        if plan.records:
            plan.records.update(fresh)
        else:
            plan.records = fresh

    def unload(self, record: Record) -> None:
        """Evict a unit that has ended, or that is read again when it is needed."""
        del self.records[record.id]

    def amend(self, record: Record) -> Record:
        """Change the record of a live unit for the moment: the caller writes it later in this turn."""
        self.records[record.id] = record
        return record

    def state_of(self, work_id: str) -> WorkState | None:
        """The state of a unit, live, stored or pruned; None when it was never submitted."""
        record = self.latest(work_id)
        if record is not None:
            return record.state
        state = self._lookups.found.forgotten.get(work_id)
        if state is None and self._is_made(work_id):
            # the queue made that id and has forgotten the unit: it ended well long ago
            return WorkState.COMPLETED
        return state

    def _is_made(self, work_id: str) -> bool:
        """True for an id that this queue has made: this process, or with a shared store any process until now."""
        if self.is_complete:
            return len(work_id) == 27 and work_id[11:19] == self._turn.worker
        return _made.fullmatch(work_id) is not None and int(work_id[:11], 16) / 1000 <= self._turn.wall + DAY

    # records for one turn -------------------------------------------------------------------------------------

    def only_this_turn(self, work_id: str) -> None:
        """Mark a record as loaded for this turn only."""
        self._transient.add(work_id)

    def stays(self, work_id: str) -> None:
        """Keep a record loaded beyond this turn."""
        self._transient.discard(work_id)

    def transient(self) -> list[Record]:
        """The pending records that were loaded for this turn only."""
        some = (self.records.get(work_id) for work_id in self._transient)
        return [record for record in some if record is not None and not record.token]

    def evict(self, records: Iterable[Record]) -> None:
        """End the turn: evict these records, and all dependencies, which are read anew when they are needed."""
        for record in records:
            del self.records[record.id]
        self._transient.clear()
        self.graph = Graph()

    # the first under each index key --------------------------------------------------------------------------

    def set_head(self, name: str, first: Key | None) -> None:
        """Note the place of the first unit under an index key, or (None) that there is none."""
        if first is None:
            self.heads.pop(name, None)
        else:
            self.heads[name] = first

    def note_head(self, name: str, key: Key) -> None:
        """Note that a unit with that place came under an index key."""
        known = self.heads.get(name)
        self.heads[name] = key if known is None else min(known, key)

    # units that wait for others -------------------------------------------------------------------------------

    def waiters(self, work_id: str) -> list[Record]:
        """The units that wait for another one, in the order they came."""
        ids = self.graph.waiters(work_id)
        reader = self._turn.reader
        if reader is not None:
            ids = list(dict.fromkeys((*reader.dependents(work_id), *ids)))
            known = (self.records, self._turn.plan.records)
            self._lookups.look_up_all(one for one in ids if not any(one in some for some in known))
        records = (self.live(one) for one in ids)
        return [record for record in records if record is not None and record.missing]

    def missing(self, record: Record) -> list[str]:
        """The ids that a unit still waits for."""
        if self._turn.reader is None:
            return self.graph.missing(record.id, record.spec.depends_on)
        for need in record.spec.depends_on:
            self._lookups.look_up(need)
        return [need for need in record.spec.depends_on if self.state_of(need) is not WorkState.COMPLETED]

    # pages of the shared store --------------------------------------------------------------------------------

    def read_lane(self, lane: Lane, after: Key | None, limit: int) -> Page:
        """Load the next records of a lane, without those that this turn has changed already."""
        assert self._turn.reader is not None
        page = self._turn.reader.page(lane.index_key, after, limit)
        fresh: list[Record] = []
        for one in page:
            if one.id in self._turn.plan.records:
                continue
            known = self.records.get(one.id)
            if known is None:
                self.records[one.id] = one
                fresh.append(one)
            elif one.id in self._transient:  # loaded for another reason, and not in the lane's line yet
                fresh.append(known)
        end = (page[-1].sort_key, page[-1].seq) if page else after
        return fresh, end, len(page) >= limit

    def under(self, index_key: str) -> Iterator[Record]:
        """Load all records under an index key, in order. The caller may move units away meanwhile."""
        assert self._turn.reader is not None
        after: Key | None = None
        while True:
            page = self._turn.reader.page(index_key, after, PAGE)
            for record in page:
                after = (record.sort_key, record.seq)
                if record.id not in self._turn.plan.records:
                    known = self.records.get(record.id)
                    if known is None:
                        self._load(record)
                    yield known or record
            if len(page) < PAGE:
                return

    def all_pending(self) -> Iterator[Record]:
        """All pending units; with a shared store that may take long."""
        if self._turn.reader is None:
            yield from [record for record in self.records.values() if not record.token]
            return
        plan = self._turn.plan
        names = {*self.heads, *(name for name in plan.index_keys if name.startswith(READY))}
        known = [record for record in plan.records.values() if record.state is WorkState.PENDING]
        yield from known
        for name in sorted(names):
            yield from self.under(name)
