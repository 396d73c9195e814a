"""The schedules of a queue, and which of them is due next.

Whoever takes over from another process loads them all: no other process changes them.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator
from heapq import heappop, heappush

from msgspec.structs import replace

from runcue.core.ledger.current import CurrentTurn
from runcue.core.model.schedule import Schedule

Entry = tuple[float, str]
"""When a schedule is due, and its name."""


class Schedules:
    """All schedules by name, with the moments at which they are due."""

    __slots__ = ("_by_name", "_by_queue_time", "_by_wall", "_chosen_at", "_over", "_turn")

    def __init__(self, turn: CurrentTurn) -> None:
        self._turn = turn
        self._by_name: dict[str, Schedule] = {}
        self._by_queue_time: list[Entry] = []
        self._by_wall: list[Entry] = []
        self._over: dict[str, None] = {}
        self._chosen_at = -math.inf
        """The latest wall time at which a slot was chosen."""

    def load(self, schedules: Iterable[Schedule]) -> None:
        """Take over all schedules from the store."""
        self._by_name = {one.name: one for one in schedules}
        self._by_queue_time, self._by_wall = [], []
        self._chosen_at = -math.inf
        for one in self._by_name.values():
            self._wait(one)

    def find(self, name: str) -> Schedule | None:
        """The schedule of that name."""
        return self._by_name.get(name)

    def all(self) -> list[Schedule]:
        """All schedules."""
        return list(self._by_name.values())

    def put(self, schedule: Schedule) -> None:
        """Plan a schedule that is new or has changed."""
        before = self._by_name.get(schedule.name)
        self._by_name[schedule.name] = schedule
        self._turn.plan.schedules[schedule.name] = schedule
        is_waiting = before is not None and before.is_waiting
        if (
            not is_waiting
            or before is None
            or (before.due, before.by_wall) != (schedule.due, schedule.by_wall)
        ):
            self._wait(schedule)

    def tasks_came(self, tasks: Container[str]) -> None:
        """Let schedules go on that were held back because nobody had their task."""
        held_back = [one for one in self._by_name.values() if one.problem is not None and not one.is_wrong]
        for one in held_back:
            if one.spec.task in tasks:
                self.put(replace(one, problem=None))

    def remove(self, name: str) -> None:
        """Plan that a schedule is deleted."""
        del self._by_name[name]
        self._turn.plan.schedules[name] = None

    def _wait(self, schedule: Schedule) -> None:
        self._chosen_at = max(self._chosen_at, schedule.as_of)
        if schedule.slot is None and schedule.timing.until is not None:
            self._over[schedule.name] = None
        if schedule.is_waiting:
            assert schedule.due is not None
            heap = self._by_wall if schedule.by_wall else self._by_queue_time
            heappush(heap, (schedule.due, schedule.name))

    def _waits(self, entry: Entry, *, by_wall: bool) -> bool:
        """True while a schedule waits for that very moment."""
        due, name = entry
        schedule = self._by_name.get(name)
        return (
            schedule is not None
            and schedule.is_waiting
            and (schedule.due, schedule.by_wall) == (due, by_wall)
        )

    def chosen_after(self, moment: float) -> list[Schedule]:
        """The schedules whose slots were chosen later than at that moment of wall time, by a clock that was wrong."""
        if self._chosen_at <= moment:
            return []
        self._chosen_at = max(one.as_of for one in self._by_name.values()) if self._by_name else -math.inf
        return [one for one in self._by_name.values() if one.as_of > moment]

    def over(self) -> list[Schedule]:
        """The schedules without a next slot, because their last moment has passed or seemed to have."""
        found = [self._by_name[name] for name in self._over if name in self._by_name]
        self._over = {one.name: None for one in found if one.slot is None}
        return [one for one in found if one.slot is None and one.problem is None]

    def due(self) -> list[Schedule]:
        """The schedules with a slot whose time has come, the earliest first. They stay due until they are `put`."""
        return [
            *self._due_of(self._by_queue_time, self._turn.now, by_wall=False),
            *self._due_of(self._by_wall, self._turn.wall, by_wall=True),
        ]

    def _due_of(self, heap: list[Entry], now: float, *, by_wall: bool) -> Iterator[Schedule]:
        if not heap or heap[0][0] > now:
            return
        found: dict[Entry, None] = {}
        while heap and heap[0][0] <= now:
            entry = heappop(heap)
            if self._waits(entry, by_wall=by_wall):
                found[entry] = None
        for entry in found:
            heappush(heap, entry)
            yield self._by_name[entry[1]]

    def next_at(self) -> float:
        """When a schedule is next due, in queue time."""
        at = self._first(self._by_queue_time, by_wall=False)
        return min(at, self.next_by_wall() - (self._turn.wall - self._turn.now))

    def next_by_wall(self) -> float:
        """When a schedule is next due in wall time."""
        return self._first(self._by_wall, by_wall=True)

    def _first(self, heap: list[Entry], *, by_wall: bool) -> float:
        while heap and not self._waits(heap[0], by_wall=by_wall):
            heappop(heap)
        return heap[0][0] if heap else math.inf
