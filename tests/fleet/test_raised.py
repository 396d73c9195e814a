"""What attempts raise is kept for callbacks here until whoever decides has said what comes of it, and no longer."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from runcue import Cue, Permanent, RateLimited, Snooze, Work

PATIENCE = 60.0


class Tired(Snooze):
    """Comes later."""


class Busy(RateLimited):
    """The far side is."""


class Wrong(Permanent):
    """No other attempt helps."""


@asynccontextmanager
async def ran_beside(
    path: Path, raises: Callable[[], Exception]
) -> AsyncIterator[tuple[Cue, list[weakref.ref[Exception]]]]:
    """A process that runs work whose first attempt raises that, beside another that decides."""
    decider, worker = (Cue(path / "queue.db", durability="relaxed") for _ in range(2))
    raised: list[weakref.ref[Exception]] = []

    async def work(work: Work) -> None:
        if not raised:
            error = raises()
            raised.append(weakref.ref(error))
            raise error

    for cue in (decider, worker):
        cue.task("work")(work)
    async with asyncio.timeout(PATIENCE):
        decider.start(queues=["elsewhere"])
        await decider.services()
        worker.start(queues=["default"])
        await worker.services()
        try:
            yield worker, raised
        finally:
            await worker.close()
            await decider.close()


@pytest.mark.parametrize("raises", [lambda: Tired(0.01), lambda: Busy(retry_after=0.01)])
async def test_what_brought_no_failure_is_not_kept(tmp_path: Path, raises: Callable[[], Exception]) -> None:
    async with ran_beside(tmp_path, raises) as (worker, raised):
        await worker.result(await worker.submit("work"))
        await worker.services()
        gc.collect()
        assert [one() for one in raised] == [None]


async def test_callbacks_are_given_what_was_raised_though_another_process_decides(tmp_path: Path) -> None:
    errors: list[BaseException | None] = []

    def failed(work: Work, error: BaseException | None) -> None:
        errors.append(error)

    async with ran_beside(tmp_path, Wrong) as (worker, raised):
        worker.on_failure(failed)
        await worker.wait(await worker.submit("work"))
        await worker.services()
        assert [type(one) for one in errors] == [Wrong]
        errors.clear()
        gc.collect()
        assert [one() for one in raised] == [None]
