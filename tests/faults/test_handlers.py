"""Handlers that misbehave: whatever they do, their work ends honestly and the queue goes on."""

import asyncio
import gc
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import runcue
from runcue import Cue, RunningWork, Work, WorkState

PATIENCE = 240
"""Seconds within which everything here has to happen; none of it should take a fraction of that."""


async def healthy(cue: Cue) -> None:
    """The queue still runs work to its end."""

    async def fine(work: Work) -> str:
        return "fine"

    cue.task("a healthy one")(fine)
    assert await cue.result(await cue.submit("a healthy one"), timeout=PATIENCE) == "fine"


async def until(event: threading.Event) -> None:
    """Wait for something that a thread says."""
    assert await asyncio.to_thread(event.wait, PATIENCE)


def registered(cue: Cue, kind: str, act: Callable[[RunningWork], Any], **options: Any) -> None:
    """Register "bad" as a coroutine or as a plain function that runs in a thread."""
    if kind == "coroutine":

        async def bad(work: RunningWork) -> Any:
            return act(work)

        cue.task("bad", **options)(bad)
    else:
        cue.task("bad", **options)(act)


# --- HD1, HD3: whatever is raised -----------------------------------------------------------------


class Odd(BaseException):
    """Neither an Exception nor anything Python knows."""


RAISED: list[type[BaseException]] = [
    ValueError,
    Odd,
    SystemExit,
    KeyboardInterrupt,
    GeneratorExit,
    StopIteration,
    StopAsyncIteration,
    asyncio.CancelledError,
    TimeoutError,
]


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
@pytest.mark.parametrize("error", RAISED, ids=lambda error: error.__name__)
async def test_whatever_a_handler_raises_its_work_fails_and_the_queue_goes_on(
    error: type[BaseException], kind: str
) -> None:
    cue = Cue()

    def act(work: RunningWork) -> None:
        raise error

    registered(cue, kind, act)
    async with cue:
        work = await cue.wait(await cue.submit("bad"), timeout=PATIENCE)
        assert work.state == "failed"
        await healthy(cue)
    name = "RuntimeError" if error is StopIteration else error.__name__  # Python lets no coroutine raise that
    assert str(work.error).startswith(name)


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_what_is_no_exception_is_retried_by_policy_too(kind: str) -> None:
    cue = Cue()
    attempts: list[int] = []

    def act(work: RunningWork) -> str:
        attempts.append(work.attempt)
        if work.attempt < 3:
            raise SystemExit(1)
        return "done"

    registered(cue, kind, act, retry=runcue.Retry(max_attempts=3, base_delay=0.001))
    async with cue:
        assert await cue.result(await cue.submit("bad"), timeout=PATIENCE) == "done"
    assert attempts == [1, 2, 3]


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_the_cause_of_an_error_is_in_its_traceback(kind: str) -> None:
    cue = Cue()

    def act(work: RunningWork) -> None:
        try:
            raise LookupError("the root of it")
        except LookupError as error:
            raise ValueError("what follows") from error

    registered(cue, kind, act)
    async with cue:
        work = await cue.wait(await cue.submit("bad"), timeout=PATIENCE)
    assert "LookupError: the root of it" in str(work.traceback)
    assert "direct cause" in str(work.traceback)


# --- HD2: errors that cannot be shown -------------------------------------------------------------


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class Unpicklable(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("no")


def cyclic() -> Exception:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


NASTY: dict[str, Callable[[], Exception]] = {
    "str raises": Unspeakable,
    "50 MB": lambda: ValueError("x" * 50_000_000),
    "cyclic cause": cyclic,
    "unpicklable": lambda: Unpicklable("no"),
    "lone surrogate": lambda: ValueError("a\ud800b"),
    "NUL": lambda: ValueError("a\0b"),
    "escape codes": lambda: ValueError("\x1b[2J\x1b]0;title\x07"),
    "a group": lambda: ExceptionGroup("many", [ValueError(str(n)) for n in range(1000)]),
    "a name of its own": lambda: type("\x1b[31m", (Exception,), {})("red"),
    "an args tuple of anything": lambda: ValueError(object(), b"\xff", {1}),
}


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
@pytest.mark.parametrize("make", NASTY.values(), ids=NASTY.keys())
async def test_a_nasty_error_is_kept_as_short_clean_text(make: Callable[[], Exception], kind: str) -> None:
    cue = Cue()

    def act(work: RunningWork) -> None:
        raise make()

    registered(cue, kind, act)
    async with cue:
        work = await cue.wait(await cue.submit("bad"), timeout=PATIENCE)
        await healthy(cue)
    for text, limit in ((str(work.error), 4096), (str(work.traceback), 16384)):
        assert len(text.encode()) <= limit
        assert json.loads(json.dumps(text)) == text
        assert all(character in "\n\t" or character.isprintable() for character in text)


# --- HD4, HD5, HD8: code that does not end --------------------------------------------------------


async def test_a_coroutine_that_swallows_cancellation_keeps_its_slot_and_stop_returns_in_time() -> None:
    cue = Cue()
    cue.service("api", concurrent=1)
    told_to_stop: list[int] = []
    heard, let_go = asyncio.Event(), asyncio.Event()

    @cue.task("deaf", uses="api", timeout=0.05)
    async def deaf(work: Work) -> None:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                told_to_stop.append(1)
                heard.set()

    cue.start()
    first = await cue.wait(await cue.submit("deaf"), timeout=PATIENCE)
    assert (first.state, first.error) == ("failed", "timeout")
    second = await cue.submit("deaf")
    async with asyncio.timeout(PATIENCE):
        await heard.wait()
    assert (await cue.services())[0]["running"] == 1
    assert (await cue.explain(second)).reason == "concurrency"
    async with asyncio.timeout(PATIENCE):
        await cue.stop(timeout=0.05)
    assert told_to_stop == [1]
    let_go.set()


async def test_a_thread_that_never_returns_keeps_its_slot_and_stop_returns(
    kept_waiting: threading.Event,
) -> None:
    cue = Cue()
    cue.service("api", concurrent=1)

    @cue.task("stuck", uses="api", timeout=0.05, retry=2)
    def stuck(work: Work) -> None:
        kept_waiting.wait()

    cue.start()
    work_id = await cue.submit("stuck")
    blocked = await cue.submit("stuck")

    async def reason(of: str) -> str:
        return (await cue.explain(of)).reason

    async with asyncio.timeout(PATIENCE):
        async for event in cue.events("retrying"):
            assert event.work_id == work_id
            break
    assert await reason(work_id) == "overdue"
    work = await cue.get(work_id)
    assert work is not None
    assert (work.state, work.error) == ("pending", "timeout")
    assert (await cue.services())[0]["running"] == 1
    assert await reason(blocked) == "concurrency"
    async with asyncio.timeout(PATIENCE):
        await cue.stop()


async def test_a_thread_that_answers_too_late_is_not_heard_and_its_retry_comes_after_it(
    kept_waiting: threading.Event,
) -> None:
    cue = Cue()
    running: list[int] = []
    most: list[int] = []
    completed: list[str] = []
    cue.on_complete(lambda work, result, duration: completed.append(result))

    @cue.task("late", timeout=1, retry=runcue.Retry(max_attempts=2, base_delay=0.001))
    def late(work: RunningWork) -> str:
        running.append(work.attempt)
        most.append(len(running))
        if work.attempt == 1:
            kept_waiting.wait()
        running.remove(work.attempt)
        return f"answer {work.attempt}"

    async with cue:
        work_id = await cue.submit("late")
        async for event in cue.events("failed"):
            assert event.error == "timeout"
            break
        kept_waiting.set()
        work = await cue.wait(work_id, timeout=PATIENCE)
    assert (work.state, work.result, work.attempt) == ("completed", "answer 2", 2)
    assert (completed, max(most)) == (["answer 2"], 1)
    assert [event.work_id async for event in cue.events("stale_completion")] == [work_id]


async def test_a_thread_sees_that_it_was_cancelled() -> None:
    cue = Cue()
    entered, noticed = threading.Event(), threading.Event()

    @cue.task("polite")
    def polite(work: RunningWork) -> None:
        entered.set()
        while not work.cancelled:
            time.sleep(0.001)
        noticed.set()

    async with cue:
        work_id = await cue.submit("polite")
        await until(entered)
        assert await cue.cancel(work_id)
        assert (await cue.wait(work_id)).state == "cancelled"
        await until(noticed)


async def test_work_that_was_given_up_before_its_thread_entered_it_is_not_called() -> None:
    cue = Cue(max_threads=1)
    called = threading.Event()

    @cue.task("plain")
    def plain(work: RunningWork) -> None:
        called.set()

    async with cue:
        work_id = await cue.submit("plain")

        def cancel_at_once(plan: object) -> None:
            asyncio.get_running_loop().create_task(cue.cancel(work_id))

        cue.on_start(cancel_at_once)
        assert (await cue.wait(work_id)).state == "cancelled"
    assert not called.is_set()


def run_script(script: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in an interpreter of its own, which has to end by itself."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


NEVER_RETURNS = """
import asyncio, threading, runcue

cue = runcue.Cue()

@cue.task("stuck")
def stuck(work):
    threading.Event().wait()

async def main():
    cue.start()
    await cue.submit("stuck")
    async for event in cue.events("started"):
        break
    await cue.stop(timeout=0.05)
    print("stopped")

asyncio.run(main())
print("ended")
"""


def test_the_interpreter_exits_although_a_thread_never_returns() -> None:
    done = run_script(NEVER_RETURNS)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["stopped", "ended"], "")


# --- HD7, TM8: code that holds the loop -----------------------------------------------------------


async def test_a_handler_that_holds_the_loop_is_named_and_nobody_else_times_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cue = Cue()
    begun = asyncio.Event()

    @cue.task("greedy")
    async def greedy(work: Work) -> None:
        await begun.wait()
        time.sleep(2.6)  # noqa: ASYNC251 (this is the mistake under test)

    @cue.task("innocent", timeout=2)
    async def innocent(work: Work) -> str:
        begun.set()
        await asyncio.sleep(0.2)
        return "in time"

    with caplog.at_level(logging.WARNING, "runcue"):
        async with cue:
            greedy_id = await cue.submit("greedy")
            ids = await cue.submit_many({"task": "innocent"} for _ in range(5))
            for work_id in ids:
                assert await cue.result(work_id, timeout=PATIENCE) == "in time"
    told = [text for text in caplog.messages if "holds the event loop" in text]
    (warning,) = [text for text in told if "greedy" in text]  # others may be named where the machine is busy
    assert f"task 'greedy' (unit {greedy_id})" in warning
    assert "time.sleep(2.6)" in warning


async def test_a_handler_over_its_time_still_times_out_after_somebody_held_the_loop() -> None:
    cue = Cue()

    @cue.task("greedy")
    async def greedy(work: Work) -> None:
        time.sleep(0.4)  # noqa: ASYNC251

    @cue.task("slow", timeout=0.2)
    async def slow(work: Work) -> None:
        await asyncio.sleep(PATIENCE)

    async with cue:
        slow_id = await cue.submit("slow")
        await cue.submit("greedy")
        assert (await cue.wait(slow_id, timeout=PATIENCE)).error == "timeout"


# --- HD11: params are nobody's but the attempt's --------------------------------------------------


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_changing_params_changes_nothing_for_the_next_attempt(kind: str) -> None:
    cue = Cue()
    seen: list[Any] = []

    def act(work: RunningWork) -> None:
        seen.append(json.dumps(work.params))
        work.params["pages"].append(99)
        work.params.clear()
        raise OSError("once more")

    registered(cue, kind, act, retry=runcue.Retry(max_attempts=3, base_delay=0.001))
    async with cue:
        work = await cue.wait(await cue.submit("bad", params={"pages": [1, 2]}), timeout=PATIENCE)
    assert seen == ['{"pages": [1, 2]}'] * 3
    assert work.params == {"pages": [1, 2]}


async def test_a_handler_cannot_change_its_work() -> None:
    cue = Cue()

    @cue.task("vandal")
    async def vandal(work: Work) -> None:
        work.state = WorkState.COMPLETED  # type: ignore[misc]

    async with cue:
        work = await cue.wait(await cue.submit("vandal"), timeout=PATIENCE)
    assert work.state == "failed"
    assert "AttributeError" in str(work.error)


# --- HD13: handlers that use the Cue --------------------------------------------------------------


async def test_a_handler_may_submit_get_cancel_and_wait_for_other_work() -> None:
    cue = Cue()

    @cue.task("child")
    async def child(work: Work) -> str:
        return f"child {work.params['n']}"

    @cue.task("parent")
    async def parent(work: Work) -> list[str]:
        ids = [await cue.submit("child", params={"n": n}) for n in range(3)]
        doomed = await cue.submit("child", params={"n": 9}, delay=3600)
        assert await cue.cancel(doomed)
        assert await cue.get(doomed) is not None
        return [await cue.result(work_id) for work_id in ids]

    async with cue:
        result = await cue.result(await cue.submit("parent"), timeout=PATIENCE)
    assert result == ["child 0", "child 1", "child 2"]


async def test_a_thread_may_submit_get_cancel_and_wait_for_other_work() -> None:
    cue = Cue()

    @cue.task("child")
    def child(work: Work) -> str:
        return f"child {work.params['n']}"

    @cue.task("parent")
    def parent(work: Work) -> list[str]:
        ids = [cue.sync.submit("child", params={"n": n}) for n in range(3)]
        doomed = cue.sync.submit("child", params={"n": 9}, delay=3600)
        assert cue.sync.cancel(doomed)
        found = cue.sync.get(doomed)
        assert found is not None
        assert found.state == "cancelled"
        return [cue.sync.result(work_id, timeout=PATIENCE) for work_id in ids]

    async with cue:
        result = await cue.result(await cue.submit("parent"), timeout=PATIENCE)
    assert result == ["child 0", "child 1", "child 2"]


async def test_a_handler_may_cancel_itself() -> None:
    cue = Cue()

    @cue.task("suicide")
    async def suicide(work: Work) -> str:
        assert await cue.cancel(work.id)
        await asyncio.sleep(PATIENCE)
        return "survived"

    async with cue:
        work = await cue.wait(await cue.submit("suicide"), timeout=PATIENCE)
        assert work.state == "cancelled"
        await healthy(cue)


async def test_a_handler_that_waits_for_itself_gets_a_clear_error() -> None:
    cue = Cue()

    @cue.task("mirror")
    async def mirror(work: Work) -> None:
        await cue.wait(work.id)

    @cue.task("joiner")
    async def joiner(work: Work) -> None:
        await cue.join()

    @cue.task("threaded")
    def threaded(work: Work) -> None:
        cue.sync.wait(work.id)

    async with cue:
        for task in ("mirror", "joiner", "threaded"):
            work = await cue.wait(await cue.submit(task), timeout=PATIENCE)
            assert work.state == "failed"
            assert "RuncueError" in str(work.error)


async def test_a_thread_that_submits_into_a_full_queue_is_refused_at_once() -> None:
    cue = Cue(max_queued=1, reject_policy="block")
    started, filled = threading.Event(), threading.Event()

    @cue.task("parent")
    def parent(work: Work) -> str:
        started.set()
        assert filled.wait(PATIENCE)
        try:
            cue.sync.submit("parent")
        except runcue.QueueFull:
            return "refused"
        return "accepted"

    async with cue:
        first = await cue.submit("parent")
        await until(started)
        second = await cue.submit("parent", delay=3600)
        filled.set()
        assert await cue.result(first, timeout=PATIENCE) == "refused"
        await cue.cancel(second)


async def test_stop_inside_a_handler_is_an_error_in_threads_too() -> None:
    cue = Cue()

    @cue.task("leave")
    def leave(work: Work) -> None:
        loop = cue.loop
        assert loop is not None
        asyncio.run_coroutine_threadsafe(cue.stop(), loop).result(PATIENCE)

    async with cue:
        work = await cue.wait(await cue.submit("leave"), timeout=PATIENCE)
        assert "stop() inside a handler" in str(work.error)
        await healthy(cue)


# --- HD14: nothing hangs by a weak reference ------------------------------------------------------


async def test_collecting_garbage_at_every_step_loses_nothing() -> None:
    cue = Cue()
    cue.service("api", concurrent=3)
    heard: list[str] = []

    @cue.task("call", uses="api", retry=runcue.Retry(max_attempts=2, base_delay=0.001), timeout=PATIENCE)
    async def call(work: Work) -> str:
        await asyncio.sleep(0.001)
        if work.params["n"] % 5 == 0 and work.attempt == 1:
            raise OSError("once more")
        return "done"

    @cue.task("thread", uses="api")
    def thread(work: Work) -> str:
        return "done"

    @cue.is_ready
    async def is_ready(work: Work) -> bool:
        await asyncio.sleep(0)
        return True

    @cue.on_complete
    async def completed(work: Work, result: str, duration: float) -> None:
        await asyncio.sleep(0)
        heard.append(work.id)

    loop = asyncio.get_running_loop()
    is_over = False

    def collect() -> None:
        gc.collect()
        if not is_over:
            loop.call_soon(collect)

    gc.collect()
    gc.freeze()  # what is there already need not be looked at again and again
    try:
        async with cue:
            loop.call_soon(collect)
            ids = [await cue.submit("thread" if n % 3 == 0 else "call", params={"n": n}) for n in range(40)]
            waiting = [asyncio.create_task(cue.result(work_id)) for work_id in ids]
            async with asyncio.timeout(PATIENCE):
                assert await asyncio.gather(*waiting) == ["done"] * 40
    finally:
        is_over = True
        gc.unfreeze()
    assert sorted(heard) == sorted(ids)


# --- HD15: too deep, too much ---------------------------------------------------------------------


def deep(number: int) -> int:
    return 1 + deep(number + 1)


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_endless_recursion_fails_the_work_only(kind: str) -> None:
    cue = Cue()
    registered(cue, kind, lambda work: deep(0))
    async with cue:
        work = await cue.wait(await cue.submit("bad"), timeout=PATIENCE)
        assert str(work.error).startswith("RecursionError")
        await healthy(cue)


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_out_of_memory_fails_the_work_only(kind: str) -> None:
    cue = Cue()
    registered(cue, kind, lambda work: bytearray(sys.maxsize))
    async with cue:
        work = await cue.wait(await cue.submit("bad"), timeout=PATIENCE)
        assert str(work.error).startswith("MemoryError")
        await healthy(cue)


# --- What a handler returns -----------------------------------------------------------------------


async def test_a_plain_function_that_returns_a_coroutine_is_told_what_is_wrong() -> None:
    cue = Cue()

    async def inner() -> None: ...

    @cue.task("confused")
    def confused(work: Work) -> Any:
        return inner()

    async with cue:
        work = await cue.wait(await cue.submit("confused"), timeout=PATIENCE)
    assert (work.state, "async def" in str(work.error)) == ("failed", True)
