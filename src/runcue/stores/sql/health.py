"""How the place is that a queue is kept in: versions and sizes, and what is wrong with it."""

from __future__ import annotations

import os
from typing import Any, Final

import apsw

from runcue.core.model.record import WorkState
from runcue.core.model.state import Head
from runcue.stores.sql.connection import Connection
from runcue.stores.sqlite.file import bytes_in
from runcue.stores.sqlite.schema import VERSION

MOST_PROBLEMS: Final = 20


def examine(connection: apsw.Connection, head: Head, path: str) -> dict[str, Any]:
    """Everything there is to know about the file; `problems` says in sentences what is wrong with it."""
    real = os.path.realpath(path)  # beside which SQLite keeps the log, whatever link led there
    damage = [str(row[0]) for row in connection.execute(f"PRAGMA integrity_check({MOST_PROBLEMS})")]
    problems = [] if damage == ["ok"] else [f"SQLite: {line}" for line in damage]
    problems += set_aside(connection)
    return {
        "sqlite": apsw.sqlite_lib_version(),
        "schema": VERSION,
        "size": bytes_in(real),
        "log_size": bytes_in(f"{real}-wal"),
        "problems": problems or miscounted(connection, head),
    }


def set_aside(connection: Connection) -> list[str]:
    """What is to be said of damaged works."""
    [(aside,)] = connection.execute("SELECT count(*) FROM set_aside").fetchall()
    return [f"{aside} damaged works are set aside and do not run"] if aside else []


def miscounted(connection: Connection, head: Head) -> list[str]:
    """Where the counters of what is live differ from what is there."""
    rows: list[Any] = connection.execute(
        "SELECT state, count(*) FROM work_units WHERE state IN ('pending', 'running', 'failed') GROUP BY state"
    ).fetchall()
    found: dict[str, int] = dict(rows)
    told = {WorkState.PENDING: head.pending, WorkState.RUNNING: head.running, WorkState.FAILED: head.failed}
    return [
        f"{found.get(state.value, 0)} works are {state.value}, but the counter says {number}"
        for state, number in told.items()
        if found.get(state.value, 0) != number
    ]
