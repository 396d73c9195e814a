"""Callbacks that misbehave: they delay others at most once, and decide nothing they should not."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from runcue import Cue, Event, PriorityContext, Work
from runcue.engine.callback_threads import MOST_STUCK, Overrun, OwnThread

PATIENCE = 240


def one_at_a_time(cue: Cue) -> list[str]:
    """Register "call" on a service with one place; the ids in the order they started."""
    cue.service("api", concurrent=1)
    order: list[str] = []

    @cue.task("call", uses="api")
    async def call(work: Work) -> str:
        order.append(work.id)
        return "done"

    return order


# --- CB1: priority --------------------------------------------------------------------------------


def raising() -> float:
    raise ZeroDivisionError


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


NONSENSE: dict[str, Callable[[], Any]] = {
    "NaN": lambda: float("nan"),
    "None": lambda: None,
    "text": lambda: "0.9",
    "complex": lambda: 0.9 + 0j,
    "a bool": lambda: True,
    "a list": lambda: [0.9],
    "what cannot be shown": Unshowable,
    "raises": raising,
}


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE.keys())
async def test_a_nonsense_score_counts_as_one_half_and_is_told_once(nonsense: Callable[[], Any]) -> None:
    cue = Cue()
    order = one_at_a_time(cue)
    scores: dict[str, Callable[[], Any]] = {"high": lambda: 0.6, "odd": nonsense, "low": lambda: 0.4}
    cue.priority(lambda ctx: scores[ctx.work.id]())
    for name in ("low", "odd", "high"):
        await cue.submit("call", id=name)
    async with cue:
        await cue.join(timeout=PATIENCE)
    assert order == ["high", "odd", "low"]
    failures = [event async for event in cue.events("callback_failed")]
    assert [event.callback for event in failures] == ["priority"]


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (2, ["odd", "high", "low"]),
        (float("inf"), ["odd", "high", "low"]),
        (10**400, ["odd", "high", "low"]),
        (-1, ["high", "low", "odd"]),
        (float("-inf"), ["high", "low", "odd"]),
    ],
    ids=["2", "inf", "huge", "-1", "-inf"],
)
async def test_a_score_out_of_range_is_clamped(score: float, expected: list[str]) -> None:
    cue = Cue()
    order = one_at_a_time(cue)
    scores = {"high": 0.9, "odd": score, "low": 0.1}
    cue.priority(lambda ctx: scores[ctx.work.id])
    for name in ("low", "odd", "high"):
        await cue.submit("call", id=name)
    async with cue:
        await cue.join(timeout=PATIENCE)
    assert order == expected


async def test_the_best_of_several_goes_first_also_when_asking_takes_a_while() -> None:
    cue = Cue(callback_timeout=5)
    order = one_at_a_time(cue)

    @cue.priority
    def slow(ctx: PriorityContext) -> float:
        time.sleep(0.005)
        return int(ctx.work.id) / 10

    for number in range(6):
        await cue.submit("call", id=str(number))
    async with cue:
        await cue.join(timeout=PATIENCE)
    assert order[0] == "5"


async def test_an_inconsistent_priority_crashes_nothing() -> None:
    cue = Cue()
    order = one_at_a_time(cue)
    calls: list[int] = []

    @cue.priority
    def score(ctx: PriorityContext) -> float:
        calls.append(1)
        return len(calls) * 7919 % 13 / 13

    ids = await cue.submit_many({"task": "call"} for _ in range(200))
    async with cue:
        await cue.join(timeout=PATIENCE)
    assert sorted(order) == sorted(ids)


async def test_a_callback_that_overran_is_called_off_the_loop_from_then_on() -> None:
    cue = Cue()
    one_at_a_time(cue)
    threads: list[int] = []

    @cue.priority
    def slow(ctx: PriorityContext) -> float:
        threads.append(threading.get_ident())
        time.sleep(0.15)
        return 0.5

    async with cue:
        for _ in range(3):
            await cue.wait(await cue.submit("call"), timeout=PATIENCE)
    assert threads[0] == threading.get_ident()
    assert threading.get_ident() not in threads[1:]
    failures = [event async for event in cue.events("callback_failed")]
    assert [event.callback for event in failures] == ["priority"]
    assert "longer than 0.1 s" in str(failures[0].error)


async def test_a_callback_that_never_returns_delays_its_work_but_does_not_stop_it(
    kept_waiting: threading.Event,
) -> None:
    cue = Cue()
    order = one_at_a_time(cue)
    calls: list[str] = []

    @cue.priority
    def stuck(ctx: PriorityContext) -> float:
        calls.append(ctx.work.id)
        if len(calls) == 1:
            time.sleep(0.15)  # enough to be moved to a thread of its own
        else:
            kept_waiting.wait()
        return 0.5

    async with cue:
        for number in range(7):
            await cue.wait(await cue.submit("call", id=str(number)), timeout=PATIENCE)
    assert order == ["0", "1", "2", "3", "4", "5", "6"]
    assert len(calls) == 1 + MOST_STUCK  # nobody else is sent after those that are stuck


async def test_a_score_that_takes_too_long_costs_no_other_its_own(kept_waiting: threading.Event) -> None:
    cue = Cue(callback_timeout=1)
    order = one_at_a_time(cue)

    @cue.priority
    def score(ctx: PriorityContext) -> float:
        if ctx.work.id == "slow":
            if threading.current_thread() is threading.main_thread():
                time.sleep(1.1)
            else:
                kept_waiting.wait()
            return 1.0
        return float(ctx.work.id)

    await cue.submit_many({"task": "call", "id": one} for one in ("0.4", "0.9", "0.6", "slow", "0.1"))
    async with cue:
        await cue.join(timeout=PATIENCE)
    assert order == ["0.9", "0.6", "slow", "0.4", "0.1"]


async def test_a_call_behind_one_that_is_stuck_is_answered_in_another_thread(
    kept_waiting: threading.Event,
) -> None:
    threads = OwnThread("callback")
    for _ in range(MOST_STUCK):
        assert await threads.call(abs, (-1,), PATIENCE) == 1
        with pytest.raises(Overrun):
            await threads.call(kept_waiting.wait, (), 0.01)
    with pytest.raises(Overrun):  # as many as there may be: nobody is sent after them
        await threads.call(abs, (-1,), 0.01)
    kept_waiting.set()
    assert await threads.call(abs, (-1,), PATIENCE) == 1
    threads.close()


async def test_an_async_callback_that_never_returns_is_cut_off() -> None:
    cue = Cue()
    order = one_at_a_time(cue)
    cut_off: list[str] = []

    @cue.priority
    async def stuck(ctx: PriorityContext) -> float:
        try:
            await asyncio.sleep(3600)
        finally:
            cut_off.append(ctx.work.id)
        return 0.5

    async with cue:
        await cue.wait(await cue.submit("call", id="a"), timeout=PATIENCE)
    assert order == ["a"]
    assert set(cut_off) == {"a"}


async def test_the_limit_is_an_option() -> None:
    cue = Cue(callback_timeout=5)
    one_at_a_time(cue)

    @cue.is_ready
    def slow(work: Work) -> bool:
        time.sleep(0.15)
        return True

    async with cue:
        await cue.wait(await cue.submit("call"), timeout=PATIENCE)
    assert [event async for event in cue.events("callback_failed")] == []


async def test_a_watchdog_names_the_callback_that_holds_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    cue = Cue()
    one_at_a_time(cue)
    calls: list[int] = []

    @cue.is_ready
    def sleepy(work: Work) -> bool:
        calls.append(1)
        if len(calls) == 1:
            time.sleep(2.6)
        return True

    with caplog.at_level(logging.WARNING, "runcue"):
        async with cue:
            await cue.wait(await cue.submit("call"), timeout=PATIENCE)
    (warning,) = [record for record in caplog.records if "holds the event loop" in record.getMessage()]
    assert "the callback is_ready" in warning.getMessage()
    assert "time.sleep(2.6)" in warning.getMessage()


# --- Slow, but not too slow -----------------------------------------------------------------------


async def test_valid_output_is_not_made_again_because_many_ask_a_slow_callback() -> None:
    cue = Cue(callback_timeout=0.5)
    order = one_at_a_time(cue)
    calls: list[str] = []

    @cue.is_stale
    def slow(work: Work) -> bool:
        calls.append(work.id)
        time.sleep(0.6 if len(calls) == 1 else 0.015)  # the first overruns; all others are well in time
        return False

    async with cue:
        ids = await cue.submit_many({"task": "call"} for _ in range(40))
        await cue.join(timeout=PATIENCE)
        skipped = [work_id for work_id in ids if (await cue.wait(work_id)).skipped]
    assert len(skipped) == 39
    assert len(order) == 1


# --- Errors that are no exceptions ----------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, asyncio.CancelledError, TimeoutError])
async def test_whatever_a_question_raises_it_is_asked_again(
    error: type[BaseException], is_async: bool
) -> None:
    cue = Cue()
    order = one_at_a_time(cue)
    asked: list[int] = []

    def plain(work: Work) -> bool:
        asked.append(1)
        if len(asked) < 3:
            raise error
        return True

    async def later(work: Work) -> bool:
        await asyncio.sleep(0)
        return plain(work)

    cue.is_ready(later if is_async else plain)
    async with cue:
        await cue.wait(await cue.submit("call", id="a"), timeout=PATIENCE)
    assert order == ["a"]
    failures = [event async for event in cue.events("callback_failed")]
    assert [str(event.error).partition(":")[0] for event in failures] == [error.__name__]


# --- CB3: is_ready for ever -----------------------------------------------------------------------


async def test_a_callback_that_raises_for_ever_is_asked_less_and_less() -> None:
    cue = Cue()
    order = one_at_a_time(cue)
    asked: list[float] = []
    enough = asyncio.Event()

    @cue.is_ready
    def never(work: Work) -> bool:
        asked.append(time.monotonic())
        if len(asked) == 6:
            enough.set()
        raise ConnectionError("the file server is down")

    async with cue:
        work_id = await cue.submit("call")
        async with asyncio.timeout(PATIENCE):
            await enough.wait()
        explanation = await cue.explain(work_id)
        assert explanation.reason in {"not_ready", "ready"}  # asked at this very moment, perhaps
        assert (await cue.get(work_id)) is not None
        await cue.cancel(work_id)
    assert asked[5] - asked[0] >= 0.05 + 0.075 + 0.1125 + 0.168 + 0.25
    assert order == []
    assert len([event async for event in cue.events("callback_failed")]) == 1


# --- CB5: on_* ------------------------------------------------------------------------------------


async def test_an_on_callback_that_blocks_changes_neither_outcome_nor_order() -> None:
    cue = Cue()
    one_at_a_time(cue)
    heard: list[tuple[str, str]] = []

    @cue.on_start
    def started(work: Work) -> None:
        time.sleep(0.05)
        heard.append((work.id, "start"))

    @cue.on_complete
    def completed(work: Work, result: str, duration: float) -> None:
        time.sleep(0.05)
        heard.append((work.id, "complete"))

    async with cue:
        ids = await cue.submit_many({"task": "call"} for _ in range(5))
        await cue.join(timeout=PATIENCE)
    for work_id in ids:
        assert [what for of, what in heard if of == work_id] == ["start", "complete"]
        assert (await cue.wait(work_id)).state == "completed"


async def test_an_on_callback_has_no_limit() -> None:
    cue = Cue(callback_timeout=0.01)
    one_at_a_time(cue)
    heard: list[str] = []

    @cue.on_complete
    async def completed(work: Work, result: str, duration: float) -> None:
        await asyncio.sleep(0.1)
        heard.append(work.id)

    async with cue:
        await cue.submit("call", id="a")
        await cue.join(timeout=PATIENCE)
    assert heard == ["a"]
    assert [event async for event in cue.events("callback_failed")] == []


async def test_on_callbacks_that_submit_and_cancel_work() -> None:
    cue = Cue()
    one_at_a_time(cue)
    done = asyncio.Event()

    @cue.on_start
    async def started(work: Work) -> None:
        if work.id == "first":
            await cue.submit("call", id="doomed", delay=3600)

    @cue.on_complete
    async def completed(work: Work, result: str, duration: float) -> None:
        if work.id == "first":
            assert await cue.cancel("doomed")
            await cue.submit("call", id="second")
        else:
            done.set()

    async with cue:
        await cue.submit("call", id="first")
        async with asyncio.timeout(PATIENCE):
            await done.wait()
    assert {work.id: work.state.value for work in await cue.list()} == {
        "first": "completed",
        "doomed": "cancelled",
        "second": "completed",
    }


# --- CB8: readers of events -----------------------------------------------------------------------


async def test_a_reader_that_raises_does_not_disturb_the_others() -> None:
    cue = Cue()
    one_at_a_time(cue)
    seen: list[Event] = []

    async def listen() -> None:
        seen.extend([event async for event in cue.events()])

    async def choke() -> None:
        async for _ in cue.events():
            raise ZeroDivisionError

    async with cue:
        listening, choking = asyncio.create_task(listen()), asyncio.create_task(choke())
        await cue.submit_many({"task": "call"} for _ in range(20))
        await cue.join(timeout=PATIENCE)
    async with asyncio.timeout(PATIENCE):
        await listening
    with pytest.raises(ZeroDivisionError):
        await choking
    assert sum(event.type == "completed" for event in seen) == 20


# --- Ctrl-C ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["is_ready", "on_start"])
def test_a_ctrl_c_inside_a_callback_ends_the_program_and_blames_nobody(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    cue = Cue()
    one_at_a_time(cue)

    def interrupted(work: Work) -> bool:
        raise KeyboardInterrupt

    getattr(cue, kind)(interrupted)

    async def program() -> None:
        async with cue:
            await cue.wait(await cue.submit("call"), timeout=PATIENCE)

    with caplog.at_level(logging.ERROR), pytest.raises(KeyboardInterrupt):
        asyncio.run(program())
    assert caplog.messages == []
