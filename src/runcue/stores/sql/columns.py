"""The columns of the tables that hold records: the one list of what each holds and where it comes from.

From `WORK` are made: the statements of both dialects (statements.py), the functions that turn a record into a row and
back (codec.py), the check of the types in a row, and the types that PostgreSQL is told. Tests compare it with the
tables of a new file and of a new schema. A new fact about a unit is a line here, and a migration of both schemas.
"""

from __future__ import annotations

from types import NoneType
from typing import Any, Final, get_args

import msgspec

from runcue.core.model.record import WorkState

VARIES: Final = object()
"""Says of a column that no value of it is usual."""


class Column(msgspec.Struct, frozen=True):
    """One column of `work_units`."""

    name: str
    kind: Any
    """`str`, `int`, `float`, or `bool`, which is stored as 0 or 1; with `| None` where NULL is allowed."""
    field: str
    """The field that it holds: of `record` or of its `spec`."""
    usual: Any = VARIES
    """What it holds in most new units: the short INSERT writes that without being given it."""
    write: str = "{field}"
    """The expression that makes the column's value of the field. Its names are those of codec.py."""
    read: str = "{name}"
    """The expression that makes the field's value of the column."""

    @property
    def plain_kind(self) -> type:
        """What it holds where it is not NULL."""
        [kind] = {*(get_args(self.kind) or (self.kind,))} - {NoneType}
        return kind  # type: ignore[no-any-return]


_NAME: Final = "_names[{name}]"
"""A text that many rows share comes back as one object."""

HAS_EXTRA: Final = (
    "spec.cost or record.chosen or spec.extras is not None or record.expires_at is not None "
    "or record.progress is not None"
)
"""The condition under which a unit has any of what is in the column `extra`."""

WORK: Final = (
    Column("id", str, "record.id"),
    Column("seq", int, "record.seq"),
    Column("task_type", str, "spec.task", read=_NAME),
    Column("queue", str, "spec.queue", read=_NAME),
    Column("target", str | None, "spec.target", None),
    Column("params", str, "spec.params", write="{field}.decode()", read="_params(id, {name})"),
    Column("services", str, "spec.services", write="_texts[{field}]", read="_lists[{name}]"),
    Column("depends_on", str | None, "spec.depends_on", None,
           "_encode({field}).decode() if {field} else None", "() if {name} is None else _decode_names({name})"),
    Column("priority", float, "spec.priority"),
    Column("run_at", float | None, "spec.run_at", None),
    Column("delay", float | None, "spec.delay", None),
    Column("timeout", float | None, "spec.timeout"),
    Column("dependency_timeout", float | None, "spec.dependency_timeout", None),
    Column("idempotency_key", str | None, "spec.idempotency_key", None),
    Column("on_failed", str, "spec.on_failed", "resubmit", read=_NAME),
    Column("is_named", bool, "spec.is_named", 0, read="{name} == 1"),
    Column("retry", str | None, "spec.retry", None,
           "None if {field} is None else _policies[{field}]", "None if {name} is None else _retries[{name}]"),
    Column("extra", str | None, "spec.cost", None,
           f"_extra_text(record) if {HAS_EXTRA} else None", "extra.cost"),
    Column("group_name", str | None, "spec.group", None, read=_NAME),
    Column("unique_key", str | None, "spec.unique_key", None),
    Column("label", str | None, "spec.label", None),
    Column("state", str, "record.state", read="_STATES[{name}]"),
    Column("rank", float, "record.rank"),
    Column("since", float, "record.since"),
    Column("index_key", str | None, "record.index_key", read=_NAME),
    Column("sort_key", float, "record.sort_key"),
    Column("watch_at", float | None, "record.watch_at", None),
    Column("missing", int, "record.missing", 0),
    Column("attempt", int, "record.attempt", 1),
    Column("spent", int, "record.spent", 0),
    Column("failures", int, "record.failures", 0),
    Column("crashes", int, "record.crashes", 0),
    Column("token", int, "record.token"),
    Column("leased_by", str | None, "record.worker", read=_NAME),
    Column("created_at", float, "record.created_at"),
    Column("started_at", float | None, "record.started_at"),
    Column("completed_at", float | None, "record.completed_at", None),
    Column("next_retry_at", float | None, "record.next_retry_at", None),
    Column("throttled_since", float | None, "record.throttled_since", None),
    Column("skipped", bool, "record.skipped", 0, read="{name} == 1"),
    Column("result", str | None, "record.result", None,
           "None if {field} is None else _encode({field}).decode()", "None if {name} is None else _decode({name})"),
    Column("last_error", str | None, "record.error", None),
    Column("traceback", str | None, "record.traceback", None),
    Column("history", int, "record.history", 0, "len({field})", "attempts"),
)  # fmt: skip
"""What makes up a record, in the order of SELECT; `history` is the last, so that a reader sees it as row[-1]."""

BESIDE: Final = (
    Column("lease_expires_at", float | None, "lease"),
    Column("updated_at", float, "now"),
)
"""What is written with each change of a record, and is no part of it."""

COLUMNS: Final = tuple(column.name for column in WORK)
EVERY: Final = (*WORK, *BESIDE)
WRITTEN: Final = tuple(column.name for column in EVERY)
"""What a new row holds. Like the lists below, in the order of the values of its statement."""
PLAIN: Final = tuple(column.name for column in EVERY if column.usual is VARIES)
"""The columns of most new units that are not as in any other."""
USUAL: Final[dict[str, Any]] = {
    column.name: column.usual for column in EVERY if column.usual not in {VARIES, None}
}
"""What the others hold; the rest is NULL."""
STARTED: Final = ("state", "attempt", "token", "leased_by", "lease_expires_at", "started_at", "next_retry_at",
                  "index_key", "sort_key", "watch_at", "updated_at")  # fmt: skip
"""What a start changes."""
FINISHED: Final = ("state", "spent", "token", "leased_by", "lease_expires_at", "completed_at", "result", "last_error",
                   "traceback", "index_key", "sort_key", "watch_at", "updated_at")  # fmt: skip
"""What a successful end changes."""
CHANGED: Final = tuple(
    column.name
    for column in EVERY
    if column.name == "extra" or not column.field.startswith(("spec.", "record.id", "record.created_at"))
)
"""What anything else may change: all that was not submitted, and `extra`, which holds the chosen service, too."""

SUBMITTED: Final = tuple(
    column.name for column in WORK if column.field.startswith("spec.") and column.name not in CHANGED
)
"""What else changes when a unit is edited: all that was submitted."""
TAG: Final = {"tag": str, "value": str, "ending": int, "unit": int}
"""A tag of a unit, by its number; its group is the tag without a name. `ending` says how the unit ended (ENDINGS)."""
ENDINGS: Final = {WorkState.COMPLETED: 1, WorkState.FAILED: 2, WorkState.CANCELLED: 3}
"""What `ending` is for units that have ended; for others it is 0."""
GROUP: Final = ("name", "pending", "running", "completed", "failed", "cancelled", "created_at", "done_at")

ATTEMPT: Final = {"work_id": str, "number": int, "at": float, "duration": float, "error": str, "worker": str}
GRANT: Final = {"service": str, "started_at": float, "amount": float, "key": str, "work_id": str}
LETTER: Final = {"worker": str, "kind": str, "body": str}
"""The columns of other tables of which a turn may write many rows, and what each holds."""
