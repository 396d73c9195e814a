"""procrastinate: deferred in batches of 100, units fetched one by one as it does, up to 20 at once in each process.

It keeps no results: the row of a unit says that it has succeeded. More than 5 at once made no difference to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from bench.peers.part import Call, Submit
from bench.peers.queues.raw import counted

NEEDS = ("procrastinate",)
HOME = "python"
AT_ONCE = 20
DONE = "SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'"


def _app(where: str) -> Any:
    module = import_module("procrastinate")
    return module.App(connector=module.PsycopgConnector(conninfo=where, min_size=1, max_size=AT_ONCE + 2))


def prepare(where: str) -> None:
    """Let it make its tables."""
    asyncio.run(_prepare(where))


async def _prepare(where: str) -> None:
    async with _app(where).open_async() as app:
        await app.schema_manager.apply_schema_async()


def left(where: str, count: int) -> int:
    """How many units have not succeeded."""
    return count - counted(where, DONE)


@asynccontextmanager
async def opened(where: str, call: Call, runs: bool) -> AsyncIterator[Submit]:
    """The queue, open."""
    async with _app(where).open_async() as app:

        @app.task(name="work")  # type: ignore[untyped-decorator] # its types are not here
        async def work(page: int) -> None:
            await call.wait(page)

        async def submit(pages: range) -> None:
            await work.batch_defer_async(*({"page": page} for page in pages))

        running = []
        if runs:
            worker = app.run_worker_async(concurrency=AT_ONCE, install_signal_handlers=False)
            running.append(asyncio.create_task(worker))
        yield submit
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
