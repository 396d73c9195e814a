"""A queue in a file whose store fails for a while, or for good; and what stop() and close() leave behind."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from runcue import Cue, Work, WorkState
from runcue.errors import RuncueError, StorageFull, StorageReplaced
from runcue.ports import Decide
from tests.handlers import taking

PATIENCE = 240.0


async def soon(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until that is so."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110 (another process may be the one to change it)
            await asyncio.sleep(0.01)


def opened(path: Path, **options: Any) -> Cue:
    """A Cue in a file, with a task on the loop and one in a thread."""
    cue = Cue(path / "queue.db", **options)

    @cue.task("call")
    async def call(work: Work) -> int:
        return 1

    @cue.task("thread")
    def thread(work: Work) -> int:
        return 2

    return cue


def store_of(cue: Cue) -> Any:
    """The store behind a Cue that has one by now."""
    assert cue._system is not None
    return cue._system.store


def fail_turns(cue: Cue, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """So many turns that take something in find the disk full."""
    store = store_of(cue)
    real, left = store._decided, [times]

    def flaky(turn: Any, decide: Any, *more: Any) -> Any:
        if left[0] and decide.items:
            left[0] -= 1
            raise apsw.FullError("database or disk is full")
        return real(turn, decide, *more)

    monkeypatch.setattr(store, "_decided", flaky)


async def test_a_turn_that_was_not_kept_forgets_no_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as cue:
        assert await cue.result(await cue.submit("thread")) == 2
        fail_turns(cue, monkeypatch, 1)
        with pytest.raises(StorageFull):
            await cue.submit("thread")
        assert await cue.result(await cue.submit("thread"), timeout=PATIENCE) == 2
    await cue.close()


async def test_a_turn_that_was_not_kept_forgets_no_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cue = opened(tmp_path)
    cue.start(queues=["one"])
    await cue.services()
    fail_turns(cue, monkeypatch, 1)
    with pytest.raises(StorageFull):
        await cue.submit("call", queue="one")
    other = await cue.submit("call", queue="two")
    assert await cue.result(await cue.submit("call", queue="one"), timeout=PATIENCE) == 1
    work = await cue.get(other)
    assert work is not None
    assert work.state is WorkState.PENDING
    await cue.close()


async def test_a_submit_that_waits_for_room_outlives_a_turn_that_was_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cue = opened(tmp_path, max_queued=1, reject_policy="block")
    first = await cue.submit("call")
    waiting = asyncio.create_task(cue.submit("call"))
    await asyncio.sleep(0.05)
    fail_turns(cue, monkeypatch, 1)
    with pytest.raises(StorageFull):
        await cue.cancel("nobody")
    cue.start()
    second = await asyncio.wait_for(waiting, PATIENCE)
    assert await cue.result(second, timeout=PATIENCE) == 1
    assert await cue.result(first, timeout=PATIENCE) == 1
    await cue.close()


async def test_what_ran_while_nothing_could_be_kept_is_kept_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cue = opened(tmp_path)
    may_end, calls = asyncio.Event(), 0

    @cue.task("slow")
    async def slow(work: Work) -> int:
        nonlocal calls
        calls += 1
        await may_end.wait()
        return 3

    async with cue:
        work_id = await cue.submit("slow")
        await soon(lambda: _is(cue, work_id, WorkState.RUNNING))
        fail_turns(cue, monkeypatch, 3)
        may_end.set()
        assert await cue.result(work_id, timeout=PATIENCE) == 3
    assert calls == 1
    await cue.close()


async def _is(cue: Cue, work_id: str, state: WorkState) -> bool:
    work = await cue.get(work_id)
    return work is not None and work.state is state


async def test_with_a_store_that_stays_broken_stop_and_close_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cue = opened(tmp_path)
    may_end = asyncio.Event()
    cue.task("slow")(taking(3600))

    @cue.task("short")
    async def short(work: Work) -> None:
        await may_end.wait()

    cue.start()
    for task in ("slow", "short"):
        work_id = await cue.submit(task)
        await soon(lambda work_id=work_id: _is(cue, work_id, WorkState.RUNNING))  # type: ignore[misc]
    fail_turns(cue, monkeypatch, 1_000_000)
    with pytest.raises(StorageFull):
        await cue.submit("call")
    with pytest.raises(StorageFull):
        await asyncio.wait_for(cue.services(), PATIENCE)
    may_end.set()
    await asyncio.sleep(0.01)
    with pytest.raises(StorageFull):  # while the outcome waits to be kept
        await asyncio.wait_for(cue.count(), PATIENCE)
    await asyncio.wait_for(cue.stop(timeout=0.1), PATIENCE)
    await asyncio.wait_for(cue.close(), PATIENCE)


async def test_a_file_that_was_replaced_ends_the_turns_and_everybody_is_told(tmp_path: Path) -> None:
    """DK8"""
    cue = opened(tmp_path)
    cue.start()
    await cue.submit("call", id="later", delay=3600)
    waiting = asyncio.create_task(cue.wait("later"))
    (tmp_path / "queue.db").rename(tmp_path / "queue.old")
    (tmp_path / "queue.db").write_bytes(b"")
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await cue.submit("call")
            except StorageReplaced:
                break
            await asyncio.sleep(0.05)
        for call in (lambda: waiting, cue.count, lambda: cue.submit("call"), lambda: cue.cancel("later")):
            with pytest.raises(StorageReplaced):
                await call()
        await cue.stop(timeout=1)
        await cue.close()


async def test_after_a_mistake_of_ours_every_call_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cue = opened(tmp_path)
    cue.start()
    await cue.services()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)

    def broken(decide: Decide, *more: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(store_of(cue), "_take_turn", broken)
    async with asyncio.timeout(PATIENCE):
        for _ in range(2):
            with pytest.raises(RuncueError, match="because of a bug in runcue"):
                await cue.submit("call")
        with pytest.raises(RuncueError, match="because of a bug in runcue"):
            await cue.count()
        await cue.close()


async def test_who_gives_up_looking_takes_nothing_from_others(tmp_path: Path) -> None:
    async with opened(tmp_path) as cue:
        await cue.submit("call")
        for patience in range(60):
            submitting = asyncio.create_task(cue.submit("call"))
            looking = asyncio.create_task(cue.services())
            for _ in range(patience % 7):
                await asyncio.sleep(0)
            looking.cancel()
            work_id = await asyncio.wait_for(submitting, PATIENCE)
            assert await cue.result(work_id, timeout=PATIENCE) == 1
    await cue.close()


async def test_a_thread_that_cannot_be_stopped_stays_running_and_is_kept_from_others(tmp_path: Path) -> None:
    """HD4: what stop() and close() leave behind runs nowhere else while it runs here."""
    cue = opened(tmp_path)
    may_end, has_begun = threading.Event(), threading.Event()

    @cue.task("slow", retry=1)
    def slow(work: Work) -> bool:
        has_begun.set()
        return may_end.wait(PATIENCE)

    cue.start()
    work_id = await cue.submit("slow")
    await soon(lambda: asyncio.sleep(0, has_begun.is_set()))
    await cue.stop(timeout=0)
    assert await _is(cue, work_id, WorkState.RUNNING)
    await cue.close()
    other = opened(tmp_path)
    starts = []

    @other.task("slow")
    async def again(work: Work) -> None:
        starts.append(work.id)

    async with other:
        await other.result(await other.submit("call"))
        await asyncio.sleep(1.2)  # longer than others take to notice a death
        assert await _is(other, work_id, WorkState.RUNNING)
    assert starts == []
    may_end.set()
    await other.close()


async def test_rates_in_a_file_are_used_up_however_slow_the_handlers(tmp_path: Path) -> None:
    """A start that came too late for its grant uses nothing up."""
    cue = Cue(tmp_path / "queue.db")
    cue.service("api", rate="20/s")
    calls: list[float] = []

    @cue.task("call", uses="api")
    async def call(work: Work) -> None:
        calls.append(asyncio.get_running_loop().time())
        held = threading.Event()
        held.wait(0.015)  # the loop, like plain code that computes

    async with cue:
        await cue.submit_many([{"task": "call"} for _ in range(60)])
        await asyncio.wait_for(cue.join(), PATIENCE)
    assert len(calls) == 60
    windows = [end - start for start, end in zip(calls, calls[20:], strict=False)]
    assert min(windows) >= 1.0 - 1e-6
    await cue.close()


async def test_a_command_that_was_cancelled_has_its_grace_when_the_cue_is_closed(tmp_path: Path) -> None:
    cue = Cue(tmp_path / "queue.db", grace=PATIENCE)
    done = tmp_path / "done"

    @cue.task("slow", executor="subprocess", shell=True)
    def slow(work: Work) -> str:
        trap = f"trap 'sleep 0.3; touch \"{done}\"; exit' TERM"
        return f'{trap}; touch "{tmp_path}/begun"; while :; do sleep 0.05; done'

    async with cue:
        work_id = await cue.submit("slow")
        await soon(lambda: asyncio.sleep(0, (tmp_path / "begun").exists()))
        await cue.cancel(work_id)
    assert done.exists()
    await cue.close()


async def test_what_a_command_printed_is_forgotten_with_its_work(tmp_path: Path) -> None:
    cue = Cue(tmp_path / "queue.db", retention=0)

    @cue.task("print", executor="subprocess")
    def print_(work: Work) -> list[str]:
        return ["sh", "-c", "echo much >&2; exit 3"]

    async with cue:
        for work_id in ("one", "../two"):
            assert (await cue.wait(await cue.submit("print", id=work_id))).state is WorkState.FAILED
            await cue.retry(work_id)
            await cue.cancel(work_id)
        await cue.submit("print", id="three")
        await cue.wait("three")
        files = tmp_path / "queue.db.files"
        assert len(list(files.iterdir())) >= 3
        store_of(cue).prune()
        left = {path.name for path in files.iterdir()}
        assert {name.partition(".")[0] for name in left} == {"three"}
    await cue.close()
