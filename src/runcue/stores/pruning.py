"""Deletes what nobody needs any more: old grants, old events, work that ended long ago, and work that is purged.

Of work that is deleted, `forgotten` keeps what `depends_on` still needs: the state of what was cancelled, or whose id
was given by the user. (Ids that runcue made and that ended well are recognised by their form.)
"""

from __future__ import annotations

from typing import Any

import apsw

from runcue.stores import states

Deleted = tuple[str, int]
"""The id of work that is no longer kept, and the number of its last attempt."""
PRUNABLE = (
    "SELECT id, attempt FROM work_units WHERE state IN ('completed', 'cancelled') AND completed_at < ? "
    "AND NOT EXISTS (SELECT 1 FROM dependencies JOIN work_units AS other ON other.id = work_id "
    "WHERE needs = work_units.id AND other.state IN ('pending', 'running')) ORDER BY completed_at LIMIT ?"
)
OLD_EVENTS = (
    "DELETE FROM events WHERE revision IN "
    "(SELECT revision FROM (SELECT revision, at FROM events ORDER BY revision LIMIT ?2) WHERE at < ?1)"
)
"""Looks at the first few only: they were written in the order of time."""
OLD_GRANTS = "DELETE FROM service_log WHERE id IN (SELECT id FROM service_log WHERE started_at < ? LIMIT ?)"
REMEMBER = (
    "INSERT OR REPLACE INTO forgotten SELECT id, state FROM work_units "
    "WHERE id = ? AND (is_named OR state != 'completed')"
)
REMEMBER_MADE = (
    "INSERT OR REPLACE INTO forgotten SELECT id, state FROM work_units WHERE id = ? AND NOT is_named"
)
DELETE = ("DELETE FROM attempts WHERE work_id = ?", "DELETE FROM dependencies WHERE work_id = ?",
          "DELETE FROM work_units WHERE id = ?")  # fmt: skip
SOME = 500
"""How much of each kind is deleted at once."""


def prune(
    connection: apsw.Connection, now: float, finished_before: float | None, granted_before: float
) -> tuple[list[Deleted], bool]:
    """Delete some of what ended long ago, but nothing that pending work depends on.

    That work, and whether there may be more of anything.
    """
    services = [states.read_service(row) for row in connection.execute(states.SERVICE_SELECT)]
    longest = max((rate.per for service in services for rate in service.limits.rates), default=0.0)
    connection.execute(OLD_GRANTS, (min(granted_before, now - longest), SOME))
    is_full = connection.changes() >= SOME
    connection.execute("DELETE FROM mail WHERE worker NOT IN (SELECT id FROM workers)")
    if finished_before is None:
        return [], is_full
    connection.execute(OLD_EVENTS, (finished_before, SOME))
    is_full = is_full or connection.changes() >= SOME
    old: list[Any] = connection.execute(PRUNABLE, (finished_before, SOME)).fetchall()
    names = [(name,) for name, _ in old]
    connection.executemany(REMEMBER, names)
    _delete(connection, names)
    return old, is_full or len(old) >= SOME


def purge(connection: apsw.Connection, ids: list[str]) -> list[Deleted]:
    """Delete work as if it had never been; but an id of ours that is unknown would pass for one that ended well."""
    names = [(name,) for name in ids]
    deleted: list[Any] = []
    for name in names:
        deleted += connection.execute("SELECT id, attempt FROM work_units WHERE id = ?", name).fetchall()
    connection.executemany(REMEMBER_MADE, names)
    _delete(connection, names)
    return deleted


def _delete(connection: apsw.Connection, names: list[tuple[str]]) -> None:
    for statement in DELETE:
        connection.executemany(statement, names)
