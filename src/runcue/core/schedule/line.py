"""The work of one lane in its order, all of it or the first of it; and the shelf where a store keeps it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count, pairwise

import msgspec

from runcue.core.model.record import Record

Key = tuple[float, int]
Page = tuple[list[Record], Key | None, bool]
"""What was read of a lane's work, where that ended, and whether there may be more."""

SHORTEST_PAGE = 32
"""How much is read of a lane at least, when some of it has to be read."""

MOST = 10_000
"""How much of a lane is in mind at most, where a store has all of it; half of that is left when it was more."""

READY = "ready "


def shelf_name(task: str, queue: str, services: tuple[str, ...]) -> str:
    """The shelf of the work of a lane; `services` only where each work says what it uses."""
    return READY + msgspec.json.encode([queue, task, *services]).decode()


def shelf_parts(shelf: str) -> tuple[str, str, tuple[str, ...]] | None:
    """Queue, task and services of such a shelf; None for one of another kind."""
    if not shelf.startswith(READY):
        return None
    queue, task, *services = msgspec.json.decode(shelf[len(READY) :])
    return queue, task, tuple(services)


_numbers = count()


class Line:
    """Work in order of rank: a deque while ranks arrive in order, a heap for what does not.

    With a `page` it may hold only the first of its work, up to `end`, while there is `more` in the store. What came
    in this turn beyond that is not in the store yet: it waits in `fresh` until it is within reach, or written.
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
        """Take one in, wherever its rank puts it."""
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
        """Take several in: at one stroke when they come in order."""
        fifo = self._fifo
        follows = len(records) > 1 and not self.more and (not fifo or fifo[-1].rank < records[0].rank)
        if follows and all(one.rank <= two.rank for one, two in pairwise(records)):
            fifo.extend(records)
        else:
            for record in records:
                self.push(record)

    def reset(self, first: Key | None) -> None:
        """Forget everything: the store has it, and it begins with `first`."""
        self._fifo.clear()
        self._early.clear()
        self.fresh.clear()
        self._dead = 0
        self.end, self.first, self.more = None, first, first is not None

    @property
    def is_untouched(self) -> bool:
        """True while nothing of it was read or taken in."""
        return self.end is None and not self._fifo and not self._early and not self.fresh

    def reaches(self, record: Record) -> bool:
        """True when what is in mind of it goes as far as that record."""
        return not self.more or (self.end is not None and (record.rank, record.seq) <= self.end)

    def written(self) -> None:
        """What came beyond the end is in the store by now, and need not be in mind."""
        if self.fresh:
            for record in self.fresh:
                if self._records.get(record.id) is record:
                    del self._records[record.id]
            self.fresh.clear()

    def shorten(self) -> None:
        """Where it has become very long, let go of the end of it: all of that is in the store by now."""
        if self.page is not None and len(self._fifo) + len(self._early) > MOST:
            living = self._living()
            for record in living[MOST // 2 :]:
                del self._records[record.id]
            del living[MOST // 2 :]
            self._fifo, self._early, self._dead = deque(living), [], 0
            if living:
                self.end, self.more = (living[-1].rank, living[-1].seq), True

    def key(self) -> Key | None:
        """The place of the first; known before it is read, where the store told it."""
        if not self._fifo and not self._early and self.more and self.end is None and self.first is not None:
            return min((self.first, *((record.rank, record.seq) for record in self.fresh)))
        head = self.head()
        return None if head is None else (head.rank, head.seq)

    def refill(self, most: int) -> None:
        """Read on in the store, what came in this turn taking its place among that."""
        assert self.page is not None
        records, self.end, self.more = self.page(self.end, most)
        end = self.end
        within = [one for one in self.fresh if not self.more or (end and (one.rank, one.seq) <= end)]
        if within:
            self.fresh = [record for record in self.fresh if record not in within]
            records = sorted((*records, *within), key=lambda record: (record.rank, record.seq))
        self._fifo.extend(records)

    def head(self) -> Record | None:
        """The first that is still as it was when it came; what changed since is dropped."""
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
        """Take out up to `most` from the head, as long as they come before `limit`."""
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
        """One of this line went away unstarted: when too many did, let go of them all."""
        self._dead += 1
        self.first = None  # it may have been that one: which is the first now has to be read
        if self._dead > 64 and self._dead * 2 > len(self._fifo) + len(self._early):
            self._fifo, self._early, self._dead = deque(self._living()), [], 0

    def _living(self) -> list[Record]:
        """What is in mind of it, in order."""
        records = self._records
        return sorted(
            (record for record in (*self._fifo, *(entry[3] for entry in self._early))
             if records.get(record.id) is record),
            key=lambda record: (record.rank, record.seq),
        )  # fmt: skip
