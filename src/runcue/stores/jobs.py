"""Work in the words of queuectl: which of its states is which of ours, and the rows of the view `jobs`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import apsw
import msgspec

from runcue.core.state import Head
from runcue.errors import InvalidOption
from runcue.stores.schema import JOBS

COLUMNS: Final = ("id", "command", "state", "attempts", "max_retries", "priority", "created_at", "updated_at",
                  "next_run_at", "last_error", "worker_id")  # fmt: skip
WHERE: Final = {
    "pending": "state = 'pending' AND failures = 0",
    "processing": "shelf >= 'running/' AND shelf < 'running0' AND state = 'running'",
    "completed": "state = 'completed'",
    "failed": "state = 'pending' AND failures > 0",
    "dead": "state = 'failed'",
    "cancelled": "state = 'cancelled'",
}
"""What finds the work of each state: `failed` waits for its retry, `dead` has had its last."""


def find(
    connection: apsw.Connection, state: str | None, queue: str | None, ids: Iterable[str] | None, limit: int
) -> list[dict[str, Any]]:
    """The latest jobs of that state, queue and these ids, newest first."""
    if state is not None and state not in WHERE:
        raise InvalidOption("state", state, f"one of {', '.join(WHERE)}")
    conditions = [] if state is None else [WHERE[state]]
    bindings: list[object] = []
    if queue is not None:
        conditions.append("queue = ?")
        bindings.append(queue)
    if ids is not None:
        conditions.append("id IN (SELECT value FROM json_each(?))")
        bindings.append(msgspec.json.encode(list(ids)).decode())
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    rows = connection.execute(f"{JOBS} {where} ORDER BY seq DESC LIMIT ?", (*bindings, limit))
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows]


def counts(connection: apsw.Connection, head: Head) -> dict[str, int]:
    """How many jobs there are in each state; of those that ended well, how many there ever were."""
    row: Any = connection.execute(f"SELECT count(*) FROM work_units WHERE {WHERE['failed']}").fetchone()
    retrying: int = row[0]
    return {
        "pending": head.pending - retrying,
        "processing": head.running,
        "completed": head.completed,
        "failed": retrying,
        "dead": head.failed,
        "cancelled": head.cancelled,
    }
