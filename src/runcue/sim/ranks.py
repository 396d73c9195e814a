"""Counts how many of a changing set of units are older and more urgent than another unit.

A Fenwick tree by age whose nodes are sorted lists of priorities. Coming, going and asking take a number of steps that
grows with the logarithm of how many there were, so that a long run with many priorities stays quick. As long as all
have the same priority, which is most often so, there is nothing to sort.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

FIRST_SIZE = 1024


class Ranks:
    """A set of units, each with a priority and an age: a number from 1 on, the youngest have the highest."""

    def __init__(self) -> None:
        self._size = FIRST_SIZE
        self._nodes: dict[int, list[float]] = {}
        self._alike: dict[int, int] | None = {}
        """How many units there are of each age, while all have one priority."""
        self._priority = 0.0

    def come(self, age: int, priority: float) -> None:
        """Add a unit."""
        if self._alike is not None:
            if not self._alike or priority == self._priority:
                self._priority = priority
                self._alike[age] = self._alike.get(age, 0) + 1
                return
            self._sort(self._alike)
        while age > self._size:  # the new root holds whatever the old one does
            self._size *= 2
            if self._size // 2 in self._nodes:
                self._nodes[self._size] = self._nodes[self._size // 2].copy()
        while age <= self._size:
            insort(self._nodes.setdefault(age, []), priority)
            age += age & -age

    def _sort(self, alike: dict[int, int]) -> None:
        self._alike = None
        for age, amount in alike.items():
            for _ in range(amount):
                self.come(age, self._priority)

    def go(self, age: int, priority: float) -> None:
        """Remove a unit of that age and priority."""
        if self._alike is not None:
            self._alike[age] -= 1
            if not self._alike[age]:
                del self._alike[age]
            return
        while age <= self._size:
            node = self._nodes[age]
            del node[bisect_left(node, priority)]
            if not node:
                del self._nodes[age]
            age += age & -age

    def above(self, age: int, priority: float) -> int:
        """How many units are older, and of higher priority."""
        if self._alike is not None:
            if not self._alike or priority >= self._priority:
                return 0
            self._sort(self._alike)
        found, age = 0, min(age - 1, self._size)
        while age:
            if node := self._nodes.get(age):
                found += len(node) - bisect_right(node, priority)
            age -= age & -age
        return found
