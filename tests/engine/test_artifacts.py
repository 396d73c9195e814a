"""is_ready and is_stale: when they are asked, and what their answers do."""

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from runcue import Cue, Work
from runcue.testing import settle
from tests.engine.seen import clock, story, told
from tests.handlers import no_op


def with_call(cue: Cue) -> list[str]:
    """Register "call"; the ids in the order they started."""
    started: list[str] = []

    @cue.task("call")
    async def call(work: Work) -> str:
        started.append(work.id)
        return "made"

    return started


# --- is_ready -------------------------------------------------------------------------------------


async def test_work_stays_pending_until_it_is_ready() -> None:
    cue = Cue()
    with_call(cue)
    cue.is_ready(lambda work: clock() >= 60)
    async with cue:
        work = await cue.wait(await cue.submit("call"))
    assert work.state == "completed"
    assert 60 <= clock() <= 61.1


async def test_an_async_is_ready_decides_too() -> None:
    cue = Cue()
    with_call(cue)

    @cue.is_ready
    async def is_ready(work: Work) -> bool:
        await asyncio.sleep(0.05)
        return clock() >= 10

    async with cue:
        await cue.wait(await cue.submit("call"))
    assert 10 <= clock() <= 11.1


async def test_is_ready_sees_the_work() -> None:
    cue = Cue()
    with_call(cue)
    seen: list[Work] = []

    @cue.is_ready
    def is_ready(work: Work) -> bool:
        seen.append(work)
        return True

    async with cue:
        await cue.submit("call", id="a", params={"page": 1}, target="out")
        await cue.join()
    assert [(work.id, work.params, work.target, work.state) for work in seen] == [
        ("a", {"page": 1}, "out", "pending")
    ]


async def test_what_is_not_ready_is_asked_again_after_50_ms_growing_to_a_second() -> None:
    cue = Cue()
    with_call(cue)
    asked: list[float] = []

    @cue.is_ready
    def is_ready(work: Work) -> bool:
        asked.append(clock())
        return len(asked) == 20

    async with cue:
        await cue.submit("call")
        await cue.join()
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert gaps[0] == pytest.approx(0.05, abs=0.011)
    assert all(later >= earlier - 1e-6 for earlier, later in pairwise(gaps))
    assert gaps[-1] == pytest.approx(1.0, abs=0.011)


async def test_what_is_not_ready_is_asked_at_once_when_other_work_completes() -> None:
    cue = Cue()
    done: list[str] = []

    @cue.task("produce")
    async def produce(work: Work) -> None:
        await asyncio.sleep(30.123)
        done.append(work.id)

    @cue.task("consume")
    async def consume(work: Work) -> float:
        return clock()

    cue.is_ready(lambda work: work.task == "produce" or bool(done))
    async with cue:
        consumer = await cue.submit("consume")
        await cue.submit("produce")
        assert await cue.result(consumer) == pytest.approx(30.123, abs=0.001)


async def test_what_is_not_ready_keeps_nobody_else_waiting() -> None:
    cue = Cue()
    cue.service("api", concurrent=1)
    started: list[str] = []

    @cue.task("call", uses="api")
    async def call(work: Work) -> None:
        started.append(work.id)

    cue.is_ready(lambda work: work.id != "never")
    async with cue:
        await cue.submit("call", id="never", priority=100)
        await cue.submit("call", id="ready")
        await cue.wait("ready")
        assert clock() < 0.01
        assert started == ["ready"]


async def test_is_ready_is_asked_before_every_attempt() -> None:
    cue = Cue()
    asked: list[int] = []

    @cue.task("flaky", retry=3)
    async def flaky(work: Work) -> None:
        raise OSError("no")

    @cue.is_ready
    def is_ready(work: Work) -> bool:
        asked.append(work.attempt)
        return True

    async with cue:
        await cue.wait(await cue.submit("flaky"))
    assert len(asked) == 3


async def test_waiting_work_that_is_cancelled_is_not_asked_any_more() -> None:
    cue = Cue()
    with_call(cue)
    asked: list[float] = []

    @cue.is_ready
    def is_ready(work: Work) -> bool:
        asked.append(clock())
        return False

    async with cue:
        work_id = await cue.submit("call")
        await asyncio.sleep(5)
        assert await cue.cancel(work_id)
        before = len(asked)
        await asyncio.sleep(100)
    assert len(asked) == before


async def test_nobody_is_asked_while_stopped_or_before_its_time() -> None:
    cue = Cue()
    with_call(cue)
    asked: list[str] = []

    @cue.is_ready
    def is_ready(work: Work) -> bool:
        asked.append(work.id)
        return True

    await cue.submit("call", id="unstarted")
    await asyncio.sleep(10)
    assert asked == []
    async with cue:
        await cue.submit("call", id="later", delay=50)
        await asyncio.sleep(49)
        assert asked == ["unstarted"]
        await cue.join()
    assert asked == ["unstarted", "later"]


async def test_waiting_for_readiness_burns_no_attempt_and_tells_nothing() -> None:
    cue = Cue()
    with_call(cue)
    cue.is_ready(lambda work: clock() >= 100)
    async with cue:
        work = await cue.wait(await cue.submit("call", id="a"))
    assert work.attempt == 1
    assert await story(cue, "a") == ["queued", "started", "completed"]


def raising(work: Work) -> bool:
    raise ZeroDivisionError


async def never_in_time(work: Work) -> bool:
    await asyncio.sleep(3600)
    return True


NONSENSE: dict[str, Callable[[Work], Any]] = {
    "raises": raising,
    "None": lambda work: None,
    "overruns": never_in_time,
}


@pytest.mark.parametrize("callback", NONSENSE.values(), ids=NONSENSE.keys())
async def test_an_is_ready_that_gives_no_answer_means_not_ready(callback: Callable[[Work], Any]) -> None:
    cue = Cue()
    started = with_call(cue)
    cue.is_ready(callback)
    async with cue:
        work_id = await cue.submit("call")
        await asyncio.sleep(30)
        assert started == []
        assert (await cue.explain(work_id)).reason == "not_ready"
        cue.is_ready(lambda work: True)
        await cue.wait(work_id, timeout=5)
    failures = await told(cue, "callback_failed")
    assert [(event.callback, event.work_id) for event in failures] == [("is_ready", None)]


@pytest.mark.parametrize(
    ("answer", "starts"), [(1, True), ("yes", True), ([0], True), (0, False), ("", False)]
)
async def test_an_answer_of_another_type_counts_by_its_truth(answer: Any, starts: bool) -> None:
    cue = Cue()
    started = with_call(cue)
    cue.is_ready(lambda work: answer)
    async with cue:
        await cue.submit("call")
        await asyncio.sleep(5)
        assert bool(started) == starts


async def test_a_flapping_is_ready_ends_with_one_start() -> None:
    cue = Cue()
    started = with_call(cue)
    asked: list[int] = []

    @cue.is_ready
    def is_ready(work: Work) -> bool:
        asked.append(1)
        return len(asked) % 2 == 0

    async with cue:
        ids = [await cue.submit("call") for _ in range(10)]
        await cue.join()
    assert sorted(started) == sorted(ids)


async def test_each_of_many_waiting_works_is_asked_about_once_a_second() -> None:
    cue = Cue()
    with_call(cue)
    asked: dict[str, int] = {}

    @cue.is_ready
    def is_ready(work: Work) -> bool:
        asked[work.id] = asked.get(work.id, 0) + 1
        return False

    async with cue:
        await cue.submit_many({"task": "call"} for _ in range(200))
        await asyncio.sleep(120)
        assert len(asked) == 200
        assert max(asked.values()) <= 130
        assert min(asked.values()) >= 60


# --- is_stale -------------------------------------------------------------------------------------


async def test_work_whose_output_is_valid_is_skipped() -> None:
    cue = Cue()
    started = with_call(cue)
    skipped: list[Work] = []
    completed: list[Work] = []
    cue.on_skip(skipped.append)
    cue.on_complete(lambda work, result, duration: completed.append(work))
    cue.is_stale(lambda work: work.id != "valid")
    async with cue:
        await cue.submit("call", id="valid")
        await cue.submit("call", id="stale")
        await cue.join()
        work = await cue.wait("valid")
        assert await cue.result("valid") is None
    assert (work.state, work.skipped, work.started_at, work.result) == ("completed", True, None, None)
    assert work.completed_at is not None
    assert started == ["stale"]
    assert [work.id for work in skipped] == ["valid"]
    assert [work.id for work in completed] == ["stale"]
    assert await story(cue, "valid") == ["queued", "skipped"]


async def test_an_async_is_stale_decides_too() -> None:
    cue = Cue()
    started = with_call(cue)

    @cue.is_stale
    async def is_stale(work: Work) -> bool:
        await asyncio.sleep(0.01)
        return False

    async with cue:
        work = await cue.wait(await cue.submit("call"))
    assert work.skipped
    assert started == []


async def test_skipping_takes_no_slot_and_no_rate() -> None:
    cue = Cue()
    cue.service("api", rate="1/h", concurrent=1)
    started: list[str] = []

    @cue.task("call", uses="api")
    async def call(work: Work) -> None:
        started.append(work.id)

    cue.is_stale(lambda work: work.params.get("stale", False))
    async with cue:
        await cue.submit_many({"task": "call"} for _ in range(50))
        await cue.submit("call", id="stale", params={"stale": True})
        await cue.join()
    assert (started, clock()) == (["stale"], 0)


async def test_valid_output_is_skipped_even_while_its_service_is_blocked() -> None:
    cue = Cue()
    cue.service("api", concurrent=1)
    cue.task("call", uses="api")(no_op)
    cue.is_stale(lambda work: False)
    async with cue:
        await cue.pause("api")
        work = await cue.wait(await cue.submit("call"), timeout=5)
    assert work.skipped


async def test_is_stale_is_asked_only_of_what_is_ready() -> None:
    cue = Cue()
    with_call(cue)
    order: list[str] = []

    @cue.is_ready
    def is_ready(work: Work) -> bool:
        order.append("ready?")
        return len(order) > 2

    @cue.is_stale
    def is_stale(work: Work) -> bool:
        order.append("stale?")
        return True

    async with cue:
        await cue.submit("call")
        await cue.join()
    assert order == ["ready?", "ready?", "ready?", "stale?"]


async def test_output_made_by_somebody_else_before_a_retry_is_not_made_again() -> None:
    cue = Cue()
    valid: list[str] = []

    @cue.task("flaky", retry=5)
    async def flaky(work: Work) -> None:
        valid.append(work.id)
        raise OSError("after the output was written")

    cue.is_stale(lambda work: work.id not in valid)
    async with cue:
        work = await cue.wait(await cue.submit("flaky"))
    assert (work.state, work.skipped, work.started_at, work.error) == ("completed", True, None, None)


@pytest.mark.parametrize("callback", NONSENSE.values(), ids=NONSENSE.keys())
async def test_an_is_stale_that_gives_no_answer_means_stale(callback: Callable[[Work], Any]) -> None:
    cue = Cue()
    started = with_call(cue)
    cue.is_stale(callback)
    async with cue:
        for _ in range(3):
            await cue.wait(await cue.submit("call"))
    assert len(started) == 3
    assert [event.callback for event in await told(cue, "callback_failed")] == ["is_stale"]


async def test_skipped_work_satisfies_its_dependents_and_wakes_what_was_not_ready() -> None:
    cue = Cue()
    started = with_call(cue)
    skipped: list[str] = []
    cue.is_ready(lambda work: work.id != "consumer" or bool(skipped))
    cue.is_stale(lambda work: work.id != "producer")
    cue.on_skip(lambda work: skipped.append(work.id))
    async with cue:
        await cue.submit("call", id="consumer")
        await asyncio.sleep(10.3)
        await cue.submit("call", id="producer")
        await cue.submit("call", id="dependent", depends_on=["producer"])
        await cue.join()
        assert clock() == pytest.approx(10.3, abs=0.02)
    assert sorted(started) == ["consumer", "dependent"]


# --- Both gates -----------------------------------------------------------------------------------


async def test_dependencies_and_readiness_must_both_be_open() -> None:
    cue = Cue()
    times: dict[str, float] = {}

    @cue.task("call")
    async def call(work: Work) -> None:
        await asyncio.sleep(work.params.get("seconds", 0))
        times[work.id] = clock()

    asked: list[float] = []

    @cue.is_ready
    def is_ready(work: Work) -> bool:
        if work.id == "both":
            asked.append(clock())
            return clock() >= 40
        return True

    async with cue:
        await cue.submit("call", id="first", params={"seconds": 20})
        await cue.submit("call", id="both", depends_on=["first"])
        await cue.join()
    assert 40 <= times["both"] <= 41.1
    assert min(asked) == 20  # not asked before its dependency was there


async def test_no_callback_means_ready_and_stale() -> None:
    cue = Cue()
    started = with_call(cue)
    async with cue:
        await cue.submit("call")
        await settle()
    assert len(started) == 1
