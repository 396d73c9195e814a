"""Units in the words of queuectl: which of its states is which of ours, and the rows of the view `jobs`.

A file has that view. From PostgreSQL the columns are read as they are, and put into these words here: there, one
damaged text would make a whole statement fail.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from runcue.core.model.record import Record
from runcue.core.model.state import Head
from runcue.errors import InvalidOption
from runcue.stores.sql.connection import Connection

COLUMNS: Final = ("id", "command", "state", "attempts", "max_retries", "priority", "created_at", "updated_at",
                  "next_run_at", "last_error", "worker_id")  # fmt: skip
WHERE: Final = {
    "pending": "state = 'pending' AND failures = 0",
    "processing": "index_key >= 'running/' AND index_key < 'running0' AND state = 'running'",
    "completed": "state = 'completed'",
    "failed": "state = 'pending' AND failures > 0",
    "dead": "state = 'failed'",
    "cancelled": "state = 'cancelled'",
}
"""What finds the units of each state: `failed` waits for its retry, `dead` has had its last."""
NAMES: Final = {"running": "processing", "failed": "dead"}
LONGEST_ERROR: Final = 512
RAW: Final = (
    "SELECT id, task_type, params, state, failures, retry, priority, created_at, updated_at, "
    "coalesce(next_retry_at, run_at, created_at + coalesce(delay, 0)), last_error, "
    "CASE WHEN token != 0 THEN leased_by END FROM work_units"
)
"""What `row_of` makes a row from."""


class JobQuery(NamedTuple):
    """Which jobs are wanted: the latest of a state, a queue, some ids, before a number. What is None asks nothing."""

    state: str | None
    queue: str | None
    ids: list[str] | None
    before: int | None
    limit: int


def statement(select: str, wanted: JobQuery, ids: tuple[str, object]) -> tuple[str, list[object]]:
    """The statement that finds jobs, newest first, and its bindings.

    `ids` is the condition on ids in words of the database, with {} for the value, and the value.
    """
    state, conditions = wanted.state, (("queue = {}", wanted.queue), ("seq < {}", wanted.before), ids)
    if state is not None and state not in WHERE:
        raise InvalidOption("state", state, f"one of {', '.join(WHERE)}")
    where = [] if state is None else [WHERE[state]]
    bindings: list[object] = []
    for condition, value in conditions:
        if value is not None:
            bindings.append(value)
            where.append(condition.format(f"${len(bindings)}"))
    text = f"{select} WHERE {' AND '.join(where) or 'true'} ORDER BY seq DESC LIMIT ${len(bindings) + 1}"
    return text, [*bindings, wanted.limit]


def row_of(row: tuple[Any, ...]) -> dict[str, Any]:
    """The job of a row of RAW."""
    name, task, params, state, failures, retry, priority, *times, error, worker = row
    given, policy = _decoded(params), _decoded(retry)
    command = given.get("command", task)
    if isinstance(command, list | dict):
        command = msgspec.json.encode(command).decode()
    words = "failed" if state == "pending" and failures else NAMES.get(state, state)
    values = (
        name, task if command is None else command, words, failures, policy.get("max_attempts") or 1,
        int(priority) if float(priority).is_integer() else priority, *map(_moment, times),
        None if error is None else error[:LONGEST_ERROR], worker,
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def row_for(record: Record) -> dict[str, Any]:
    """The job of a unit that was submitted just now, and is not in the table yet."""
    spec, at = record.spec, record.created_at
    retry = None if spec.retry is None else f'{{"max_attempts":{spec.retry.max_attempts}}}'
    due = at + (spec.delay or 0.0) if spec.run_at is None else spec.run_at
    return row_of((spec.id, spec.task, spec.params.decode(), record.state.value, 0, retry, spec.priority,
                   at, at, due, None, None))  # fmt: skip


def counts(connection: Connection, head: Head) -> dict[str, int]:
    """How many jobs there are in each state; of those that completed or were cancelled, how many there ever were."""
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


def _decoded(text: str | None) -> dict[str, Any]:
    """What a JSON text says, if it is one and says an object."""
    try:
        found = None if text is None else msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _moment(at: float | None) -> str | None:
    """A moment as the view tells it; None when there is none, or none that has a name."""
    try:
        moment = None if at is None else datetime.fromtimestamp(round(at, 3), UTC)
    except (OverflowError, OSError, ValueError):
        return None
    return None if moment is None else f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z"
