"""celery: one message at a time by one producer, one worker with a pool of 8 threads, many fetched ahead.

Gossip, mingle and heartbeats between workers are off and results are not kept, both by its documentation's advice.
Its usual prefork pool was slower here, where all share two cores.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from bench.peers import part
from bench.peers.part import Call, Submit
from bench.peers.queues.rq import client

NEEDS = ("celery", "kombu", "redis")
HOME = "python"
AHEAD = 128
THREADS = "8"


def _app(where: str) -> Any:
    app = import_module("celery").Celery("bench", broker=f"redis+socket://{where}")
    app.conf.update(
        task_ignore_result=True,
        worker_prefetch_multiplier=AHEAD,
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
    )

    @app.task(name="work")  # type: ignore[untyped-decorator] # its types are not here
    def work(page: int) -> None:
        part.call()(page)

    return app


app = _app(part.place()) if part.place() else None


def prepare(where: str) -> None:
    """There is nothing to prepare."""


def left(where: str, count: int) -> int:
    """How many messages are in the queue, or were taken and not acknowledged."""
    redis = client(where)
    return int(redis.llen("celery") + redis.hlen("unacked"))


@asynccontextmanager
async def opened(where: str, call: Call, runs: bool) -> AsyncIterator[Submit]:
    """The queue, open."""
    here = _app(where)
    work = here.tasks["work"]
    with here.producer_pool.acquire() as producer:

        async def submit(pages: range) -> None:
            for page in pages:
                work.apply_async((page,), producer=producer)

        worker = ("-m", "celery", "-A", "bench.peers.queues.celery", "worker", "-P", "threads", "-c",
                  THREADS, "--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "ERROR")  # fmt: skip
        async with part.program(HOME, *worker):
            yield submit
