"""The live work that a process has in mind, and how it brings more of it to mind.

A store that nobody shares has everything in mind (`is_whole`). With a library, which is a store that several
processes share, only this is: what runs, wherever that is, the first of each shelf that could start, and for one turn
whatever a decision needs. One process decides for all, and who takes its place reads everything anew: so nothing in
mind is ever outdated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from runcue.core.model.record import Record, WorkState
from runcue.core.model.settings import Settings
from runcue.core.schedule.graph import Graph
from runcue.core.schedule.lane import Lane
from runcue.core.schedule.line import READY, Page
from runcue.core.schedule.plan import Found, Key, Lacks, Library, Plan, Revive

DAY = 86400.0
_made = re.compile(r"[0-9a-f]{27}")

PAGE = 256
"""How many records are read at once where all of some kind are wanted."""


class Mind:
    """Live records, edges, and the plan under way."""

    def __init__(self, settings: Settings, worker: str, is_whole: bool) -> None:
        self.settings = settings
        self.worker = worker
        self.is_whole = is_whole
        self.records: dict[str, Record] = {}
        self.graph = Graph()
        self.blocked = 0
        """How many of the pending wait for others."""
        self.heads: dict[str, Key] = {}
        """The first of each shelf of pending work, as far as it is known; only with a library."""
        self.watch_at = math.inf
        """When somebody has to look at a record of the library."""
        self.armed_at = math.inf
        """The first such moment that this turn added."""
        self.registered = (0, 0)
        """How many tasks and services there were when the shelves were last looked through."""
        self.guests: set[str] = set()
        """What was brought to mind for this turn only."""
        self.has_looked = True
        self.begin(0.0, 0.0)

    def begin(self, now: float, wall: float, library: Library | None = None) -> None:
        """A turn begins at this moment, with an empty plan."""
        self.now, self.wall = now, wall
        self.plan = Plan()
        self.library = library
        self.armed_at = math.inf
        if self.has_looked:
            self.look_anew()

    def look_anew(self) -> None:
        """Forget what was looked up for an earlier turn."""
        self.has_looked = False
        self.found = Found()
        self.looked_up: set[str] = set()
        self.keys_looked_up: set[str] = set()
        self.walks: dict[
            Revive, tuple[list[str], set[str]]
        ] = {}  # how far each has got (schedule/outcome.py)

    def unlearn(self, record: Record) -> None:
        """That stored work is gone as of this turn: whoever asks for it finds nothing."""
        found = self.found
        del found.records[record.id]
        if not record.spec.is_named:  # unknown, it would pass for one that ended well
            found.forgotten[record.id] = record.state
        found.keys = {key: owner for key, owner in found.keys.items() if owner.id != record.id}
        for dependents in found.dependents.values():
            dependents[:] = [one for one in dependents if one.id != record.id]

    # one work ---------------------------------------------------------------------------------------------

    def latest(self, work_id: str) -> Record | None:
        """The newest record of that work: live, ended in this turn, or kept by the store."""
        return self.records.get(work_id) or self.plan.records.get(work_id) or self.found.records.get(work_id)

    def live(self, work_id: str) -> Record | None:
        """That work, if it is pending or running: in mind, or brought to mind for this turn."""
        record = self.records.get(work_id)
        if record is None and self.library is not None:
            record = self.plan.records.get(work_id) or self.look_up(work_id)
            if record is None or record.state.is_final:
                return None
            self.invite(record)
        return record

    def invite(self, record: Record) -> None:
        """Have that live work in mind for this turn."""
        self.records[record.id] = record
        self.guests.add(record.id)

    def look_up(self, work_id: str) -> Record | None:
        """That work as the store has it, read at most once in a turn."""
        if work_id not in self.looked_up and self.library is not None:
            self.has_looked = True
            self.looked_up.add(work_id)
            found = self.library.read(Lacks(ids={work_id}))
            self.found.records.update(found.records)
            self.found.forgotten.update(found.forgotten)
        return self.found.records.get(work_id)

    def state_of(self, work_id: str) -> WorkState | None:
        """How that work stands, live, kept or forgotten; None when it was never submitted."""
        record = self.latest(work_id)
        if record is not None:
            return record.state
        state = self.found.forgotten.get(work_id)
        if state is None and self._is_made(work_id):
            return WorkState.COMPLETED  # an id of our own that nobody keeps: it ended well long ago
        return state

    def _is_made(self, work_id: str) -> bool:
        """True for an id that this queue has made: of this process, or of whoever had the file open by now."""
        if self.is_whole:
            return len(work_id) == 27 and work_id[11:19] == self.worker
        return _made.fullmatch(work_id) is not None and int(work_id[:11], 16) / 1000 <= self.wall + DAY

    # those who wait for others ----------------------------------------------------------------------------

    def waiters(self, work_id: str) -> list[Record]:
        """Who waits for that work, in the order they came."""
        if not self.blocked:
            return []
        ids = self.graph.waiters(work_id)
        if self.library is not None:
            ids = list(dict.fromkeys((*self.library.dependents(work_id), *ids)))
            self._look_up_all(ids)
        records = (self.live(one) for one in ids)
        return [record for record in records if record is not None and record.missing]

    def is_awaited(self, work_id: str) -> bool:
        """True when somebody waits for that id."""
        return self.graph.is_awaited(work_id) or (self.library is not None and bool(self.waiters(work_id)))

    def missing(self, record: Record) -> list[str]:
        """What that work still waits for."""
        if self.library is None:
            return self.graph.missing(record.id, record.spec.depends_on)
        for need in record.spec.depends_on:
            self.look_up(need)
        return [need for need in record.spec.depends_on if self.state_of(need) is not WorkState.COMPLETED]

    def _look_up_all(self, ids: list[str]) -> None:
        """Read those that are not in mind, in one go."""
        assert self.library is not None
        known = (self.records, self.plan.records, self.looked_up)
        unknown = [one for one in ids if not any(one in some for some in known)]
        if unknown:
            self.has_looked = True
            self.looked_up.update(unknown)
            self.found.records.update(self.library.by_id(unknown))

    # pages of the library ---------------------------------------------------------------------------------

    def read_lane(self, lane: Lane, after: Key | None, limit: int) -> Page:
        """The next work of a lane: brought to mind, but for what this turn has changed already."""
        assert self.library is not None
        page = self.library.page(lane.shelf, after, limit)
        fresh: list[Record] = []
        for one in page:
            if one.id in self.plan.records:
                continue
            known = self.records.get(one.id)
            if known is None:
                self.records[one.id] = one
                fresh.append(one)
            elif one.id in self.guests:  # in mind for another reason, and not in the line yet
                fresh.append(known)
        end = (page[-1].place, page[-1].seq) if page else after
        return fresh, end, len(page) >= limit

    def shelf(self, name: str) -> Iterator[Record]:
        """All that is on a shelf, in order, as it stands now; what is taken off meanwhile does no harm."""
        assert self.library is not None
        after: Key | None = None
        while True:
            page = self.library.page(name, after, PAGE)
            for record in page:
                after = (record.place, record.seq)
                if record.id not in self.plan.records:
                    known = self.records.get(record.id)
                    if known is None:
                        self.invite(record)
                    yield known or record
            if len(page) < PAGE:
                return

    def watched(self) -> Iterator[Record]:
        """Pending work of the library that somebody has to look at now."""
        assert self.library is not None
        after: Key | None = None
        while self.watch_at <= self.now:
            page = self.library.watched(self.now, PAGE, after)
            for record in page:
                after = (record.watch_at or 0.0, record.seq)
                current = self.live(record.id)  # this turn may have changed it
                if current is not None and current.watch_at is not None and current.watch_at <= self.now:
                    yield current
            if len(page) < PAGE:  # what this turn armed is not in the store yet: the next one finds it there
                self.watch_at = min(self.library.next_watch(self.now), self.armed_at)
                return

    def all_pending(self) -> Iterator[Record]:
        """All pending work; with a library that is a long walk."""
        if self.library is None:
            yield from [record for record in self.records.values() if not record.token]
            return
        names = {*self.heads, *(name for name in self.plan.shelves if name.startswith(READY))}
        known = [record for record in self.plan.records.values() if record.state is WorkState.PENDING]
        yield from known
        for name in sorted(names):
            yield from self.shelf(name)
