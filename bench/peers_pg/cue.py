"""runcue: submitted in batches of 100 while it runs, 100 at once in each process, results kept."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from bench.child import ready
from bench.peers_pg.board import Board
from runcue import Cue, WorkState

NEEDS = ("psycopg",)
BATCH = 100


def prepare(dsn: str) -> None:
    """Let it make its tables."""
    done(dsn)


def done(dsn: str) -> int:
    """How many works have completed."""
    return asyncio.run(_count(dsn))


async def _count(dsn: str) -> int:
    cue = Cue(dsn)
    found = await cue.count()
    await cue.close()
    return found[WorkState.COMPLETED]


def worker(dsn: str, path: str, place: int, first: int, share: int) -> float:
    """Submit its share in batches while it runs, and run until told to stop; the processor's time that took."""
    with Board(path, place) as board:
        asyncio.run(_work(dsn, board, first, share))
        return board.used()


async def _work(dsn: str, board: Board, first: int, share: int) -> None:
    cue = Cue(dsn)
    cue.service("outside", concurrent=BATCH * 4)

    @cue.task("work", uses="outside")
    async def no_op(work: Any) -> int:
        board.ran()
        return 1

    await cue.count()
    await asyncio.sleep(max(0.0, ready() - time.perf_counter()))
    board.begin()
    async with cue:
        for start in range(first, first + share, BATCH):
            pages = range(start, min(start + BATCH, first + share))
            await cue.submit_many([{"task": "work", "params": {"page": page}} for page in pages])
        await board.until_stopped()
    await cue.close()
