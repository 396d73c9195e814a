"""Handlers with params of their own, in processes and as commands. (test_dask.py and test_ssh.py have theirs.)"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

import runcue
from runcue import Cue
from tests.executors import pool_tasks
from tests.executors.pool_tasks import Page
from tests.patience import BOUND

PAGE = Page(1, datetime(2026, 1, 2, tzinfo=UTC))


@pytest.mark.parametrize("place", ["memory", "file"])
async def test_a_handler_with_params_gets_them_in_a_process(place: str, tmp_path: Path) -> None:
    cue = Cue(pool_size=1) if place == "memory" else Cue(tmp_path / "queue.db", pool_size=1)
    turned = cue.task(executor="process_pool")(pool_tasks.turned)
    with_work = cue.task(executor="process_pool")(pool_tasks.turned_with_work)
    async with cue, asyncio.timeout(BOUND):
        first = await turned.submit(PAGE)
        second = await turned.submit(page=runcue.output(first), times=10, more=100)
        assert await second.result() == Page(112, PAGE.read_at)
        unit = await cue.submit(with_work, params={"page": PAGE})
        assert await unit.result() == (unit, unit, PAGE)


async def test_a_handler_of_a_command_gets_params_and_outputs() -> None:
    cue = Cue()

    @cue.task
    async def read(page: int) -> Page:
        return Page(page, PAGE.read_at)

    @cue.task(executor="subprocess")
    def say(page: Page, word: str = "page") -> list[str]:
        return ["printf", "%s", f"{word} {page.number} of {page.read_at.year}"]

    async with cue, asyncio.timeout(BOUND):
        first = await read.submit(3)
        unit = await cue.submit(say, params={"page": runcue.output(first)})
        assert (await unit.result())["stdout"] == "page 3 of 2026"  # type: ignore[call-overload]
