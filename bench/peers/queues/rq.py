"""rq: batches of 100 by `enqueue_many`, two of its `SimpleWorker`s, which do not fork for each unit, results kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import Any

from bench.peers import part
from bench.peers.part import Call, Submit

NEEDS = ("rq", "redis")
HOME = "python"
WORKERS = 2


def work(page: int) -> int:
    """One unit, in a worker."""
    return part.call()(page)


def client(where: str) -> Any:
    """A connection to Redis."""
    return import_module("redis").Redis(unix_socket_path=where)


def prepare(where: str) -> None:
    """There is nothing to prepare."""


def left(where: str, count: int) -> int:
    """How many units are not among those that have finished."""
    return count - int(client(where).zcard("rq:finished:default"))


@asynccontextmanager
async def opened(where: str, call: Call, runs: bool) -> AsyncIterator[Submit]:
    """The queue, open."""
    queue = import_module("rq").Queue("default", connection=client(where))

    async def submit(pages: range) -> None:
        queue.enqueue_many([queue.prepare_data(work, (page,)) for page in pages])

    worker = (
        "-m",
        "rq.cli",
        "worker",
        "--url",
        f"unix://{where}",
        "--worker-class",
        "rq.SimpleWorker",
        "-q",
        "default",
    )
    async with AsyncExitStack() as stack:
        for _ in range(WORKERS):
            await stack.enter_async_context(part.program(HOME, *worker))
        yield submit
