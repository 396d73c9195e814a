"""Which work runs next: priority, age, time, scores, queues."""

import asyncio

import pytest

import runcue
from runcue import Cue, PriorityContext, Work
from runcue.testing import settle
from tests.engine.seen import clock, epoch, virtual


def one_at_a_time(cue: Cue, seconds: float = 1) -> list[str]:
    """Register "call" on a service with one place; the ids in the order they started."""
    cue.service("api", concurrent=1)
    order: list[str] = []

    @cue.task("call", uses="api")
    async def call(work: Work) -> None:
        order.append(work.id)
        await asyncio.sleep(seconds)

    return order


# --- The number -----------------------------------------------------------------------------------


async def test_equals_run_in_the_order_of_submission() -> None:
    cue = Cue()
    order = one_at_a_time(cue)
    async with cue:
        ids = [await cue.submit("call") for _ in range(20)]
        await cue.join()
    assert order == ids


@pytest.mark.memory
async def test_the_higher_number_goes_first() -> None:
    cue = Cue()
    order = one_at_a_time(cue)
    async with cue:
        for number in (0, -1, 5, 2.5, 5):
            await cue.submit("call", id=f"{number}-{await count(cue)}", priority=number)
        await cue.join()
    assert order == ["5-2", "5-4", "2.5-3", "0-0", "-1-1"]


async def count(cue: Cue) -> int:
    return sum((await cue.count()).values())


@pytest.mark.memory
async def test_several_submitted_in_a_row_without_yielding_start_best_first() -> None:
    cue = Cue()
    order = one_at_a_time(cue)
    async with cue:
        await settle()
        await cue.submit("call", id="low", priority=1)
        await cue.submit("call", id="high", priority=9)
        await settle()
        assert order == ["high"]


@pytest.mark.memory
async def test_the_number_decides_across_tasks_of_one_service() -> None:
    cue = Cue()
    order = one_at_a_time(cue)

    @cue.task("other", uses="api")
    async def other(work: Work) -> None:
        order.append(work.id)
        await asyncio.sleep(1)

    async with cue:
        await cue.submit("call", id="a", priority=1)
        await cue.submit("other", id="b", priority=3)
        await cue.submit("call", id="c", priority=2)
        await cue.join()
    assert order == ["b", "c", "a"]


async def test_a_minute_of_waiting_is_worth_a_point() -> None:
    cue = Cue()
    order = one_at_a_time(cue, seconds=200)
    async with cue:
        await cue.submit("call", id="first")
        await settle()
        await cue.submit("call", id="old")
        await asyncio.sleep(90)
        await cue.submit("call", id="one point", priority=1)
        await cue.submit("call", id="two points", priority=2)
        await cue.join()
    assert order == ["first", "two points", "old", "one point"]


async def test_without_ageing_the_number_alone_decides() -> None:
    cue = Cue(age_step=None)
    order = one_at_a_time(cue, seconds=100)
    async with cue:
        await cue.submit("call", id="first")
        await settle()
        await cue.submit("call", id="old")
        await asyncio.sleep(90)
        await cue.submit("call", id="new", priority=0.5)
        await cue.join()
    assert order == ["first", "new", "old"]


@pytest.mark.memory
async def test_an_endless_stream_of_important_work_does_not_starve_the_rest() -> None:
    cue = Cue(age_step=10)
    order = one_at_a_time(cue, seconds=1)
    async with cue:
        await cue.submit("call", id="low")
        for number in range(100):
            await cue.submit("call", id=f"high-{number}", priority=5)
            await asyncio.sleep(1)
            if "low" in order:
                break
        assert clock() == pytest.approx(51, abs=1)
        await cue.stop(timeout=0)


async def test_a_retry_keeps_its_place_by_its_age() -> None:
    cue = Cue()
    cue.service("api", concurrent=1)
    order: list[tuple[str, int]] = []

    @cue.task(
        "call", uses="api", retry=runcue.Retry(max_attempts=2, backoff="fixed", base_delay=1, jitter=False)
    )
    async def call(work: Work) -> None:
        order.append((work.id, work.attempt))
        await asyncio.sleep(5)
        if work.id == "first" and work.attempt == 1:
            raise OSError("no")

    async with cue:
        for name in ("first", "second", "third"):
            await cue.submit("call", id=name)
            await asyncio.sleep(0.1)
        await cue.join()
    assert order == [("first", 1), ("second", 1), ("first", 2), ("third", 1)]


# --- Time -----------------------------------------------------------------------------------------


async def test_work_with_a_delay_starts_exactly_then() -> None:
    cue = Cue()
    times: dict[str, float] = {}

    @cue.task("call")
    async def call(work: Work) -> None:
        times[work.id] = clock()

    async with cue:
        await cue.submit("call", id="later", delay=3600)
        await cue.submit("call", id="soon", delay=0.001)
        await cue.submit("call", id="now", delay=0)
        await cue.join()
    assert times == pytest.approx({"now": 0, "soon": 0.001, "later": 3600}, abs=1e-6)


async def test_work_with_run_at_starts_exactly_then() -> None:
    cue = Cue()
    times: dict[str, float] = {}

    @cue.task("call")
    async def call(work: Work) -> None:
        times[work.id] = clock()

    async with cue:
        for seconds in (500.25, 100, 720):
            await cue.submit("call", id=str(seconds), run_at=epoch() + seconds)
        await cue.join()
    assert times == pytest.approx({"100": 100, "500.25": 500.25, "720": 720})


@pytest.mark.parametrize(("after", "jump", "starts"), [(3600, 3600, 11), (100, -50, 151)])
async def test_run_at_follows_the_wall_clock_when_it_is_set(after: float, jump: float, starts: float) -> None:
    cue = Cue()
    one_at_a_time(cue)
    async with cue:
        work_id = await cue.submit("call", run_at=epoch() + after)
        await asyncio.sleep(10)
        virtual().jump_wall(jump)
        await cue.wait(work_id)
    assert clock() == pytest.approx(starts, abs=1.1)


@pytest.mark.parametrize("jump", [-3600, 3600])
async def test_a_delay_and_a_retry_do_not_notice_that_the_wall_clock_is_set(jump: float) -> None:
    cue = Cue()
    times: list[float] = []

    @cue.task("call", retry=runcue.Retry(max_attempts=2, backoff="fixed", base_delay=5, jitter=False))
    async def call(work: Work) -> None:
        times.append(clock())
        if work.attempt == 1:
            raise OSError("no")

    async with cue:
        work_id = await cue.submit("call", delay=5)
        await asyncio.sleep(1)
        virtual().jump_wall(jump)
        await asyncio.sleep(5)
        virtual().jump_wall(jump)
        await cue.wait(work_id)
    assert times == [5, 10]


async def test_work_that_is_due_runs_once_however_far_the_clock_jumps() -> None:
    cue = Cue()
    order = one_at_a_time(cue)
    async with cue:
        await cue.submit("call", id="a", run_at=epoch() + 60)
        virtual().jump_wall(10 * 365 * 86400)
        await asyncio.sleep(5)
        virtual().jump_wall(-10 * 365 * 86400)
        await asyncio.sleep(120)
    assert order == ["a"]


async def test_what_was_due_earlier_goes_first_among_equals() -> None:
    cue = Cue()
    order = one_at_a_time(cue, seconds=100)
    async with cue:
        await cue.submit("call", id="busy")
        await settle()
        await cue.submit("call", id="due at 50", delay=50)
        await cue.submit("call", id="due at 20", delay=20)
        await asyncio.sleep(30)
        await cue.submit("call", id="came at 30")
        await cue.join()
    assert order == ["busy", "due at 20", "came at 30", "due at 50"]


# --- The callback ---------------------------------------------------------------------------------


@pytest.mark.memory
async def test_the_highest_score_of_several_submitted_in_a_row_wins() -> None:
    cue = Cue()
    order = one_at_a_time(cue)
    cue.priority(lambda ctx: ctx.work.params["score"])
    async with cue:
        await settle()
        for score in (0.1, 0.9, 0.5, 0.9, 0.3):
            await cue.submit("call", id=f"{score}-{await count(cue)}", params={"score": score})
        await cue.join()
    assert order == ["0.9-1", "0.9-3", "0.5-2", "0.3-4", "0.1-0"]


async def test_an_async_priority_callback_decides_too() -> None:
    cue = Cue()
    order = one_at_a_time(cue)

    @cue.priority
    async def score(ctx: PriorityContext) -> float:
        await asyncio.sleep(0.01)
        return float(ctx.work.params["score"])

    async with cue:
        for number in (0.2, 0.8, 0.5):
            await cue.submit("call", id=str(number), params={"score": number})
        await cue.join()
    assert order == ["0.8", "0.5", "0.2"]


async def test_the_best_wins_even_if_its_score_takes_longest() -> None:
    cue = Cue()
    order = one_at_a_time(cue)

    @cue.priority
    async def score(ctx: PriorityContext) -> float:
        await asyncio.sleep(ctx.work.params["score"] / 10)
        return float(ctx.work.params["score"])

    async with cue:
        await settle()
        for number in (0.2, 0.9, 0.5):
            await cue.submit("call", id=str(number), params={"score": number})
        await cue.join()
    assert order == ["0.9", "0.5", "0.2"]


async def test_a_candidate_without_an_answer_keeps_the_others_waiting_for_a_moment_only() -> None:
    cue = Cue()
    order = one_at_a_time(cue, seconds=0)

    @cue.priority
    async def score(ctx: PriorityContext) -> float:
        await asyncio.sleep(3600 if ctx.work.id == "stuck" else 0)
        return 0.9

    async with cue:
        await settle()
        for name in ("stuck", "fine"):
            await cue.submit("call", id=name)
        await cue.join()
        assert clock() < 0.5
    assert order == ["fine", "stuck"]


async def test_a_callback_decides_instead_of_the_number() -> None:
    cue = Cue()
    order = one_at_a_time(cue)
    cue.priority(runcue.priority_constant(0.5))
    async with cue:
        await cue.submit("call", id="a", priority=0)
        await cue.submit("call", id="b", priority=1000)
        await cue.join()
    assert order == ["a", "b"]


async def test_the_score_counts_that_holds_when_the_choice_is_made() -> None:
    cue = Cue()
    order = one_at_a_time(cue, seconds=10)
    wanted = ["a"]
    cue.priority(lambda ctx: 1.0 if ctx.work.id in wanted else 0.0)
    async with cue:
        await cue.submit("call", id="busy")
        await settle()
        for name in ("a", "b", "c"):
            await cue.submit("call", id=name)
        await asyncio.sleep(5)
        wanted[:] = ["c"]
        await cue.join()
    assert order == ["busy", "c", "a", "b"]


async def test_the_context_tells_what_a_score_may_depend_on() -> None:
    cue = Cue()
    cue.service("idle", concurrent=4)
    one_at_a_time(cue, seconds=60)
    seen: list[PriorityContext] = []

    @cue.priority
    def score(ctx: PriorityContext) -> float:
        seen.append(ctx)
        return 0.5

    async with cue:
        await cue.submit("call", id="busy")
        await settle()
        await cue.submit("call", id="a", params={"x": 1})
        await cue.submit("call", id="b")
        await cue.join()
    last = [ctx for ctx in seen if ctx.work.id == "a"][-1]
    assert last.work.params == {"x": 1}
    assert last.work_unit is last.work
    assert last.wait_time == pytest.approx(60)
    assert last.queue_depth == 2
    assert set(last.service_pressure) == {"api", "idle"}
    assert all(0 <= pressure <= 1 for pressure in last.service_pressure.values())


async def test_what_waited_longest_goes_first_with_the_ready_made_callback() -> None:
    cue = Cue()
    order = one_at_a_time(cue, seconds=100)
    cue.priority(runcue.priority_by_wait_time)
    async with cue:
        await cue.submit("call", id="busy")
        await settle()
        for name in ("a", "b", "c"):
            await cue.submit("call", id=name)
            await asyncio.sleep(20)
        await cue.join()
    assert order == ["busy", "a", "b", "c"]


async def test_only_what_could_start_now_takes_part_in_the_choice() -> None:
    cue = Cue()
    order = one_at_a_time(cue)
    cue.service("blocked", concurrent=1)

    @cue.task("blocked", uses=["api", "blocked"])
    async def blocked(work: Work) -> None:
        order.append(work.id)

    cue.priority(lambda ctx: 1.0 if ctx.work.task == "blocked" else 0.1)
    async with cue:
        await cue.pause("blocked")
        await cue.submit("blocked", id="best")
        await cue.submit("call", id="second best")
        await asyncio.sleep(10)
        assert order == ["second best"]
        await cue.resume("blocked")
        await cue.join()


async def test_a_callback_registered_while_running_is_used_from_then_on() -> None:
    cue = Cue()
    order = one_at_a_time(cue, seconds=10)
    async with cue:
        for name in ("a", "b", "c"):
            await cue.submit("call", id=name)
        await asyncio.sleep(5)
        cue.priority(lambda ctx: 1.0 if ctx.work.id == "c" else 0.0)
        await cue.join()
    assert order == ["a", "c", "b"]


async def test_hundreds_of_candidates_run_in_the_order_of_their_scores() -> None:
    cue = Cue()
    order = one_at_a_time(cue, seconds=0.01)
    cue.priority(lambda ctx: ctx.work.params["n"] * 7919 % 400 / 400)
    async with cue:
        await cue.submit_many({"task": "call", "id": str(n), "params": {"n": n}} for n in range(400))
        await cue.join()
    scores = [int(work_id) * 7919 % 400 for work_id in order]
    assert scores == sorted(scores, reverse=True)


# --- Queues ---------------------------------------------------------------------------------------


async def test_only_the_queues_named_at_start_are_served() -> None:
    cue = Cue()
    order: list[str] = []

    @cue.task("call")
    async def call(work: Work) -> None:
        order.append(work.id)

    for name in ("a", "b", "default"):
        await cue.submit("call", id=name, queue=name)
    cue.start(queues=["a", "b"])
    await asyncio.sleep(10)
    assert sorted(order) == ["a", "b"]
    await cue.stop()
    cue.start()
    await cue.join()
    assert sorted(order) == ["a", "b", "default"]
    await cue.stop()


async def test_one_queue_may_be_named_without_a_list() -> None:
    cue = Cue()
    order: list[str] = []

    @cue.task("call")
    async def call(work: Work) -> None:
        order.append(work.id)

    cue.start(queues="bulk")
    await cue.submit("call", id="x", queue="bulk")
    await cue.submit("call", id="y", queue="b")
    await asyncio.sleep(1)
    assert order == ["x"]
    await cue.stop()


async def test_limits_are_shared_between_queues() -> None:
    cue = Cue()
    order = one_at_a_time(cue)
    async with cue:
        for number in range(4):
            await cue.submit("call", id=str(number), queue=f"queue-{number}")
        await cue.join()
    assert (order, clock()) == (["0", "1", "2", "3"], 4)


async def test_work_of_a_queue_that_is_not_served_says_so() -> None:
    cue = Cue()
    one_at_a_time(cue)
    cue.start(queues=["a"])
    work_id = await cue.submit("call", queue="b")
    await settle()
    explanation = await cue.explain(work_id)
    assert explanation.reason == "paused"
    assert "'b'" in explanation.details
    await cue.stop()
