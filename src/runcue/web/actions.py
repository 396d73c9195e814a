"""The actions of the dashboard: retry, cancel and purge units, pause services and queues, change limits,
run and pause schedules.

An action on many units takes those that the list on the page shows. With `dry_run` they are only counted. The answer
says how many units changed, how many could not be changed, and how many are left for the next action. A retry begins
with the units that others depend on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import UNSET, structs

from runcue import ConfigError, SubmitError, WorkNotFound
from runcue.web.guard import Refused
from runcue.web.rows import group_key, in_turns
from runcue.web.search import pages
from runcue.web.shapes import MOST_BULK, MOST_ROWS, Bulk, Filter, Limits, Outcome

if TYPE_CHECKING:
    from runcue import Cue, Work
    from runcue.web.file import Source

T = TypeVar("T")
logger = logging.getLogger("runcue")

STATES = {"retry": ("failed", "cancelled"), "cancel": ("pending", "running"), "purge": ("failed",)}
"""The states in which a unit can be retried, cancelled or purged."""
SAMPLE = 5
AT_ONCE = 500
"""Units that are changed together, in one commit or a few."""


async def one(source: Source, verb: str, work_id: str, cascade: bool) -> bool:
    """Retry, cancel or purge one unit; True when the action changed it."""
    if await source.get(work_id) is None:
        raise no_work(work_id)
    changed = await source.act(lambda cue: _do(cue, verb, work_id, cascade))
    logger.info("dashboard: %s of unit %r: %s", verb, work_id, "done" if changed else "nothing to do")
    return changed


def no_work(work_id: str) -> Refused:
    """The answer for an id that has no record."""
    return Refused(404, f"There is no unit {work_id[:128]!r}, or it is no longer kept.")


def _do(cue: Cue, verb: str, work_id: str, cascade: bool) -> Awaitable[bool]:
    match verb:
        case "retry":
            return cue.retry(work_id, cascade=cascade)
        case "cancel":
            return cue.cancel(work_id, cascade=cascade)
        case _:
            return cue.purge(work_id)


async def many(source: Source, verb: str, bulk: Bulk) -> Outcome:
    """Retry, cancel or purge all units of a filter, or count them."""
    needs, is_more = await _chosen(source, verb, bulk.filter)
    ids = list(needs)
    if bulk.dry_run:
        return Outcome(count=len(ids), sample=ids[:SAMPLE], more=is_more)
    left = await _left(source, verb, bulk.filter) if is_more else 0

    async def do(cue: Cue) -> int:
        return await (_retried(cue, needs) if verb == "retry" else _changed(cue, verb, ids))

    changed = await source.act(do) if ids else 0
    logger.info("dashboard: %s of %d units, %d changed", verb, len(ids), changed)
    return Outcome(changed=changed, skipped=len(ids) - changed, left=left)


async def _changed(cue: Cue, verb: str, ids: Sequence[str]) -> int:
    return sum(answer is True for answer in await _each(ids, lambda one: _tried(cue, verb, one)))


async def _retried(cue: Cue, needs: Mapping[str, Sequence[str]]) -> int:
    """Retry these units, and count them; leave out those that depend on a unit that stays dead."""
    lost, gone = await _lost(cue, {need for after in needs.values() for need in after if need not in needs})
    order = _in_order(needs)
    changed = 0

    async def retry(one: str) -> bool | None:
        answer = await _tried(cue, "retry", one)
        if answer and not gone.isdisjoint(needs[one]):  # how the units in `gone` ended shows only now
            work = await cue.get(one)
            return None if work is not None and work.state == "failed" else True
        return answer

    for first in range(0, len(order), AT_ONCE):
        some = []
        for one in order[first : first + AT_ONCE]:
            if lost.isdisjoint(needs[one]):
                some.append(one)
            else:
                lost.add(one)
        answers = await _each(some, retry)
        for one, answer in zip(some, answers, strict=True):
            if answer is None or not lost.isdisjoint(needs[one]):
                lost.add(one)
            else:
                changed += answer
    return changed


def _in_order(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """The ids, each after those that it depends on; units in a circle of dependencies are left out."""
    sorter = TopologicalSorter(needs)
    order: list[str] = []
    try:
        sorter.prepare()
    except CycleError as error:
        logger.info(
            "dashboard: not retried, because they depend on each other in a circle: %s",
            error.args[1][:SAMPLE],
        )
    while ready := sorter.get_ready():
        order += [one for one in ready if one in needs]
        sorter.done(*ready)
    return order


async def _lost(cue: Cue, ids: set[str]) -> tuple[set[str], set[str]]:
    """Which of these units fail their dependents (dead, cancelled, unknown), and which are no longer kept."""

    async def is_lost(work_id: str) -> bool | None:
        work = await cue.get(work_id)
        if work is not None:
            return work.state in ("failed", "cancelled")
        try:
            await cue.explain(work_id)
        except WorkNotFound as error:
            return None if error.forgotten else True
        return False

    ordered = list(ids)
    answers = dict(zip(ordered, await _each(ordered, is_lost), strict=True))
    return {one for one in ordered if answers[one]}, {one for one in ordered if answers[one] is None}


async def _tried(cue: Cue, verb: str, work_id: str) -> bool | None:
    """Whether the action changed the unit; None when it is impossible, because another unit has its key by now."""
    try:
        return await _do(cue, verb, work_id, False)
    except (SubmitError, WorkNotFound) as error:
        logger.info("dashboard: no %s of unit %r: %s", verb, work_id, error)
        return None


async def _each(ids: Sequence[str], question: Callable[[str], Awaitable[T]]) -> list[T]:
    """Ask a question about each of these ids, `AT_ONCE` at a time; the answers in their order."""
    answers: list[T] = []
    for first in range(0, len(ids), AT_ONCE):
        answers += await asyncio.gather(*map(question, ids[first : first + AT_ONCE]))
    return answers


def _states(verb: str, wanted: Filter) -> tuple[str, ...]:
    takes = STATES[verb]
    if wanted.state is not None and wanted.state not in takes:
        raise Refused(400, f"{verb} takes units that are {' or '.join(takes)}, not {wanted.state}.")
    return takes if wanted.state is None else (wanted.state,)


async def _chosen(source: Source, verb: str, wanted: Filter) -> tuple[dict[str, tuple[str, ...]], bool]:
    """The ids that match with their dependencies, and whether there are more than an action takes."""
    found: dict[str, tuple[str, ...]] = {}
    narrow = {name: getattr(wanted, name) for name in ("task", "queue", "service", "group", "tag", "search")}
    for state in _states(verb, wanted):
        async with aclosing(pages(source, MOST_ROWS, **narrow, state=state)) as following:
            async for page in following:
                for work in [one async for one in in_turns(page) if _is_alike(one, wanted.error_group)]:
                    if len(found) == MOST_BULK:
                        return found, True
                    found[work.id] = tuple(work.depends_on)
    return found, False


async def _left(source: Source, verb: str, wanted: Filter) -> int | None:
    """How many more units match than an action takes; None where they could only be counted one by one."""
    if structs.replace(wanted, state=None) != Filter():
        return None
    counts = (await source.facts(False)).counts
    return max(0, sum(counts[state] for state in _states(verb, wanted)) - MOST_BULK)


def _is_alike(work: Work, error: str | None) -> bool:
    return error is None or group_key(work)[1] == error


# services, queues and schedules ---------------------------------------------------------------------------


async def hold(source: Source, kind: str, name: str, is_held: bool) -> bool:
    """Pause or resume a service or a queue; whether it is paused now."""
    is_service = any(service["name"] == name for service in await source.services())
    if kind == "service" and not is_service:
        raise no_service(name)
    if kind == "queue" and is_service:
        raise Refused(409, f"{name!r} is a service's name, too, and stands for that. Hold the service back.")
    await source.act(lambda cue: cue.pause(name) if is_held else cue.resume(name))
    logger.info("dashboard: %s %r %s", kind, name, "paused" if is_held else "resumed")
    return is_held


def no_service(name: str) -> Refused:
    """The answer for a service that nobody declared."""
    return Refused(404, f"There is no service {name[:128]!r}.")


async def hold_schedule(source: Source, name: str, is_held: bool) -> bool:
    """Pause or resume a schedule; whether it is paused now. UnknownSchedule where there is none."""
    await source.act(lambda cue: cue.schedules.pause(name) if is_held else cue.schedules.resume(name))
    logger.info("dashboard: schedule %r %s", name, "paused" if is_held else "resumed")
    return is_held


async def run_schedule(source: Source, name: str) -> str:
    """Submit a unit of a schedule now; its id. UnknownSchedule where there is none."""

    async def run(cue: Cue) -> str:
        return str(await cue.run_now(name))

    work_id = await source.act(run)
    logger.info("dashboard: schedule %r submitted %s", name, work_id)
    return work_id


async def set_limits(source: Source, name: str, limits: Limits) -> None:
    """Change the limits of a service by hand."""
    if not any(service["name"] == name for service in await source.services()):
        raise no_service(name)
    fields = tuple(name for name in Limits.__struct_fields__ if name != "quantities")
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
