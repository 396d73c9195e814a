"""The units of one lane in order, all of them or the first ones, and the index key where a store finds the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count, pairwise

import msgspec

from runcue.core.model.record import Record

Key = tuple[float, int]
Page = tuple[list[Record], Key | None, bool]
"""The units of a lane that were read, the place of the last one, and whether there may be more."""

SHORTEST_PAGE = 32
"""How many units of a lane are read at once at least."""

MOST = 10_000
"""How many units of a lane may be loaded, where a store has all of them; when there are more, half of that stays."""

READY = "ready "


def index_key_of(task: str, queue: str, services: tuple[str, ...]) -> str:
    """The index key of the units of a lane; with `services` only where each unit names those that it uses."""
    return READY + msgspec.json.encode([queue, task, *services]).decode()


def index_key_parts(index_key: str) -> tuple[str, str, tuple[str, ...]] | None:
    """Queue, task and services of the index key of a lane; None for other index keys."""
    if not index_key.startswith(READY):
        return None
    queue, task, *services = msgspec.json.decode(index_key[len(READY) :])
    return queue, task, tuple(services)


_numbers = count()


class Line:
    """Units in order of rank: a deque for those that come in order, a heap for the others.

    With a `page` it may have only the first units loaded, up to `end`, while there are `more` in the store. A unit
    that comes beyond `end` is not in the store before the turn is committed: until then it is in `fresh`.
    """

    __slots__ = ("_dead", "_early", "_fifo", "_records", "end", "first", "fresh", "more", "page")

    def __init__(self, records: dict[str, Record]) -> None:
        self.page: Callable[[Key | None, int], Page] | None = None
        self.more = False
        self.end: Key | None = None
        self.first: Key | None = None
        self.fresh: list[Record] = []
        self._records = records
        self._dead = 0
        self._fifo: deque[Record] = deque()
        self._early: list[tuple[float, int, int, Record]] = []

    def push(self, record: Record) -> None:
        """Add a unit where its rank puts it."""
        if self.more and (self.end is None or (record.rank, record.seq) > self.end):
            self.fresh.append(record)
            return
        fifo = self._fifo
        last = fifo[-1] if fifo else record
        if last.rank < record.rank or (last.rank == record.rank and last.seq <= record.seq):
            fifo.append(record)
        else:
            heappush(self._early, (record.rank, record.seq, next(_numbers), record))

    def extend(self, records: list[Record]) -> None:
        """Add several units: all at once if they come in order."""
        fifo = self._fifo
        follows = len(records) > 1 and not self.more and (not fifo or fifo[-1].rank < records[0].rank)
        if follows and all(one.rank <= two.rank for one, two in pairwise(records)):
            fifo.extend(records)
        else:
            for record in records:
                self.push(record)

    def reset(self, first: Key | None) -> None:
        """Forget all units: the store has them, and the place of the first is `first`."""
        self._fifo.clear()
        self._early.clear()
        self.fresh.clear()
        self._dead = 0
        self.end, self.first, self.more = None, first, first is not None

    @property
    def is_untouched(self) -> bool:
        """True while no unit was read or added."""
        return self.end is None and not self._fifo and not self._early and not self.fresh

    def reaches(self, record: Record) -> bool:
        """True when the loaded units go as far as that record."""
        return not self.more or (self.end is not None and (record.rank, record.seq) <= self.end)

    def written(self) -> None:
        """The turn is over: units beyond the end are in the store, and need not stay loaded."""
        if self.fresh:
            for record in self.fresh:
                if self._records.get(record.id) is record:
                    del self._records[record.id]
            self.fresh.clear()

    def shorten(self) -> None:
        """Evict the end of a very long line: the store has all of it."""
        if self.page is not None and len(self._fifo) + len(self._early) > MOST:
            living = self._living()
            for record in living[MOST // 2 :]:
                del self._records[record.id]
            del living[MOST // 2 :]
            self._fifo, self._early, self._dead = deque(living), [], 0
            if living:
                self.end, self.more = (living[-1].rank, living[-1].seq), True

    def key(self) -> Key | None:
        """The place of the first unit; known before the unit is read, if the store named it."""
        if not self._fifo and not self._early and self.more and self.end is None and self.first is not None:
            return min((self.first, *((record.rank, record.seq) for record in self.fresh)))
        head = self.head()
        return None if head is None else (head.rank, head.seq)

    def refill(self, most: int) -> None:
        """Read the next units from the store, and sort in those of this turn."""
        assert self.page is not None
        records, self.end, self.more = self.page(self.end, most)
        within = [record for record in self.fresh if self.reaches(record)]
        if within:
            self.fresh = [record for record in self.fresh if not self.reaches(record)]
            records = sorted((*records, *within), key=lambda record: (record.rank, record.seq))
        self._fifo.extend(records)

    def head(self) -> Record | None:
        """The first unit whose record has not changed since it was added; those before it are dropped."""
        head = self._head()
        while head is None and self.more:
            self.refill(SHORTEST_PAGE)
            head = self._head()
        return head

    def _head(self) -> Record | None:
        fifo, early, records = self._fifo, self._early, self._records
        if self._dead:
            while fifo and records.get(fifo[0].id) is not fifo[0]:
                fifo.popleft()
        if not early:
            return fifo[0] if fifo else None
        while early and records.get(early[0][3].id) is not early[0][3]:
            heappop(early)
        if not early:
            return fifo[0] if fifo else None
        if fifo and (fifo[0].rank, fifo[0].seq) < early[0][:2]:
            return fifo[0]
        return early[0][3]

    def pop(self) -> None:
        """Take out the record that `head` just returned."""
        if self._early and (not self._fifo or self._early[0][:2] < (self._fifo[0].rank, self._fifo[0].seq)):
            heappop(self._early)
        else:
            self._fifo.popleft()

    def take(self, most: int, limit: Key) -> list[Record]:
        """Take out up to `most` units from the head, as long as they come before `limit`."""
        taken: list[Record] = []
        fifo, early, records = self._fifo, self._early, self._records
        while len(taken) < most:
            if early:
                head = self.head()
                if head is None or (head.rank, head.seq) > limit:
                    break
                self.pop()
                taken.append(head)
            elif fifo:
                if not self._dead:  # those up to one that comes before `limit` do so, too
                    amount = min(most - len(taken), len(fifo))
                    last = fifo[amount - 1]
                    if last.rank < limit[0] or (last.rank, last.seq) <= limit:
                        taken += [fifo.popleft() for _ in range(amount)]
                        continue
                head = fifo[0]
                if not self._dead or records.get(head.id) is head:
                    if head.rank >= limit[0] and (head.rank, head.seq) > limit:
                        break
                    taken.append(head)
                fifo.popleft()
            elif self.more:
                self.refill(max(most - len(taken), SHORTEST_PAGE))
            else:
                break
        return taken

    def left(self) -> None:
        """A unit of this line went away without a start: when too many did, sweep them out."""
        self._dead += 1
        self.first = None  # it may have been that unit: the first one has to be read now
        if self._dead > 64 and self._dead * 2 > len(self._fifo) + len(self._early):
            self._fifo, self._early, self._dead = deque(self._living()), [], 0

    def _living(self) -> list[Record]:
        """The loaded units that still belong here, in order."""
        records = self._records
        return sorted(
            (record for record in (*self._fifo, *(entry[3] for entry in self._early))
             if records.get(record.id) is record),
            key=lambda record: (record.rank, record.seq),
        )  # fmt: skip
