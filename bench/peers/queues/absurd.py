"""absurd: one call for each unit, its worker in the process, 100 at once, looks every 10 ms, results kept.

It has no batches; submitting has a connection of its own. Its tables come from the `absurdctl` of the same release.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import psycopg

from bench.peers.part import BATCH, Call, Submit
from bench.peers.queues.raw import counted

NEEDS = ("absurd_sdk", "absurdctl")
HOME = "python"
LOOK = 0.01
DONE = "SELECT count(*) FROM absurd.t_default WHERE state = 'completed'"


def _app(where: str) -> Any:
    return import_module("absurd_sdk").AsyncAbsurd(where)


def prepare(where: str) -> None:
    """Make its tables, and one queue."""
    schema: str = import_module("absurdctl").BUNDLED_SCHEMA_SQL
    with psycopg.connect(where) as connection:
        connection.execute(schema.encode())
        connection.execute("SELECT absurd.create_queue('default')")


def left(where: str, count: int) -> int:
    """How many units are not complete."""
    return count - counted(where, DONE)


@asynccontextmanager
async def opened(where: str, call: Call, runs: bool) -> AsyncIterator[Submit]:
    """The queue, open."""
    producer, worker = _app(where), _app(where)

    @worker.register_task(name="work")  # type: ignore[untyped-decorator] # its types are not here
    async def work(params: Any, context: Any) -> int:
        return await call.wait(params["page"])

    async def submit(pages: range) -> None:
        for page in pages:
            await producer.spawn("work", {"page": page}, queue="default")

    running = (
        asyncio.create_task(worker.start_worker(concurrency=BATCH, poll_interval=LOOK)) if runs else None
    )
    yield submit
    if running is not None:
        worker.stop_worker()
        await asyncio.wait([running], timeout=1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await worker.close()
    await producer.close()
