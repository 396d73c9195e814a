"""Submits units: to a turn, which may have to wait for room (`reject_policy="block"`), or from outside."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, Any

from runcue.api import connections
from runcue.core.schedule.plan import Withdraw
from runcue.errors import QueueFull
from runcue.host.loops import within
from runcue.stores.sql.submissions import unit_row

if TYPE_CHECKING:
    from runcue.api.wiring import System
    from runcue.core.model.record import Spec
    from runcue.declare.registry import Registry


async def submit_on(connection: Any, system: System, specs: list[Spec]) -> list[str]:
    """Submit these units on a connection of the user's own; their ids, in order."""
    if specs:
        await connections.insert(
            connection, system.store, [unit_row(spec, is_settled=True) for spec in specs]
        )
    return [spec.id for spec in specs]


def outside_id() -> str:
    """An id for a unit that no turn has accepted yet. It sorts by time, and has another form than those of a queue's
    own, so that others may depend on it before it is accepted."""
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


async def accept(system: System, registry: Registry, specs: list[Spec]) -> list[str]:
    """Submit these units, all or none, and return their ids in order."""
    options, submit = registry.options, registry.submission(specs)
    ids: list[str]
    if options.max_queued is None or options.reject_policy != "block":
        ids = await system.engine.request(submit)
        return ids
    submit.may_wait = system.may_wait()
    try:
        async with within(options.block_timeout):
            ids = await system.engine.request(submit)
            return ids
    except (TimeoutError, asyncio.CancelledError) as error:
        try:
            await system.engine.request(Withdraw(submit))
        finally:
            answer = system.engine.replies.late(submit)
        if isinstance(error, asyncio.CancelledError):
            raise
        if answer is None:  # withdrawn, or lost with the process that decided before
            raise QueueFull(system.engine.pending, options.max_queued, len(specs)) from None
        if isinstance(answer, Exception):
            raise answer from None
        ids = answer
        return ids
