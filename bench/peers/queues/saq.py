"""saq: its worker in the process, 10 at once, 100 submitted at once, results kept as it comes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from bench.peers.part import Call, Submit
from bench.peers.queues.rq import client

NEEDS = ("saq", "redis")
HOME = "python"
AT_ONCE = 10


def prepare(where: str) -> None:
    """There is nothing to prepare."""


def left(where: str, count: int) -> int:
    """How many units are not complete."""
    return int(client(where).zcard("saq:default:incomplete"))


@asynccontextmanager
async def opened(where: str, call: Call, runs: bool) -> AsyncIterator[Submit]:
    """The queue, open."""
    saq = import_module("saq")
    logging.getLogger("saq").setLevel(logging.ERROR)  # it warns of units that end while it stops
    redis = import_module("redis.asyncio").Redis(unix_socket_path=where)
    queue = import_module("saq.queue.redis").RedisQueue(redis)
    await queue.connect()

    async def work(context: Any, *, page: int) -> int:
        return await call.wait(page)

    async def submit(pages: range) -> None:
        await asyncio.gather(*(queue.enqueue("work", page=page) for page in pages))

    worker = saq.Worker(queue, functions=[("work", work)], concurrency=AT_ONCE)
    running = asyncio.create_task(worker.start()) if runs else None
    yield submit
    if running is not None:
        await worker.stop()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await queue.disconnect()
