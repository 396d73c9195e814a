"""pgqueuer: batches of 100, its queue manager in the process, on uvloop as its own command runs it.

Submitting has a connection of its own. It keeps no results: a row in its log says that a unit has ended well.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from bench.peers.part import BATCH, Call, Submit
from bench.peers.queues.raw import counted

NEEDS = ("pgqueuer", "asyncpg", "uvloop")
HOME = "python"
DONE = "SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'"


def prepare(where: str) -> None:
    """Let it make its tables."""
    asyncio.run(_prepare(where))


async def _prepare(where: str) -> None:
    connection, queries = await _connected(where)
    await queries.install()
    await connection.close()


async def _connected(where: str) -> tuple[Any, Any]:
    connection = await import_module("asyncpg").connect(where)
    driver = import_module("pgqueuer.db").AsyncpgDriver(connection)
    return connection, import_module("pgqueuer.queries").Queries(driver)


def left(where: str, count: int) -> int:
    """How many units have not ended well."""
    return count - counted(where, DONE)


@asynccontextmanager
async def opened(where: str, call: Call, runs: bool) -> AsyncIterator[Submit]:
    """The queue, open."""
    submits, queries = await _connected(where)
    connection, _ = await _connected(where)
    manager = import_module("pgqueuer").PgQueuer(import_module("pgqueuer.db").AsyncpgDriver(connection))

    @manager.entrypoint("work")  # type: ignore[untyped-decorator] # its types are not here
    async def work(job: Any) -> None:
        await call.wait(int(job.payload))

    async def submit(pages: range) -> None:
        payloads = [str(page).encode() for page in pages]
        await queries.enqueue(["work"] * len(pages), payloads, [0] * len(pages))

    running = asyncio.create_task(manager.run(batch_size=BATCH)) if runs else None
    yield submit
    if running is not None:
        manager.shutdown.set()
        await running
    await submits.close()
