"""Other processes: woken, missed, and taken for dead only when nothing of them runs any more."""

import asyncio
import errno
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from runcue.core.schedule.plan import Plan
from runcue.stores.presence import peer_monitor, wakeups
from runcue.stores.presence.peer_monitor import EndLeftovers, Trouble
from runcue.stores.presence.presence import Presence, Turnstile, side_directory
from runcue.stores.sqlite.store import sqlite_store
from runcue.testing.manual_turns import Hand, pending
from tests.patience import until
from tests.stores.beside import PATIENCE

WORKER = """
import asyncio, sys
from runcue.stores.sqlite.store import sqlite_store
from runcue.testing.manual_turns import Hand, pending

async def main():
    store = sqlite_store(sys.argv[1], durability="relaxed", lease=30.0)
    hand = Hand(store, {})
    await hand.join()
    await hand.write(pending(100))
    print(store.worker, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


class Watching:
    """A store that notes who it loses."""

    def __init__(self, path: Path, end_leftovers: EndLeftovers | None = None) -> None:
        self.store = sqlite_store(str(path), durability="relaxed", lease=30.0, end_leftovers=end_leftovers)
        self.hand = Hand(self.store, {})
        self.lost: list[str] = []
        self.looks = 0
        self.store.listen(self._changed, self.lost.append)

    def _changed(self, is_urgent: bool | None) -> None:
        self.looks += 1


@asynccontextmanager
async def watching(path: Path, end_leftovers: EndLeftovers | None = None) -> AsyncIterator[Watching]:
    one = Watching(path, end_leftovers)
    try:
        yield one
    finally:
        await one.store.close()


@pytest.fixture
def worker(path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen([sys.executable, "-c", WORKER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process, process.stdout.readline().strip()
    process.kill()
    process.communicate(timeout=PATIENCE)


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate(timeout=PATIENCE)


# --- Being told -----------------------------------------------------------------------------------


@pytest.fixture
def poker(tmp_path: Path) -> Iterator[Presence]:
    presence = Presence(side_directory(tmp_path / "queue.db"), "poker")
    yield presence
    presence.close()


async def test_what_others_tell_while_a_turn_is_waited_for_wakes_nobody_and_the_turn_has_seen_it(
    path: Path, poker: Presence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_monitor, "LOOK_AROUND", 1000.0)
    turnstile = Turnstile(side_directory(path))
    async with watching(path) as one:
        await one.hand.write(pending(1))
        assert turnstile.acquire(PATIENCE)
        turn = asyncio.ensure_future(
            one.hand.look(lambda turn: poker.poke([one.store.worker], urgent={one.store.worker}))
        )
        await asyncio.sleep(0)
        poker.poke([one.store.worker], urgent={one.store.worker})
        for _ in range(5):
            await asyncio.sleep(0.002)
        assert one.looks == 0
        turnstile.release()
        await turn
        for _ in range(5):
            await asyncio.sleep(0.002)
        assert one.looks == 0
        poker.poke([one.store.worker], urgent={one.store.worker})
        await until(lambda: one.looks == 1)
    turnstile.close()


async def test_what_others_tell_after_a_turn_has_looked_is_heard_when_it_is_over(
    path: Path, poker: Presence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_monitor, "LOOK_AROUND", 1000.0)
    async with watching(path) as one:
        await one.hand.write(pending(1))
        tell = one.store._wake_others

        def told(plan: Plan) -> None:
            poker.poke([one.store.worker], urgent={one.store.worker})
            tell(plan)

        monkeypatch.setattr(one.store, "_wake_others", told)
        await one.hand.write(pending(2))
        await until(lambda: one.looks == 1)


async def test_turns_that_follow_each_other_arrange_one_wake_up_of_the_others(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    posted: list[Callable[[], None]] = []
    poked: list[set[str]] = []
    monkeypatch.setattr(wakeups, "EVERY", 1000.0)
    monkeypatch.setattr(wakeups, "post_to_loop", lambda loop, callback: posted.append(callback))
    async with watching(path) as one:
        monkeypatch.setattr(one.store._wakeups, "_peers", lambda: {one.store.worker, "another"})
        monkeypatch.setattr(one.store._wakeups, "_poke", lambda workers, urgent: poked.append({*workers}))
        for number in range(1, 6):
            await one.hand.write(pending(number))
        assert len(poked) == 1, "the first turn wakes them at once"
        assert len(posted) == 1
        one.store._wakeups._now()
        await until(lambda: len(poked) == 2)
        await one.hand.write(pending(6))
        assert len(posted) == 2, "what is committed after a wake-up is followed by another"


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_process_that_is_alone_wakes_nobody_and_not_its_own_loop(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    posted: list[Callable[[], None]] = []
    monkeypatch.setattr(wakeups, "post_to_loop", lambda loop, callback: posted.append(callback))
    async with watching(path) as one:
        peers = [one.store.worker] if is_known else []
        monkeypatch.setattr(one.store._wakeups, "_peers", lambda: peers)
        for number in range(1, 4):
            await one.hand.write(pending(number))
        assert posted == []


async def test_a_turn_that_fails_leaves_a_process_that_can_be_told(
    path: Path, poker: Presence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_monitor, "LOOK_AROUND", 1000.0)
    async with watching(path) as one:
        with pytest.raises(ZeroDivisionError):
            await one.hand.look(lambda turn: 1 / 0)
        poker.poke([one.store.worker], urgent={one.store.worker})
        await until(lambda: one.looks == 1)


# --- Deaths ---------------------------------------------------------------------------------------


async def test_who_could_not_listen_hears_again_after_an_exchange(
    path: Path, poker: Presence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_monitor, "LOOK_AROUND", 1000.0)

    def no_room(*given: object) -> None:
        raise OSError(errno.ENOSPC, "no room for another descriptor")

    async with watching(path) as decider:
        await decider.hand.turn()
        loop = asyncio.get_running_loop()
        with monkeypatch.context() as patch:
            patch.setattr(loop, "add_reader", no_room)
            other = Watching(path)
        try:
            await other.store.exchange(None)
            poker.poke([other.store.worker], urgent={other.store.worker})
            await until(lambda: other.looks == 1)
        finally:
            await other.store.close()


async def test_a_death_is_noticed_without_looking_around(
    path: Path, worker: tuple[subprocess.Popen[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_monitor, "LOOK_AROUND", 1000.0)
    process, name = worker
    async with watching(path) as one:
        await one.hand.write(pending(1))
        assert one.lost == []
        process.kill()
        await until(lambda: one.lost == [name])
        await one.hand.turn(lambda plan, turn: plan.lost.append(name))
        assert not list(side_directory(path).glob(f"{name}.*"))


async def test_a_death_is_noticed_where_processes_cannot_be_watched(
    path: Path, worker: tuple[subprocess.Popen[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_monitor, "LOOK_AROUND", 0.02)
    monkeypatch.setattr(Presence, "watch", lambda presence, pid: None)
    process, name = worker
    async with watching(path) as one:
        await one.hand.write(pending(1))
        process.kill()
        await until(lambda: name in one.lost)


async def test_the_end_of_another_process_that_has_the_pid_is_no_death(
    path: Path,
    worker: tuple[subprocess.Popen[str], str],
    stranger: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_monitor, "LOOK_AROUND", 1000.0)
    asked: list[str] = []
    is_alive, watch = Presence.is_alive, Presence.watch

    def noted(self: Presence, name: str) -> bool:
        asked.append(name)
        return is_alive(self, name)

    monkeypatch.setattr(Presence, "watch", lambda self, pid: watch(self, stranger.pid))
    monkeypatch.setattr(Presence, "is_alive", noted)
    async with watching(path) as one:
        await one.hand.write(pending(1))
        before = len(asked)
        stranger.kill()
        await until(lambda: len(asked) > before)
        assert (asked[-1], one.lost) == (worker[1], [])


async def test_who_left_something_running_is_lost_when_that_has_ended(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_monitor, "LOOK_AROUND", 0.02)
    answers: list[Any] = [False, ZeroDivisionError("mine"), True]
    seen: list[tuple[str, bool]] = []

    def end_leftovers(name: str) -> bool:
        seen.append((name, threading.current_thread() is threading.main_thread()))
        assert len(answers) == 1 or not one.lost
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    dying = Watching(path)
    await dying.hand.join()
    async with watching(path, end_leftovers) as one:
        await one.hand.write(pending(2))
        dying.store.abandon()
        await until(lambda: dying.store.worker in one.lost)
    assert seen[:3] == [(dying.store.worker, False)] * 3


async def test_one_who_hangs_while_leftovers_are_ended_holds_up_nobody(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_monitor, "LOOK_AROUND", 0.02)
    release = threading.Event()
    calls = []

    def end_leftovers(name: str) -> bool:
        calls.append(name)
        return release.wait(PATIENCE)

    dying = Watching(path)
    await dying.hand.join()
    async with watching(path, end_leftovers) as one:
        await one.hand.write(pending(2))
        dying.store.abandon()
        await until(lambda: bool(calls))
        looks = one.looks
        await until(lambda: one.looks > looks + 3)
        await one.hand.write(pending(3))
        assert (len(calls), one.lost) == (1, [])
        release.set()
        await until(lambda: one.lost[:1] == [dying.store.worker])


async def test_files_that_were_taken_away_are_reported_once_and_nobody_is_lost(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(peer_monitor, "LOOK_AROUND", 0.02)
    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    async with watching(path) as one, watching(path) as other:
        await one.hand.join()
        await other.hand.join()
        shutil.rmtree(side_directory(path))
        looks = other.looks
        await until(lambda: other.looks > looks + 5)
        await other.hand.write(pending(3))
        assert (one.lost, other.lost, problems) == ([], [], [])
    lines = [record for record in caplog.records if "which processes are alive" in record.getMessage()]
    assert 1 <= len(lines) <= 2, "once for each of them at most"


def test_trouble_is_told_once_a_minute_for_each_kind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    moments = iter((0.0, 0.0, 59.0, 59.0, 60.0, 60.0))
    monkeypatch.setattr("runcue.stores.presence.peer_monitor.time.monotonic", lambda: next(moments))
    trouble = Trouble("queue.db")
    for _ in range(3):
        trouble("cannot look", OSError("here"))
        trouble("cannot see", OSError("there"))
    assert [record.getMessage() for record in caplog.records] == [
        "'queue.db': cannot look: here",
        "'queue.db': cannot see: there",
    ] * 2
