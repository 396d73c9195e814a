"""The lanes that wait at a service, best first.

Three lines: of work that costs nothing there, of work that costs some of a quantity, and of work that costs more
than the service ever allows. Nobody waits behind the last, and those who cost nothing not behind those who do.

Entries may be outdated: one counts only while its lane waits here, with the key that the entry says.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from runcue.core.limits.service import Service
    from runcue.core.schedule.lane import Lane

Entry: TypeAlias = "tuple[int, float, int, Lane]"
"""Whose turn it is among the keys of a service, rank, seq, lane."""


class Parked:
    """The lanes that wait at one service."""

    __slots__ = ("_owner", "costly", "never", "rest")

    def __init__(self, owner: Service) -> None:
        self._owner = owner
        self.rest: list[Entry] = []
        self.costly: list[Entry] = []
        self.never: list[Entry] = []
        """Those that cost too much for ever, as things stand; in no order."""

    def __len__(self) -> int:
        return len(self.rest) + len(self.costly) + len(self.never)

    def add(self, turn: int, lane: Lane, most: int) -> None:
        """A lane waits here from now on; with more than `most` entries, the outdated ones are swept out."""
        owner = self._owner
        lane.where = owner
        heap = self.rest
        if owner.is_metered and owner.sells(cost := lane.cost()):
            heap = self.costly if owner.holds(cost) else self.never
        heappush(heap, (turn, lane.rank, lane.seq, lane))
        if len(heap) > most:
            heap[:] = {entry[3]: entry for entry in heap if self._counts(entry)}.values()
            heapify(heap)

    def remove(self, lane: Lane) -> int:
        """The best of one of the lines leaves. Which turn it waited for."""
        heap = self.rest if self.rest and self.rest[0][3] is lane else self.costly
        return heappop(heap)[0]

    def first(self) -> Lane | None:
        """The best of those that may start some day."""
        entries = [entry for heap in (self.rest, self.costly) if (entry := self._first(heap)) is not None]
        return min(entries)[3] if entries else None

    def first_free(self) -> Lane | None:
        """The best of those that cost nothing."""
        entry = self._first(self.rest)
        return None if entry is None else entry[3]

    def first_costly(self) -> Lane | None:
        """The best of those that cost something."""
        entry = self._first(self.costly)
        return None if entry is None else entry[3]

    def may_start_again(self) -> list[Lane]:
        """Those that cost too much until now and no longer do; they are taken out."""
        owner = self._owner
        lanes = dict.fromkeys(entry[3] for entry in self.never if self._counts(entry))
        found = [lane for lane in lanes if owner.holds(lane.cost())]
        self.never = [(0, lane.rank, lane.seq, lane) for lane in lanes if lane not in found]
        return found

    def _first(self, heap: list[Entry]) -> Entry | None:
        while heap:
            if self._counts(heap[0]):
                return heap[0]
            heappop(heap)
        return None

    def _counts(self, entry: Entry) -> bool:
        _, rank, seq, lane = entry
        return lane.where is self._owner and lane.rank == rank and lane.seq == seq
