"""pgqueuer: batches of 100, its queue manager in the process, on uvloop as its own command runs it.

Submitting has a connection of its own. It keeps no results: a row in its log says that a work has ended well.
"""

from __future__ import annotations

import asyncio
import time
from importlib import import_module
from typing import Any

import psycopg

from bench.child import ready
from bench.peers_pg.board import Board, with_peers

NEEDS = ("pgqueuer", "asyncpg", "uvloop")
BATCH = 100
DONE = "SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'"


def prepare(dsn: str) -> None:
    """Let it make its tables."""
    asyncio.run(_prepare(dsn))


async def _prepare(dsn: str) -> None:
    connection, queries = await _connected(dsn)
    await queries.install()
    await connection.close()


async def _connected(dsn: str) -> tuple[Any, Any]:
    with_peers()
    connection = await import_module("asyncpg").connect(dsn)
    driver = import_module("pgqueuer.db").AsyncpgDriver(connection)
    return connection, import_module("pgqueuer.queries").Queries(driver)


def done(dsn: str) -> int:
    """How many works have ended well."""
    with psycopg.connect(dsn) as connection:
        found = connection.execute(DONE).fetchone()
    return int(found[0]) if found else 0


def worker(dsn: str, path: str, place: int, first: int, share: int) -> float:
    """Submit its share in batches while it runs, and run until told to stop; the processor's time that took."""
    with_peers()
    with Board(path, place) as board:
        import_module("uvloop").run(_work(dsn, board, first, share))
        return board.used()


async def _work(dsn: str, board: Board, first: int, share: int) -> None:
    submits, queries = await _connected(dsn)
    runs, _ = await _connected(dsn)
    manager = import_module("pgqueuer").PgQueuer(import_module("pgqueuer.db").AsyncpgDriver(runs))

    @manager.entrypoint("work")  # type: ignore[untyped-decorator] # its types are not here
    async def no_op(work: Any) -> None:
        board.ran()

    await asyncio.sleep(max(0.0, ready() - time.perf_counter()))
    board.begin()
    running = asyncio.create_task(manager.run(batch_size=BATCH))
    for start in range(first, first + share, BATCH):
        pages = range(start, min(start + BATCH, first + share))
        payloads = [b'{"page":%d}' % page for page in pages]
        await queries.enqueue(["work"] * len(pages), payloads, [0] * len(pages))
    await board.until_stopped()
    manager.shutdown.set()
    await running
    await submits.close()
