"""Who waits for whom.

An edge says "this work waits for that id". An id may be waited for before it was ever submitted (a forward
reference). How many others a work waits for is in its record (`missing`). Every walk is a loop over a list,
never recursion: chains of 100,000 are fine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence


class Graph:
    """The edges between live work."""

    __slots__ = ("edges",)

    def __init__(self) -> None:
        self.edges: dict[str, dict[str, None]] = {}
        """Who is waited for, and by whom, in the order they came; empty when nobody waits for anybody."""

    def add(self, work_id: str, needs: Iterable[str]) -> None:
        """`work_id` waits for each of `needs`."""
        for need in needs:
            self.edges.setdefault(need, {})[work_id] = None

    def is_awaited(self, work_id: str) -> bool:
        """True when somebody waits for that id."""
        return work_id in self.edges

    def missing(self, work_id: str, needs: Iterable[str]) -> list[str]:
        """Which of `needs` that work still waits for."""
        return [need for need in needs if work_id in self.edges.get(need, ())]

    def waiters(self, work_id: str) -> list[str]:
        """Who waits for that id, in the order they came."""
        return list(self.edges.get(work_id, ()))

    def satisfy(self, work_id: str) -> list[str]:
        """`work_id` is there: nobody waits for it any more. Those that did are returned."""
        return list(self.edges.pop(work_id, ()))

    def drop(self, work_id: str, needs: Iterable[str]) -> None:
        """`work_id` waits no longer (it ended): forget its own edges, not those of who waits for it."""
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
