"""Submits checked units, and waits for room where the queue is full and `reject_policy="block"`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from runcue.core.schedule.plan import Withdraw
from runcue.errors import QueueFull
from runcue.host.loops import within

if TYPE_CHECKING:
    from runcue.api.wiring import System
    from runcue.core.model.record import Spec
    from runcue.declare.registry import Registry


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
