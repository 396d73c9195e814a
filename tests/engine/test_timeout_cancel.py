"""Timeouts and cancelling: what stops, what does not, and what is left of it."""

import asyncio

import pytest

import runcue
from runcue import Cue, RunningWork, Work
from runcue.testing import settle
from tests.engine.seen import clock, story, told
from tests.handlers import taking


async def state(cue: Cue, work_id: str) -> str:
    work = await cue.get(work_id)
    assert work is not None
    return work.state.value


async def running_in(cue: Cue, service: str) -> int:
    return next(int(entry["running"]) for entry in await cue.services() if entry["name"] == service)


class Stubborn:
    """A handler that takes its time and does not listen when it is told to stop."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.starts: list[tuple[int, float]] = []
        self.ends: list[float] = []
        self.works: list[RunningWork] = []

    async def __call__(self, work: RunningWork) -> str:
        self.starts.append((work.attempt, clock()))
        self.works.append(work)
        until = clock() + self.seconds
        while (left := until - clock()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                pass
        self.ends.append(clock())
        return "too late"


# --- Timeout --------------------------------------------------------------------------------------


async def test_without_a_timeout_work_may_take_as_long_as_it_likes() -> None:
    cue = Cue()
    cue.task("slow")(taking(1000))
    async with cue:
        assert (await cue.wait(await cue.submit("slow"))).state == "completed"


async def test_stop_gives_up_what_runs_also_when_its_caller_is_being_cancelled() -> None:
    """As at Ctrl-C. Before Python 3.11.3 a timeout was a cancellation there."""
    cue = Cue()
    seen: list[float] = []
    cue.task("slow")(taking(100))

    async def program() -> None:
        cue.start()
        work_id = await cue.submit("slow")
        try:
            await asyncio.sleep(100)
        finally:
            with pytest.raises(TimeoutError, match="has not ended within 1 s"):
                await cue.wait(work_id, timeout=1)
            await cue.stop(2)
            seen.append(clock())
            await cue.close()

    running = asyncio.create_task(program())
    await asyncio.sleep(10)
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()
    assert seen == [13]


async def test_a_timeout_cancels_the_coroutine_and_fails_the_attempt() -> None:
    cue = Cue()
    seen: list[str] = []

    @cue.task("slow", timeout=5)
    async def slow(work: Work) -> None:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async with cue:
        work_id = await cue.submit("slow")
        work = await cue.wait(work_id)
        with pytest.raises(runcue.WorkTimedOut) as raised:
            await cue.result(work_id)
    assert (work.state, work.error, clock(), seen) == ("failed", "timeout", 5, ["cancelled"])
    assert raised.value.work == work
    assert await story(cue, work_id) == ["queued", "started", "failed"]


@pytest.mark.parametrize(
    ("default", "of_task", "of_submit", "expected"),
    [(30, None, None, 30), (30, 20, None, 20), (30, 20, 10, 10), (None, None, "10s", 10), (30, 90, None, 90)],
)
async def test_the_nearest_timeout_counts(
    default: float | None, of_task: float | None, of_submit: float | str | None, expected: float
) -> None:
    cue = Cue(default_timeout=default)
    cue.task("slow", timeout=of_task)(taking(3600))
    async with cue:
        await cue.wait(await cue.submit("slow", timeout=of_submit))
    assert clock() == expected


async def test_a_timeout_counts_from_the_start_of_the_handler() -> None:
    cue = Cue()
    cue.service("api", concurrent=1)
    cue.task("slow", uses="api", timeout=10)(taking(8))
    async with cue:
        ids = await cue.submit_many({"task": "slow"} for _ in range(3))
        await cue.join()
    assert {await state(cue, work_id) for work_id in ids} == {"completed"}


async def test_a_timeout_is_retried_by_policy_and_each_attempt_has_its_own() -> None:
    cue = Cue()
    starts: list[float] = []

    @cue.task(
        "slow", timeout=5, retry=runcue.Retry(max_attempts=3, backoff="fixed", base_delay=1, jitter=False)
    )
    async def slow(work: Work) -> str:
        starts.append(clock())
        await asyncio.sleep(100 if work.attempt < 3 else 4)
        return "in time"

    async with cue:
        assert await cue.result(await cue.submit("slow")) == "in time"
    assert starts == [0, 6, 12]


async def test_on_failure_gets_a_timeout_error() -> None:
    cue = Cue()
    errors: list[BaseException] = []
    cue.on_failure(lambda work, error: errors.append(error))
    cue.task("slow", timeout=5)(taking(100))
    async with cue:
        await cue.wait(await cue.submit("slow"))
    assert [type(error) for error in errors] == [TimeoutError]
    assert str(errors[0]) == "timeout after 5 s"


async def test_a_timeout_error_of_the_handlers_own_is_an_ordinary_failure() -> None:
    cue = Cue()

    @cue.task("call", timeout=50)
    async def call(work: Work) -> None:
        async with asyncio.timeout(1):
            await asyncio.sleep(10)

    async with cue:
        work = await cue.wait(await cue.submit("call"))
    assert (work.error, clock()) == ("TimeoutError", 1)


async def test_cleanup_after_a_timeout_may_take_time_and_keeps_the_slot_meanwhile() -> None:
    cue = Cue()
    cue.service("api", concurrent=1)
    ended: list[float] = []

    @cue.task("slow", uses="api")
    async def slow(work: Work) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(3)
            ended.append(clock())

    @cue.task("next", uses="api")
    async def next_(work: Work) -> float:
        return clock()

    async with cue:
        await cue.submit("slow", id="slow", timeout=5)
        await cue.submit("next", id="next")
        assert (await cue.wait("slow")).error == "timeout"
        assert clock() == 5
        assert await cue.result("next") == 8
    assert ended == [8]


async def test_a_result_at_the_very_moment_of_the_timeout_is_one_or_the_other() -> None:
    cue = Cue()

    @cue.task("exact", timeout=5)
    async def exact(work: Work) -> str:
        await asyncio.sleep(5)
        return "done"

    async with cue:
        work = await cue.wait(await cue.submit("exact", id="a"))
    assert (work.state, work.result, work.error) in {
        ("completed", "done", None),
        ("failed", None, "timeout"),
    }
    assert len([kind for kind in await story(cue, "a") if kind in {"completed", "failed"}]) == 1


# --- Code that does not stop ----------------------------------------------------------------------


async def test_code_that_does_not_stop_keeps_its_slot_until_it_has_really_ended() -> None:
    cue = Cue()
    cue.service("api", concurrent=1)
    stubborn = Stubborn(30)
    cue.task("stubborn", uses="api", timeout=5)(stubborn)

    @cue.task("next", uses="api")
    async def next_(work: Work) -> float:
        return clock()

    async with cue:
        await cue.submit("stubborn", id="a")
        await cue.submit("next", id="b")
        assert (await cue.wait("a")).error == "timeout"
        assert clock() == 5
        assert await running_in(cue, "api") == 1
        assert (await cue.explain("b")).reason == "concurrency"
        assert await cue.result("b") == 30
        assert await running_in(cue, "api") == 0


async def test_its_answer_is_dropped_and_told_as_stale() -> None:
    cue = Cue()
    completed: list[str] = []
    cue.on_complete(lambda work, result, duration: completed.append(work.id))
    cue.task("stubborn", timeout=5)(Stubborn(30))
    async with cue:
        await cue.submit("stubborn", id="a")
        await asyncio.sleep(40)
        work = await cue.wait("a")
    assert (work.state, work.result, completed) == ("failed", None, [])
    assert await story(cue, "a") == ["queued", "started", "failed", "stale_completion"]


async def test_its_retry_waits_until_it_has_really_ended() -> None:
    cue = Cue()
    stubborn = Stubborn(30)
    cue.task(
        "stubborn", timeout=5, retry=runcue.Retry(max_attempts=2, backoff="fixed", base_delay=1, jitter=False)
    )(stubborn)
    async with cue:
        work_id = await cue.submit("stubborn")
        await asyncio.sleep(10)
        assert await state(cue, work_id) == "pending"
        assert (await cue.explain(work_id)).reason == "overdue"
        await cue.wait(work_id)
        await asyncio.sleep(60)
    assert stubborn.starts == [(1, 0), (2, 30)]
    assert len(await told(cue, "stale_completion")) == 2


async def test_a_retry_by_hand_waits_until_the_old_attempt_has_really_ended() -> None:
    cue = Cue()
    stubborn = Stubborn(30)
    cue.task("stubborn", timeout=5)(stubborn)
    async with cue:
        work_id = await cue.submit("stubborn")
        await cue.wait(work_id)
        assert await cue.retry(work_id)
        await asyncio.sleep(10)
        assert (await cue.explain(work_id)).reason == "overdue"
        await asyncio.sleep(60)
    assert [at for _, at in stubborn.starts] == [0, 30]


async def test_stop_with_a_timeout_returns_in_time_whatever_the_code_does(store: str) -> None:
    cue = Cue()
    stubborn = Stubborn(1000)
    cue.task("stubborn")(stubborn)
    cue.start()
    work_id = await cue.submit("stubborn")
    await settle()
    await cue.stop(timeout=5)
    assert 5 <= clock() <= 6, "a second is left to code that cleans up"
    became = "cancelled" if store == "memory" else "pending"
    assert await state(cue, work_id) == became
    await asyncio.sleep(2000)
    assert await state(cue, work_id) == became


async def test_stop_does_not_wait_for_what_was_given_up() -> None:
    cue = Cue()
    cue.task("stubborn", timeout=5)(Stubborn(1000))
    async with cue:
        await cue.wait(await cue.submit("stubborn"))
    assert clock() == 5
    await asyncio.sleep(1000)


async def test_what_is_left_of_a_stop_keeps_its_slot_after_the_next_start(store: str) -> None:
    cue = Cue()
    cue.service("api", concurrent=1)
    stubborn = Stubborn(100)
    cue.task("stubborn", uses="api")(stubborn)

    @cue.task("next", uses="api")
    async def next_(work: Work) -> float:
        return clock()

    cue.start()
    await cue.submit("stubborn")
    await settle()
    await cue.stop(timeout=1)
    async with cue:
        again = 0 if store == "memory" else 100  # in a file what was stopped runs again, and came first
        assert await cue.result(await cue.submit("next")) == 100 + again


# --- Cancel ---------------------------------------------------------------------------------------


async def test_cancelling_pending_work_ends_it_at_once() -> None:
    cue = Cue()
    cue.task("call")(Stubborn(1))
    cancelled: list[str] = []
    cue.on_cancel(lambda work: cancelled.append(work.id))
    async with cue:
        await cue.submit("call", id="a", delay=60)
        assert await cue.cancel("a") is True
        work = await cue.wait("a")
        assert (work.state, work.started_at, clock()) == ("cancelled", None, 0)
        with pytest.raises(runcue.WorkCancelled):
            await cue.result("a")
    assert cancelled == ["a"]
    assert await story(cue, "a") == ["queued", "cancelled"]


async def test_cancelling_running_work_stops_its_coroutine() -> None:
    cue = Cue()
    seen: list[float] = []

    @cue.task("slow")
    async def slow(work: Work) -> None:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            seen.append(clock())
            raise

    async with cue:
        await cue.submit("slow", id="a")
        await asyncio.sleep(3)
        assert await cue.cancel("a") is True
        assert await state(cue, "a") == "cancelled"
    assert seen == [3]
    assert await story(cue, "a") == ["queued", "started", "cancelled"]


async def test_cancelled_work_stays_cancelled_whatever_its_handler_returns() -> None:
    cue = Cue()
    cue.task("stubborn", retry=5)(Stubborn(10))
    async with cue:
        await cue.submit("stubborn", id="a")
        await asyncio.sleep(1)
        await cue.cancel("a")
        await asyncio.sleep(20)
        work = await cue.wait("a")
    assert (work.state, work.result) == ("cancelled", None)
    assert await story(cue, "a") == ["queued", "started", "cancelled", "stale_completion"]


async def test_cancelled_work_keeps_its_slot_until_its_code_has_ended() -> None:
    cue = Cue()
    cue.service("api", concurrent=1)
    cue.task("stubborn", uses="api")(Stubborn(10))

    @cue.task("next", uses="api")
    async def next_(work: Work) -> float:
        return clock()

    async with cue:
        await cue.submit("stubborn", id="a")
        await cue.submit("next", id="b")
        await asyncio.sleep(1)
        await cue.cancel("a")
        assert await cue.result("b") == 10


@pytest.mark.memory
async def test_work_cancelled_between_its_grant_and_its_first_step_leaves_nothing_behind() -> None:
    cue = Cue()
    cue.service("api", concurrent=1)
    called: list[str] = []

    @cue.task("call", uses="api", timeout=30)
    async def call(work: Work) -> None:
        called.append(work.id)

    @cue.task("threaded", uses="api", timeout=30)
    def threaded(work: Work) -> None:
        called.append(work.id)

    async with cue:
        for task in ("call", "threaded"):
            await settle()
            unlucky = await cue.submit(task)
            assert await asyncio.create_task(cue.cancel(unlucky))  # runs right behind the turn that grants
            assert await state(cue, unlucky) == "cancelled"
            await settle()
            assert await running_in(cue, "api") == 0
            await cue.wait(await cue.submit(task, id=task), timeout=5)
        await asyncio.sleep(60)
    assert called == ["call", "threaded"]


async def test_cancelling_what_has_ended_or_never_was_is_false_and_changes_nothing() -> None:
    cue = Cue()

    @cue.task("call")
    async def call(work: Work) -> str:
        return "done"

    async with cue:
        await cue.wait(await cue.submit("call", id="a"))
        assert await cue.cancel("a") is False
        assert await cue.cancel("b") is False
        assert await state(cue, "a") == "completed"
        assert await cue.result(await cue.submit("call", id="b")) == "done"


async def test_cancelling_twice_is_true_and_then_false() -> None:
    cue = Cue()
    cue.task("call")(Stubborn(10))
    async with cue:
        await cue.submit("call", id="a")
        await settle()
        assert [await cue.cancel("a"), await cue.cancel("a")] == [True, False]
    assert len(await told(cue, "cancelled")) == 1


async def test_cancelling_work_that_waits_to_retry_ends_it() -> None:
    cue = Cue()
    starts: list[int] = []

    @cue.task("flaky", retry=5)
    async def flaky(work: Work) -> None:
        starts.append(work.attempt)
        raise runcue.RetryLater(60)

    async with cue:
        await cue.submit("flaky", id="a")
        await asyncio.sleep(10)
        assert await cue.cancel("a")
        await asyncio.sleep(200)
    assert starts == [1]


@pytest.mark.parametrize("steps", range(12))
async def test_cancel_racing_with_start_and_finish_leaves_one_end(steps: int) -> None:
    cue = Cue()
    cue.service("api", concurrent=1)

    @cue.task("call", uses="api")
    async def call(work: Work) -> str:
        await asyncio.sleep(0)
        return "done"

    async with cue:
        await cue.submit("call", id="a")
        for _ in range(steps):
            await asyncio.sleep(0)
        was_alive = await cue.cancel("a")
        work = await cue.wait("a", timeout=5)
        assert work.state == ("cancelled" if was_alive else "completed")
        await settle()
        assert await running_in(cue, "api") == 0
    ends = [kind for kind in await story(cue, "a") if kind in {"completed", "cancelled"}]
    assert ends == [work.state.value]


async def test_a_handler_sees_live_that_it_was_cancelled() -> None:
    cue = Cue()
    stubborn = Stubborn(20)
    cue.task("stubborn")(stubborn)
    async with cue:
        work_id = await cue.submit("stubborn")
        await asyncio.sleep(1)
        assert not stubborn.works[0].cancelled
        await cue.cancel(work_id)
        assert stubborn.works[0].cancelled


async def test_a_handler_sees_live_that_its_time_is_up() -> None:
    cue = Cue()
    stubborn = Stubborn(20)
    cue.task("stubborn", timeout=5)(stubborn)
    async with cue:
        await cue.submit("stubborn")
        await asyncio.sleep(4)
        assert not stubborn.works[0].cancelled
        await asyncio.sleep(2)
        assert stubborn.works[0].cancelled
        await asyncio.sleep(20)


async def test_a_cancel_by_somebody_else_is_a_failure() -> None:
    cue = Cue()

    @cue.task("suicide")
    async def suicide(work: Work) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(10)

    async with cue:
        work = await cue.wait(await cue.submit("suicide"), timeout=5)
    assert (work.state, work.error) == ("failed", "CancelledError")


# --- The clock on the wall ------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [3600, -3600])
async def test_a_timeout_does_not_notice_that_the_wall_clock_is_set(jump: float) -> None:
    cue = Cue()
    cue.task("slow", timeout=10)(Stubborn(10.5))
    async with cue:
        work_id = await cue.submit("slow")
        await asyncio.sleep(5)
        asyncio.get_running_loop().jump_wall(jump)  # type: ignore[attr-defined]
        await cue.wait(work_id)
        assert clock() == 10
        await asyncio.sleep(1)


async def test_a_handler_that_never_gives_its_command_times_out() -> None:
    cue = Cue()

    @cue.task("command", executor="subprocess", timeout=5)
    async def command(work: Work) -> list[str]:
        await asyncio.sleep(3600)
        return ["true"]

    async with cue:
        work = await cue.wait(await cue.submit("command"))
    assert (work.state, work.error, clock()) == ("failed", "timeout", 5)
