"""What people may do: retry, cancel and purge works, hold back services and queues, change limits.

An action on many works is put together from the same list that the page shows. It can be counted first, and answers
with what it changed and what had moved on meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from runcue import ConfigError
from runcue.web.guard import Refused
from runcue.web.rows import group_key
from runcue.web.shapes import MOST_BULK, MOST_ROWS, Bulk, Filter, Limits, Outcome

if TYPE_CHECKING:
    from runcue import Cue, Work
    from runcue.web.source import Source

logger = logging.getLogger("runcue")

STATES = {"retry": ("failed", "cancelled"), "cancel": ("pending", "running"), "purge": ("failed",)}
"""What each action takes."""
SAMPLE = 5
MOST_PAGES = 200
"""So much of a list is gone through for one action."""
AT_ONCE = 500
"""So many are changed together, which is one commit or a few."""


async def one(source: Source, verb: str, work_id: str, cascade: bool) -> bool:
    """Do it to one work; True when that changed it."""
    if await source.get(work_id) is None:
        raise no_work(work_id)
    changed = await source.act(lambda cue: _do(cue, verb, work_id, cascade))
    logger.info("dashboard: %s of work %r: %s", verb, work_id, "done" if changed else "nothing to do")
    return changed


def no_work(work_id: str) -> Refused:
    """The answer for an id that has no record."""
    return Refused(404, f"There is no work {work_id[:128]!r}, or it is no longer kept.")


def _do(cue: Cue, verb: str, work_id: str, cascade: bool) -> Awaitable[bool]:
    match verb:
        case "retry":
            return cue.retry(work_id, cascade=cascade)
        case "cancel":
            return cue.cancel(work_id, cascade=cascade)
        case _:
            return cue.purge(work_id)


async def many(source: Source, verb: str, bulk: Bulk) -> Outcome:
    """Do it to all works of a filter, or count them."""
    ids, is_more = await _chosen(source, verb, bulk.filter)
    if bulk.dry_run:
        return Outcome(count=len(ids), sample=ids[:SAMPLE], more=is_more)

    async def do(cue: Cue) -> int:
        changed = 0
        for first in range(0, len(ids), AT_ONCE):
            some = ids[first : first + AT_ONCE]
            changed += sum(await asyncio.gather(*(_do(cue, verb, work_id, False) for work_id in some)))
        return changed

    changed = await source.act(do) if ids else 0
    logger.info("dashboard: %s of %d works, %d changed", verb, len(ids), changed)
    return Outcome(changed=changed, skipped=len(ids) - changed)


async def _chosen(source: Source, verb: str, wanted: Filter) -> tuple[list[str], bool]:
    """The ids of a filter, and whether there are more than an action takes."""
    takes = STATES[verb]
    if wanted.state is not None and wanted.state not in takes:
        raise Refused(400, f"{verb} takes work that is {' or '.join(takes)}, not {wanted.state}.")
    states = takes if wanted.state is None else (wanted.state,)
    ids: list[str] = []
    for state in states:
        before: str | None = None
        for _ in range(MOST_PAGES):
            page = await _page(source, state, wanted, before)
            ids += [work.id for work in page if _is_alike(work, wanted.error_group)]
            if len(page) < MOST_ROWS:
                break
            if len(ids) > MOST_BULK:
                return ids[:MOST_BULK], True
            before = page[-1].id
        else:
            return ids[:MOST_BULK], True
    return ids[:MOST_BULK], len(ids) > MOST_BULK


async def _page(source: Source, state: str, wanted: Filter, before: str | None) -> Sequence[Work]:
    return await source.find(
        state=state,
        task=wanted.task,
        queue=wanted.queue,
        service=wanted.service,
        search=wanted.search,
        before=before,
        limit=MOST_ROWS,
    )


def _is_alike(work: Work, error: str | None) -> bool:
    return error is None or group_key(work)[1] == error


# services and queues --------------------------------------------------------------------------------------


async def hold(source: Source, kind: str, name: str, is_held: bool) -> bool:
    """Hold a service or a queue back, or let it go on; whether it is held back now."""
    is_service = any(service["name"] == name for service in await source.services())
    if kind == "service" and not is_service:
        raise no_service(name)
    if kind == "queue" and is_service:
        raise Refused(409, f"{name!r} is a service's name, too, and stands for that. Hold the service back.")
    action: Callable[[Cue], Awaitable[None]] = (
        (lambda cue: cue.pause(name)) if is_held else (lambda cue: cue.resume(name))
    )
    await source.act(action)
    logger.info("dashboard: %s %r %s", kind, name, "paused" if is_held else "resumed")
    return is_held


def no_service(name: str) -> Refused:
    """The answer for a service that nobody declared."""
    return Refused(404, f"There is no service {name[:128]!r}.")


async def set_limits(source: Source, name: str, limits: Limits) -> None:
    """Change the limits of a service by hand."""
    if not any(service["name"] == name for service in await source.services()):
        raise no_service(name)
    fields = ("rate", "concurrent", "circuit_threshold", "circuit_timeout")
    changes: dict[str, Any] = {
        field: value for field in fields if (value := getattr(limits, field)) is not UNSET
    }
    if limits.quantities is not UNSET:
        for quantity, value in limits.quantities.items():
            if quantity in fields or not quantity.isidentifier():
                raise ConfigError(f"{quantity[:80]!r} is no name of a quantity.")
            changes[quantity] = value
    await source.act(lambda cue: cue.set_limits(name, **changes))
    logger.info("dashboard: limits of %r set: %s", name, ", ".join(changes) or "none")
