"""Threads around a Cue: its own, the application's, and what is left of them when the interpreter ends."""

import asyncio
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import runcue
from runcue import Cue, Work, WorkState
from tests.handlers import no_op

PATIENCE = 240


# --- cue.sync -------------------------------------------------------------------------------------


async def test_eight_threads_may_use_one_cue_at_once() -> None:
    cue = Cue()

    @cue.task("double")
    async def double(work: Work) -> int:
        return int(work.params["n"]) * 2

    def client(number: int) -> list[int]:
        results = []
        for step in range(25):
            n = number * 100 + step
            work_id = cue.sync.submit("double", params={"n": n}, idempotency_key=f"key {n}")
            assert cue.sync.submit("double", params={"n": n}, idempotency_key=f"key {n}") == work_id
            assert cue.sync.wait(work_id, timeout=PATIENCE).state == "completed"
            found = cue.sync.get(work_id)
            assert found is not None
            assert cue.sync.cancel(work_id) is False
            results.append(cue.sync.result(work_id, timeout=PATIENCE))
        return results

    async with cue:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(8) as pool:
            answers = await asyncio.gather(*(loop.run_in_executor(pool, client, n) for n in range(8)))
    assert answers == [[(number * 100 + step) * 2 for step in range(25)] for number in range(8)]
    assert (await cue.count())[WorkState.COMPLETED] == 200


async def test_threads_together_do_not_get_past_a_full_queue() -> None:
    cue = Cue(max_queued=10)
    cue.task("call")(no_op)
    await cue.count()  # now it has a loop

    def client() -> int:
        accepted = 0
        for _ in range(5):
            try:
                cue.sync.submit("call")
                accepted += 1
            except runcue.QueueFull:
                pass
        return accepted

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(8) as pool:
        accepted = await asyncio.gather(*(loop.run_in_executor(pool, client) for _ in range(8)))
    assert sum(accepted) == 10
    assert (await cue.count())[WorkState.PENDING] == 10


async def test_errors_come_back_to_the_thread_that_asked() -> None:
    cue = Cue()

    @cue.task("bad")
    async def bad(work: Work) -> None:
        raise OSError("as asked")

    def client() -> list[str]:
        names = []
        for call in (
            lambda: cue.sync.submit("unknown"),
            lambda: cue.sync.wait("nobody"),
            lambda: cue.sync.result(cue.sync.submit("bad"), timeout=PATIENCE),
            lambda: cue.sync.wait(cue.sync.submit("bad", delay=3600), timeout=0.01),
        ):
            try:
                call()
            except Exception as error:  # noqa: BLE001 (which one it is, is the question)
                names.append(type(error).__name__)
        return names

    async with cue:
        names = await asyncio.to_thread(client)
    assert names == ["UnknownTask", "WorkNotFound", "WorkFailed", "TimeoutError"]


async def test_on_the_loops_own_thread_it_is_a_clear_error() -> None:
    cue = Cue()
    cue.task("call")(no_op)
    work_id = await cue.submit("call")
    for blocking in (
        lambda: cue.sync.submit("call"),
        lambda: cue.sync.get(work_id),
        lambda: cue.sync.cancel(work_id),
        lambda: cue.sync.wait(work_id),
    ):
        with pytest.raises(runcue.WrongThread, match="await and the method of Cue"):
            blocking()
    assert (await cue.count())[WorkState.PENDING] == 1


def test_before_there_is_a_loop_it_is_a_clear_error() -> None:
    with pytest.raises(
        runcue.WrongThread,
        match=r"no event loop runs it yet.*`async with cue`.*asyncio\.run.*submit with runcue\.Client",
    ):
        Cue().sync.get("a")


def test_after_the_loop_is_closed_it_is_a_clear_error() -> None:
    cue = Cue()

    async def main() -> None:
        await cue.count()

    asyncio.run(main())
    with pytest.raises(runcue.WrongThread, match=r"closed.*while `async with cue` is under way"):
        cue.sync.get("a")


def test_a_loop_that_stands_still_is_not_waited_for() -> None:
    cue = Cue()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(cue.count())
    with pytest.raises(runcue.WrongThread, match="not running"):
        cue.sync.get("a")
    loop.run_until_complete(cue.close())
    loop.close()


async def test_another_loop_in_another_thread_is_a_clear_error() -> None:
    cue = Cue()
    cue.task("call")(no_op)

    async def submit() -> str:
        return await cue.submit("call")

    await submit()
    with pytest.raises(runcue.WrongThread, match=r"cue\.sync"):
        await asyncio.to_thread(lambda: asyncio.run(submit()))
    with pytest.raises(runcue.WrongThread, match=r"cue\.sync"):
        await asyncio.to_thread(cue.start)


# --- Our threads ----------------------------------------------------------------------------------


async def test_never_more_functions_run_than_there_may_be_threads(kept_waiting: threading.Event) -> None:
    cue = Cue(max_threads=3)
    entered = threading.Semaphore(0)

    @cue.task("block")
    def block(work: Work) -> str:
        entered.release()
        kept_waiting.wait(PATIENCE)
        return threading.current_thread().name

    async with cue:
        ids = await cue.submit_many({"task": "block"} for _ in range(8))
        for _ in range(3):
            assert await asyncio.to_thread(entered.acquire, timeout=PATIENCE)
        explanation = await cue.explain(ids[-1])
        assert (explanation.reason, explanation.ahead) == ("threads", 4)
        blocked = await cue.debug_blocked()
        assert {entry["reason"] for entry in blocked} == {"threads"}
        assert (await cue.count())[WorkState.RUNNING] == 3
        kept_waiting.set()
        names = {await cue.result(work_id, timeout=PATIENCE) for work_id in ids}
    assert len(names) <= 3


async def test_one_thread_is_enough_for_work_that_comes_one_after_the_other() -> None:
    cue = Cue(max_threads=1)
    seen: set[int] = set()

    @cue.task("call")
    def call(work: Work) -> None:
        seen.add(threading.get_ident())

    async with cue:
        await cue.submit_many({"task": "call"} for _ in range(300))
        await cue.join(timeout=PATIENCE)
    assert len(seen) == 1


async def test_coroutines_do_not_wait_for_threads(kept_waiting: threading.Event) -> None:
    cue = Cue(max_threads=1)

    @cue.task("block")
    def block(work: Work) -> None:
        kept_waiting.wait(PATIENCE)

    @cue.task("free")
    async def free(work: Work) -> str:
        return "free"

    async with cue:
        await cue.submit_many({"task": "block"} for _ in range(5))
        assert await cue.result(await cue.submit("free"), timeout=PATIENCE) == "free"
        kept_waiting.set()
        await cue.join(timeout=PATIENCE)


async def test_the_loops_default_pool_is_never_used(kept_waiting: threading.Event) -> None:
    cue = Cue()
    loop = asyncio.get_running_loop()
    pool = ThreadPoolExecutor(1, thread_name_prefix="default pool")
    loop.set_default_executor(pool)
    hogged = loop.run_in_executor(None, kept_waiting.wait, PATIENCE)

    @cue.task("call")
    def call(work: Work) -> str:
        return threading.current_thread().name

    async with cue:
        name = await cue.result(await cue.submit("call"), timeout=PATIENCE)
    assert name.startswith("runcue")
    kept_waiting.set()
    await hogged


async def test_every_thread_goes_when_the_cue_is_closed() -> None:
    cue = Cue()

    @cue.task("call")
    def call(work: Work) -> threading.Thread:
        time.sleep(0.01)
        return threading.current_thread()

    cue.start()
    ids = await cue.submit_many({"task": "call"} for _ in range(20))
    threads = {await cue.result(work_id, timeout=PATIENCE) for work_id in ids}
    await cue.close()
    for thread in threads:
        await asyncio.to_thread(thread.join, PATIENCE)
    assert not any(thread.is_alive() for thread in threads)


async def test_an_idle_thread_does_not_keep_the_last_result() -> None:
    import gc
    import weakref

    class Big:
        """Stands for a result of a gigabyte."""

    cue = Cue(keep_finished=0)
    big: list[weakref.ref[Big]] = []

    @cue.task("call")
    def call(work: Work) -> Big:
        result = Big()
        big.append(weakref.ref(result))
        return result

    cue.task("noop")(no_op)
    async with cue:
        await cue.wait(await cue.submit("call"), timeout=PATIENCE)
        for _ in range(2):
            await cue.submit_many({"task": "noop"} for _ in range(5000))  # pushes the old events out
            await cue.join(timeout=PATIENCE)
        gc.collect()
        assert big[0]() is None


# --- PD18: ending without stop() ------------------------------------------------------------------

NO_STOP = """
import asyncio, sys, threading, time, runcue

cue = runcue.Cue()
cue.service("api", concurrent=5)

@cue.task("sleeps", uses="api")
async def sleeps(work):
    await asyncio.sleep(3600)

@cue.task("blocks")
def blocks(work):
    time.sleep(3600)

@cue.is_ready
async def is_ready(work):
    await asyncio.sleep(0)
    return True

@cue.on_start
async def on_start(work):
    await asyncio.sleep(3600)

async def main():
    cue.start()
    await cue.submit_many([{"task": "sleeps"}] * 20 + [{"task": "blocks"}] * 3)
    waiting = asyncio.create_task(cue.join())
    count = 0
    async for event in cue.events("started"):
        count += 1
        if count == 8:
            break
    LEAVE

print(asyncio.run(main()) or "ended")
"""


@pytest.mark.parametrize("leave", ["return", "sys.exit()", "asyncio.get_running_loop().stop"])
def test_the_interpreter_exits_without_stop(leave: str) -> None:
    script = NO_STOP.replace("LEAVE", leave)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_loop_closed_under_a_running_thread_harms_nobody(kept_waiting: threading.Event) -> None:
    cue = Cue()
    entered, left = threading.Event(), threading.Event()

    @cue.task("block")
    def block(work: Work) -> None:
        entered.set()
        kept_waiting.wait(PATIENCE)
        left.set()

    async def main() -> None:
        cue.start()
        await cue.submit("block")
        assert await asyncio.to_thread(entered.wait, PATIENCE)

    asyncio.run(main())
    kept_waiting.set()
    assert left.wait(PATIENCE)


def test_no_thread_is_left_of_a_cue_whose_loop_ended_without_a_close() -> None:
    """EX9."""

    async def main() -> None:
        cue = Cue()

        @cue.task
        async def call(work: Work) -> None:
            pass

        cue.start()
        await cue.wait(await cue.submit(call))

    before = set(threading.enumerate())
    asyncio.run(main())
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
    assert set(threading.enumerate()) <= before


# --- SC3: memory stays flat -----------------------------------------------------------------------


async def test_finished_work_does_not_pile_up() -> None:
    cue = Cue(keep_finished=1000)
    cue.task("noop")(no_op)

    async def finish(works: int) -> int:
        """Run so many to their end; how many blocks of memory are in use then."""
        for _ in range(works // 1000):
            await cue.submit_many({"task": "noop"} for _ in range(1000))
            await cue.join()
        return sys.getallocatedblocks()

    async with cue:
        await finish(10_000)
        before = await finish(5000)
        after = await finish(45_000)
        assert (await cue.count())[WorkState.COMPLETED] == 60_000
        assert len(await cue.list(limit=10_000)) == 1000
    assert after - before < 4500  # not even one block for ten works
