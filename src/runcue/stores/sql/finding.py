"""The statement that finds the units of a query, newest first. core/views/query.py says what a query means."""

from __future__ import annotations

from typing import Any

import msgspec

from runcue.core.views.query import SEARCHED, Query
from runcue.stores.sql.statements import SELECT, Dialect


def statement(query: Query, dialect: Dialect) -> tuple[str, list[Any]]:
    """The statement for this query, and its bindings; it may find more rows than are asked for."""
    bindings: list[Any] = []

    def bound(value: object) -> str:
        bindings.append(value)
        return f"${len(bindings)}"

    where = [dialect.by_state[query.state]]
    if query.task is not None:
        where.append(f"task_type = {bound(query.task)}")
    if query.queue is not None:
        where.append(f"queue = {bound(query.queue)}")
    last = "(SELECT max(seq) + 1 FROM work_units)"
    if query.before is not None:
        last = bound(query.before)
        where.append(f"seq < {last}")
    if query.service is not None:
        where.append(dialect.service.format(bound(msgspec.json.encode(query.service).decode())))
    if query.search is not None:  # a text is searched among the newest only
        where.append(f"seq > {last} - 1 - {SEARCHED}")
        where.append(dialect.search.format(bound(query.search)))
    limit = "" if dialect.spare is None else f" LIMIT {query.limit + dialect.spare}"
    return f"{SELECT} {' AND '.join(where)} ORDER BY seq DESC{limit}", bindings
