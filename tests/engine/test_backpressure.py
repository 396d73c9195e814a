"""A queue that can be full."""

import asyncio

import pytest

import runcue
from runcue import Cue, Work, WorkState
from runcue.testing import settle
from tests.engine.seen import clock, told
from tests.handlers import no_op, taking


def busy(cue: Cue) -> None:
    """Register "call" on a service with one place, ten seconds each."""
    cue.service("api", concurrent=1)

    @cue.task("call", uses="api")
    async def call(work: Work) -> str:
        await asyncio.sleep(10)
        return work.id


async def pending(cue: Cue) -> int:
    return (await cue.count())[WorkState.PENDING]


# --- reject ---------------------------------------------------------------------------------------


async def test_exactly_as_many_are_accepted_as_may_be_pending() -> None:
    cue = Cue(max_queued=3)
    busy(cue)
    for _ in range(3):
        await cue.submit("call")
    with pytest.raises(runcue.QueueFull) as raised:
        await cue.submit("call")
    assert (raised.value.pending, raised.value.limit, raised.value.asked) == (3, 3, 1)
    assert await pending(cue) == 3


async def test_what_has_started_makes_room() -> None:
    cue = Cue(max_queued=1)
    busy(cue)
    async with cue:
        await cue.submit("call")
        await settle()
        await cue.submit("call")
        with pytest.raises(runcue.QueueFull):
            await cue.submit("call")
        await asyncio.sleep(11)
        await cue.submit("call")
        await cue.join()


async def test_what_is_cancelled_makes_room() -> None:
    cue = Cue(max_queued=1)
    busy(cue)
    first = await cue.submit("call")
    await cue.cancel(first)
    assert await cue.submit("call")


async def test_many_submitters_at_once_do_not_get_past_the_limit() -> None:
    cue = Cue(max_queued=10)
    busy(cue)
    answers = await asyncio.gather(*(cue.submit("call") for _ in range(50)), return_exceptions=True)
    assert sum(isinstance(answer, str) for answer in answers) == 10
    assert sum(isinstance(answer, runcue.QueueFull) for answer in answers) == 40
    assert await pending(cue) == 10


async def test_submit_many_is_accepted_whole_or_not_at_all() -> None:
    cue = Cue(max_queued=5)
    busy(cue)
    await cue.submit_many({"task": "call"} for _ in range(3))
    with pytest.raises(runcue.QueueFull):
        await cue.submit_many({"task": "call"} for _ in range(3))
    assert await pending(cue) == 3
    await cue.submit_many({"task": "call"} for _ in range(2))


async def test_a_key_in_use_is_answered_even_when_the_queue_is_full() -> None:
    cue = Cue(max_queued=1)
    busy(cue)
    first = await cue.submit("call", idempotency_key="k")
    assert await cue.submit("call", idempotency_key="k") == first


async def test_a_retry_may_lift_pending_above_the_limit() -> None:
    cue = Cue(max_queued=1)
    cue.service("api", concurrent=1)

    @cue.task("call", uses="api", retry=2)
    async def call(work: Work) -> None:
        await asyncio.sleep(1)
        if work.attempt == 1:
            raise OSError("no")

    async with cue:
        await cue.submit("call")
        await settle()
        await cue.submit("call")
        await asyncio.sleep(1.01)
        await cue.join()
        assert (await cue.count())[WorkState.COMPLETED] == 2


# --- drop_oldest ----------------------------------------------------------------------------------


async def test_the_oldest_pending_work_is_dropped_and_it_is_told() -> None:
    cue = Cue(max_queued=2, reject_policy="drop_oldest")
    busy(cue)
    failures: list[tuple[str, str]] = []
    cue.on_failure(lambda work, error: failures.append((work.id, str(error))))
    async with cue:
        await cue.submit("call", id="running")
        await settle()
        for name in ("a", "b", "c", "d"):
            await cue.submit("call", id=name)
        assert failures == [("a", "dropped"), ("b", "dropped")]
        work = await cue.wait("a")
        assert (work.state, work.error) == ("failed", "dropped")
        await cue.join()
        assert [work.id for work in await cue.list(state="completed")] != []
    assert [event.work_id for event in await told(cue, "failed")] == ["a", "b"]


async def test_a_batch_drops_as_many_as_it_needs_but_never_its_own() -> None:
    cue = Cue(max_queued=3, reject_policy="drop_oldest")
    busy(cue)
    for name in ("a", "b", "c"):
        await cue.submit("call", id=name)
    await cue.submit_many({"task": "call", "id": name} for name in ("d", "e"))
    assert {work.id for work in await cue.list(state="pending")} == {"c", "d", "e"}


# --- block ----------------------------------------------------------------------------------------


async def test_a_blocked_submit_waits_for_room() -> None:
    cue = Cue(max_queued=1, reject_policy="block")
    busy(cue)
    async with cue:
        for _ in range(4):
            await cue.submit("call")
        assert clock() == 20
        await cue.join()


async def test_blocked_submitters_get_in_in_the_order_they_came() -> None:
    cue = Cue(max_queued=1, reject_policy="block")
    busy(cue)
    async with cue:
        await cue.submit("call")
        await settle()
        names = [f"n{number}" for number in range(6)]
        await asyncio.gather(*(cue.submit("call", id=name) for name in names))
        await cue.join()
    started = [event.work_id for event in await told(cue, "started")]
    assert started[1:] == names


async def test_a_blocked_submit_gives_up_at_its_timeout_and_nothing_is_queued() -> None:
    cue = Cue(max_queued=1, reject_policy="block", block_timeout=5)
    busy(cue)
    await cue.submit("call")
    with pytest.raises(runcue.QueueFull):
        await cue.submit("call")
    assert clock() == 5
    assert await pending(cue) == 1
    async with cue:
        await cue.join()
    assert len(await told(cue, "queued")) == 1


async def test_a_submit_that_got_in_at_the_moment_its_time_was_up_is_accepted() -> None:
    cue = Cue(max_queued=1, reject_policy="block", block_timeout=0)
    cue.task("call")(no_op)
    accepted: list[str] = []
    async with cue:
        for _ in range(20):
            try:
                accepted.append(await cue.submit("call"))
            except runcue.QueueFull:
                await asyncio.sleep(0)
        await cue.join()
        assert (await cue.count())[WorkState.COMPLETED] == len(accepted)
    assert [event.work_id for event in await told(cue, "queued")] == accepted


async def test_a_blocked_submit_that_is_cancelled_queues_nothing() -> None:
    cue = Cue(max_queued=1, reject_policy="block")
    busy(cue)
    await cue.submit("call")
    waiting = asyncio.create_task(cue.submit("call"))
    await settle()
    waiting.cancel()
    await settle()
    async with cue:
        await cue.join()
    assert len(await told(cue, "queued")) == 1


async def test_a_batch_larger_than_the_queue_is_refused_at_once() -> None:
    for policy in ("reject", "drop_oldest", "block"):
        cue = Cue(max_queued=2, reject_policy=policy)
        busy(cue)
        await cue.submit("call")
        with pytest.raises(runcue.QueueFull, match="smaller batches"):
            await cue.submit_many({"task": "call"} for _ in range(3))
        assert await pending(cue) == 1
    assert clock() == 0


async def test_a_large_batch_is_not_overtaken_for_ever_by_small_ones() -> None:
    cue = Cue(max_queued=3, reject_policy="block")
    cue.service("api", concurrent=1)
    cue.task("call", uses="api")(taking(1))
    async with cue:
        await cue.submit_many({"task": "call"} for _ in range(3))
        batch = asyncio.create_task(cue.submit_many({"task": "call", "id": f"b{n}"} for n in range(3)))
        await settle()
        singles = [asyncio.create_task(cue.submit("call")) for _ in range(20)]
        await batch
        assert clock() <= 4
        await asyncio.gather(*singles)
        await cue.join()


async def test_a_handler_that_submits_into_a_full_queue_fails_instead_of_waiting_for_itself() -> None:
    cue = Cue(max_queued=1, reject_policy="block")
    cue.service("api", concurrent=1)
    refusals: list[str] = []

    @cue.task("parent", uses="api")
    async def parent(work: Work) -> None:
        await asyncio.sleep(1)
        for submit in (
            lambda: cue.submit("parent"),
            lambda: asyncio.create_task(cue.submit("parent")),
            lambda: asyncio.gather(cue.submit("parent")),
            lambda: cue.submit_many([{"task": "parent"}]),
        ):
            try:
                await submit()
            except runcue.QueueFull:
                refusals.append(work.id)

    async with cue:
        await cue.submit("parent", id="first")
        await settle()
        await cue.submit("parent", id="second", delay=3600)
        await cue.wait("first", timeout=10)
        await cue.cancel("second")
    assert refusals == ["first"] * 4


# --- Telling --------------------------------------------------------------------------------------


async def test_on_backpressure_is_called_at_80_percent_and_when_full() -> None:
    cue = Cue(max_queued=10)
    busy(cue)
    calls: list[tuple[int, int]] = []
    cue.on_backpressure(lambda depth, limit: calls.append((depth, limit)))
    for _ in range(10):
        await cue.submit("call")
    assert calls == [(8, 10), (10, 10)]


async def test_the_end_of_backpressure_is_told_too() -> None:
    cue = Cue(max_queued=5)
    busy(cue)
    async with cue:
        await cue.submit_many({"task": "call"} for _ in range(5))
        await cue.join()
    changes = [(event.depth, event.limit, event.active) for event in await told(cue, "backpressure_active")]
    assert changes[0] == (5, 5, True)
    assert changes[-1][2] is False


async def test_an_unbounded_queue_never_presses() -> None:
    cue = Cue()
    busy(cue)
    calls: list[int] = []
    cue.on_backpressure(lambda depth, limit: calls.append(depth))
    await cue.submit_many({"task": "call"} for _ in range(10_000))
    assert calls == []
    assert await pending(cue) == 10_000
