"""Pending units that wait for a moment: for their time to come, or for somebody to look at one of their limits.

A store that nobody shares has them in heaps; in a library they are found by their index key and by `watch_at`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import heappop, heappush

from runcue.core.ledger.current import CurrentTurn
from runcue.core.ledger.deadlines import armed
from runcue.core.ledger.working_set import PAGE, WorkingSet
from runcue.core.model.record import Record
from runcue.core.model.settings import Settings
from runcue.core.schedule.plan import Key

LATER, WALL, BLOCKED = "later", "wall", "blocked"
"""The index keys of units that wait: for queue time, for wall time, for others."""
FEW = 100
"""How many outdated entries a heap may hold, besides a multiple of the living, before they are swept out."""
WALL_CHECK = 1.0
"""While a unit waits for a wall-clock time, look at least that often: that clock may be set."""

Entry = tuple[float, int, str]
"""When, and the number and the id of a unit."""


class Timers:
    """The moments at which something about a pending unit changes by the passing of time alone."""

    __slots__ = ("_armed_at", "_by_wall", "_deadlines", "_later", "_turn", "_watch_at", "_working")

    def __init__(self, turn: CurrentTurn, working: WorkingSet) -> None:
        self._turn = turn
        self._working = working
        self._later: list[Entry] = []
        self._by_wall: list[Entry] = []
        self._deadlines: list[Entry] = []
        self._watch_at = math.inf
        """When somebody has to look at a record of the library."""
        self._armed_at = math.inf
        """The first such moment that this turn added."""

    def begin(self) -> None:
        """A turn begins."""
        self._armed_at = math.inf

    def load(self, watch_at: float) -> None:
        """Somebody has to look at a record of the library then."""
        self._watch_at = watch_at

    # waiting for a time ---------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Units that wait for a time are about to be placed anew."""
        self._later.clear()
        self._by_wall.clear()

    def wait(self, record: Record, name: str, at: float) -> None:
        """That unit waits for queue time (`LATER`) or wall time (`WALL`)."""
        if not self._working.is_complete:
            self._working.note_head(name, (at, record.seq))
        else:
            heappush(self._later if name is LATER else self._by_wall, (at, record.seq, record.id))

    def due(self) -> Iterator[Record]:
        """Units that only waited for their time, and are to be placed anew."""
        turn = self._turn
        if turn.reader is not None:
            yield from self._due_of(LATER, turn.now)
            yield from self._due_of(WALL, turn.wall)
        for heap, now in ((self._later, turn.now), (self._by_wall, turn.wall)):
            while heap and heap[0][0] <= now:
                _, seq, work_id = heappop(heap)
                record = self._working.records.get(work_id)
                if record is not None and record.seq == seq and not record.token:
                    yield record

    def _due_of(self, name: str, now: float) -> Iterator[Record]:
        """The same under an index key of the library."""
        working = self._working
        if name in working.heads and working.heads[name][0] <= now:
            for record in working.shelf(name):
                if record.place > now:
                    working.set_head(name, (record.place, record.seq))
                    break
                yield record
            else:
                working.set_head(name, None)

    def next_at(self) -> float:
        """When a unit that waits for a time is next due, or the wall clock is to be looked at for that."""
        now, heads = self._turn.now, self._working.heads
        at = self._later[0][0] if self._later else heads.get(LATER, (math.inf, 0))[0]
        by_wall = self._by_wall[0][0] if self._by_wall else heads.get(WALL, (math.inf, 0))[0]
        return at if by_wall == math.inf else min(at, now + min(by_wall - self._turn.wall, WALL_CHECK))

    # waiting for too long -------------------------------------------------------------------------------------

    def arm(self, record: Record, settings: Settings, after: float = -math.inf) -> Record:
        """Have somebody look at that pending unit when the next of its time limits is reached."""
        watched = armed(record, settings, self._turn.now, self._turn.wall, after)
        if watched is not record:
            self._working.write(watched)
        if watched.watch_at is not None and not self._working.is_complete:
            self._armed_at = min(self._armed_at, watched.watch_at)
            self._watch_at = min(self._watch_at, watched.watch_at)
        elif watched.watch_at is not None:
            deadlines = self._deadlines
            heappush(deadlines, (watched.watch_at, watched.seq, watched.id))
            if len(deadlines) > 4 * len(self._working.records) + FEW:
                deadlines[:] = sorted(set(filter(self._is_armed, deadlines)))
        return watched

    def _is_armed(self, deadline: Entry) -> bool:
        """True while that moment still matters to its unit."""
        record = self._working.records.get(deadline[2])
        return record is not None and record.watch_at == deadline[0]

    def reached(self) -> Iterator[Record]:
        """Pending units of which somebody has to look at a limit now."""
        if self._turn.reader is not None:
            yield from self._reached_in_library()
            return
        heap = self._deadlines
        while heap and heap[0][0] <= self._turn.now:
            deadline = heappop(heap)
            if self._is_armed(deadline):
                yield self._working.records[deadline[2]]

    def _reached_in_library(self) -> Iterator[Record]:
        reader, now = self._turn.reader, self._turn.now
        assert reader is not None
        after: Key | None = None
        while self._watch_at <= now:
            page = reader.watched(now, PAGE, after)
            for record in page:
                after = (record.watch_at or 0.0, record.seq)
                current = self._working.live(record.id)  # this turn may have changed it
                if current is not None and current.watch_at is not None and current.watch_at <= now:
                    yield current
            if len(page) < PAGE:  # what this turn armed is not in the store yet: the next one finds it there
                self._watch_at = min(reader.next_watch(now), self._armed_at)
                return

    def next_limit_at(self) -> float:
        """When the next time limit of a unit may be reached."""
        heap = self._deadlines
        while heap and not self._is_armed(heap[0]):
            heappop(heap)
        return min(heap[0][0] if heap else math.inf, self._watch_at)
