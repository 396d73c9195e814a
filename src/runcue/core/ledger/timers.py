"""Pending work that waits for a moment: for its time to come, or for somebody to look at one of its limits.

A store that nobody shares has it in heaps; in a library it is found by its shelf and by `watch_at`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import heappop, heappush

from runcue.core.ledger.capacity import Places
from runcue.core.ledger.deadlines import armed
from runcue.core.ledger.working_set import PAGE
from runcue.core.model.record import Record, WorkState
from runcue.core.model.settings import Rule, Settings
from runcue.core.schedule.plan import Library

LATER, WALL, BLOCKED = "later", "wall", "blocked"
"""The shelves of work that waits: for queue time, for wall time, for others."""
FEW = 100
"""How many outdated entries a heap may hold, besides a multiple of the living, before they are swept out."""


class Waiting(Places):
    """Live records, what they take up, and when to look at them."""

    def __init__(self, settings: Settings, rules: dict[str, Rule], worker: str, is_whole: bool) -> None:
        super().__init__(settings, rules, worker, is_whole)
        self.later: list[tuple[float, int, str]] = []
        self.later_by_wall: list[tuple[float, int, str]] = []
        self.deadlines: list[tuple[float, int, str]] = []
        self._by_age: list[tuple[int, str]] = []

    def arm(self, record: Record, after: float = -math.inf) -> Record:
        """Have somebody look at that pending work when the next of its time limits is reached."""
        watched = armed(record, self.settings_of(record.spec.task), self.now, self.wall, after)
        if watched is not record:
            self.write(watched)
        if watched.watch_at is not None and not self.is_whole:
            self.armed_at = min(self.armed_at, watched.watch_at)
            self.watch_at = min(self.watch_at, watched.watch_at)
        elif watched.watch_at is not None:
            deadlines = self.deadlines
            heappush(deadlines, (watched.watch_at, watched.seq, watched.id))
            if len(deadlines) > 4 * len(self.records) + FEW:
                deadlines[:] = sorted(set(filter(self.is_armed, deadlines)))
        return watched

    def is_armed(self, deadline: tuple[float, int, str]) -> bool:
        """True while that moment still matters to its work."""
        record = self.records.get(deadline[2])
        return record is not None and record.watch_at == deadline[0]

    def due(self) -> Iterator[Record]:
        """What only waited for its time, and is to be placed anew."""
        if self.library is not None:
            yield from self._due_of(LATER, self.now)
            yield from self._due_of(WALL, self.wall)
        for heap, now in ((self.later, self.now), (self.later_by_wall, self.wall)):
            while heap and heap[0][0] <= now:
                _, seq, work_id = heappop(heap)
                record = self.records.get(work_id)
                if record is not None and record.seq == seq and not record.token:
                    yield record

    def _due_of(self, name: str, now: float) -> Iterator[Record]:
        """The same of a shelf of the library."""
        if name in self.heads and self.heads[name][0] <= now:
            for record in self.shelf(name):
                if record.place > now:
                    self.heads[name] = (record.place, record.seq)
                    break
                yield record
            else:
                del self.heads[name]

    def oldest_pending(self) -> Record:
        """The pending work that was submitted first; there is some (and it is only known for `drop_oldest`)."""
        if self.library is not None:
            return self._oldest_of(self.library)
        while True:
            seq, work_id = heappop(self._by_age)
            record = self.records.get(work_id)
            if record is not None and record.seq == seq and not record.token:
                return record

    def _oldest_of(self, library: Library) -> Record:
        fresh = [record for record in self.plan.records.values() if record.state is WorkState.PENDING]
        after, page = 0, library.oldest(0, PAGE)
        while page and all(record.id in self.plan.records for record in page):
            after = page[-1].seq
            page = library.oldest(after, PAGE)
        stored = [record for record in page if record.id not in self.plan.records][:1]
        oldest = self.live(min((*fresh, *stored), key=lambda record: record.seq).id)
        assert oldest is not None
        return oldest

    def note_age(self, record: Record) -> None:
        """Work became pending: remember its place among the oldest, if anybody is ever going to ask."""
        if self.settings.reject_policy == "drop_oldest" and self.is_whole:
            by_age = self._by_age
            heappush(by_age, (record.seq, record.id))
            if len(by_age) > 2 * len(self.records) + FEW:
                by_age[:] = sorted((one.seq, one.id) for one in self.records.values() if not one.token)
