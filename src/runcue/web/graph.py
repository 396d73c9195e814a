"""What a unit needs and what needs it, all the way in both directions, up to a hundred units."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from runcue.web.shapes import Graph, Node

if TYPE_CHECKING:
    from runcue import Work
    from runcue.web.source import Source

MOST_NODES = 100


async def graph_of(source: Source, start: Work) -> Graph:
    """The units around that one, the nearest first."""
    family = _Family(start)
    upward = deque([start])
    while upward and not family.is_full:
        one = upward.popleft()
        for need in one.depends_on[:MOST_NODES]:
            found = await source.get(need)
            if family.add(need, found) and found is not None:
                upward.append(found)
            family.join(need, one.id)
    downward = deque([start])
    while downward and not family.is_full:
        one = downward.popleft()
        for found in await source.dependents(one.id, MOST_NODES):
            if family.add(found.id, found):
                downward.append(found)
            family.join(one.id, found.id)
    return Graph(nodes=list(family.nodes.values()), edges=list(family.edges), more=family.is_full)


class _Family:
    """The units that the walk has reached."""

    def __init__(self, start: Work) -> None:
        self.nodes: dict[str, Node] = {}
        self.edges: dict[tuple[str, str], None] = {}
        self.is_full = False
        """True once a unit had to be left out."""
        self.add(start.id, start)

    def add(self, work_id: str, work: Work | None) -> bool:
        """Add a unit, which may not be kept any more; True when it is new and there is room."""
        if work_id in self.nodes:
            return False
        if len(self.nodes) >= MOST_NODES:
            self.is_full = True
            return False
        if work is None:
            self.nodes[work_id] = Node(id=work_id, task=None, state=None)
        else:
            self.nodes[work_id] = Node(id=work_id, task=work.task, state=work.state.value)
        return True

    def join(self, need: str, work_id: str) -> None:
        """Add an edge between two units of the graph."""
        if need in self.nodes and work_id in self.nodes:
            self.edges[need, work_id] = None
