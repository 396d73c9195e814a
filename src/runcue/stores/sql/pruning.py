"""Deletes old grants, old events, units that ended long ago, and units that are purged.

Of deleted units, `forgotten` keeps what `depends_on` still needs: the state of those that were cancelled or whose id
the user chose. (A deleted unit that completed under an id made by runcue is recognized by the form of that id.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from runcue.core.model.state import ServiceState, base_name
from runcue.stores.sql import codec, columns, statements, states
from runcue.stores.sql.connection import Connection, Row, rows_of

Deleted = tuple[str, int]
"""The id of a deleted unit, and the number of its last attempt."""
LATELY = 1000
"""How many turns a row stays after its last change, so that other processes can read of that change."""
SOME = 500
"""How much of each kind is deleted at once."""


def prune(
    connection: Connection, now: float, finished_before: float | None, granted_before: float
) -> tuple[list[Deleted], bool]:
    """Delete some of what is old, but no unit that a live one depends on.

    The deleted units, and whether there may be more to delete of anything.
    """
    services = [states.read_service(row) for row in connection.execute(statements.SERVICE_SELECT)]
    longest = max((service.limits.longest for service in services), default=0.0)
    oldest = min(granted_before, now - longest)
    is_full = len(connection.execute(statements.OLD_GRANTS, (SOME, oldest)).fetchall()) >= SOME
    is_full |= len(connection.execute(statements.OLD_INDEX_HEADS, (LATELY, SOME)).fetchall()) >= SOME
    is_full |= _forget_keys(connection, services, now) >= SOME
    connection.execute(statements.DELETE_LETTERS)
    if finished_before is None:
        return [], is_full
    is_full |= len(connection.execute(statements.OLD_EVENTS, (SOME, finished_before)).fetchall()) >= SOME
    is_full |= len(connection.execute(statements.OLD_GROUPS, (finished_before, SOME)).fetchall()) >= SOME
    old = _sound(rows_of(connection, statements.PRUNABLE, (finished_before, SOME), statements.OVER))
    connection.executemany(statements.REMEMBER, [row[:1] for row in old])
    return _delete(connection, old), is_full or len(old) >= SOME


def _forget_keys(connection: Connection, services: list[ServiceState], now: float) -> int:
    """Delete some of the keys that stand as if new, since there may be one for every user; the number deleted.

    A name with brackets belongs to a key only if the service before the brackets has keys.
    """
    bases = {one.limits.name for one in services if one.limits.each is not None}
    keys = [one for one in services if base_name(one.limits.name) in bases]
    found = connection.execute(statements.OLD_SERVICES, (LATELY,)).fetchall() if keys else []
    old = {name for (name,) in found}
    names = [(one.limits.name,) for one in keys if one.limits.name in old and one.is_as_new(now)][:SOME]
    connection.executemany(statements.DELETE_SERVICE, names)
    connection.execute(statements.DELETE_CIRCUITS)
    return len(names)


def purge(connection: Connection, ids: list[str]) -> list[Deleted]:
    """Delete units without a trace, but for ids that runcue made: unknown, they would pass for completed ones."""
    found = (rows_of(connection, statements.DELETABLE, (name,), statements.OVER) for name in ids)
    old = [row for rows in found for row in _sound(rows)]
    connection.executemany(statements.REMEMBER_MADE, [row[:1] for row in old])
    return _delete(connection, old)


def _sound(rows: Iterable[Row]) -> list[Row]:
    """The rows whose id can be read."""
    return [row for row in rows if isinstance(row[0], str)]


def _delete(connection: Connection, old: list[Row]) -> list[Deleted]:
    """Delete these units, given as rows of OVER."""
    names = [row[:1] for row in old]
    edges: list[tuple[str, str]] = []
    damaged: list[tuple[str]] = []
    tags: list[Row] = []
    untold: list[Row] = []
    for name, _, text, seq, state, group, extra in old:
        try:
            ending = columns.ENDINGS.get(state, 0)
            tags += [(*mark, ending, seq) for mark in codec.read_marks(group, extra)]
        except (msgspec.MsgspecError, TypeError):
            untold.append((seq,))
        try:
            edges += [(need, name) for need in _needs(text)]
        except msgspec.MsgspecError:
            damaged.append((name,))
    connection.executemany(statements.DELETE_ATTEMPTS, names)
    connection.executemany(statements.DELETE_EDGE, edges)
    connection.executemany(statements.DELETE_EDGES, damaged)
    connection.executemany(statements.TAG_DELETE, tags)
    connection.executemany(statements.TAGS_DELETE, untold)
    connection.executemany(statements.DELETE_UNIT, names)
    return [row[:2] for row in old]


def _needs(text: str | bytes | None) -> tuple[str, ...]:
    return () if text is None else msgspec.json.decode(text, type=tuple[str, ...])


def forget_files(
    forget: Callable[[list[Deleted]], None] | None,
    deleted: list[Deleted],
    trouble: Callable[[str, Exception], None],
) -> None:
    """Delete the files of deleted units beside the queue."""
    if forget is not None:
        try:
            forget(deleted)
        except Exception as error:  # noqa: BLE001 (whatever it is, the units are deleted)
            trouble("cannot delete the files of old units", error)
