"""Mistakes that were made once: each a short story that must end well."""

import asyncio
import random
import threading

import pytest

from runcue import Cue, Retry, RunningWork


@pytest.mark.parametrize("seed", range(30))
async def test_a_late_score_never_starts_work_whose_last_attempt_still_runs(seed: int) -> None:
    draw = random.Random(seed)
    loop = asyncio.get_running_loop()
    active: set[str] = set()
    overlaps: list[str] = []
    cue = Cue()
    cue.service("api", concurrent=draw.choice([2, 3, 4]))

    @cue.task(uses="api", timeout=draw.choice([0.01, 0.05, 0.1]), retry=Retry(max_attempts=3, base_delay=0))
    async def stubborn(work: RunningWork) -> None:
        if work.id in active:
            overlaps.append(work.id)
        active.add(work.id)
        end = loop.time() + 1
        while loop.time() < end:
            try:
                await asyncio.sleep(end - loop.time())
            except asyncio.CancelledError:
                continue
        active.discard(work.id)

    @cue.priority
    async def score(context: object) -> float:
        await asyncio.sleep(draw.choice([0, 0.05, 0.09]))
        return draw.random()

    async with cue:
        for number in range(8):
            await cue.submit("stubborn", id=f"work-{number}")
            await asyncio.sleep(draw.choice([0, 0.05, 0.1]))
        await cue.join(timeout=100)
        await asyncio.sleep(10)
    assert overlaps == []


@pytest.mark.parametrize("steps", range(1, 6))
async def test_a_start_while_stop_is_finishing_leaves_the_queue_awake(steps: int) -> None:
    cue = Cue()
    cue.service("api", rate="1/s")

    @cue.task(uses="api")
    async def call(work: RunningWork) -> None:
        pass

    cue.start()
    for _ in range(3):
        await cue.submit("call")
    await asyncio.sleep(0.1)
    stopping = asyncio.create_task(cue.stop())
    for _ in range(steps):
        await asyncio.sleep(0)
    cue.start()
    await stopping
    await cue.join(timeout=100)
    await cue.stop()


@pytest.mark.parametrize("number", range(20))
async def test_a_stall_limit_that_rounds_down_does_not_ring_for_ever(number: int) -> None:
    await asyncio.sleep(number * 0.0123)
    cue = Cue(stall_timeout=0.1)

    @cue.task
    async def call(work: RunningWork) -> None:
        pass

    async with cue:
        work = await cue.wait(await cue.submit("call", depends_on=["never"]))
    assert str(work.error).startswith("TimeoutError: Stall timeout")


async def test_progress_is_told_before_the_failure_of_its_own_attempt() -> None:
    cue = Cue()

    @cue.task
    async def call(work: RunningWork) -> None:
        work.progress(0.9)
        raise OSError

    async with cue:
        await cue.wait(await cue.submit("call"))
    told = [event.type async for event in cue.events(types=["started", "progress", "failed"])]
    assert told == ["started", "progress", "failed"]


async def test_limits_may_be_changed_from_another_thread() -> None:
    cue = Cue()
    cue.service("api", rate="1/h")

    @cue.task(uses="api")
    async def call(work: RunningWork) -> None:
        pass

    async with cue:
        await cue.wait(await cue.submit("call"))
        second = await cue.submit("call")
        thread = threading.Thread(target=lambda: cue.service("api", rate="100/h"))
        thread.start()
        thread.join()
        work = await cue.wait(second, timeout=5)
    assert work.state == "completed"


async def test_a_retry_by_hand_of_cancelled_running_work_has_a_number_of_its_own() -> None:
    cue = Cue()
    attempts: list[int] = []

    @cue.task
    async def call(work: RunningWork) -> None:
        attempts.append(work.attempt)
        await asyncio.sleep(10)

    async with cue:
        work_id = await cue.submit("call")
        await asyncio.sleep(1)
        await cue.cancel(work_id)
        await cue.retry(work_id)
        await cue.wait(work_id)
    assert attempts == [1, 2]
