"""taskiq: a Redis stream with acknowledgements, 100 submitted at once, its own command with one process on uvloop.

It keeps no results as it comes. More processes made it slower here, where all share two cores.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from bench.peers import part
from bench.peers.part import Call, Submit
from bench.peers.queues.rq import client

NEEDS = ("taskiq", "taskiq_redis", "redis")
HOME = "python"


def _broker(where: str) -> tuple[Any, Any]:
    broker = import_module("taskiq_redis").RedisStreamBroker(f"unix://{where}")

    @broker.task(task_name="work")  # type: ignore[untyped-decorator] # its types are not here
    async def work(page: int) -> None:
        await part.call().wait(page)

    return broker, work


broker = _broker(part.place())[0] if part.place() else None


def prepare(where: str) -> None:
    """There is nothing to prepare."""


def left(where: str, count: int) -> int:
    """How many messages were not given out, or not acknowledged."""
    groups = client(where).xinfo_groups("taskiq")
    return int(sum(group["pending"] + (group["lag"] or 0) for group in groups))


@asynccontextmanager
async def opened(where: str, call: Call, runs: bool) -> AsyncIterator[Submit]:
    """The queue, open."""
    here, work = _broker(where)
    await here.startup()

    async def submit(pages: range) -> None:
        await asyncio.gather(*(work.kiq(page) for page in pages))

    worker = ("-m", "taskiq", "worker", "bench.peers.queues.taskiq:broker", "-w", "1", "--log-level", "ERROR")
    async with part.program(HOME, *worker):
        yield submit
    await here.shutdown()
