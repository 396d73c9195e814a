"""honker: batches of 100 in one transaction, one loop in the process claims and acknowledges 100 at once.

It keeps no results. Both batches are what its documentation says for throughput; an empty queue is looked at anew
after a commit of anybody, which it looks for every 1 ms. It opens SQLite with `synchronous = NORMAL`: the
last commits before a power cut may be gone.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from importlib import import_module
from typing import Any

from bench.peers.part import BATCH, Call, Submit

NEEDS = ("honker",)
HOME = "honker"
WORKER = "worker"
LEFT = "SELECT count(*) FROM _honker_live WHERE queue = 'units'"


def _opened(where: str) -> tuple[Any, Any]:
    database = import_module("honker").open(where)
    return database, database.queue("units")


def prepare(where: str) -> None:
    """Let it make its tables."""
    _opened(where)[0].close()


def left(where: str, count: int) -> int:
    """How many units it still has: what is acknowledged is deleted."""
    with closing(sqlite3.connect(where)) as connection:
        return int(connection.execute(LEFT).fetchone()[0])


@asynccontextmanager
async def opened(where: str, call: Call, runs: bool) -> AsyncIterator[Submit]:
    """The queue, open."""
    database, queue = _opened(where)

    async def submit(pages: range) -> None:
        with database.transaction() as transaction:
            for page in pages:
                queue.enqueue({"page": page}, tx=transaction)

    async def run() -> None:
        updates = database.update_events()
        while True:
            jobs = queue.claim_batch(WORKER, BATCH)
            for job in jobs:
                await call.wait(job.payload["page"])
            if jobs:
                queue.ack_batch([job.id for job in jobs], WORKER)
                await asyncio.sleep(0)
            else:
                await anext(updates)

    running = asyncio.create_task(run()) if runs else None
    yield submit
    if running is not None:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    database.close()
