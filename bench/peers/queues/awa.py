"""awa: batches of 100 by `enqueue_many_copy`, its worker in the process, 100 at once, two claimers, no results.

Its documentation advises COPY for producers, one queue with many workers, and 24 connections for one queue. It
looks every 10 ms here; its default is 200.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from bench.peers.part import BATCH, Call, Submit
from bench.peers.queues.raw import counted

NEEDS = ("awa",)
HOME = "python"
CONNECTIONS = 24
CLAIMERS = 2
LOOK = 10
"""Milliseconds."""
QUEUE = "units"
DONE = "SELECT count(*) FROM awa.jobs WHERE state = 'completed'"


@dataclass
class Work:
    """The arguments of one unit."""

    page: int


def _client(where: str) -> Any:
    # Its driver wants a name where the URL of a socket has none, and takes the folder of the socket from the query.
    return import_module("awa").AsyncClient(where.replace("@/", "@localhost/"), max_connections=CONNECTIONS)


def prepare(where: str) -> None:
    """Let it make its tables."""
    asyncio.run(_prepare(where))


async def _prepare(where: str) -> None:
    client = _client(where)
    await client.migrate()
    await client.close()


def left(where: str, count: int) -> int:
    """How many units are not complete."""
    return count - counted(where, DONE)


@asynccontextmanager
async def opened(where: str, call: Call, runs: bool) -> AsyncIterator[Submit]:
    """The queue, open."""
    client = _client(where)

    @client.task(Work, queue=QUEUE)  # type: ignore[untyped-decorator] # its types are not here
    async def work(job: Any) -> None:
        await call.wait(job.args.page)

    async def submit(pages: range) -> None:
        if len(pages) == 1:
            await client.insert(Work(pages[0]), queue=QUEUE)
        else:
            await client.enqueue_many_copy([Work(page) for page in pages], queue=QUEUE)

    if runs:
        queue = {"name": QUEUE, "max_workers": BATCH, "claimers": CLAIMERS}
        await client.start([queue], poll_interval_ms=LOOK)
    yield submit
    if runs:
        await client.shutdown()
    await client.close()
