"""flexiq: batches of 100 by `enqueue_many`, its own command with 4 threads, looks every 10 ms for 100, results kept.

Its documentation names no settings for speed, and its own benchmark changes none; both numbers made it faster here
than its defaults (every 50 ms for one), and `push_dispatch` slower. It opens SQLite with `synchronous = NORMAL`: the
last commits before a power cut may be gone. What has completed is in a table of its own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from importlib import import_module
from typing import Any

from bench.peers import part
from bench.peers.part import BATCH, Call, Submit

NEEDS = ("flexiq",)
HOME = "python"
THREADS = 4
LOOK = 10
"""Milliseconds between two looks of its scheduler."""
DONE = "SELECT count(*) FROM archived_jobs WHERE status = 2"


def _queue(where: str) -> tuple[Any, Any]:
    queue = import_module("flexiq").Queue(
        db_path=where,
        workers=THREADS,
        scheduler_poll_interval_ms=LOOK,
        scheduler_batch_size=BATCH,
    )

    @queue.task(name="work")  # type: ignore[untyped-decorator] # its types are not here
    def work(page: int) -> int:
        return part.call()(page)

    return queue, work


app = _queue(part.place())[0] if part.place() else None


def prepare(where: str) -> None:
    """Let it make its tables."""
    _queue(where)


def left(where: str, count: int) -> int:
    """How many units are not complete."""
    with closing(sqlite3.connect(where)) as connection:
        return count - int(connection.execute(DONE).fetchone()[0])


@asynccontextmanager
async def opened(where: str, call: Call, runs: bool) -> AsyncIterator[Submit]:
    """The queue, open."""
    queue, _ = _queue(where)

    async def submit(pages: range) -> None:
        queue.enqueue_many("work", [(page,) for page in pages])

    worker = ("-m", "flexiq.cli", "worker", "--app", "bench.peers.queues.flexiq:app")
    async with part.program(HOME, *worker):
        yield submit
