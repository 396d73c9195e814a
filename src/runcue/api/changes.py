"""Cancels and retries: one unit by its id, or all that are chosen as in a list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from runcue.core.schedule.plan import Cancel, Revive
from runcue.declare import arguments

if TYPE_CHECKING:
    from runcue.api.wiring import System


async def cancel(system: System, work_id: str | None, cascade: bool, which: Mapping[str, Any]) -> int:
    """Cancel units; True for one that had not ended, or how many of the chosen ones had not."""
    if work_id is None or which:
        query = arguments.some_units("cancel", work_id, **which)
        return await system.queries.cancel(query, cascade=cascade)
    return bool(await system.engine.request(Cancel(arguments.work_id(work_id), cascade)))


async def retry(system: System, work_id: str | None, cascade: bool, which: Mapping[str, Any]) -> int:
    """Retry units; True for one that had failed or was cancelled, or how many of the chosen ones had failed."""
    if work_id is None or which:
        query = arguments.some_units("retry", work_id, **which)
        return await system.queries.retry(query, cascade=cascade)
    return bool(await system.engine.request(Revive(arguments.work_id(work_id), cascade)))
