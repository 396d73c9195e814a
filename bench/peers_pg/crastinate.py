"""procrastinate: deferred in batches of 100, works fetched one by one as it does, up to 20 at once in each process.

It keeps no results: the row of a work says that it has succeeded. More than 5 at once made no difference to it.
"""

from __future__ import annotations

import asyncio
import time
from importlib import import_module
from typing import Any

import psycopg

from bench.child import ready
from bench.peers_pg.board import Board, with_peers

NEEDS = ("procrastinate",)
BATCH = 100
AT_ONCE = 20
DONE = "SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'"


def _app(dsn: str) -> Any:
    with_peers()
    module = import_module("procrastinate")
    return module.App(connector=module.PsycopgConnector(conninfo=dsn, min_size=1, max_size=AT_ONCE + 2))


def prepare(dsn: str) -> None:
    """Let it make its tables."""
    asyncio.run(_prepare(dsn))


async def _prepare(dsn: str) -> None:
    async with _app(dsn).open_async() as app:
        await app.schema_manager.apply_schema_async()


def done(dsn: str) -> int:
    """How many works have succeeded."""
    with psycopg.connect(dsn) as connection:
        found = connection.execute(DONE).fetchone()
    return int(found[0]) if found else 0


def worker(dsn: str, path: str, place: int, first: int, share: int) -> float:
    """Submit its share in batches while it runs, and run until told to stop; the processor's time that took."""
    with Board(path, place) as board:
        asyncio.run(_work(dsn, board, first, share))
        return board.used()


async def _work(dsn: str, board: Board, first: int, share: int) -> None:
    async with _app(dsn).open_async() as app:

        @app.task(name="work")  # type: ignore[untyped-decorator] # its types are not here
        async def no_op(page: int) -> int:
            board.ran()
            return 1

        await asyncio.sleep(max(0.0, ready() - time.perf_counter()))
        board.begin()
        running = asyncio.create_task(
            app.run_worker_async(concurrency=AT_ONCE, install_signal_handlers=False, delete_jobs="never")
        )
        for start in range(first, first + share, BATCH):
            pages = range(start, min(start + BATCH, first + share))
            await no_op.batch_defer_async(*({"page": page} for page in pages))
        await board.until_stopped()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
