"""huey: in SQLite with its own settings and fsync on, its consumer with threads that look every 10 ms, results kept.

It has no batches. A program of its own runs the units, as its documentation says.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from importlib import import_module
from typing import Any

from bench.peers import part
from bench.peers.part import Call, Submit

NEEDS = ("huey",)
HOME = "python"
THREADS = "4"
LOOK = "0.01"
DONE = "SELECT count(*) FROM kv"


def _queue(where: str) -> tuple[Any, Any]:
    huey = import_module("huey").SqliteHuey(filename=where, fsync=True)

    @huey.task()  # type: ignore[untyped-decorator] # its types are not here
    def work(page: int) -> int:
        return part.call()(page)

    return huey, work


app = _queue(part.place())[0] if part.place() else None


def prepare(where: str) -> None:
    """Let it make its tables."""
    _queue(where)


def left(where: str, count: int) -> int:
    """How many units have no result."""
    with closing(sqlite3.connect(where)) as connection:
        return count - int(connection.execute(DONE).fetchone()[0])


@asynccontextmanager
async def opened(where: str, call: Call, runs: bool) -> AsyncIterator[Submit]:
    """The queue, open."""
    _, work = _queue(where)

    async def submit(pages: range) -> None:
        for page in pages:
            work(page)

    consumer = ("-m", "huey.bin.huey_consumer", "bench.peers.queues.huey.app", "-w", THREADS, "-d", LOOK,
                "-m", LOOK, "-q")  # fmt: skip
    async with part.program(HOME, *consumer):
        yield submit
