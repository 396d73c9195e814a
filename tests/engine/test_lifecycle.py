"""Coming and going: start, stop, close, async with."""

import asyncio
import logging
from typing import Any

import pytest

import runcue
from runcue import Cue, Work
from runcue.testing import run, settle
from tests.engine.seen import clock, story, told
from tests.handlers import taking


def with_naps(cue: Cue) -> list[str]:
    """Register a task that sleeps for its param; the ids of those that came to their end."""
    ended: list[str] = []

    @cue.task("nap")
    async def nap(work: Work) -> str:
        await asyncio.sleep(work.params.get("seconds", 0))
        ended.append(work.id)
        return "rested"

    return ended


# --- start ----------------------------------------------------------------------------------------


async def test_start_returns_at_once_and_work_runs_by_itself() -> None:
    cue = Cue()
    ended = with_naps(cue)
    cue.start()
    work_id = await cue.submit("nap", params={"seconds": 5})
    assert ended == []
    assert (await cue.wait(work_id)).state == "completed"
    assert clock() == 5
    await cue.stop()


async def test_work_submitted_before_start_runs_once_started() -> None:
    cue = Cue()
    ended = with_naps(cue)
    work_id = await cue.submit("nap")
    await asyncio.sleep(100)
    assert ended == []
    assert (await cue.explain(work_id)).reason == "not_started"
    cue.start()
    await cue.join()
    assert ended == [work_id]
    await cue.stop()


async def test_a_second_start_does_nothing() -> None:
    cue = Cue()
    cue.service("api", concurrent=1)
    active: list[int] = [0]
    most: list[int] = [0]

    @cue.task("one", uses="api")
    async def one(work: Work) -> None:
        active[0] += 1
        most[0] = max(most[0], active[0])
        await asyncio.sleep(1)
        active[0] -= 1

    cue.start()
    cue.start()
    for number in range(5):
        await cue.submit("one", id=f"work-{number}")
    cue.start()
    await cue.join()
    assert most == [1]
    await cue.stop()
    starts = [event.work_id for event in await told(cue, "started")]
    assert starts == [f"work-{number}" for number in range(5)]


@pytest.mark.parametrize("queues", [5, [3, None], "", {"night": 1}])
async def test_queues_that_are_no_names_are_refused_and_nothing_starts(queues: Any) -> None:
    cue = Cue()
    ended = with_naps(cue)
    await cue.submit("nap")
    with pytest.raises(runcue.InvalidOption, match=r"^Invalid queue name: "):
        cue.start(queues=queues)
    await settle()
    assert ended == []


@pytest.mark.parametrize("name", [None, "", 5, "a\nb"])
async def test_what_is_no_name_cannot_be_paused_or_resumed(name: Any) -> None:
    cue = Cue()
    for call in (cue.pause, cue.resume):
        with pytest.raises(runcue.InvalidOption, match=r"^Invalid service or queue name: "):
            await call(name)


async def test_a_name_that_is_no_services_is_taken_for_a_queues() -> None:
    cue = Cue()
    ended = with_naps(cue)
    await cue.pause("night")  # nothing was ever put into it
    async with cue:
        work_id = await cue.submit("nap", queue="night")
        await settle()
        assert (await cue.explain(work_id)).reason == "paused"
        await cue.resume("night")
        await cue.join()
    assert ended == [work_id]


def test_events_are_not_read_from_nowhere() -> None:
    async def main() -> None:
        with pytest.raises(runcue.InvalidOption, match=r"^Invalid since: 'x'"):
            Cue().events(since="x")  # type: ignore[arg-type]  # (that is the mistake)

    run(main())


def test_start_without_a_running_loop_is_a_clear_error() -> None:
    cue = Cue()
    with pytest.raises(runcue.WrongThread, match="no event loop is running"):
        cue.start()


def test_a_cue_belongs_to_the_loop_of_its_first_await() -> None:
    cue = Cue()
    with_naps(cue)

    async def submit() -> str:
        return await cue.submit("nap")

    run(submit())
    with pytest.raises(
        runcue.WrongThread, match=r"that is closed .* one asyncio\.run\(\), or make a new Cue"
    ):
        run(submit())


def test_a_cue_may_be_made_and_declared_without_a_loop() -> None:
    cue = Cue()
    cue.service("api", rate="1/s")
    ended = with_naps(cue)

    async def main() -> None:
        async with cue:
            await cue.result(await cue.submit("nap"))

    run(main())
    assert len(ended) == 1


async def test_an_unstarted_cue_accepts_cancels_retries_and_reads() -> None:
    cue = Cue()
    with_naps(cue)
    work_id = await cue.submit("nap", id="a")
    assert await cue.cancel(work_id)
    work = await cue.get("a")
    assert work is not None
    assert work.state == "cancelled"
    assert await cue.retry("a")
    assert [work.id for work in await cue.list(state="pending")] == ["a"]
    assert (await cue.count())[runcue.WorkState.PENDING] == 1


# --- stop -----------------------------------------------------------------------------------------


async def test_stop_waits_for_what_runs_and_never_for_what_is_pending() -> None:
    cue = Cue()
    cue.service("api", concurrent=1)
    ended: list[str] = []

    @cue.task("slow", uses="api")
    async def slow(work: Work) -> None:
        await asyncio.sleep(30)
        ended.append(work.id)

    cue.start()
    await cue.submit("slow", id="first")
    await cue.submit("slow", id="second")
    await settle()
    await cue.stop()
    assert clock() == 30
    assert ended == ["first"]
    second = await cue.get("second")
    assert second is not None
    assert (second.state, second.started_at) == ("pending", None)


async def test_stop_with_a_timeout_returns_as_soon_as_everything_has_ended() -> None:
    cue = Cue()
    with_naps(cue)
    cue.start()
    work_id = await cue.submit("nap", params={"seconds": 3})
    await settle()
    await cue.stop(timeout=60)
    assert clock() == 3
    assert (await cue.wait(work_id)).state == "completed"


STOPPED = {"memory": "cancelled", "file": "pending"}
"""What becomes of work that stop() ended: in a file somebody can go on with it."""


async def test_stop_with_a_timeout_then_ends_what_still_runs(store: str) -> None:
    cue = Cue()
    seen: list[str] = []

    @cue.task("long")
    async def long(work: Work) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            seen.append("cleaned up")

    cue.start()
    work_id = await cue.submit("long")
    await settle()
    await cue.stop(timeout=5)
    assert clock() == 5
    work = await cue.get(work_id)
    assert work is not None
    assert (work.state, work.completed_at is not None) == (STOPPED[store], store == "memory")
    assert seen == ["cleaned up"]
    told = ["queued", "started", "cancelled"]
    assert await story(cue, work_id) == (told if store == "memory" else told[:2])


async def test_what_stop_ended_in_a_file_runs_again_and_counts_no_attempt(store: str) -> None:
    if store == "memory":
        return
    cue = Cue()
    attempts: list[int] = []

    @cue.task("long")
    async def long(work: Work) -> None:
        attempts.append(work.attempt)
        await asyncio.sleep(3600 if len(attempts) == 1 else 0)

    cue.start()
    await cue.submit("long", id="parent")
    await cue.submit("long", id="child", depends_on=["parent"])
    await settle()
    await cue.stop(timeout=5)
    assert (await cue.explain("child")).reason == "dependency"
    cue.start()
    assert (await cue.wait("child")).state == "completed"
    assert attempts == [1, 1, 1]


async def test_stop_with_a_timeout_of_zero_ends_it_at_once(store: str) -> None:
    cue = Cue()
    with_naps(cue)
    cue.start()
    work_id = await cue.submit("nap", params={"seconds": 60})
    await settle()
    await cue.stop(timeout=0)
    assert clock() == 0
    work = await cue.get(work_id)
    assert work is not None
    assert work.state == STOPPED[store]


async def test_stop_with_a_timeout_leaves_pending_work_pending(store: str) -> None:
    cue = Cue()
    cue.service("api", concurrent=1)
    cue.task("long", uses="api")(taking(3600))
    cue.start()
    await cue.submit("long", id="running")
    await cue.submit("long", id="waiting")
    await settle()
    await cue.stop(timeout=1)
    assert (await cue.count())[runcue.WorkState.PENDING] == (1 if store == "memory" else 2)
    work = await cue.get("waiting")
    assert work is not None
    assert work.state == "pending"


async def test_stop_twice_is_harmless() -> None:
    cue = Cue()
    with_naps(cue)
    cue.start()
    await cue.submit("nap")
    await cue.stop()
    await cue.stop()
    await cue.stop(timeout=1)
    assert clock() == 0


async def test_two_stops_at_the_same_time_both_return() -> None:
    cue = Cue()
    ended = with_naps(cue)
    cue.start()
    await cue.submit("nap", params={"seconds": 5})
    await settle()
    async with asyncio.timeout(60):
        await asyncio.gather(cue.stop(), cue.stop(), cue.stop(timeout=30))
    assert (clock(), len(ended)) == (5, 1)


async def test_the_shorter_of_two_stops_decides(store: str) -> None:
    cue = Cue()
    with_naps(cue)
    cue.start()
    work_id = await cue.submit("nap", params={"seconds": 100})
    await settle()
    async with asyncio.timeout(60):
        await asyncio.gather(cue.stop(), cue.stop(timeout=2))
    assert clock() == 2
    work = await cue.get(work_id)
    assert work is not None
    assert work.state == STOPPED[store]


async def test_stop_without_start_is_harmless() -> None:
    cue = Cue()
    await cue.stop()
    with_naps(cue)
    await cue.submit("nap")
    await cue.stop()
    assert (await cue.count())[runcue.WorkState.PENDING] == 1


async def test_start_after_stop_goes_on_with_what_is_pending() -> None:
    cue = Cue()
    ended = with_naps(cue)
    cue.start()
    await cue.stop()
    work_id = await cue.submit("nap")
    await asyncio.sleep(60)
    assert ended == []
    cue.start()
    assert (await cue.wait(work_id)).state == "completed"
    await cue.stop()


async def test_what_waits_for_its_time_while_stopped_runs_at_the_next_start() -> None:
    cue = Cue()
    ended = with_naps(cue)
    cue.start()
    await cue.submit("nap", delay=10)
    await cue.stop()
    await asyncio.sleep(60)
    assert ended == []
    cue.start()
    await cue.join()
    assert (clock(), len(ended)) == (60, 1)
    await cue.stop()


async def test_submit_after_stop_is_accepted() -> None:
    cue = Cue()
    with_naps(cue)
    async with cue:
        pass
    work_id = await cue.submit("nap")
    assert (await cue.explain(work_id)).reason == "not_started"


async def test_a_start_while_stopping_goes_on() -> None:
    cue = Cue()
    ended = with_naps(cue)
    cue.start()
    await cue.submit("nap", params={"seconds": 5})
    await settle()
    stopping = asyncio.create_task(cue.stop())
    await settle()
    cue.start()
    async with asyncio.timeout(60):
        await stopping
        await cue.submit("nap", params={"seconds": 7})
        await cue.join()
    assert (clock(), len(ended)) == (7, 2)
    await cue.stop()


async def test_a_stop_that_is_cancelled_can_be_repeated() -> None:
    cue = Cue()
    ended = with_naps(cue)
    cue.start()
    await cue.submit("nap", params={"seconds": 50})
    await settle()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await cue.stop()
    await cue.stop()
    assert (clock(), len(ended)) == (50, 1)


async def test_stop_starts_nothing_new_while_it_waits() -> None:
    cue = Cue()
    ended = with_naps(cue)
    cue.start()
    first = await cue.submit("nap", params={"seconds": 5})
    await settle()
    stopping = asyncio.create_task(cue.stop())
    await settle()
    await cue.submit("nap", id="second")
    await stopping
    assert ended == [first]


async def test_a_failed_attempt_is_not_retried_while_stopping() -> None:
    cue = Cue()
    attempts: list[int] = []

    @cue.task("flaky", retry=5)
    async def flaky(work: Work) -> None:
        attempts.append(work.attempt)
        await asyncio.sleep(1)
        raise OSError("no")

    cue.start()
    work_id = await cue.submit("flaky")
    await settle()
    await cue.stop()
    assert attempts == [1]
    work = await cue.get(work_id)
    assert work is not None
    assert work.state == "pending"
    assert work.next_retry_at is not None


async def test_a_retry_interrupted_by_a_stop_goes_on_after_start() -> None:
    cue = Cue()
    attempts: list[int] = []

    @cue.task("flaky", retry=2)
    async def flaky(work: Work) -> None:
        attempts.append(work.attempt)
        await asyncio.sleep(1)
        if work.attempt == 1:
            raise OSError("no")

    cue.start()
    work_id = await cue.submit("flaky")
    await settle()
    await cue.stop()
    cue.start()
    assert (await cue.wait(work_id)).state == "completed"
    assert attempts == [1, 2]
    await cue.stop()


async def test_stop_inside_a_handler_is_a_clear_error() -> None:
    cue = Cue()

    @cue.task("leave")
    async def leave(work: Work) -> None:
        await cue.stop()

    async with cue:
        work = await cue.wait(await cue.submit("leave"))
    assert work.state == "failed"
    assert "stop() inside a handler" in str(work.error)


async def test_a_task_that_outlives_its_handler_may_stop() -> None:
    cue = Cue()
    left: list[asyncio.Task[None]] = []

    async def quit_later() -> None:
        await asyncio.sleep(5)
        await cue.stop()

    @cue.task("spawn")
    async def spawn(work: Work) -> None:
        left.append(asyncio.create_task(quit_later()))

    cue.start()
    await cue.wait(await cue.submit("spawn"))
    await left[0]
    assert clock() == 5


async def test_stop_inside_an_async_callback_is_a_clear_error() -> None:
    cue = Cue()
    with_naps(cue)

    @cue.on_complete
    async def leave(work: Work, result: object, duration: float) -> None:
        await cue.stop()

    async with asyncio.timeout(60), cue:
        await cue.wait(await cue.submit("nap"))
    failures = await told(cue, "callback_failed")
    assert len(failures) == 1
    assert "stop() inside" in str(failures[0].error)


@pytest.mark.parametrize("timeout", [-1, "soon", float("nan"), True])
async def test_a_timeout_that_is_no_duration_is_refused_and_stops_nothing(timeout: float) -> None:
    cue = Cue()
    ended = with_naps(cue)
    async with cue:
        with pytest.raises(ValueError, match="Invalid timeout"):
            await cue.stop(timeout=timeout)
        await cue.wait(await cue.submit("nap"))
    assert len(ended) == 1


async def test_stop_takes_a_duration_in_every_form() -> None:
    cue = Cue()
    with_naps(cue)
    cue.start()
    await cue.submit("nap", params={"seconds": 3600})
    await settle()
    await cue.stop(timeout="2m")
    assert clock() == 120


# --- close ----------------------------------------------------------------------------------------


async def test_close_stops_and_refuses_everything_afterwards() -> None:
    cue = Cue()
    ended = with_naps(cue)
    cue.start()
    await cue.submit("nap", params={"seconds": 5})
    await settle()
    await cue.close()
    assert (clock(), len(ended)) == (5, 1)
    for call in (cue.submit("nap"), cue.get("a"), cue.cancel("a"), cue.wait("a"), cue.count()):
        with pytest.raises(runcue.CueClosed, match="closed"):
            await call
    with pytest.raises(runcue.CueClosed):
        cue.start()


async def test_close_twice_and_stop_after_close_are_harmless() -> None:
    cue = Cue()
    cue.start()
    await cue.close()
    await cue.close()
    await cue.stop()


async def test_close_without_start_is_harmless() -> None:
    cue = Cue()
    await cue.close()
    with_naps(cue)
    with pytest.raises(runcue.CueClosed):
        await cue.submit("nap")


async def test_close_inside_async_with_is_harmless() -> None:
    cue = Cue()
    ended = with_naps(cue)
    async with cue:
        await cue.submit("nap")
        await cue.join()
        await cue.close()
    assert len(ended) == 1


async def test_close_lets_go_of_whoever_waits_for_work_that_will_not_run() -> None:
    cue = Cue()
    with_naps(cue)
    cue.start()
    await cue.submit("nap", id="never", delay=3600)
    waiting = [
        asyncio.create_task(cue.wait("never")),
        asyncio.create_task(cue.result("never")),
        asyncio.create_task(cue.join()),
        asyncio.create_task(cue.join(["never"])),
    ]
    await settle()
    await cue.close()
    async with asyncio.timeout(60):
        answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(answer) for answer in answers] == [runcue.CueClosed] * 4


async def test_close_refuses_whoever_waits_for_room() -> None:
    cue = Cue(max_queued=1, reject_policy="block")
    with_naps(cue)
    await cue.submit("nap")
    waiting = asyncio.create_task(cue.submit("nap"))
    await settle()
    await cue.close()
    with pytest.raises(runcue.CueClosed):
        async with asyncio.timeout(60):
            await waiting


# --- async with -----------------------------------------------------------------------------------


async def test_async_with_starts_and_stops() -> None:
    cue = Cue()
    ended = with_naps(cue)
    async with cue as same:
        assert same is cue
        await cue.submit("nap", params={"seconds": 5})
        await settle()
    assert (clock(), len(ended)) == (5, 1)


async def test_async_with_twice_goes_on() -> None:
    cue = Cue()
    ended = with_naps(cue)
    for _ in range(2):
        async with cue:
            await cue.wait(await cue.submit("nap"))
    assert len(ended) == 2


async def test_async_with_left_by_an_exception_stops_within_the_grace(store: str) -> None:
    cue = Cue(grace=7)
    with_naps(cue)

    async def crash() -> None:
        async with cue:
            await cue.submit("nap", id="long", params={"seconds": 3600})
            await settle()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await crash()
    assert clock() == 7
    work = await cue.get("long")
    assert work is not None
    assert work.state == STOPPED[store]


@pytest.mark.memory
async def test_async_with_left_with_pending_work_warns_with_the_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cue = Cue()
    with_naps(cue)
    with caplog.at_level(logging.WARNING, "runcue"):
        async with cue:
            for _ in range(3):
                await cue.submit("nap", delay=60)
    assert [record.getMessage() for record in caplog.records] == [
        "left with 3 pending: a queue in memory is lost with its process (await cue.join() before leaving)"
    ]


async def test_async_with_left_with_nothing_pending_does_not_warn(caplog: pytest.LogCaptureFixture) -> None:
    cue = Cue()
    with_naps(cue)
    with caplog.at_level(logging.WARNING, "runcue"):
        async with cue:
            await cue.wait(await cue.submit("nap"))
    assert caplog.records == []


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(runcue.ConfigError, match="max_queued"):
        Cue(max_queue=5)  # type: ignore[call-arg]


@pytest.mark.parametrize("target", [None, ":memory:"])
async def test_memory_has_two_names(target: str | None) -> None:
    cue = Cue(target)
    with_naps(cue)
    async with cue:
        assert await cue.result(await cue.submit("nap")) == "rested"


@pytest.mark.file
async def test_what_a_turn_under_way_starts_is_stopped_in_time_too() -> None:
    cue = Cue()
    with_naps(cue)
    async with cue:
        await asyncio.sleep(1)  # the turns of its start are over
        assert cue._system is not None
        store, go = cue._system.store, asyncio.Event()
        take_turn = store.turn

        async def held_up(*asked: Any) -> Any:
            await go.wait()
            return await take_turn(*asked)

        store.turn = held_up  # type: ignore[method-assign,assignment]
        submitted = asyncio.create_task(cue.submit("nap", params={"seconds": 60}))
        await asyncio.sleep(0.1)  # its turn is under way, and may start something
        began = clock()
        stopping = asyncio.create_task(cue.stop(timeout=0))
        await asyncio.sleep(0.1)
        go.set()
        await stopping
        assert clock() - began < 10
        await submitted
        assert (await cue.count())[runcue.WorkState.PENDING] == 1
