"""The statements that find the units of a query, newest first. core/views/query.py says what a query means.

A query is several statements where it asks for a tag or a group: the units that have not ended, those that completed,
and so on are each found in the order of their numbers, and whoever reads them merges them. So the units of a tag in
one state are found without reading its others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from runcue.core.model.record import WorkState
from runcue.core.views.query import SEARCHED, Query, Tag
from runcue.stores.sql.columns import COLUMNS, ENDINGS
from runcue.stores.sql.statements import SELECT, SELECT_TAGGED, Dialect

Statement = tuple[str, list[Any]]
LISTED = ", ".join(COLUMNS)


class _Conditions:
    """The conditions of one statement, and what is bound in them."""

    def __init__(self) -> None:
        self.bindings: list[Any] = []
        self.texts: list[str] = []

    def bound(self, value: object) -> str:
        """The name of a value in the statement."""
        self.bindings.append(value)
        return f"${len(self.bindings)}"

    def mark(self, tag: Tag) -> None:
        """The unit has that tag. (EXISTS would let PostgreSQL begin with all units that have it.)"""
        name, value = map(self.bound, tag)
        self.texts.append(
            f"(SELECT count(*) FROM unit_tags WHERE tag = {name} AND value = {value} AND ending IN (0, 1, 2, 3) "
            "AND unit = seq) > 0"
        )


def statements(query: Query, dialect: Dialect, first: int | None = None) -> list[Statement]:
    """The statements for this query, and their bindings; each may find more rows than are asked for. No unit with a
    number below `first` was submitted since `query.since`."""
    limit = "" if dialect.spare is None else f" LIMIT {query.limit + dialect.spare}"
    return [
        (f"{text} ORDER BY {number} DESC{limit}", bindings)
        for text, number, bindings in _parts(query, dialect, first)
    ]


def counting(query: Query, dialect: Dialect, first: int | None = None) -> list[Statement]:
    """The statements that count the units of this query by their states."""
    return [
        (f"SELECT state, count(*) {text.removeprefix(f'SELECT {LISTED} ')} GROUP BY state", bindings)
        for text, _, bindings in _parts(query, dialect, first)
    ]


def _parts(query: Query, dialect: Dialect, first: int | None) -> Iterator[tuple[str, str, list[Any]]]:
    """Each statement without its end, with the column that orders it."""
    state, marks = query.state, query.marks
    if query.key is not None:
        where = _Conditions()
        where.texts.append(f"idempotency_key = {where.bound(query.key)}")
        if state is not None:
            where.texts.append(f"state = '{state.value}'")
        _add_others(where, query, dialect, marks, first)
        yield f"{SELECT} WHERE {' AND '.join(where.texts)}", "seq", where.bindings
    elif marks and state is not WorkState.RUNNING:  # few run at any time: these are found as the others below
        for ending in range(4) if state is None else (ENDINGS.get(state, 0),):
            where = _Conditions()
            name, value = map(where.bound, marks[0])
            where.texts.append(f"tag = {name} AND value = {value} AND ending = {ending}")
            if state is WorkState.PENDING:
                where.texts.append("state = 'pending'")
            if query.before is not None:
                where.texts.append(f"unit < {where.bound(query.before)}")
            _add_others(where, query, dialect, marks[1:], first)
            yield f"{SELECT_TAGGED} AND {' AND '.join(where.texts)}", "unit", where.bindings
    else:
        where = _Conditions()
        where.texts.append(dialect.by_state[state])
        _add_others(where, query, dialect, marks, first)
        yield f"{SELECT} {' AND '.join(where.texts)}", "seq", where.bindings


def _add_others(
    where: _Conditions, query: Query, dialect: Dialect, marks: tuple[Tag, ...], first: int | None
) -> None:
    """Add what the query asks besides what its units are looked up by."""
    add, bound = where.texts.append, where.bound
    if query.task is not None:
        add(f"task_type = {bound(query.task)}")
    if query.queue is not None:
        add(f"queue = {bound(query.queue)}")
    last = "(SELECT max(seq) + 1 FROM work_units)"
    if query.before is not None:
        last = bound(query.before)
        add(f"seq < {last}")
    for tag in marks:
        where.mark(tag)
    if query.since is not None:
        add(f"created_at >= {bound(query.since)}")
    if first is not None:
        add(f"seq >= {bound(first)}")
    if query.until is not None:
        add(f"created_at < {bound(query.until)}")
    if query.service is not None:
        add(dialect.service.format(bound(msgspec.json.encode(query.service).decode())))
    if query.search is not None:  # a text is searched among the newest only
        add(f"seq > {last} - 1 - {SEARCHED}")
        add(dialect.search.format(bound(query.search)))
