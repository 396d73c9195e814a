"""The statements that find works in a queue file, newest first. What a query means is told in core/views/query.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from runcue.core.model.record import WorkState
from runcue.core.views.query import SEARCHED, Query
from runcue.stores.sql import codec

FIND: Final[Mapping[WorkState | None, str]] = {
    None: "WHERE true",
    WorkState.PENDING: "INDEXED BY work_units_pending WHERE state = 'pending'",
    WorkState.RUNNING: "WHERE shelf >= 'running/' AND shelf < 'running0' AND state = 'running'",
    WorkState.FAILED: "INDEXED BY work_units_failed WHERE state = 'failed'",
    WorkState.CANCELLED: "INDEXED BY work_units_cancelled WHERE state = 'cancelled'",
    WorkState.COMPLETED: "WHERE state = 'completed'",
}
"""Where works of a state are; of those that run there are never many, and the completed are most of what there is."""
NARROW: Final[Mapping[str, str]] = {
    "task": "task_type = :task",
    "queue": "queue = :queue",
    "before": "seq < :before",
    "service": "(instr(services, :service) OR instr(services, substr(:service, 1, length(:service) - 1) || '['))",
    "search": "seq > coalesce(:before, (SELECT max(seq) + 1 FROM work_units)) - 1 - :most AND "
    "instr(lower(concat_ws(char(10), id, target, last_error, params)), lower(:text))",
}
"""What a query asks besides; a service is named in JSON."""
TALLY: Final = " UNION ALL ".join(
    f"SELECT '{state.value}', task_type, count(*) FROM work_units {FIND[state]} GROUP BY task_type"
    for state in (WorkState.PENDING, WorkState.RUNNING)
)
"""How many works of each task are pending and running."""


def statement(query: Query, narrow: Mapping[str, str] = NARROW) -> tuple[str, dict[str, Any]]:
    """What finds the works that are asked for, and its bindings; the limit is for whoever reads the rows."""
    asked = {"task": query.task, "queue": query.queue, "before": query.before}
    bindings: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    where = [FIND[query.state], *(narrow[name] for name in bindings)]
    if query.service is not None:
        where.append(narrow["service"])
        bindings["service"] = msgspec.json.encode(query.service).decode()
    if query.search is not None:
        where.append(narrow["search"])
        bindings |= {"text": query.search, "most": SEARCHED, "before": query.before}
    return f"{codec.SELECT} {' AND '.join(where)} ORDER BY seq DESC", bindings
