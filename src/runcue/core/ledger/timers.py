"""When pending units are due, and when one of their time limits is reached.

Where all records are loaded, heaps hold these moments. A shared store finds units by index key and by `watch_at`.
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
from runcue.core.schedule.plan import Key, TurnReader

LATER, WALL, BLOCKED = "later", "wall", "blocked"
"""The index keys of units that wait for queue time, for wall time and for other units."""
FEW = 100
"""How many outdated entries a heap may hold, besides a multiple of the live units, before they are swept out."""

Entry = tuple[float, int, str]
"""A moment, and the number and id of a unit."""


class Timers:
    """The moments at which a pending unit changes by the passing of time alone."""

    __slots__ = ("_armed_at", "_by_wall", "_deadlines", "_later", "_passed", "_turn", "_watch_at", "_working")

    def __init__(self, turn: CurrentTurn, working: WorkingSet) -> None:
        self._turn = turn
        self._working = working
        self._later: list[Entry] = []
        self._by_wall: list[Entry] = []
        self._deadlines: list[Entry] = []
        self._watch_at = math.inf
        """When a time limit of a unit in the shared store is next reached."""
        self._armed_at = math.inf
        """The first of those that this turn added."""
        self._passed: list[str] = []
        """Units in the shared store of which this turn added one that had passed already."""

    def begin(self) -> None:
        """Begin a turn."""
        self._armed_at = math.inf
        self._passed.clear()

    def load(self, watch_at: float) -> None:
        """Take over from the store when a time limit is next reached."""
        self._watch_at = watch_at

    # waiting for a time ---------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Forget the units that wait for their time: the caller places them anew."""
        self._later.clear()
        self._by_wall.clear()

    def wait(self, record: Record, name: str, at: float) -> None:
        """Have a unit wait until a moment of queue time (`LATER`) or of wall time (`WALL`)."""
        if not self._working.is_complete:
            self._working.note_head(name, (at, record.seq))
        else:
            heap = self._later if name is LATER else self._by_wall
            heappush(heap, (at, record.seq, record.id))
            if len(heap) > 4 * len(self._working.records) + FEW:
                heap[:] = sorted({one for one in heap if self._waits(one, name)})

    def _waits(self, entry: Entry, name: str) -> bool:
        """True while a unit waits for that very moment."""
        at, seq, work_id = entry
        record = self._working.records.get(work_id)
        return record is not None and (record.seq, record.index_key, record.sort_key) == (seq, name, at)

    def due(self) -> Iterator[Record]:
        """The units whose time has come; the caller places them anew."""
        turn = self._turn
        if turn.reader is not None:
            yield from self._due_of(LATER, turn.now)
            yield from self._due_of(WALL, turn.wall)
        for name, heap, now in ((LATER, self._later, turn.now), (WALL, self._by_wall, turn.wall)):
            while heap and heap[0][0] <= now:
                entry = heappop(heap)
                if self._waits(entry, name):
                    yield self._working.records[entry[2]]

    def _due_of(self, name: str, now: float) -> Iterator[Record]:
        """The units under an index key of the shared store whose time has come."""
        working = self._working
        if name in working.heads and working.heads[name][0] <= now:
            for record in working.under(name):
                if record.sort_key > now:
                    working.set_head(name, (record.sort_key, record.seq))
                    break
                yield record
            else:
                working.set_head(name, None)

    def next_at(self) -> float:
        """When a unit is next due."""
        at = min(self._first(self._later, LATER), self._working.heads.get(LATER, (math.inf, 0))[0])
        return min(at, self.next_by_wall() - (self._turn.wall - self._turn.now))

    def next_by_wall(self) -> float:
        """When a unit is next due in wall time."""
        return min(self._first(self._by_wall, WALL), self._working.heads.get(WALL, (math.inf, 0))[0])

    def _first(self, heap: list[Entry], name: str) -> float:
        """The first moment that a unit still waits for; outdated ones before it are dropped."""
        while heap and not self._waits(heap[0], name):
            heappop(heap)
        return heap[0][0] if heap else math.inf

    # waiting for too long -------------------------------------------------------------------------------------

    def arm(self, record: Record, settings: Settings, after: float = -math.inf) -> Record:
        """Watch for the next time limit of a pending unit. Returns its record with that moment."""
        watched = armed(record, settings, self._turn.now, self._turn.wall, after)
        if watched is not record:
            self._working.write(watched)
        if watched.watch_at is not None and not self._working.is_complete:
            self._armed_at = min(self._armed_at, watched.watch_at)
            self._watch_at = min(self._watch_at, watched.watch_at)
            if watched.watch_at <= self._turn.now:
                self._passed.append(watched.id)
        elif watched.watch_at is not None:
            deadlines = self._deadlines
            heappush(deadlines, (watched.watch_at, watched.seq, watched.id))
            if len(deadlines) > 4 * len(self._working.records) + FEW:
                deadlines[:] = sorted(set(filter(self._is_armed, deadlines)))
        return watched

    def _is_armed(self, deadline: Entry) -> bool:
        """True while that moment is the next time limit of its unit."""
        record = self._working.records.get(deadline[2])
        return record is not None and record.watch_at == deadline[0]

    def reached(self) -> Iterator[Record]:
        """Pending units that have reached a time limit."""
        if self._turn.reader is not None:
            yield from self._reached_in_store(self._turn.reader)
            return
        heap = self._deadlines
        while heap and heap[0][0] <= self._turn.now:
            deadline = heappop(heap)
            if self._is_armed(deadline):
                yield self._working.records[deadline[2]]

    def _reached_in_store(self, reader: TurnReader) -> Iterator[Record]:
        now = self._turn.now
        after: Key | None = None
        while self._watch_at <= now:
            page = reader.watched(now, PAGE, after)
            for record in page:
                after = (record.watch_at or 0.0, record.seq)
                current = self._working.live(record.id)  # this turn may have changed it
                if current is not None and current.watch_at is not None and current.watch_at <= now:
                    yield current
            # limits that this turn added are not in the store yet: the next turn finds them
            if len(page) < PAGE:
                self._watch_at = min(reader.next_watch(now), self._armed_at)
                break
        for work_id in self._passed:
            current = self._working.live(work_id)
            if current is not None and current.watch_at is not None and current.watch_at <= now:
                yield current

    def next_limit_at(self) -> float:
        """When the next time limit of a unit may be reached."""
        heap = self._deadlines
        while heap and not self._is_armed(heap[0]):
            heappop(heap)
        return min(heap[0][0] if heap else math.inf, self._watch_at)
