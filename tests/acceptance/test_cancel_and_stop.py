"""Ending things: one work, all of them, politely or not."""

import asyncio
import logging
import threading

import pytest

import runcue
from runcue import Work, WorkState
from tests.patience import BOUND, happens, until


async def state_of(cue: runcue.Cue, work_id: str) -> WorkState:
    work = await cue.get(work_id)
    assert work is not None
    return work.state


async def test_pending_work_is_cancelled_at_once_and_never_starts() -> None:
    cue = runcue.Cue()
    cue.service("bench", concurrent=1, rate="100/min")
    sat: list[str] = []
    taken = asyncio.Event()
    free = asyncio.Event()

    @cue.task("sit", uses="bench")
    async def sit(work: Work) -> None:
        sat.append(work.params["who"])
        taken.set()
        await happens(free)

    cue.start()
    first = await cue.submit("sit", params={"who": "ann"})
    second = await cue.submit("sit", params={"who": "bob"})
    await happens(taken)

    assert await cue.cancel(second) is True
    assert await state_of(cue, second) is WorkState.CANCELLED
    assert await cue.cancel(second) is False
    assert await cue.cancel("somebody else") is False

    free.set()
    await cue.wait(first, BOUND)
    await cue.stop()
    assert sat == ["ann"]


async def test_running_work_is_told_to_stop() -> None:
    cue = runcue.Cue()
    began, ended = asyncio.Event(), asyncio.Event()

    @cue.task
    async def dream(work: Work) -> None:
        began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    async with cue:
        work_id = await cue.submit("dream")
        await happens(began)
        assert await cue.cancel(work_id)
        await happens(ended)
        assert await state_of(cue, work_id) is WorkState.CANCELLED
        with pytest.raises(runcue.WorkCancelled):
            await cue.result(work_id, BOUND)


async def test_a_thread_sees_that_it_was_cancelled() -> None:
    cue = runcue.Cue()
    began, saw = threading.Event(), threading.Event()

    @cue.task
    def count_sheep(work: runcue.RunningWork) -> None:
        began.set()
        for _ in range(100_000):
            if work.cancelled:
                saw.set()
                return
            saw.wait(0.001)

    async with cue:
        work_id = await cue.submit("count_sheep")
        await until(began.is_set)
        assert await cue.cancel(work_id)
        await until(saw.is_set)
        assert await state_of(cue, work_id) is WorkState.CANCELLED


async def test_cancelling_takes_dependents_along_only_when_asked() -> None:
    cue = runcue.Cue()

    @cue.task
    async def link(work: Work) -> None: ...

    for cascade, expected in ((False, WorkState.FAILED), (True, WorkState.CANCELLED)):
        first = await cue.submit("link")
        then = await cue.submit("link", depends_on=[first])
        last = await cue.submit("link", depends_on=[then])
        assert await cue.cancel(first, cascade=cascade)
        assert await state_of(cue, then) is expected
        assert await state_of(cue, last) is expected


async def test_stop_waits_for_what_runs_and_not_for_what_is_pending() -> None:
    cue = runcue.Cue()
    cue.service("bath", concurrent=1)
    began, finish = asyncio.Event(), asyncio.Event()

    @cue.task("bathe", uses="bath")
    async def bathe(work: Work) -> str:
        began.set()
        await happens(finish)
        return "clean"

    cue.start()
    running = await cue.submit("bathe")
    pending = await cue.submit("bathe")
    await happens(began)
    stopping = asyncio.create_task(cue.stop())
    await asyncio.sleep(0.05)
    assert not stopping.done()
    finish.set()
    async with asyncio.timeout(BOUND):
        await stopping

    assert await cue.result(running, BOUND) == "clean"
    assert await state_of(cue, pending) is WorkState.PENDING
    later = await cue.submit("bathe")  # a stopped Cue still accepts, and goes on where it was

    cue.start()
    await cue.join([pending, later], timeout=BOUND)
    await cue.stop()
    await cue.stop()


async def test_stop_with_a_timeout_abandons_what_takes_too_long() -> None:
    cue = runcue.Cue()
    began = asyncio.Event()

    @cue.task
    async def hibernate(work: Work) -> None:
        began.set()
        await asyncio.sleep(3600)

    cue.start()
    work_id = await cue.submit("hibernate")
    await happens(began)
    async with asyncio.timeout(BOUND):
        await cue.stop(timeout=0.05)
    assert await state_of(cue, work_id) is WorkState.CANCELLED


async def test_an_attempt_that_takes_too_long_times_out() -> None:
    cue = runcue.Cue()

    @cue.task("hurry", timeout="50ms")
    async def hurry(work: Work) -> None:
        await asyncio.sleep(3600)

    async with cue:
        with pytest.raises(runcue.WorkTimedOut) as caught:
            await cue.result(await cue.submit("hurry"), BOUND)
    assert caught.value.work.error == "timeout"


async def test_waiting_has_a_limit_of_its_own() -> None:
    cue = runcue.Cue()

    @cue.task
    async def never_started(work: Work) -> None: ...

    work_id = await cue.submit("never_started")
    with pytest.raises(TimeoutError):
        await cue.wait(work_id, timeout=0.02)
    with pytest.raises(TimeoutError):
        await cue.join(timeout=0.02)
    with pytest.raises(runcue.WorkNotFound, match="No unit has this id"):
        await cue.wait("no such id")


async def test_leaving_with_pending_work_says_how_much_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    cue = runcue.Cue()

    @cue.task
    async def tomorrow(work: Work) -> None: ...

    with caplog.at_level(logging.WARNING, logger="runcue"):
        async with cue:
            await cue.submit_many([{"task": "tomorrow", "delay": "24h"}] * 3)
    assert "left with 3 pending" in caplog.text


async def test_a_closed_cue_accepts_nothing() -> None:
    cue = runcue.Cue()

    @cue.task
    async def knock(work: Work) -> None: ...

    await cue.submit("knock")
    await cue.close()
    await cue.close()
    with pytest.raises(runcue.CueClosed, match="Cannot submit: this Cue is closed"):
        await cue.submit("knock")
