"""work.progress: how far a handler is."""

import asyncio
from itertools import pairwise

from runcue import Cue, RunningWork
from tests.engine.seen import clock, epoch, story, told


async def test_progress_is_told_with_fraction_and_text() -> None:
    cue = Cue()

    @cue.task("call")
    async def call(work: RunningWork) -> None:
        work.progress(0.5, "half")
        await asyncio.sleep(5)

    async with cue:
        began = epoch()
        work_id = await cue.submit("call")
        await cue.join()
    (event,) = await told(cue, "progress")
    assert (event.name, event.work_id, event.task, event.at) == ("work_progress", work_id, "call", began)
    assert (event.fraction, event.text, event.final) == (0.5, "half", False)


async def test_progress_is_told_at_most_once_a_second_for_each_work() -> None:
    cue = Cue()

    @cue.task("call")
    async def call(work: RunningWork) -> None:
        for step in range(100):
            work.progress(step / 100)
            await asyncio.sleep(0.1)

    async with cue:
        first = await cue.submit("call")
        second = await cue.submit("call")
        await cue.join()
    events = await told(cue, "progress")
    for work_id in (first, second):
        times = [event.at for event in events if event.work_id == work_id]
        assert len(times) == 10
        assert all(later - earlier >= 1 for earlier, later in pairwise(times))


async def test_whatever_is_said_of_it_can_be_told() -> None:
    cue = Cue(progress_interval=0)

    @cue.task("call")
    async def call(work: RunningWork) -> None:
        work.progress(0.5, "\udcff\x1b[2J" + "x" * 5000)
        work.progress("much", object())  # type: ignore[arg-type]
        work.progress(float("nan"))

    async with cue:
        assert (await cue.wait(await cue.submit("call"))).state == "completed"
    first, second, third = await told(cue, "progress")
    assert first.text.startswith("\\udcff\\x1b[2Jxxx")
    assert len(first.text.encode()) <= 1024
    assert (second.fraction, third.text) == (None, None)


async def test_the_interval_is_an_option() -> None:
    cue = Cue(progress_interval=0)

    @cue.task("call")
    async def call(work: RunningWork) -> None:
        for step in range(10):
            work.progress(step / 10)
            await asyncio.sleep(0.1)

    async with cue:
        await cue.wait(await cue.submit("call"))
    assert len(await told(cue, "progress")) == 10


async def test_progress_stands_between_start_and_end() -> None:
    cue = Cue()

    @cue.task("call")
    async def call(work: RunningWork) -> None:
        work.progress(text="begun")
        await asyncio.sleep(1.5)
        work.progress(text="nearly")
        await asyncio.sleep(0)

    async with cue:
        await cue.submit("call", id="a")
        await cue.join()
    assert await story(cue, "a") == ["queued", "started", "progress", "progress", "completed"]


async def test_progress_of_an_attempt_that_no_longer_counts_is_not_told() -> None:
    cue = Cue()

    @cue.task("call", timeout=5)
    async def call(work: RunningWork) -> None:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            work.progress(0.9, "still here")

    async with cue:
        await cue.wait(await cue.submit("call"))
        await asyncio.sleep(10)
    assert await told(cue, "progress") == []
    assert clock() == 15


async def test_progress_from_a_thread_is_told_too() -> None:
    cue = Cue(progress_interval=0)

    @cue.task("call")
    def call(work: RunningWork) -> None:
        for step in range(3):
            work.progress(step / 3, f"step {step}")

    async with cue:
        await cue.wait(await cue.submit("call"))
    assert [event.text for event in await told(cue, "progress")] == ["step 0", "step 1", "step 2"]


async def test_a_work_in_the_hands_of_its_handler_shows_itself() -> None:
    cue = Cue()
    shown: list[str] = []

    @cue.task("call")
    async def call(work: RunningWork) -> None:
        shown.append(repr(work))

    async with cue:
        await cue.submit("call", id="a", params={"page": 1})
        await cue.join()
    assert shown == ["RunningWork(id='a', task='call', attempt=1, params={'page': 1})"]
