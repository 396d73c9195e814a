"""Submits units: to a turn, which may have to wait for room (`reject_policy="block"`), or from outside."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from runcue.api import connections
from runcue.core.schedule.plan import Withdraw
from runcue.declare.unit import Unit
from runcue.errors import QueueFull
from runcue.host.loops import within
from runcue.stores.sql.submissions import unit_row

if TYPE_CHECKING:
    from runcue.api.wiring import System
    from runcue.core.model.record import Spec
    from runcue.declare.registry import Registry


Submitted = tuple[list[str], list["Spec"]]
"""The ids that a submission is answered with, and what was submitted."""


async def submit_one(system: System, registry: Registry, task: Any, options: dict[str, Any]) -> Submitted:
    """Submit a unit: a task with options, or a unit as a value."""
    if isinstance(task, Unit):
        options = {**task.arguments(), **options}
        task = options.pop("task")
    connection = options.pop("connection", None)
    make_id = system.id_maker() if connection is None else outside_id
    spec = registry.spec(task, make_id=make_id, **options)
    if connection is None and system.store.is_inline and registry.always_accepts(spec):
        system.engine.accept(spec)
        return [spec.id], [spec]
    return await _submit(system, registry, [spec], connection), [spec]


async def submit_many(system: System, registry: Registry, items: Iterable[Any], connection: Any) -> Submitted:
    """Submit units, all or none."""
    specs = registry.specs(items, system.id_maker() if connection is None else outside_id)
    return await _submit(system, registry, specs, connection) if specs else [], specs


async def _submit(system: System, registry: Registry, specs: list[Spec], connection: Any) -> list[str]:
    if connection is None:
        return await accept(system, registry, specs)
    rows = [unit_row(spec, is_settled=True) for spec in specs]
    await connections.insert(connection, system.store, rows)
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
