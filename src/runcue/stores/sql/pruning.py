"""Deletes what nobody needs any more: old grants, old events, work that ended long ago, and work that is purged.

Of work that is deleted, `forgotten` keeps what `depends_on` still needs: the state of what was cancelled, or whose id
was given by the user. (Ids that runcue made and that ended well are recognised by their form.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from runcue.core.model.state import ServiceState, base_name
from runcue.stores.sql import states
from runcue.stores.sql.connection import Connection, Row, rows_of

Deleted = tuple[str, int]
"""The id of work that is no longer kept, and the number of its last attempt."""
OVER = ("id", "attempt", "depends_on")
PRUNABLE = (
    f"SELECT {', '.join(OVER)} FROM work_units WHERE state IN ('completed', 'cancelled') AND completed_at < ? "
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
    "DELETE FROM service_log WHERE id IN "
    "(SELECT id FROM (SELECT id, started_at FROM service_log ORDER BY id LIMIT ?2) AS first "
    "WHERE started_at < ?1 AND id < (SELECT max(id) FROM service_log)) RETURNING 1"
)
"""Looks at the first few only: they were written in the order of time. The last stays, so that no number comes
twice: processes remember up to which they have read."""
OLD_SHELVES = (
    "DELETE FROM shelves WHERE name IN (SELECT name FROM shelves WHERE place IS NULL "
    "AND revision < (SELECT revision FROM head) - ?2 LIMIT ?1) RETURNING 1"
)
"""Empty ones; whoever has not heard that one of them is empty finds nothing on it."""
OLD_SERVICES = "SELECT name FROM services WHERE revision < (SELECT revision FROM head) - ?"
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
DELETE_EDGE = "DELETE FROM dependencies WHERE needs = ? AND work_id = ?"
"""By its whole key: a file has no index of who depends, and would look through all edges."""
DELETE_EDGES = "DELETE FROM dependencies WHERE work_id = ?"
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
    is_full |= _forget_keys(connection, services, now) >= SOME
    connection.execute("DELETE FROM letters WHERE worker NOT IN (SELECT id FROM workers)")
    if finished_before is None:
        return [], is_full
    is_full |= len(connection.execute(OLD_EVENTS, (finished_before, SOME)).fetchall()) >= SOME
    old = _sound(rows_of(connection, PRUNABLE, (finished_before, SOME), OVER))
    connection.executemany(REMEMBER, [(name,) for name, _, _ in old])
    return _delete(connection, old), is_full or len(old) >= SOME


def _forget_keys(connection: Connection, services: list[ServiceState], now: float) -> int:
    """Delete some of what is kept of keys that have nothing to remember: there may be as many as there are users.

    How many. A name with brackets is a key's only where the service before them has keys.
    """
    bases = {one.limits.name for one in services if one.limits.each is not None}
    keys = [one for one in services if base_name(one.limits.name) in bases]
    found = connection.execute(OLD_SERVICES, (LATELY,)).fetchall() if keys else []
    old = {name for (name,) in found}
    names = [(one.limits.name,) for one in keys if one.limits.name in old and one.is_as_new(now)][:SOME]
    connection.executemany("DELETE FROM services WHERE name = ?", names)
    connection.execute("DELETE FROM circuit_state WHERE service NOT IN (SELECT name FROM services)")
    return len(names)


def purge(connection: Connection, ids: list[str]) -> list[Deleted]:
    """Delete work as if it had never been; but an id of ours that is unknown would pass for one that ended well."""
    select = f"SELECT {', '.join(OVER)} FROM work_units WHERE id = ?"
    old = [row for name in ids for row in _sound(rows_of(connection, select, (name,), OVER))]
    connection.executemany(REMEMBER_MADE, [(name,) for name, _, _ in old])
    return _delete(connection, old)


def _sound(rows: Iterable[Row]) -> list[Row]:
    """Those rows that say whose they are."""
    return [row for row in rows if isinstance(row[0], str)]


def _delete(connection: Connection, old: list[Row]) -> list[Deleted]:
    """Delete these works, each with the number of its last attempt and the JSON of what it depends on."""
    names = [(name,) for name, _, _ in old]
    edges: list[tuple[str, str]] = []
    damaged: list[tuple[str]] = []
    for name, _, text in old:
        try:
            edges += [(need, name) for need in _needs(text)]
        except msgspec.MsgspecError:
            damaged.append((name,))
    connection.executemany("DELETE FROM attempts WHERE work_id = ?", names)
    connection.executemany(DELETE_EDGE, edges)
    connection.executemany(DELETE_EDGES, damaged)
    connection.executemany("DELETE FROM work_units WHERE id = ?", names)
    return [(name, attempt) for name, attempt, _ in old]


def _needs(text: str | bytes | None) -> tuple[str, ...]:
    return () if text is None else msgspec.json.decode(text, type=tuple[str, ...])


def forget_files(
    forget: Callable[[list[Deleted]], None] | None,
    deleted: list[Deleted],
    trouble: Callable[[str, Exception], None],
) -> None:
    """Have what belongs to deleted works beside the queue deleted, too."""
    if forget is not None:
        try:
            forget(deleted)
        except Exception as error:  # noqa: BLE001 (whatever it is, the work itself is gone)
            trouble("cannot delete the files of old work", error)
