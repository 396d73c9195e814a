"""What may be wrong with the rows of a queue, in sentences."""

from __future__ import annotations

from typing import Any

from runcue.core.model.record import WorkState
from runcue.core.model.state import Head
from runcue.stores.sql.connection import Connection


def quarantined(connection: Connection) -> list[str]:
    """What is to be said of damaged units."""
    [(amount,)] = connection.execute("SELECT count(*) FROM quarantine").fetchall()
    return [f"damaged units in quarantine, which do not run: {amount}"] if amount else []


def miscounted(connection: Connection, head: Head) -> list[str]:
    """Where the counters of what is live differ from what is there."""
    rows: list[Any] = connection.execute(
        "SELECT state, count(*) FROM work_units WHERE state IN ('pending', 'running', 'failed') GROUP BY state"
    ).fetchall()
    found: dict[str, int] = dict(rows)
    told = {WorkState.PENDING: head.pending, WorkState.RUNNING: head.running, WorkState.FAILED: head.failed}
    return [
        f"{state.value} units: {found.get(state.value, 0)}, but the counter says {number}"
        for state, number in told.items()
        if found.get(state.value, 0) != number
    ]
