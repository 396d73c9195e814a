"""arq: its worker in the process, 100 at once, looks every 10 ms, 100 submitted at once, results kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from bench.peers.part import BATCH, Call, Submit
from bench.peers.queues.rq import client

NEEDS = ("arq", "redis")
HOME = "arq"
LOOK = 0.01


def prepare(where: str) -> None:
    """There is nothing to prepare."""


def left(where: str, count: int) -> int:
    """How many units have no result."""
    return count - sum(1 for _ in client(where).scan_iter("arq:result:*", count=10_000))


@asynccontextmanager
async def opened(where: str, call: Call, runs: bool) -> AsyncIterator[Submit]:
    """The queue, open."""
    connections = import_module("arq.connections")
    module = import_module("arq.worker")
    pool = await connections.create_pool(connections.RedisSettings(unix_socket_path=where))

    async def work(context: Any, page: int) -> int:
        return await call.wait(page)

    async def submit(pages: range) -> None:
        await asyncio.gather(*(pool.enqueue_job("work", page) for page in pages))

    worker = module.Worker(
        [module.func(work, name="work")],
        redis_pool=await connections.create_pool(connections.RedisSettings(unix_socket_path=where)),
        handle_signals=False,
        max_jobs=BATCH,
        poll_delay=LOOK,
    )
    running = asyncio.create_task(worker.async_run()) if runs else None
    yield submit
    if running is not None:
        running.cancel()
        await asyncio.gather(running, worker.close(), return_exceptions=True)  # its units are cancelled too
    await pool.aclose()
