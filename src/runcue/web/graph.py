"""The graph around a unit: all that it depends on and all that depends on it, up to a hundred units."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from runcue.web.shapes import Graph, Node

if TYPE_CHECKING:
    from runcue import Work
    from runcue.web.file import Source

MOST_NODES = 100


async def graph_of(source: Source, start: Work) -> Graph:
    """The graph around a unit; the nearest units come first."""
    graph = _Nodes(start)
    upward = deque([start])
    while upward and not graph.is_full:
        one = upward.popleft()
        for need in one.depends_on[:MOST_NODES]:
            found = await source.get(need)
            if graph.add(need, found) and found is not None:
                upward.append(found)
            graph.join(need, one.id)
    downward = deque([start])
    while downward and not graph.is_full:
        one = downward.popleft()
        for found in await source.dependents(one.id, MOST_NODES):
            if graph.add(found.id, found):
                downward.append(found)
            graph.join(one.id, found.id)
    return Graph(nodes=list(graph.nodes.values()), edges=list(graph.edges), more=graph.is_full)


class _Nodes:
    """The units that the walk has reached."""

    def __init__(self, start: Work) -> None:
        self.nodes: dict[str, Node] = {}
        self.edges: dict[tuple[str, str], None] = {}
        self.is_full = False
        """True once a unit had to be left out."""
        self.add(start.id, start)

    def add(self, work_id: str, work: Work | None) -> bool:
        """Add a unit (None: no longer kept); True when it is new and there is room."""
        if work_id in self.nodes:
            return False
        if len(self.nodes) >= MOST_NODES:
            self.is_full = True
            return False
        found = Node(id=work_id, task=None, state=None)
        if work is not None:
            found.task, found.state = work.task, work.state.value
        self.nodes[work_id] = found
        return True

    def join(self, need: str, work_id: str) -> None:
        """Add an edge between two units of the graph."""
        if need in self.nodes and work_id in self.nodes:
            self.edges[need, work_id] = None
