"""Cancels and retries: one unit by its id, or all that are chosen as in a list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from runcue.api import connections
from runcue.core.model.record import WorkState
from runcue.core.schedule.plan import Cancel, Purge, Revive
from runcue.declare import arguments
from runcue.errors import SubmitError
from runcue.stores.sql.submissions import CANCEL, RETRY, change_row

if TYPE_CHECKING:
    from runcue.api.wiring import System

SOME: Final = 1000
"""How many units are deleted in one turn."""


async def cancel(system: System, work_id: str | None, cascade: bool, which: Mapping[str, Any]) -> int:
    """Cancel units; True for one that had not ended, or how many of the chosen ones had not."""
    if (connection := which.get("connection")) is not None:
        return await _changed_on(connection, system, CANCEL, work_id, cascade, which)
    if work_id is None or which:
        query = arguments.some_units("cancel", work_id, **which)
        return await system.queries.cancel(query, cascade=cascade)
    return bool(await system.engine.request(Cancel(arguments.work_id(work_id), cascade)))


async def retry(system: System, work_id: str | None, cascade: bool, which: Mapping[str, Any]) -> int:
    """Retry units; True for one that had failed or was cancelled, or how many of the chosen ones had failed."""
    if (connection := which.get("connection")) is not None:
        return await _changed_on(connection, system, RETRY, work_id, cascade, which)
    if work_id is None or which:
        query = arguments.some_units("retry", work_id, **which)
        return await system.queries.retry(query, cascade=cascade)
    return bool(await system.engine.request(Revive(arguments.work_id(work_id), cascade)))


async def purge_dead(system: System, task: str | None) -> int:
    """Delete all failed units, or those of a task, without a trace; how many they were."""
    count = 0
    most = (await system.engine.counts())[WorkState.FAILED]  # others may go on failing
    query = arguments.query(WorkState.FAILED, task, SOME)
    while count < most and (ids := [record.id for record in await system.store.find(query)]):
        count += await system.engine.request(Purge(ids))
    return count


async def _changed_on(
    connection: Any, system: System, kind: str, work_id: str | None, cascade: bool, which: Mapping[str, Any]
) -> bool:
    """Cancel or retry a unit on a connection of the user's own. What becomes of that nobody knows yet: True."""
    if work_id is None or len(which) > 1:
        raise SubmitError(f"With connection= give {kind}() one id, and nothing else but cascade.")
    row = change_row(kind, arguments.work_id(work_id), cascade=cascade)
    await connections.insert(connection, system.store, [row])
    return True
