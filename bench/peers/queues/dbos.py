"""dbos: workflows in the process, in SQLite or PostgreSQL, its queue looked at every 10 ms, results kept.

It has no batches: 100 are submitted at once.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from importlib import import_module

from bench.peers.part import Call, Submit
from bench.peers.queues.raw import counted

NEEDS = ("dbos",)
HOME = "python"
LOOK = 0.01


def _is_file(where: str) -> bool:
    return "://" not in where


def prepare(where: str) -> None:
    """It makes its tables when it is launched."""


def left(where: str, count: int) -> int:
    """How many workflows have not succeeded."""
    if not _is_file(where):
        return count - counted(where, "SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'")
    with closing(sqlite3.connect(where)) as connection:
        found = connection.execute("SELECT count(*) FROM workflow_status WHERE status = 'SUCCESS'")
        return count - int(found.fetchone()[0])


@asynccontextmanager
async def opened(where: str, call: Call, runs: bool) -> AsyncIterator[Submit]:
    """The queue, open."""
    dbos = import_module("dbos").DBOS
    url = f"sqlite:///{where}" if _is_file(where) else where
    dbos(
        config={
            "name": "bench",
            "system_database_url": url,
            "log_level": "CRITICAL",
            "run_admin_server": False,
        }
    )

    @dbos.workflow(name="work")  # type: ignore[untyped-decorator] # its types are not here
    async def work(page: int) -> int:
        return await call.wait(page)

    dbos.launch()
    queue = await dbos.register_queue_async("units", polling_interval_sec=LOOK)

    async def submit(pages: range) -> None:
        await asyncio.gather(*(queue.enqueue_async(work, page) for page in pages))

    yield submit
    await asyncio.to_thread(dbos.destroy)
