"""Failed attempts, their delays, dead letters, and retrying by hand."""

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

import runcue
from runcue import Cue, Retry, Work, WorkState
from tests.engine.seen import clock, epoch, story, told
from tests.handlers import taking


class Flaky:
    """A handler that raises what it is given until it has nothing left; writes down its starts."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.at: list[float] = []
        self.attempts: list[int] = []

    async def __call__(self, work: Work) -> str:
        self.at.append(clock())
        self.attempts.append(work.attempt)
        if self.errors:
            raise self.errors.pop(0)
        return "at last"


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times)]


async def ran(handler: Callable[..., Any], **options: Any) -> tuple[Cue, Work]:
    """One work of a task with this handler, run to its end."""
    cue = Cue()
    cue.task("call", **options)(handler)
    async with cue:
        work = await cue.wait(await cue.submit("call", id="a"))
    return cue, work


# --- How often ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("retry", "attempts"), [(None, 1), (0, 1), (1, 1), (3, 3), ({"max_attempts": 2}, 2)])
async def test_retry_is_the_number_of_attempts_in_all(retry: Any, attempts: int) -> None:
    handler = Flaky(*(OSError("no") for _ in range(10)))
    _, work = await ran(handler, retry=retry)
    assert (work.state, work.attempt) == ("failed", attempts)
    assert handler.attempts == list(range(1, attempts + 1))


async def test_the_attempt_that_succeeds_ends_it() -> None:
    handler = Flaky(OSError("no"), OSError("no"))
    cue, work = await ran(handler, retry=5)
    assert (work.state, work.attempt, work.result, work.error) == ("completed", 3, "at last", None)
    assert await story(cue, "a") == [
        "queued",
        "started",
        "failed",
        "retrying",
        "started",
        "failed",
        "retrying",
        "started",
        "completed",
    ]


async def test_the_history_of_failed_attempts_is_kept() -> None:
    cue = Cue()

    @cue.task("call", retry=Retry(max_attempts=3, backoff="fixed", base_delay=10, jitter=False))
    async def call(work: Work) -> None:
        await asyncio.sleep(2)
        raise OSError(f"number {work.attempt}")

    async with cue:
        began = epoch()
        work = await cue.wait(await cue.submit("call"))
    assert work.error == "OSError: number 3"
    assert work.traceback is not None
    assert 'raise OSError(f"number {work.attempt}")' in work.traceback
    assert [(line.number, line.at, line.duration, line.error) for line in work.history] == [
        (1, began, 2, "OSError: number 1"),
        (2, began + 12, 2, "OSError: number 2"),
        (3, began + 24, 2, "OSError: number 3"),
    ]


async def test_waiting_to_retry_is_pending_with_its_time() -> None:
    cue = Cue()
    cue.task("call", retry=Retry(max_attempts=2, base_delay=60, jitter=False))(Flaky(OSError("no")))
    async with cue:
        began = epoch()
        work_id = await cue.submit("call")
        await asyncio.sleep(1)
        work = await cue.get(work_id)
        assert work is not None
        assert (work.state, work.next_retry_at, work.error) == ("pending", began + 60, "OSError: no")
        assert (await cue.wait(work_id)).next_retry_at is None


# --- How long -------------------------------------------------------------------------------------


POLICIES: dict[str, tuple[dict[str, Any], list[float]]] = {
    "exponential": ({"backoff": "exponential", "base_delay": 1}, [1, 2, 4, 8]),
    "linear": ({"backoff": "linear", "base_delay": 2}, [2, 4, 6, 8]),
    "fixed": ({"backoff": "fixed", "base_delay": "3s"}, [3, 3, 3, 3]),
    "power": ({"backoff": "power", "base_delay": 3}, [3, 9, 27, 81]),
    "capped": ({"backoff": "exponential", "base_delay": 10, "max_delay": 25}, [10, 20, 25, 25]),
}


@pytest.mark.parametrize(("policy", "delays"), POLICIES.values(), ids=POLICIES.keys())
async def test_delays_follow_the_policy(policy: dict[str, Any], delays: list[float]) -> None:
    handler = Flaky(*(OSError("no") for _ in range(4)))
    await ran(handler, retry=Retry(max_attempts=5, jitter=False, **policy))
    assert gaps(handler.at) == pytest.approx(delays)


async def test_jitter_takes_half_to_all_of_the_delay_and_differs_between_works() -> None:
    cue = Cue()
    times: dict[str, list[float]] = {}

    @cue.task("call", retry=Retry(max_attempts=2, backoff="fixed", base_delay=100))
    async def call(work: Work) -> None:
        times.setdefault(work.id, []).append(clock())
        raise OSError("no")

    async with cue:
        await cue.submit_many({"task": "call", "id": f"w{n}"} for n in range(50))
        await cue.join()
    delays = [second - first for first, second in times.values()]
    assert all(50 <= delay <= 100 for delay in delays)
    assert len({round(delay, 3) for delay in delays}) > 40


async def test_a_delay_beyond_all_numbers_is_the_longest_allowed() -> None:
    handler = Flaky(*(OSError("no") for _ in range(150)))
    _, work = await ran(handler, retry=Retry(max_attempts=151, base_delay=1e290, max_delay=0.01))
    assert (work.state, work.attempt) == ("completed", 151)
    assert len(work.history) <= 100


# --- What is not retried --------------------------------------------------------------------------


class ValidationError(Exception):
    """As pydantic and others call theirs."""


class HttpError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status_code = status


@pytest.mark.parametrize(
    "error",
    [runcue.Permanent("no use"), ValidationError("bad"), HttpError(404), HttpError(400), HttpError(422)],
    ids=repr,
)
async def test_what_cannot_get_better_is_not_retried(error: Exception) -> None:
    handler = Flaky(error)
    _, work = await ran(handler, retry=5)
    assert (work.state, handler.attempts) == ("failed", [1])


@pytest.mark.parametrize("status", [408, 425, 500, 502, 503])
async def test_http_errors_that_may_get_better_are_retried(status: int) -> None:
    handler = Flaky(HttpError(status))
    _, work = await ran(handler, retry=2)
    assert work.state == "completed"


async def test_retry_on_names_the_classes_that_are_retried() -> None:
    policy = Retry(max_attempts=5, retry_on=(OSError,))
    _, work = await ran(Flaky(OSError("no"), KeyError("no")), retry=policy)
    assert (work.state, work.attempt) == ("failed", 2)


async def test_retry_on_may_be_a_function_of_the_exception() -> None:
    policy = Retry(max_attempts=5, retry_on=lambda error: "again" in str(error))
    _, work = await ran(Flaky(OSError("again"), OSError("enough")), retry=policy)
    assert (work.state, work.attempt) == ("failed", 2)


async def test_a_retry_on_that_raises_does_not_take_the_chance_away() -> None:
    def broken(error: BaseException) -> bool:
        raise ZeroDivisionError

    _, work = await ran(Flaky(OSError("no")), retry=Retry(max_attempts=2, retry_on=broken))
    assert work.state == "completed"


# --- What a handler may ask for -------------------------------------------------------------------


async def test_retry_later_fails_the_attempt_and_sets_the_time_of_the_next() -> None:
    handler = Flaky(runcue.RetryLater(after=30), runcue.RetryLater(after="5m"))
    _, work = await ran(handler, retry=3)
    assert (work.state, work.attempt, len(work.history)) == ("completed", 3, 2)
    assert gaps(handler.at) == [30, 300]


async def test_retry_later_counts_as_a_failed_attempt() -> None:
    _, work = await ran(Flaky(runcue.RetryLater(after=1)))
    assert work.state == "failed"


async def test_snooze_runs_again_later_without_counting_an_attempt() -> None:
    handler = Flaky(*(runcue.Snooze(30) for _ in range(5)))
    cue, work = await ran(handler)
    assert (work.state, work.attempt, work.history) == ("completed", 1, ())
    assert handler.attempts == [1] * 6
    assert gaps(handler.at) == [30] * 5
    assert await told(cue, "failed", "retrying") == []


async def test_snooze_between_failures_keeps_the_numbers() -> None:
    handler = Flaky(OSError("no"), runcue.Snooze(1), OSError("no"))
    _, work = await ran(handler, retry=3)
    assert (work.state, handler.attempts) == ("completed", [1, 2, 2, 3])


@pytest.mark.parametrize("error", [runcue.Snooze("soon"), runcue.RetryLater(float("nan"))], ids=repr)
async def test_a_time_nobody_can_read_is_the_failure(error: Exception) -> None:
    _, work = await ran(Flaky(error))
    assert work.state == "failed"
    assert "after" in str(work.error)


# --- Dead letters ---------------------------------------------------------------------------------


async def test_dead_letters_are_listed_newest_first() -> None:
    cue = Cue()
    cue.task("bad")(Flaky(OSError("1"), OSError("2"), OSError("3")))
    cue.task("other")(Flaky(OSError("4")))
    async with cue:
        for name in ("a", "b", "c"):
            await cue.wait(await cue.submit("bad", id=name))
        await cue.wait(await cue.submit("bad", id="fine"))
        await cue.wait(await cue.submit("other", id="d"))
        assert [work.id for work in await cue.dead()] == ["d", "c", "b", "a"]
        assert [work.id for work in await cue.dead(task="bad", limit=2)] == ["c", "b"]


async def test_retrying_a_dead_letter_gives_it_a_fresh_budget() -> None:
    cue = Cue()
    handler = Flaky(*(OSError("no") for _ in range(4)))
    cue.task("call", retry=3)(handler)
    async with cue:
        await cue.wait(await cue.submit("call", id="a"))
        assert await cue.retry("a")
        work = await cue.wait("a")
    assert (work.state, work.error, work.result) == ("completed", None, "at last")
    assert handler.attempts == [1, 2, 3, 4, 5]
    assert len(work.history) == 4
    assert (await cue.count())[WorkState.FAILED] == 0


async def test_cancelled_work_can_be_retried() -> None:
    cue = Cue()
    cue.task("call")(Flaky())
    async with cue:
        await cue.submit("call", id="a", delay=60)
        await cue.cancel("a")
        assert await cue.retry("a")
        work = await cue.wait("a")
    assert work.state == "completed"


async def test_completed_pending_and_running_work_cannot_be_retried() -> None:
    cue = Cue()
    cue.task("call")(taking(10))
    async with cue:
        await cue.submit("call", id="pending", delay=5)
        await cue.submit("call", id="running")
        await asyncio.sleep(1)
        assert not await cue.retry("pending")
        assert not await cue.retry("running")
        await cue.join()
        assert not await cue.retry("running")
    assert [event.work_id for event in await told(cue, "started")] == ["running", "pending"]


async def test_retrying_unknown_work_is_an_error() -> None:
    cue = Cue()
    with pytest.raises(runcue.WorkNotFound, match="'nobody'"):
        await cue.retry("nobody")


async def test_work_whose_key_was_taken_over_cannot_be_retried() -> None:
    cue = Cue()
    cue.task("call")(Flaky(OSError("no")))
    async with cue:
        first = await cue.submit("call", idempotency_key="k")
        await cue.wait(first)
        second = await cue.submit("call", idempotency_key="k")
        with pytest.raises(runcue.DuplicateWork) as raised:
            await cue.retry(first)
        assert raised.value.work_id == second


async def test_a_waiter_of_retried_work_gets_its_new_end() -> None:
    cue = Cue()
    cue.task("call")(Flaky(OSError("no")))
    async with cue:
        await cue.wait(await cue.submit("call", id="a"))
        await cue.retry("a")
        assert await cue.result("a") == "at last"


async def test_only_the_last_failure_is_final() -> None:
    cue, _ = await ran(Flaky(OSError("1"), OSError("2"), OSError("3")), retry=3)
    assert [(event.final, event.will_retry, event.attempt) for event in await told(cue, "failed")] == [
        (False, True, 1),
        (False, True, 2),
        (True, False, 3),
    ]


async def test_a_retry_on_that_raises_is_told_and_the_work_is_tried_again() -> None:
    def broken(error: BaseException) -> bool:
        raise TypeError("no len()")

    handler = Flaky(OSError("no"), OSError("no"))
    _, work = await ran(handler, retry=Retry(max_attempts=2, base_delay=0, retry_on=broken))
    assert (work.state, work.attempt) == (WorkState.FAILED, 2)
    assert work.error == "OSError: no (retry_on raised TypeError: no len())"


# --- When, by a function --------------------------------------------------------------------------


async def test_a_function_of_the_task_says_when_the_next_attempt_starts() -> None:
    pauses = {1: 7, 2: "1m"}
    handler = Flaky(OSError("no"), OSError("no"))
    await ran(handler, retry=3, retry_delay=lambda work: pauses[work.failures])
    assert gaps(handler.at) == [7, 60]


async def test_it_is_asked_when_an_attempt_has_failed_and_another_follows() -> None:
    asked: list[tuple[float, int]] = []
    cue = Cue()

    def pause(work: Work) -> float:
        asked.append((clock(), work.failures))
        return 5.0

    @cue.task("call", retry_delay=pause)
    async def call(work: Work) -> None:
        await asyncio.sleep(10)
        raise OSError("no")

    began = clock()
    async with cue:
        await cue.wait(await cue.submit(call, retry=3))
    assert asked == [(began + 10, 1), (began + 25, 2)]


async def test_it_holds_after_a_timeout_too() -> None:
    cue, at = Cue(), list[float]()

    @cue.task("call", retry=2, timeout=10, retry_delay=lambda work: 5)
    async def call(work: Work) -> None:
        at.append(clock())
        await asyncio.sleep(100)

    async with cue:
        await cue.wait(await cue.submit(call))
    assert gaps(at) == [15]


async def test_a_handler_that_says_when_is_believed_before_it() -> None:
    handler = Flaky(runcue.RetryLater(after=30))
    await ran(handler, retry=2, retry_delay=lambda work: 5)
    assert gaps(handler.at) == [30]


async def test_without_an_answer_the_policy_decides() -> None:
    handler = Flaky(OSError("no"))
    policy = Retry(2, "fixed", base_delay=4, jitter=False)
    await ran(handler, retry=policy, retry_delay=lambda work: None)
    assert gaps(handler.at) == [4]


@pytest.mark.parametrize("answer", [-1, "soon", float("nan"), True, [5], ZeroDivisionError("mine")])
async def test_nonsense_is_told_and_the_policy_decides(answer: Any) -> None:
    def pause(work: Work) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    handler = Flaky(OSError("no"))
    cue, work = await ran(handler, retry=Retry(2, "fixed", base_delay=4, jitter=False), retry_delay=pause)
    assert (work.state, gaps(handler.at)) == ("completed", [4])
    [event] = await told(cue, "callback_failed")
    assert event.data["callback"] == "retry_delay"


async def _slow(work: Work) -> float:
    return 5.0


@pytest.mark.parametrize("value", [5, "soon", lambda: 5, lambda work, more: 5, _slow])
def test_what_is_no_function_of_work_is_refused(value: Any) -> None:
    with pytest.raises(runcue.ConfigError, match=r"^Invalid retry_delay: .* a plain function of work"):
        Cue().task("call", retry_delay=value)


@pytest.mark.memory
@pytest.mark.parametrize("again", [runcue.Snooze, runcue.RateLimited])
@pytest.mark.parametrize("after", [-1, 0, "0s"])
async def test_work_that_always_asks_to_run_again_at_once_does_not_spin(
    again: type[Exception], after: float | str
) -> None:
    cue = Cue()
    starts: list[float] = []

    @cue.task("call")
    async def call(work: Work) -> None:
        starts.append(clock())
        assert len(starts) <= 100, "it spins"
        raise again(after)

    async with cue:
        await cue.submit("call")
        await asyncio.sleep(1)
    assert 10 <= len(starts) <= 21


async def test_a_later_retry_comes_at_once_if_it_is_asked_for_as_its_attempts_are_counted() -> None:
    handler = Flaky(runcue.RetryLater(0), runcue.RetryLater(-5))
    _, work = await ran(handler, retry=3)
    assert (work.state, handler.at) == ("completed", [0, 0, 0])
