"""Deletes what nobody needs any more: old grants, old events, work that ended long ago, and work that is purged.

Of work that is deleted, `forgotten` keeps what `depends_on` still needs: the state of what was cancelled, or whose id
was given by the user. (Ids that runcue made and that ended well are recognised by their form.)
"""

from __future__ import annotations

from typing import Any

from runcue.core.state import ServiceState, base_name
from runcue.stores import states
from runcue.stores.connection import Connection

Deleted = tuple[str, int]
"""The id of work that is no longer kept, and the number of its last attempt."""
PRUNABLE = (
    "SELECT id, attempt FROM work_units WHERE state IN ('completed', 'cancelled') AND completed_at < ? "
    "AND NOT EXISTS (SELECT 1 FROM dependencies JOIN work_units AS other ON other.id = work_id "
    "WHERE needs = work_units.id AND other.state IN ('pending', 'running')) ORDER BY completed_at LIMIT ?"
)
OLD_EVENTS = (
    "DELETE FROM events WHERE revision IN "
    "(SELECT revision FROM (SELECT revision, at FROM events ORDER BY revision LIMIT ?2) AS first WHERE at < ?1) "
    "RETURNING 1"
)
"""Looks at the first few only: they were written in the order of time."""
OLD_GRANTS = (
    "DELETE FROM service_log WHERE id IN (SELECT id FROM service_log WHERE started_at < ? "
    "AND id < (SELECT max(id) FROM service_log) LIMIT ?) RETURNING 1"
)
"""All but the last, so that no number comes twice: processes remember up to which they have read."""
OLD_SHELVES = (
    "DELETE FROM shelves WHERE name IN (SELECT name FROM shelves WHERE place IS NULL "
    "AND revision < (SELECT revision FROM head) - ?2 LIMIT ?1) RETURNING 1"
)
"""Empty ones; whoever has not heard that one of them is empty finds nothing on it."""
LATELY = 1000
"""How many turns ago something has to be of which others may be told by a row alone."""
KEEP_STATE = "ON CONFLICT (id) DO UPDATE SET state = excluded.state"
REMEMBER = (
    "INSERT INTO forgotten SELECT id, state FROM work_units "
    f"WHERE id = ? AND (is_named = 1 OR state != 'completed') {KEEP_STATE}"
)
REMEMBER_MADE = (
    f"INSERT INTO forgotten SELECT id, state FROM work_units WHERE id = ? AND is_named = 0 {KEEP_STATE}"
)
DELETE = ("DELETE FROM attempts WHERE work_id = ?", "DELETE FROM dependencies WHERE work_id = ?",
          "DELETE FROM work_units WHERE id = ?")  # fmt: skip
SOME = 500
"""How much of each kind is deleted at once."""


def prune(
    connection: Connection, now: float, finished_before: float | None, granted_before: float
) -> tuple[list[Deleted], bool]:
    """Delete some of what ended long ago, but nothing that pending work depends on.

    That work, and whether there may be more of anything.
    """
    services = [states.read_service(row) for row in connection.execute(states.SERVICE_SELECT)]
    longest = max((service.limits.longest for service in services), default=0.0)
    oldest = min(granted_before, now - longest)
    is_full = len(connection.execute(OLD_GRANTS, (oldest, SOME)).fetchall()) >= SOME
    is_full |= len(connection.execute(OLD_SHELVES, (SOME, LATELY)).fetchall()) >= SOME
    _forget_keys(connection, [one for one in services if base_name(one.limits.name)], now)
    connection.execute("DELETE FROM mail WHERE worker NOT IN (SELECT id FROM workers)")
    if finished_before is None:
        return [], is_full
    is_full |= len(connection.execute(OLD_EVENTS, (finished_before, SOME)).fetchall()) >= SOME
    old: list[Any] = connection.execute(PRUNABLE, (finished_before, SOME)).fetchall()
    names = [(name,) for name, _ in old]
    connection.executemany(REMEMBER, names)
    _delete(connection, names)
    return old, is_full or len(old) >= SOME


def _forget_keys(connection: Connection, keys: list[ServiceState], now: float) -> None:
    """Delete what is kept of keys that have nothing to remember: there may be as many as there are users."""
    names = [(one.limits.name, LATELY) for one in keys if one.is_as_new(now)]
    connection.executemany(
        "DELETE FROM services WHERE name = ? AND revision < (SELECT revision FROM head) - ?", names[:SOME]
    )
    connection.execute("DELETE FROM circuit_state WHERE service NOT IN (SELECT name FROM services)")


def purge(connection: Connection, ids: list[str]) -> list[Deleted]:
    """Delete work as if it had never been; but an id of ours that is unknown would pass for one that ended well."""
    names = [(name,) for name in ids]
    deleted: list[Any] = []
    for name in names:
        deleted += connection.execute("SELECT id, attempt FROM work_units WHERE id = ?", name).fetchall()
    connection.executemany(REMEMBER_MADE, names)
    _delete(connection, names)
    return deleted


def _delete(connection: Connection, names: list[tuple[str]]) -> None:
    for statement in DELETE:
        connection.executemany(statement, names)
