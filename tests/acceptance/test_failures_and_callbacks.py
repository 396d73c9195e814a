"""Attempts, retries, and who is told about them."""

import asyncio
from typing import Any

import pytest

import runcue
from runcue import Work, WorkState
from tests.patience import BOUND, happens


async def test_three_attempts_are_made_and_the_third_may_succeed() -> None:
    cue = runcue.Cue()
    cue.service("weather", rate="120/min")
    tried: list[int] = []

    @cue.task("fly", uses="weather", retry=3)
    def fly(work: Work) -> dict[str, str]:
        tried.append(work.attempt)
        if work.attempt < 3:
            raise ConnectionError("fog")
        return {"landed": "safely"}

    async with cue:
        work_id = await cue.submit("fly")
        assert await cue.result(work_id, BOUND) == {"landed": "safely"}

    work = await cue.get(work_id)
    assert work is not None
    assert tried == [1, 2, 3]
    assert (work.attempt, work.error) == (3, None)
    assert [(line.number, line.error) for line in work.history] == [
        (1, "ConnectionError: fog"),
        (2, "ConnectionError: fog"),
    ]
    # By default three attempts fit into one second: the pauses between them are short.
    pauses = [event.next_retry_at - event.at async for event in cue.events("retrying")]
    assert len(pauses) == 2
    assert 0.12 < pauses[0] < 0.26
    assert 0.24 < pauses[1] < 0.51


async def test_without_retry_there_is_one_attempt() -> None:
    cue = runcue.Cue()
    tried = 0

    @cue.task
    async def gamble(work: Work) -> None:
        nonlocal tried
        tried += 1
        raise ValueError("lost")

    async with cue:
        work = await cue.wait(await cue.submit("gamble"), BOUND)

    assert (work.state, tried) == (WorkState.FAILED, 1)


async def test_a_callback_with_three_arguments_is_told_of_each_failure() -> None:
    cue = runcue.Cue()
    told: list[tuple[str, int, bool]] = []

    @cue.task("knock", retry={"max_attempts": 2, "backoff": "fixed", "base_delay": 0.01})
    def knock(work: Work) -> None:
        raise TimeoutError("nobody home")

    @cue.on_failure
    def failure(work: Work, error: Exception, will_retry: bool) -> None:
        told.append((str(error), work.attempt, will_retry))

    async with cue:
        await cue.wait(await cue.submit("knock"), BOUND)

    assert told == [("nobody home", 1, True), ("nobody home", 2, False)]


async def test_a_callback_with_two_arguments_is_told_of_the_final_failure_only() -> None:
    cue = runcue.Cue()
    told: list[tuple[str, str]] = []

    @cue.task("knock", retry=runcue.Retry(max_attempts=3, backoff="fixed", base_delay="10ms"))
    def knock(work: Work) -> None:
        raise TimeoutError("still nobody home")

    @cue.on_failure
    def failure(work: Work, error: Exception) -> None:
        told.append((work.id, str(error)))

    async with cue:
        work_id = await cue.submit("knock")
        await cue.wait(work_id, BOUND)

    assert told == [(work_id, "still nobody home")]


async def test_every_kind_of_callback_has_run_when_stop_returns() -> None:
    cue = runcue.Cue()
    told: list[tuple[Any, ...]] = []
    began = asyncio.Event()

    @cue.task
    async def add(work: Work) -> int:
        return sum(work.params["numbers"])

    @cue.task
    async def wait_for_ever(work: Work) -> None:
        began.set()
        await asyncio.sleep(3600)

    @cue.on_start
    async def start(work: Work) -> None:
        await asyncio.sleep(0.01)
        told.append(("start", work.id))

    @cue.on_complete
    async def complete(work: Work, result: Any, duration: float) -> None:
        await asyncio.sleep(0.01)
        assert duration >= 0
        told.append(("complete", work.id, result))

    @cue.on_cancel
    def cancel(work: Work) -> None:
        told.append(("cancel", work.id))

    cue.start()
    added = await cue.submit("add", params={"numbers": [1, 2, 4]})
    endless = await cue.submit("wait_for_ever")
    await happens(began)
    assert await cue.cancel(endless)
    await cue.wait(added, BOUND)
    await cue.stop()

    assert [line for line in told if line[1] == added] == [("start", added), ("complete", added, 7)]
    assert [line for line in told if line[1] == endless] == [("start", endless), ("cancel", endless)]


async def test_a_callback_that_raises_changes_nothing_about_the_work() -> None:
    cue = runcue.Cue()

    @cue.task
    async def sing(work: Work) -> str:
        return "la"

    @cue.on_complete
    def critic(work: Work, result: Any, duration: float) -> None:
        raise RuntimeError("out of tune")

    async with cue:
        assert await cue.result(await cue.submit("sing"), BOUND) == "la"
        assert await cue.result(await cue.submit("sing"), BOUND) == "la"

    told = [event async for event in cue.events("callback_failed")]
    assert [(event.callback, event.data["error"]) for event in told] == [
        ("on_complete", "RuntimeError: out of tune")
    ]


async def test_what_cannot_get_better_is_not_tried_again() -> None:
    cue = runcue.Cue()
    tried = 0

    @cue.task(retry=5)
    async def pay(work: Work) -> None:
        nonlocal tried
        tried += 1
        raise runcue.Permanent("the account is closed")

    async with cue:
        work = await cue.wait(await cue.submit("pay"), BOUND)

    assert tried == 1
    assert work.error == "Permanent: the account is closed"


async def test_a_slow_down_pauses_the_service_and_counts_no_attempt() -> None:
    cue = runcue.Cue()
    cue.service("shop", concurrent=1)
    attempts: list[int] = []

    @cue.task("order", uses="shop")
    async def order(work: Work) -> str:
        attempts.append(work.attempt)
        if len(attempts) == 1:
            raise runcue.RateLimited(retry_after=0.05)
        return "ordered"

    async with cue:
        assert await cue.result(await cue.submit("order"), BOUND) == "ordered"
    assert attempts == [1, 1]


async def test_failed_work_gets_a_fresh_budget_when_it_is_retried_by_hand() -> None:
    cue = runcue.Cue()
    is_repaired = False

    @cue.task
    async def print_page(work: Work) -> str:
        if not is_repaired:
            raise OSError("out of paper")
        return "printed"

    async with cue:
        work_id = await cue.submit("print_page")
        with pytest.raises(runcue.WorkFailed, match="out of paper"):
            await cue.result(work_id, BOUND)
        [dead] = await cue.dead()
        is_repaired = True
        assert await cue.retry(dead.id)
        assert await cue.result(work_id, BOUND) == "printed"
        assert await cue.dead() == []


async def test_dependents_run_after_what_they_need_and_fail_with_it() -> None:
    cue = runcue.Cue()
    built: list[str] = []

    @cue.task
    async def build(work: Work) -> None:
        if work.params["part"] == "crooked":
            raise ValueError("it leans")
        built.append(work.params["part"])

    async with cue:
        walls = await cue.submit("build", params={"part": "walls"}, id="walls", depends_on=["ground"])
        ground = await cue.submit("build", params={"part": "ground"}, id="ground")
        crooked = await cue.submit("build", params={"part": "crooked"})
        roof = await cue.submit("build", params={"part": "roof"}, depends_on=[walls, crooked])
        chimney = await cue.submit("build", params={"part": "chimney"}, depends_on=[roof])
        await cue.join([ground, walls, roof, chimney], timeout=BOUND)
        states = {name: await cue.get(name) for name in (walls, roof, chimney)}

    assert built == ["ground", "walls"]
    for name in (roof, chimney):
        work = states[name]
        assert work is not None
        assert (work.state, work.error) == (WorkState.FAILED, "prerequisite_failed")
