"""runcue: in the process of the program, submitted in batches of 100, up to 400 at once, results kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.peers.part import Call, Submit
from runcue import Cue, Reader, WorkState

NEEDS = ()
HOME = ""
CONCURRENT = 400


def _cue(where: str) -> Cue:
    return Cue() if where == "memory" else Cue(where)


def prepare(where: str) -> None:
    """Let it make its tables."""
    asyncio.run(_prepare(where))


async def _prepare(where: str) -> None:
    cue = _cue(where)
    await cue.count()
    await cue.close()


def left(where: str, count: int) -> int:
    """How many units have not completed; in memory nobody else can know."""
    if where == "memory":
        return 0
    with Reader(where) as reader:
        return count - reader.count()[WorkState.COMPLETED]


@asynccontextmanager
async def opened(where: str, call: Call, runs: bool) -> AsyncIterator[Submit]:
    """The queue, open."""
    cue = _cue(where)
    cue.service("outside", concurrent=CONCURRENT)

    @cue.task("work", uses="outside")
    async def handler(work: Any) -> int:
        return await call.wait(work.params["page"])

    async def submit(pages: range) -> None:
        await cue.submit_many([{"task": "work", "params": {"page": page}} for page in pages])

    if runs:
        cue.start()
    yield submit
    await cue.close()
