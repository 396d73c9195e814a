"""The lanes that wait at a service, best first.

They stand in three lines: lanes whose first unit uses none of the service's quantities, those whose first unit uses
some, and those whose first unit needs more than the service ever allows. No lane waits behind one of the third line,
and none of the first line behind one of the second.

An entry counts only while its lane waits here with the rank and number that the entry has; others are outdated.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from runcue.core.limits.service import Service
    from runcue.core.schedule.lane import Lane

Entry: TypeAlias = "tuple[int, float, int, Lane]"
"""The round that the lane starts in, where keys share the service; rank and number of its first unit; the lane."""


class Parked:
    """The lanes that wait at one service."""

    __slots__ = ("_owner", "costly", "free", "too_costly")

    def __init__(self, owner: Service) -> None:
        self._owner = owner
        self.free: list[Entry] = []
        self.costly: list[Entry] = []
        self.too_costly: list[Entry] = []
        """Not a heap: none of these can start unless the limits change."""

    def __len__(self) -> int:
        return len(self.free) + len(self.costly) + len(self.too_costly)

    def add(self, key_round: int, lane: Lane, most: int) -> None:
        """Park a lane here. Beyond `most` entries the outdated ones are swept out."""
        owner = self._owner
        lane.where = owner
        heap = self.free
        if owner.is_metered and owner.sells(cost := lane.cost()):
            heap = self.costly if owner.holds(cost) else self.too_costly
        heappush(heap, (key_round, lane.rank, lane.seq, lane))
        if len(heap) > most:
            heap[:] = {entry[3]: entry for entry in heap if self._counts(entry)}.values()
            heapify(heap)

    def remove(self, lane: Lane) -> int:
        """Take out the best lane of the first or second line. Returns its round."""
        heap = self.free if self.free and self.free[0][3] is lane else self.costly
        return heappop(heap)[0]

    def first(self) -> Lane | None:
        """The best lane of the first two lines."""
        entries = [entry for heap in (self.free, self.costly) if (entry := self._first(heap)) is not None]
        return min(entries)[3] if entries else None

    def first_free(self) -> Lane | None:
        """The best lane of the first line."""
        entry = self._first(self.free)
        return None if entry is None else entry[3]

    def first_costly(self) -> Lane | None:
        """The best lane of the second line."""
        entry = self._first(self.costly)
        return None if entry is None else entry[3]

    def take_affordable(self) -> list[Lane]:
        """Take out the lanes of the third line that no longer belong there."""
        owner = self._owner
        lanes = dict.fromkeys(entry[3] for entry in self.too_costly if self._counts(entry))
        found = [lane for lane in lanes if owner.holds(lane.cost())]
        self.too_costly = [(0, lane.rank, lane.seq, lane) for lane in lanes if lane not in found]
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
