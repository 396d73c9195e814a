"""Questions are answered beside the turns, and a loop that is gone takes nobody with it."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from runcue import Cue
from runcue.api.reader import Reader
from runcue.core.model.lifecycle import started
from runcue.core.views.query import Query
from runcue.errors import StorageBusy, StorageReplaced, StoreError
from runcue.stores.presence.presence import Turnstile, is_alive, side_directory
from runcue.stores.sql import store as sql_store
from runcue.stores.sql.store import SqlStore
from runcue.stores.sql.store_thread import LEND_AFTER, StoreThread, Ticket
from runcue.stores.sqlite import file as files
from runcue.stores.sqlite import transaction
from runcue.testing.manual_turns import NOW, Hand, pending
from tests.stores.hands import inside, opened

PATIENCE = 240.0


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_store, "PULSE", 0.01)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that the test may close at any time."""
    made = asyncio.new_event_loop()
    yield made
    made.close()


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether that comes true within the time anything takes; looked at again and again."""
    looks = threading.Event()
    return any(condition() or looks.wait(0.005) for _ in range(int(PATIENCE / 0.005)))


# --- Beside the turns -----------------------------------------------------------------------------


async def test_who_asks_does_not_wait_for_a_turn_that_waits(path: Path) -> None:
    """DB1."""
    store = opened(path)
    hand = Hand(store, {})
    await hand.write(pending(1))
    holder = apsw.Connection(str(path))
    holder.execute("BEGIN IMMEDIATE")
    turn = asyncio.create_task(hand.write(pending(2)))
    await asyncio.sleep(0)
    assert await store.get("w1") == pending(1)
    assert list(await store.get_many(["w1", "w2"])) == ["w1"]
    assert [record.id for record in await store.find(Query(limit=10))] == ["w1"]
    assert (await store.events(0, 10)).events == []
    assert (await store.counts())[pending(1).state] == 1
    assert not turn.done()
    holder.execute("ROLLBACK")
    holder.close()
    await turn
    assert await store.get("w2") == pending(2), "what was written can be read at once"
    await store.close()


async def test_nothing_is_left_beside_the_file_of_who_asked_and_left(path: Path) -> None:
    store = opened(path)
    await Hand(store, {}).write(pending(1))
    await store.get("w1")
    await store.close()
    assert sorted(one.name for one in path.parent.iterdir()) == ["queue.db", "queue.db.runcue"]


async def test_who_asks_cannot_write(path: Path) -> None:
    store = opened(path)
    with pytest.raises(StoreError, match="read-only"):
        await inside(store)._read_connection.ask(
            lambda tables: tables.connection.execute("DELETE FROM work_units")
        )
    await store.close()


async def test_who_asks_after_trouble_is_answered_through_a_new_connection(path: Path) -> None:
    store = opened(path)
    await Hand(store, {}).write(pending(1))
    asked: list[Any] = []

    def fail(tables: Any) -> None:
        asked.append(tables.connection)
        raise apsw.IOError("disk I/O error")

    with pytest.raises(StoreError, match="cannot be read or written"):
        await inside(store)._read_connection.ask(fail)
    assert await store.get("w1") == pending(1)
    with pytest.raises(apsw.ConnectionClosedError):
        asked[0].execute("SELECT 1")
    await store.close()


async def test_who_asks_a_store_that_was_closed_is_told_so(path: Path) -> None:
    store = opened(path)
    inside(store)._read_connection.close()
    with pytest.raises(StoreError, match="is closed"):
        inside(store)._read_connection._looked(lambda tables: None)
    await store.close()


async def test_when_who_asks_is_told_of_another_file_no_turn_is_taken_on_it(path: Path) -> None:
    """DK8."""
    store = opened(path)
    hand = Hand(store, {})
    await hand.write(pending(1))
    path.rename(path.with_name("moved.db"))
    with pytest.raises(StorageReplaced):
        await store.get("w1")
    with pytest.raises(StorageReplaced):
        await hand.write(pending(2))
    store.abandon()


# --- A file that is gone --------------------------------------------------------------------------


@pytest.mark.parametrize("is_exchanged", [False, True], ids=["removed", "exchanged"])
@pytest.mark.usefixtures("quick")
async def test_an_idle_process_notices_that_its_file_is_another(path: Path, is_exchanged: bool) -> None:
    """DK8."""
    cue = Cue(path)
    cue.task("never")(lambda work: None)
    work_id = await cue.submit("never", delay=3600)
    waiting = asyncio.create_task(cue.wait(work_id))
    await asyncio.sleep(0)
    path.rename(path.with_name("moved.db"))
    if is_exchanged:
        other = opened(path.with_name("other.db"))
        await other.close()
        path.with_name("other.db").rename(path)
    with pytest.raises(StorageReplaced):
        async with asyncio.timeout(PATIENCE):
            await waiting
    system: Any = cue._system
    system.store.abandon()


async def test_a_look_that_stumbles_over_a_file_that_was_moved_away_says_that_it_is_gone(path: Path) -> None:
    """DK8."""
    store = opened(path)

    def stumble(_: object) -> None:
        path.rename(path.with_name("moved.db"))
        raise apsw.IOError("disk I/O error")

    with pytest.raises(StorageReplaced):
        await inside(store)._read_connection.ask(stumble)
    store.abandon()


async def test_an_idle_process_takes_no_turns_while_its_file_is_there(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    identity = files.identity

    def noted(name: str) -> tuple[int, int]:
        looks.append(name)
        return identity(name)

    monkeypatch.setattr(sql_store, "PULSE", 0.01)
    monkeypatch.setattr(files, "identity", noted)
    store = opened(path)
    turns: list[None] = []
    store.listen(lambda is_urgent: turns.append(None), lambda worker: None)
    for _ in range(int(PATIENCE / 0.005)):
        if len(looks) > 5:
            break
        await asyncio.sleep(0.005)
    assert len(looks) > 5
    assert turns == []
    await store.close()


# --- A loop that is gone --------------------------------------------------------------------------


async def left_running(path: Path, **options: Any) -> SqlStore:
    store = opened(path, **options)
    hand = Hand(store, {})
    await hand.join()
    await hand.write(pending(1))
    await hand.write(started(hand.kept["w1"], 1, NOW, store.worker, f"running/{store.worker}"))
    await store.get("w1")
    return store


def workers(path: Path) -> list[str]:
    with Reader(path) as reader:
        return [worker["state"] for worker in reader.workers()]


@pytest.mark.usefixtures("quick")
def test_who_lost_its_loop_is_dead_to_the_others(path: Path, loop: asyncio.AbstractEventLoop) -> None:
    """PD18."""
    store = loop.run_until_complete(left_running(path, is_at_work=lambda: False))
    before = threading.active_count()
    loop.close()
    assert eventually(lambda: not is_alive(side_directory(path), store.worker))
    assert eventually(lambda: threading.active_count() == before - 3), "all its threads have ended"
    assert workers(path) == ["gone"], "what it ran is for others to take over"
    assert not Path(f"{path}-wal").exists()


@pytest.mark.usefixtures("quick")
def test_who_lost_its_loop_and_ran_nothing_signs_off(path: Path, loop: asyncio.AbstractEventLoop) -> None:
    async def idle() -> SqlStore:
        store = opened(path, is_at_work=lambda: False)
        await Hand(store, {}).write(pending(1))
        return store

    store = loop.run_until_complete(idle())
    loop.close()
    assert eventually(lambda: not is_alive(side_directory(path), store.worker))
    assert eventually(lambda: workers(path) == [])


@pytest.mark.usefixtures("quick")
def test_who_lost_its_loop_is_alive_while_its_code_runs(path: Path, loop: asyncio.AbstractEventLoop) -> None:
    asked: list[bool] = []
    is_over = threading.Event()

    def is_at_work() -> bool:
        asked.append(is_over.is_set())
        return not asked[-1]

    store = loop.run_until_complete(left_running(path, is_at_work=is_at_work))
    loop.close()
    assert eventually(lambda: len(asked) > 5)
    assert is_alive(side_directory(path), store.worker)
    is_over.set()
    assert eventually(lambda: not is_alive(side_directory(path), store.worker))


def test_a_store_that_was_closed_while_others_held_the_turn_is_let_go_though_its_loop_is_gone(
    loop: asyncio.AbstractEventLoop, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turnstile = Turnstile(side_directory(path))

    async def leave() -> SqlStore:
        store = opened(path)
        await Hand(store, {}).write(pending(1))
        monkeypatch.setattr(sql_store, "CLOSING", 0.01)
        monkeypatch.setattr(transaction, "PATIENCE", 0.01)
        assert turnstile.acquire()
        with pytest.raises(StorageBusy):
            await Hand(store, {}).look(lambda turn: None)
        await store.close()
        return store

    store = loop.run_until_complete(leave())
    loop.close()
    assert is_alive(side_directory(path), store.worker)
    turnstile.close()
    assert eventually(lambda: not is_alive(side_directory(path), store.worker))


def test_a_job_that_ends_after_its_loop_does_so_quietly(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    complaints: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", complaints.append)
    began, may_end, done = threading.Event(), threading.Event(), []

    def job() -> None:
        began.set()
        may_end.wait(PATIENCE)
        done.append("first")

    async def leave() -> StoreThread:
        errands = StoreThread("runcue-test")
        for some in (job, lambda: done.append("second")):
            waiting = asyncio.ensure_future(errands.do(some))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
        return errands

    errands = loop.run_until_complete(leave())
    assert began.wait(PATIENCE)
    loop.close()
    may_end.set()
    errands.close()
    assert eventually(lambda: not any(one.name == "runcue-test" for one in threading.enumerate()))
    assert complaints == []
    assert done == ["first"], "what had not begun is not done: nobody would hear of it"


async def test_a_loop_that_rests_never_lends_to_who_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    errands = StoreThread("runcue-test")
    assert await asyncio.gather(*[errands.do(lambda n=n: n) for n in range(100)]) == list(range(100))  # type: ignore[misc]
    assert errands._lending is None
    with pytest.raises(ZeroDivisionError):
        await errands.do(lambda: 1 / 0)
    errands.close()


@pytest.mark.parametrize(("is_busy", "after"), [(False, [1, 2, 4, 8, 16]), (True, [1, 1, 1, 1, 1])])
async def test_a_loop_that_rests_is_disturbed_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch, is_busy: bool, after: list[int]
) -> None:
    used = 0.0
    asked: list[float] = []
    errands = StoreThread("runcue-test")

    def later(delay: float, call: Callable[..., None], *given: Any) -> asyncio.Handle:
        nonlocal used
        asked.append(delay / LEND_AFTER)
        used += delay * is_busy
        return loop.call_soon(call, *given) if len(asked) < 5 else loop.call_soon(may_end.set)

    loop, may_end = asyncio.get_running_loop(), threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(loop, "call_later", later)
        patch.setattr(time, "thread_time", lambda: used)
        await errands.do(lambda: may_end.wait(PATIENCE))
    errands.close()
    assert asked == pytest.approx(after)


async def test_an_errand_that_is_done_leaves_no_timer_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []
    rung = 0
    call_later = loop.call_later

    def noted(delay: float, call: Callable[..., None], *given: Any) -> asyncio.TimerHandle:
        def ring() -> None:
            nonlocal rung
            rung += 1
            call(*given)

        timers.append(call_later(delay, ring))
        return timers[-1]

    errands, claim = StoreThread("runcue-test"), Ticket(PATIENCE, LookupError)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "call_later", noted)
        assert await errands.do(claim.take, claim)
    errands.close()
    assert timers
    assert sum(timer.cancelled() for timer in timers) == len(timers) - rung


async def test_an_errand_that_fails_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    errands = StoreThread("runcue-test")

    def fail() -> None:
        raise LookupError

    errands.put(fail)
    assert await errands.do(lambda: "done") == "done"
    errands.close()
    assert "an errand of runcue-test failed" in caplog.text
