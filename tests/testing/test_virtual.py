"""The virtual-time loop: waiting takes no time, and nothing else is different."""

import asyncio
import contextlib
import random
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from runcue.testing import Deadlock, VirtualLoop, run, settle
from runcue.testing.virtual import EPOCH

HOUR = 3600.0
YEAR = 365 * 24 * HOUR

Events = list[tuple[selectors.SelectorKey, int]]


def this_loop() -> VirtualLoop:
    return cast(VirtualLoop, asyncio.get_running_loop())


async def _never() -> None:
    await asyncio.get_running_loop().create_future()


def _wait_in_thread() -> None:
    """Take real time: a loop that does not stand still would be elsewhere by then."""
    threading.Event().wait(0.02)


@pytest.fixture
def polls(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """Every time-out with which the system's selector was asked."""
    asked: list[float | None] = []

    select = selectors.DefaultSelector.select

    def counting(system: selectors.DefaultSelector, timeout: float | None = None) -> Events:
        asked.append(timeout)
        return select(system, timeout)

    monkeypatch.setattr(selectors.DefaultSelector, "select", counting)
    return asked


# ------------------------------------------------------------------------------------------------ time


def test_an_hour_of_sleep_takes_no_real_time() -> None:
    began = time.monotonic()
    run(asyncio.sleep(HOUR))
    assert time.monotonic() - began < HOUR / 100


def test_time_starts_at_zero_or_where_it_is_told_to() -> None:
    async def first_time() -> float:
        return this_loop().time()

    assert run(first_time()) == 0.0
    assert run(first_time(), start=5.5) == 5.5


def test_time_stands_still_while_something_is_ready() -> None:
    async def main() -> float:
        timer = asyncio.create_task(asyncio.sleep(0.001))
        for _ in range(1000):
            await asyncio.sleep(0)
        assert not timer.done()
        return this_loop().time()

    assert run(main()) == 0.0


def test_after_a_lone_sleep_the_time_is_exactly_when_it_was_due() -> None:
    async def main() -> None:
        loop = this_loop()
        chance = random.Random(1)
        for _ in range(1000):
            when = loop.time() + chance.choice([chance.random(), loop.time() % HOUR, HOUR * chance.random()])
            due = asyncio.Event()
            loop.call_at(when, due.set)
            await due.wait()
            assert loop.time() == when

    run(main())


def test_a_sleep_whose_length_is_rounded_still_ends_exactly() -> None:
    async def main(first: float, second: float) -> float:
        loop = this_loop()
        for when in (first, second):
            due = asyncio.Event()
            loop.call_at(when, due.set)
            await due.wait()
        return loop.time()

    chance = random.Random(1)
    pairs = [(chance.uniform(1, 2), chance.uniform(3, 4)) for _ in range(1000)]
    rounded = [(first, second) for first, second in pairs if first + (second - first) != second]
    assert len(rounded) > 20
    for first, second in rounded:
        assert run(main(first, second)) == second


def test_a_sleep_costs_one_poll(polls: list[float | None]) -> None:
    async def main() -> int:
        await asyncio.sleep(0.1)
        before = len(polls)
        for _ in range(100):
            await asyncio.sleep(1.1)
        return len(polls) - before

    assert run(main()) == 200  # one that jumps, and one after the timer for the task it made ready
    assert set(polls) == {0.0}


def test_time_goes_on_when_a_float_no_longer_holds_a_nanosecond() -> None:
    async def main() -> float:
        loop = this_loop()
        for delay in (1.0, 0.0, 1e-12, 1e-7, 0.1):
            due = [asyncio.Event(), asyncio.Event()]
            loop.call_later(delay, due[0].set)
            loop.call_at(loop.time(), due[1].set)
            for event in due:
                await event.wait()
        return loop.time()

    for start in (YEAR / 2, YEAR, 1_000 * YEAR):
        assert run(main(), start=start) == pytest.approx(start + 1.1, abs=1e-4)


def test_a_sleep_may_be_longer_than_a_day() -> None:
    async def main() -> float:
        await asyncio.sleep(YEAR)
        return this_loop().time()

    assert run(main()) == pytest.approx(YEAR, abs=1e-6)


def test_twenty_thousand_sleeps_add_up() -> None:
    async def sleeper() -> None:
        for _ in range(200):
            await asyncio.sleep(0.25)

    async def main() -> float:
        async with asyncio.TaskGroup() as group:
            for _ in range(100):
                group.create_task(sleeper())
        return this_loop().time()

    assert run(main()) == 50.0


# ---------------------------------------------------------------------------------------------- timers


def test_timers_fire_in_order_of_time_then_of_creation() -> None:
    async def main() -> list[tuple[float, int]]:
        loop = this_loop()
        fired: list[tuple[float, int]] = []
        whens = [5.0, 1.0, 3.0] * 40 + [1.0, 5.0] * 40
        for number, when in enumerate(whens):
            loop.call_at(when, fired.append, (when, number))
        await asyncio.sleep(6)
        assert len(fired) == len(whens)
        return fired

    fired = run(main())
    assert fired == sorted(fired)


def test_a_cancelled_timer_neither_fires_nor_is_waited_for() -> None:
    async def main() -> float:
        loop = this_loop()
        loop.call_later(1, pytest.fail, "a cancelled timer fired").cancel()
        await asyncio.sleep(5)
        loop.call_later(100, pytest.fail, "a cancelled timer fired").cancel()
        return loop.time()

    assert run(main()) == 5.0


def test_a_timeout_strikes_at_its_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(7.5):
                await asyncio.sleep(HOUR)
        return this_loop().time()

    assert run(main()) == 7.5


def test_a_timeout_that_is_not_reached_does_nothing() -> None:
    async def main() -> float:
        async with asyncio.timeout(7.5):
            await asyncio.sleep(7)
        return this_loop().time()

    assert run(main()) == 7.0


# ------------------------------------------------------------------------------------- now and the wall


def test_now_is_epoch_plus_time() -> None:
    async def main() -> tuple[float, float]:
        await asyncio.sleep(10)
        return this_loop().now(), this_loop().wall()

    assert run(main()) == (EPOCH + 10, EPOCH + 10)
    assert run(main(), start=2.0, epoch=100.0) == (112.0, 112.0)


def test_a_jump_of_the_wall_clock_moves_neither_now_nor_timers() -> None:
    async def main() -> tuple[float, float, float]:
        loop = this_loop()
        loop.call_later(1, loop.jump_wall, -HOUR)
        loop.call_later(2, loop.jump_wall, 60)
        await asyncio.sleep(3)
        return loop.time(), loop.now() - EPOCH, loop.wall() - EPOCH

    assert run(main()) == (3.0, 3.0, 3.0 - HOUR + 60)


# ------------------------------------------------------------------------------- threads, hold, release


def test_threads_take_no_virtual_time() -> None:
    async def main() -> list[str]:
        loop = this_loop()
        trace: list[str] = []
        loop.call_later(0.001, trace.append, "timer")
        await asyncio.to_thread(_wait_in_thread)
        trace.append(f"thread at {loop.time()}")
        await asyncio.sleep(1)
        return trace

    assert run(main()) == ["thread at 0.0", "timer"]


def test_an_answer_that_comes_between_two_looks_is_not_overtaken_by_a_timer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[Callable[[], None]] = []

    select = selectors.DefaultSelector.select

    def unlucky(system: selectors.DefaultSelector, timeout: float | None = None) -> Events:
        events = select(system, timeout)
        if not events and answers:
            answers.pop()()
        return events

    async def main() -> float:
        loop = this_loop()
        answered_at: list[float] = []

        def answer() -> None:
            loop.call_soon_threadsafe(lambda: answered_at.append(loop.time()))
            loop.release()

        loop.hold()
        loop.call_soon(answers.append, answer)
        await asyncio.sleep(1)
        return answered_at[0]

    monkeypatch.setattr(selectors.DefaultSelector, "select", unlucky)
    assert run(main()) == 0.0


def test_no_answer_of_a_thread_is_overtaken_by_a_timer() -> None:
    async def main() -> float:
        loop = this_loop()
        timer = loop.call_later(0.001, _nothing)
        with ThreadPoolExecutor(2) as pool:
            for _ in range(500):
                await asyncio.gather(
                    loop.run_in_executor(pool, _nothing), loop.run_in_executor(pool, _nothing)
                )
        timer.cancel()
        return loop.time()

    assert run(main()) == 0.0


def test_an_error_in_a_thread_arrives_and_time_goes_on() -> None:
    async def main() -> float:
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(divmod, 1, 0)
        await asyncio.sleep(1)
        return this_loop().time()

    assert run(main()) == 1.0


def test_a_thread_nobody_waits_for_any_more_lets_time_go_on() -> None:
    async def main(gate: threading.Event) -> float:
        call = this_loop().run_in_executor(None, gate.wait)
        call.cancel()
        await asyncio.sleep(1)
        gate.set()
        return this_loop().time()

    assert run(main(threading.Event())) == 1.0


def test_an_executor_that_takes_no_work_leaves_the_loop_free() -> None:
    async def main() -> float:
        pool = ThreadPoolExecutor(1)
        pool.shutdown()
        with pytest.raises(RuntimeError, match="after shutdown"):
            this_loop().run_in_executor(pool, _nothing)
        await asyncio.sleep(1)
        return this_loop().time()

    assert run(main()) == 1.0


def test_a_held_loop_does_not_advance() -> None:
    async def main() -> list[str]:
        loop = this_loop()
        trace: list[str] = []

        def outside() -> None:
            _wait_in_thread()
            loop.call_soon_threadsafe(lambda: trace.append(f"answer at {loop.time()}"))
            loop.release()

        loop.hold()
        thread = threading.Thread(target=outside)
        thread.start()
        await asyncio.sleep(HOUR)
        thread.join()
        return [*trace, f"slept until {loop.time()}"]

    assert run(main()) == ["answer at 0.0", "slept until 3600.0"]


def test_a_held_loop_still_runs_what_is_due_now() -> None:
    async def main() -> float:
        loop = this_loop()
        loop.hold()
        due = asyncio.Event()
        loop.call_later(0, due.set)
        await due.wait()
        loop.release()
        return loop.time()

    assert run(main()) == 0.0


def test_holds_add_up() -> None:
    async def main() -> list[float]:
        loop = this_loop()
        loop.hold()
        loop.hold()
        sleeper = asyncio.create_task(asyncio.sleep(1))
        loop.release()
        await asyncio.to_thread(_wait_in_thread)
        held = loop.time()
        assert not sleeper.done()
        loop.release()
        await sleeper
        return [held, loop.time()]

    assert run(main()) == [0.0, 1.0]


def test_a_release_without_a_hold_is_refused() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"release\(\) without hold\(\)"):
            this_loop().release()

    run(main())


def test_a_release_after_the_loop_was_closed_is_harmless() -> None:
    loop = VirtualLoop()
    loop.hold()
    loop.close()
    loop.release()


def test_a_subprocess_takes_no_virtual_time_while_the_loop_is_held() -> None:
    async def main() -> tuple[bytes, float]:
        loop = this_loop()
        loop.hold()
        try:
            async with asyncio.timeout(1):
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", "print('done')", stdout=subprocess.PIPE
                )
                output, _ = await process.communicate()
        finally:
            loop.release()
        return output.strip(), loop.time()

    assert run(main()) == (b"done", 0.0)


# ---------------------------------------------------------------------------------------------- sockets


def test_real_sockets_still_work() -> None:
    async def main() -> bytes:
        loop = this_loop()
        left, right = socket.socketpair()
        with left, right:
            left.setblocking(False)
            right.setblocking(False)
            reader = asyncio.create_task(loop.sock_recv(right, 100))
            await asyncio.sleep(1)
            await loop.sock_sendall(left, b"hello")
            return await reader

    assert run(main()) == b"hello"


def test_real_streams_still_work() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def main() -> tuple[bytes, float]:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        async with server:
            host, port = server.sockets[0].getsockname()
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"hello\n")
            answer = await reader.readline()
            writer.close()
            await writer.wait_closed()
        return answer, this_loop().time()

    assert run(main()) == (b"hello\n", 0.0)


def test_with_no_timer_left_a_watched_socket_is_waited_for() -> None:
    async def main() -> bytes:
        left, right = socket.socketpair()
        with left, right:
            right.setblocking(False)

            def answer() -> None:
                _wait_in_thread()
                left.sendall(b"late")

            thread = threading.Thread(target=answer)
            thread.start()
            received = await this_loop().sock_recv(right, 100)
            thread.join()
            return received

    assert run(main()) == b"late"


# ------------------------------------------------------------------------------------------- deadlock


def test_a_deadlock_is_reported_with_the_names_of_the_tasks() -> None:
    async def consumer() -> None:
        await asyncio.Queue[int]().get()

    async def main() -> None:
        await asyncio.sleep(5)
        await asyncio.create_task(consumer(), name="the consumer")

    with pytest.raises(Deadlock, match=r"Stuck at virtual second 5: nothing is ready") as caught:
        run(main())
    assert (caught.value.reason, caught.value.at) == ("idle", 5.0)
    assert [name.rpartition(".")[2] for name in caught.value.tasks] == ["main)", "consumer)"]
    assert "'the consumer' (test_a_deadlock_is" in str(caught.value)
    assert isinstance(caught.value, RuntimeError)


def test_a_deadlock_of_many_tasks_names_the_first_ones() -> None:
    async def main() -> None:
        await asyncio.gather(*(_never() for _ in range(30)))

    with pytest.raises(Deadlock, match=r"and 21 more\.$") as caught:
        run(main())
    assert len(caught.value.tasks) == 31


def test_a_sleep_until_infinity_is_no_way_out_of_a_deadlock() -> None:
    async def main() -> None:
        await asyncio.sleep(2)
        await asyncio.sleep(float("inf"))

    with pytest.raises(Deadlock) as caught:
        run(main())
    assert (caught.value.reason, caught.value.at) == ("idle", 2.0)


def test_after_a_deadlock_the_loop_can_go_on_and_be_closed() -> None:
    loop = VirtualLoop()
    stuck = loop.create_task(_never())
    with pytest.raises(Deadlock):
        loop.run_until_complete(stuck)
    stuck.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(stuck)
    loop.run_until_complete(asyncio.sleep(1))
    loop.close()
    assert loop.is_closed()


def test_after_a_deadlock_run_cancels_tasks_and_closes_generators() -> None:
    ended: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(1)
            ended.append("generator")

    async def left_over() -> None:
        try:
            await _never()
        finally:
            await asyncio.sleep(1)
            ended.append("task")

    async def main() -> None:
        task = asyncio.create_task(left_over())
        generator = numbers()
        async for _ in generator:
            await task

    with pytest.raises(Deadlock):
        run(main())
    assert ended == ["task", "generator"]


def test_a_loop_held_for_too_long_in_real_time_is_a_deadlock() -> None:
    async def main() -> None:
        this_loop().hold()
        try:
            await asyncio.sleep(1)
        finally:
            this_loop().release()

    with pytest.raises(Deadlock, match=r"held for 0\.\d real seconds") as caught:
        run(main(), max_idle_real=0.05)
    assert (caught.value.reason, caught.value.at) == ("held", 0.0)


def test_a_socket_that_stays_silent_is_a_deadlock_in_the_end() -> None:
    async def main() -> None:
        left, right = socket.socketpair()
        with left, right:
            right.setblocking(False)
            await this_loop().sock_recv(right, 100)

    with pytest.raises(Deadlock, match="no socket or pipe had news") as caught:
        run(main(), max_idle_real=0.05)
    assert caught.value.reason == "held"


def test_a_run_ends_at_its_limit_of_virtual_time() -> None:
    async def main(ticks: list[float]) -> None:
        while True:
            ticks.append(this_loop().time())
            await asyncio.sleep(10)

    ticks: list[float] = []
    with pytest.raises(Deadlock, match="the limit of 60 virtual seconds") as caught:
        run(main(ticks), start=100.0, limit=60)
    assert (caught.value.reason, caught.value.at) == ("limit", 160.0)
    assert ticks == [100.0 + 10 * n for n in range(7)]


def test_tidying_up_after_the_limit_may_take_as_long_again() -> None:
    async def main(ended: list[float]) -> None:
        try:
            await asyncio.sleep(8)
            await asyncio.sleep(HOUR)
        finally:
            await asyncio.sleep(5)
            ended.append(this_loop().time())

    ended: list[float] = []
    with pytest.raises(Deadlock):
        run(main(ended), limit=10)
    assert ended == [13.0]


# --------------------------------------------------------------------------------------- run and settle


def test_run_returns_what_the_coroutine_returns_and_raises_what_it_raises() -> None:
    async def main(number: int) -> int:
        return 10 // number

    assert run(main(5)) == 2
    with pytest.raises(ZeroDivisionError):
        run(main(0))


def test_run_cancels_what_is_left_over() -> None:
    async def left_over(trace: list[str]) -> None:
        try:
            await asyncio.sleep(HOUR)
        except asyncio.CancelledError:
            trace.append(f"cancelled at {this_loop().time()}")
            raise

    async def main(trace: list[str]) -> asyncio.Task[None]:
        task = asyncio.create_task(left_over(trace))
        await asyncio.sleep(1)
        return task

    trace: list[str] = []
    assert run(main(trace)).cancelled()
    assert trace == ["cancelled at 1.0"]


def test_two_runs_give_the_same_trace() -> None:
    async def worker(name: int, chance: random.Random, queue: asyncio.Queue[int], trace: list[str]) -> None:
        while True:
            item = await queue.get()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(chance.choice([0.1, 0.3])):
                    await asyncio.sleep(chance.choice([0.1, 0.2, 0.3]))
            trace.append(f"{this_loop().time()} {name} {item}")
            queue.task_done()

    async def main() -> list[str]:
        chance = random.Random(7)
        queue: asyncio.Queue[int] = asyncio.Queue(3)
        trace: list[str] = []
        workers = [asyncio.create_task(worker(name, chance, queue, trace)) for name in range(5)]
        for item in range(300):
            await queue.put(item)
        await queue.join()
        for task in workers:
            task.cancel()
        return trace

    first, second = run(main()), run(main())
    assert len(first) == 300
    assert first == second


def test_settle_returns_when_nothing_can_run_until_time_passes() -> None:
    async def relay(depth: int, trace: list[int]) -> None:
        trace.append(depth)
        if depth:
            await asyncio.sleep(0)
            await asyncio.create_task(relay(depth - 1, trace))

    async def main() -> tuple[list[int], float]:
        loop = this_loop()
        trace: list[int] = []
        tasks = [asyncio.create_task(relay(20, trace)), asyncio.create_task(asyncio.sleep(1))]
        loop.call_later(0, trace.append, 100)
        loop.call_later(0.001, pytest.fail, "time passed").cancel()
        later = loop.call_later(0.001, pytest.fail, "time passed")
        await settle()
        later.cancel()
        tasks[1].cancel()
        return trace, loop.time()

    trace, now = run(main())
    assert (sorted(trace), now) == ([*range(21), 100], 0.0)


def test_settle_waits_for_threads_because_they_take_no_time() -> None:
    async def main() -> bool:
        call = asyncio.create_task(asyncio.to_thread(_wait_in_thread))
        await settle()
        return call.done()

    assert run(main()) is True


def test_settle_returns_where_everything_else_is_stuck() -> None:
    async def main() -> float:
        stuck = asyncio.create_task(_never())
        await settle()
        stuck.cancel()
        return this_loop().time()

    assert run(main()) == 0.0


def test_a_settle_that_was_cancelled_wakes_nobody() -> None:
    async def main() -> float:
        settling = asyncio.create_task(settle())
        await asyncio.sleep(0)
        settling.cancel()
        await asyncio.sleep(1)
        return this_loop().time()

    assert run(main()) == 1.0


def test_settle_needs_a_virtual_loop() -> None:
    with pytest.raises(RuntimeError, match="settle\\(\\) works on a VirtualLoop, got"):
        asyncio.run(settle())


@pytest.mark.parametrize("make", [VirtualLoop, lambda: VirtualLoop(start=3)])
def test_the_loop_is_an_asyncio_loop_that_a_runner_can_make(make: Callable[[], VirtualLoop]) -> None:
    with asyncio.Runner(loop_factory=make) as runner:
        runner.run(asyncio.sleep(1))
        assert isinstance(runner.get_loop(), asyncio.SelectorEventLoop)


def _nothing() -> None:
    pass
