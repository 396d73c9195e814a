"""dramatiq: one message at a time, its own command with a process for each core and 8 threads, no results kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from bench.peers import part
from bench.peers.part import Call, Submit
from bench.peers.queues.rq import client

NEEDS = ("dramatiq", "redis")
HOME = "python"


def _actor(where: str) -> Any:
    module = import_module("dramatiq")
    broker = import_module("dramatiq.brokers.redis").RedisBroker(url=f"unix://{where}")
    module.set_broker(broker)

    @module.actor(broker=broker, queue_name="default")  # type: ignore[untyped-decorator] # its types are not here
    def work(page: int) -> None:
        part.call()(page)

    return work


actor = _actor(part.place()) if part.place() else None


def prepare(where: str) -> None:
    """There is nothing to prepare."""


def left(where: str, count: int) -> int:
    """How many messages are in the queue, or were taken and not acknowledged."""
    redis = client(where)
    taken = sum(redis.scard(name) for name in redis.scan_iter("dramatiq:__acks__.*", count=1000))
    return int(redis.llen("dramatiq:default") + taken)


@asynccontextmanager
async def opened(where: str, call: Call, runs: bool) -> AsyncIterator[Submit]:
    """The queue, open."""
    work = _actor(where)

    async def submit(pages: range) -> None:
        for page in pages:
            work.send(page)

    async with part.program(HOME, "-m", "dramatiq", "bench.peers.queues.dramatiq", "--skip-logging"):
        yield submit
