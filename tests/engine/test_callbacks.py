"""on_*: who is called, in which order, and what their mistakes change."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import runcue
from runcue import Cue, Work
from runcue.testing import settle
from tests.engine.seen import clock, told


def with_call(cue: Cue) -> None:
    @cue.task("call", retry=runcue.Retry(max_attempts=2, backoff="fixed", base_delay=1, jitter=False))
    async def call(work: Work) -> str:
        await asyncio.sleep(work.params.get("seconds", 0))
        if work.params.get("fails", 0) >= work.attempt:
            raise OSError(f"number {work.attempt}")
        return "done"


def listening(cue: Cue) -> list[tuple[Any, ...]]:
    """Register every on_* of a work; what they were called with."""
    calls: list[tuple[Any, ...]] = []
    cue.on_start(lambda work: calls.append(("start", work.id, work.attempt, work.state.value)))
    cue.on_complete(lambda work, result, duration: calls.append(("complete", work.id, result, duration)))
    cue.on_failure(lambda work, error, will_retry: calls.append(("failure", work.id, str(error), will_retry)))
    cue.on_skip(lambda work: calls.append(("skip", work.id, work.skipped)))
    cue.on_cancel(lambda work: calls.append(("cancel", work.id, work.state.value)))
    return calls


# --- Who is called --------------------------------------------------------------------------------


async def test_completed_work_is_told_with_its_result_and_duration() -> None:
    cue = Cue()
    with_call(cue)
    calls = listening(cue)
    async with cue:
        await cue.submit("call", id="a", params={"seconds": 5})
        await cue.join()
    assert calls == [("start", "a", 1, "running"), ("complete", "a", "done", 5)]


async def test_each_failed_attempt_is_told_with_whether_another_follows() -> None:
    cue = Cue()
    with_call(cue)
    calls = listening(cue)
    async with cue:
        await cue.submit("call", id="a", params={"fails": 9})
        await cue.join()
    assert calls == [
        ("start", "a", 1, "running"),
        ("failure", "a", "number 1", True),
        ("start", "a", 2, "running"),
        ("failure", "a", "number 2", False),
    ]


async def test_on_failure_with_two_arguments_hears_of_final_failures_only() -> None:
    cue = Cue()
    with_call(cue)
    errors: list[BaseException] = []
    cue.on_failure(lambda work, error: errors.append(error))
    async with cue:
        await cue.submit("call", params={"fails": 1})
        await cue.submit("call", params={"fails": 9})
        await cue.join()
    assert [(type(error), str(error)) for error in errors] == [(OSError, "number 2")]


async def test_an_async_on_failure_with_two_arguments_works_the_same() -> None:
    cue = Cue()
    with_call(cue)
    errors: list[str] = []

    @cue.on_failure
    async def failed(work: Work, error: BaseException) -> None:
        errors.append(str(error))

    async with cue:
        await cue.submit("call", params={"fails": 9})
        await cue.join()
    assert errors == ["number 2"]


async def test_the_error_is_the_exception_that_was_raised() -> None:
    cue = Cue()
    raised = ZeroDivisionError("mine")
    errors: list[BaseException] = []
    cue.on_failure(lambda work, error: errors.append(error))

    @cue.task("bad")
    async def bad(work: Work) -> None:
        raise raised

    async with cue:
        await cue.wait(await cue.submit("bad"))
    assert errors == [raised]


async def test_skipped_and_cancelled_work_is_told() -> None:
    cue = Cue()
    with_call(cue)
    calls = listening(cue)
    cue.is_stale(lambda work: work.id != "valid")
    async with cue:
        await cue.submit("call", id="valid")
        await cue.submit("call", id="gone", delay=5)
        await cue.cancel("gone")
        await cue.join()
    assert sorted(calls) == [("cancel", "gone", "cancelled"), ("skip", "valid", True)]


async def test_a_callback_gets_a_frozen_work() -> None:
    cue = Cue()
    with_call(cue)
    works: list[Work] = []
    cue.on_complete(lambda work, result, duration: works.append(work))
    async with cue:
        await cue.wait(await cue.submit("call"))
    assert isinstance(works[0], Work)
    assert works[0].result == "done"
    with pytest.raises(AttributeError):
        works[0].state = "failed"  # type: ignore[misc,assignment]


async def test_on_start_comes_before_the_handler() -> None:
    cue = Cue()
    order: list[str] = []
    cue.on_start(lambda work: order.append("on_start"))

    @cue.task("call")
    async def call(work: Work) -> None:
        order.append("handler")

    async with cue:
        await cue.wait(await cue.submit("call"))
    assert order == ["on_start", "handler"]


async def test_a_callback_that_is_cancelled_before_it_began_leaves_no_coroutine_behind() -> None:
    """As when a loop ends at that moment: Python would complain that it was never awaited."""
    cue = Cue()
    with_call(cue)
    made: list[Coroutine[Any, Any, None]] = []

    async def late(work: Work) -> None:
        raise AssertionError("it was cancelled before")

    def cancel() -> None:
        for task in asyncio.all_tasks():
            if task.get_name() == "runcue callback":
                task.cancel()

    @cue.on_start
    def on_start(work: Work) -> Coroutine[Any, Any, None]:
        asyncio.get_running_loop().call_soon(cancel)
        made.append(late(work))
        return made[0]

    async with cue:
        await cue.wait(await cue.submit("call"))
    assert inspect.getcoroutinestate(made[0]) == inspect.CORO_CLOSED


async def test_a_callback_registered_again_replaces_the_first() -> None:
    cue = Cue()
    with_call(cue)
    calls: list[str] = []
    cue.on_start(lambda work: calls.append("old"))
    cue.on_start(lambda work: calls.append("new"))
    async with cue:
        await cue.wait(await cue.submit("call"))
    assert calls == ["new"]


async def test_a_callback_registered_while_running_is_called_from_then_on() -> None:
    cue = Cue()
    with_call(cue)
    calls: list[str] = []
    async with cue:
        await cue.wait(await cue.submit("call", id="a"))
        cue.on_complete(lambda work, result, duration: calls.append(work.id))
        await cue.wait(await cue.submit("call", id="b"))
    assert calls == ["b"]


async def test_decorators_give_the_function_back_unchanged() -> None:
    cue = Cue()

    def function(work: Work) -> None: ...

    assert cue.on_start(function) is function
    assert cue.on_skip(function) is function
    assert cue.on_cancel(function) is function


@pytest.mark.parametrize(
    ("register", "function"),
    [
        (Cue.on_complete, lambda work: None),
        (Cue.on_failure, lambda work: None),
        (Cue.is_ready, lambda: True),
        (Cue.priority, lambda a, b: 1),
        (Cue.on_start, 5),
    ],
)
async def test_a_function_of_other_arguments_is_refused_at_once(
    register: Callable[..., Any], function: Any
) -> None:
    with pytest.raises(runcue.ConfigError):
        register(Cue(), function)


# --- Order ----------------------------------------------------------------------------------------


async def test_async_callbacks_of_one_work_run_one_after_the_other() -> None:
    cue = Cue()
    with_call(cue)
    order: list[str] = []

    @cue.on_start
    async def started(work: Work) -> None:
        order.append(f"start {work.attempt} begins")
        await asyncio.sleep(10)
        order.append(f"start {work.attempt} ends")

    @cue.on_failure
    async def failed(work: Work, error: BaseException, will_retry: bool) -> None:
        order.append(f"failure {work.attempt} begins")
        await asyncio.sleep(5)
        order.append(f"failure {work.attempt} ends")

    @cue.on_complete
    async def completed(work: Work, result: str, duration: float) -> None:
        order.append("complete")

    async with cue:
        await cue.submit("call", params={"fails": 1})
        await cue.join()
    assert order == [
        "start 1 begins",
        "start 1 ends",
        "failure 1 begins",
        "failure 1 ends",
        "start 2 begins",
        "start 2 ends",
        "complete",
    ]


async def test_a_plain_callback_waits_for_the_async_one_of_the_same_work_before_it() -> None:
    cue = Cue()
    with_call(cue)
    order: list[str] = []

    @cue.on_start
    async def started(work: Work) -> None:
        await asyncio.sleep(10)
        order.append("start")

    cue.on_complete(lambda work, result, duration: order.append("complete"))
    async with cue:
        await cue.submit("call")
        await cue.join()
    assert order == ["start", "complete"]


async def test_a_slow_callback_of_one_work_delays_no_other() -> None:
    cue = Cue()
    with_call(cue)
    completed: dict[str, float] = {}

    @cue.on_start
    async def started(work: Work) -> None:
        await asyncio.sleep(100 if work.id == "slow" else 0)

    cue.on_complete(lambda work, result, duration: completed.setdefault(work.id, clock()))
    async with cue:
        await cue.submit("call", id="slow")
        await cue.submit("call", id="fast")
        await cue.join()
        assert clock() == 0  # the works themselves waited for nobody
    assert completed == {"fast": 0, "slow": 100}


async def test_async_callbacks_have_run_when_stop_returns() -> None:
    cue = Cue()
    with_call(cue)
    finished: list[str] = []

    @cue.on_complete
    async def completed(work: Work, result: str, duration: float) -> None:
        await asyncio.sleep(60)
        finished.append(work.id)

    async with cue:
        await cue.submit("call", id="a")
        await cue.submit("call", id="b")
        await settle()
    assert sorted(finished) == ["a", "b"]
    assert clock() == 60


async def test_async_callbacks_of_a_cue_that_was_never_started_have_run_when_stop_returns() -> None:
    cue = Cue()
    with_call(cue)
    finished: list[str] = []

    @cue.on_cancel
    async def cancelled(work: Work) -> None:
        await asyncio.sleep(60)
        finished.append(work.id)

    await cue.submit("call", id="a")
    await cue.cancel("a")
    await cue.stop()
    assert finished == ["a"]


async def test_a_callback_may_submit_the_next_step() -> None:
    cue = Cue()
    with_call(cue)
    order: list[str] = []
    all_done = asyncio.Event()

    @cue.on_complete
    async def completed(work: Work, result: str, duration: float) -> None:
        order.append(work.id)
        if len(order) < 5:
            await cue.submit("call", id=f"step {len(order)}")
        else:
            all_done.set()

    async with cue:
        await cue.submit("call", id="step 0")
        await all_done.wait()
    assert order == [f"step {number}" for number in range(5)]


# --- Mistakes -------------------------------------------------------------------------------------


class Silent(Exception):
    """An error that cannot even be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


MISTAKES: list[BaseException] = [
    ValueError("oops"),
    Silent(),
    asyncio.CancelledError(),
    SystemExit(3),
    GeneratorExit(),
    BaseException("base"),
]


@pytest.mark.parametrize("error", MISTAKES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
async def test_a_callback_that_raises_changes_no_outcome_and_is_told_once(
    error: BaseException, is_async: bool
) -> None:
    cue = Cue()
    with_call(cue)

    def plain(work: Work, *rest: object) -> None:
        raise error

    async def later(work: Work, *rest: object) -> None:
        await asyncio.sleep(0.1)
        raise error

    wrong = later if is_async else plain
    cue.on_start(wrong)
    cue.on_complete(wrong)
    async with cue:
        for _ in range(3):
            assert (await cue.wait(await cue.submit("call"), timeout=60)).state == "completed"
    failures = await told(cue, "callback_failed")
    assert sorted(event.callback for event in failures) == ["on_complete", "on_start"]
    assert all(wrong.__name__ in event.function for event in failures)
    assert {str(event.error).partition(":")[0] for event in failures} == {type(error).__name__}


async def test_a_failing_on_failure_does_not_stop_the_retry() -> None:
    cue = Cue()
    with_call(cue)

    @cue.on_failure
    def failed(work: Work, error: BaseException, will_retry: bool) -> None:
        raise ZeroDivisionError

    async with cue:
        work = await cue.wait(await cue.submit("call", params={"fails": 1}))
    assert (work.state, work.attempt) == ("completed", 2)


async def test_different_causes_are_told_separately() -> None:
    cue = Cue()
    with_call(cue)

    @cue.on_complete
    def completed(work: Work, result: str, duration: float) -> None:
        raise KeyError("a") if work.id in {"0", "1"} else IndexError("b")

    async with cue:
        for number in range(4):
            await cue.wait(await cue.submit("call", id=str(number)))
    errors = [str(event.error) for event in await told(cue, "callback_failed")]
    assert [error.partition(":")[0] for error in errors] == ["KeyError", "IndexError"]


async def test_the_error_of_a_failed_callback_is_with_its_event() -> None:
    cue = Cue()
    with_call(cue)

    @cue.on_start
    def started(work: Work) -> None:
        raise ZeroDivisionError("mine")

    async with cue:
        await cue.wait(await cue.submit("call"))
    assert [event.error for event in await told(cue, "callback_failed")] == ["ZeroDivisionError: mine"]


async def test_a_callback_that_raises_after_everything_else_is_still_told() -> None:
    cue = Cue()
    with_call(cue)

    @cue.on_complete
    async def completed(work: Work, result: str, duration: float) -> None:
        await asyncio.sleep(100)
        raise ZeroDivisionError

    async with cue:
        await cue.submit("call")
        await settle()
    assert len(await told(cue, "callback_failed")) == 1


# --- Waiting too long -----------------------------------------------------------------------------


async def test_work_pending_for_long_is_warned_of_once() -> None:
    cue = Cue(pending_warn_after=30)
    with_call(cue)
    warnings: list[tuple[str, float, float]] = []
    cue.on_pending_warning(lambda work, seconds: warnings.append((work.id, seconds, clock())))
    async with cue:
        await cue.submit("call", id="stuck", depends_on=["never"])
        await cue.submit("call", id="fine")
        await asyncio.sleep(300)
        await cue.cancel("stuck")
    assert warnings == [("stuck", 30, 30)]


async def test_work_pending_for_too_long_fails() -> None:
    cue = Cue(pending_timeout=60)
    with_call(cue)
    errors: list[BaseException] = []
    cue.on_failure(lambda work, error: errors.append(error))
    async with cue:
        work = await cue.wait(await cue.submit("call", depends_on=["never"]))
    assert (work.state, clock()) == ("failed", 60)
    assert str(work.error).startswith("TimeoutError: Pending timeout")
    assert [type(error) for error in errors] == [TimeoutError]
    assert str(errors[0]).startswith("Pending timeout")


async def test_running_work_is_not_pending() -> None:
    cue = Cue(pending_timeout=60, pending_warn_after=30)
    with_call(cue)
    warnings: list[str] = []
    cue.on_pending_warning(lambda work, seconds: warnings.append(work.id))
    async with cue:
        work = await cue.wait(await cue.submit("call", params={"seconds": 600}))
    assert (work.state, warnings) == ("completed", [])


async def test_work_that_waits_for_its_time_is_pending_from_then_on() -> None:
    cue = Cue(pending_timeout=60)
    with_call(cue)
    async with cue:
        work = await cue.wait(await cue.submit("call", delay=3600))
    assert work.state == "completed"


async def test_a_queue_that_stands_still_is_warned_of_once() -> None:
    cue = Cue(stall_warn_after=30)
    with_call(cue)
    warnings: list[tuple[float, int, float]] = []
    cue.on_stall_warning(lambda seconds, pending: warnings.append((seconds, pending, clock())))
    async with cue:
        await cue.submit("call", id="a", depends_on=["never"])
        await cue.submit("call", id="b", depends_on=["never"])
        await asyncio.sleep(300)
        await cue.cancel("a")
        await cue.cancel("b")
    assert warnings == [(30, 2, 30)]


async def test_a_queue_that_stands_still_for_too_long_fails_all_pending() -> None:
    cue = Cue(stall_timeout=60)
    with_call(cue)
    async with cue:
        ids = [await cue.submit("call", depends_on=["never"]) for _ in range(3)]
        await cue.join(timeout=100)
        assert clock() == 60
        errors = {(await cue.wait(work_id)).error for work_id in ids}
    assert len(errors) == 1
    assert str(errors.pop()).startswith("TimeoutError: Stall timeout")


async def test_a_queue_that_moves_does_not_stall() -> None:
    cue = Cue(stall_timeout=60)
    with_call(cue)
    async with cue:
        await cue.submit("call", id="waits", depends_on=["last"])
        for _ in range(10):
            await cue.submit("call")
            await asyncio.sleep(50)
        await cue.submit("call", id="last")
        assert (await cue.wait("waits")).state == "completed"


async def test_long_running_work_is_no_stall() -> None:
    cue = Cue(stall_timeout=60)
    with_call(cue)
    async with cue:
        await cue.submit("call", id="long", params={"seconds": 600})
        await cue.submit("call", id="after", depends_on=["long"])
        assert (await cue.wait("after")).state == "completed"


async def test_work_that_waits_for_its_time_is_no_stall() -> None:
    cue = Cue(stall_timeout=60)
    with_call(cue)
    async with cue:
        work = await cue.wait(await cue.submit("call", delay=3610))
    assert work.state == "completed"


async def test_warnings_nobody_registered_for_go_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    cue = Cue(pending_warn_after=10, stall_warn_after=20)
    with_call(cue)
    async with cue:
        await cue.submit("call", id="a", depends_on=["never"])
        await asyncio.sleep(60)
        await cue.cancel("a")
    messages = [record.getMessage() for record in caplog.records]
    assert any("pending_warning" in message and "work_id=a" in message for message in messages)
    assert any("stall_warning" in message and "pending=1" in message for message in messages)
