"""Which unit waits for which.

An edge says "this unit waits for that id". A unit may wait for an id that was not submitted yet (a forward
reference). How many others a unit waits for is in its record (`missing`). Every walk is a loop over a list, never
recursion: chains of 100,000 units are fine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence


class Graph:
    """The dependencies between live units."""

    __slots__ = ("edges",)

    def __init__(self) -> None:
        self.edges: dict[str, dict[str, None]] = {}
        """For each id that is waited for: the units that wait, in the order they came."""

    def add(self, work_id: str, needs: Iterable[str]) -> None:
        """Have `work_id` wait for each of `needs`."""
        for need in needs:
            self.edges.setdefault(need, {})[work_id] = None

    def is_awaited(self, work_id: str) -> bool:
        """True when a unit waits for that id."""
        return work_id in self.edges

    def missing(self, work_id: str, needs: Iterable[str]) -> list[str]:
        """Which of `needs` that unit still waits for."""
        return [need for need in needs if work_id in self.edges.get(need, ())]

    def waiters(self, work_id: str) -> list[str]:
        """The units that wait for that id, in the order they came."""
        return list(self.edges.get(work_id, ()))

    def satisfy(self, work_id: str) -> list[str]:
        """Remove the edges to an id, which no unit waits for any more. Returns the units that did."""
        return list(self.edges.pop(work_id, ()))

    def drop(self, work_id: str, needs: Iterable[str]) -> None:
        """Remove the edges from a unit that waits no longer; the edges to it stay."""
        for need in needs:
            waiters = self.edges.get(need)
            if waiters is not None and work_id in waiters:
                del waiters[work_id]
                if not waiters:
                    del self.edges[need]


def find_cycle(starts: Iterable[str], needs_of: Callable[[str], Sequence[str]]) -> list[str] | None:
    """A ring of ids that need each other and can be reached from `starts`, or None."""
    done: set[str] = set()
    for start in starts:
        path: list[str] = []
        on_path: set[str] = set()
        stack = [(start, False)]
        while stack:
            here, is_left = stack.pop()
            if is_left:
                on_path.discard(path.pop())
                done.add(here)
            elif here in on_path:
                return [*path[path.index(here) :], here]
            elif here not in done:
                path.append(here)
                on_path.add(here)
                stack.append((here, True))
                stack.extend((need, False) for need in needs_of(here))
    return None
