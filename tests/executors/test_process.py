"""The process pool: functions in processes that can be ended, die or misbehave without touching each other.

Rows of the fault catalogue: PD5, PD6, PD12 (children and workers), HD1, HD2, HD6, HD9 to HD12 (bad functions),
EX11 (no fork of this process).
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runcue import ConfigError, Cue, Permanent, Retry, RetryLater, Work
from runcue.core.model.failure import classify
from runcue.errors import WorkerLost
from runcue.executors.process.executor import ProcessExecutor
from runcue.executors.process.functions import check_importable
from runcue.executors.process.keeper_link import KeeperLink
from runcue.executors.process_locks import Jobs, end_leftovers
from runcue.ports import TooLate
from runcue.testing import VirtualLoop
from tests import hostile
from tests.executors import pool_tasks
from tests.executors.fakes import Caller, Entered, FakeTask, Given, RealClock
from tests.patience import BOUND, lives, until, until_sync

ROOT = Path(__file__).resolve().parents[2]
LONG = 60.0


@asynccontextmanager
async def pool_of(size: int = 2, grace: float = LONG, jobs: Path | None = None) -> AsyncIterator[Pool]:
    """A pool that leaves nothing behind."""
    pool = Pool(size, grace, jobs)
    try:
        yield pool
    finally:
        await pool.executor.close()
        assert [pid for pid in pool.pids() if lives(pid)] == []


class Pool(Caller):
    """A pool, and the processes that were seen to be its own."""

    def __init__(self, size: int = 2, grace: float = LONG, jobs: Path | None = None) -> None:
        super().__init__(ProcessExecutor(RealClock(), size, grace, partial(KeeperLink, Jobs(jobs))))
        self._seen: set[int] = set()

    async def hanging(self, function: Callable[..., Any], file: Path) -> tuple[asyncio.Task, list[int]]:
        """A function under way that never returns, and the processes it says it has."""
        call = self.begin(function, pids=str(file), tidy=f"{file}.tidy")
        await until(lambda: file.exists() or call.done())
        pids = [int(pid) for pid in file.read_text().split()]
        self._seen.update(pids)
        return call, pids

    def pids(self) -> set[int]:
        """All processes that are, or were seen to be, of this pool."""
        keepers = children_of(os.getpid())
        self._seen.update(*(children_of(pid) for pid in keepers if is_keeper(pid)))
        return self._seen | {pid for pid in keepers if is_keeper(pid)}


def children_of(pid: int) -> set[int]:
    """The children of all threads of a process."""
    found: set[int] = set()
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # that thread has ended meanwhile
            found.update(map(int, file.read_text().split()))
    return found


def is_keeper(pid: int) -> bool:
    """Whether this is the process that starts workers."""
    try:
        return b"process.keeper.keep(" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


async def ended_by(call: asyncio.Task) -> None:
    """Cancel a call and wait until it lets that through."""
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(BOUND):
            await call
    assert call.cancelled()


# ------------------------------------------------------------------------------------------------ calling


async def test_a_function_gets_a_plain_work_and_its_result_comes_back() -> None:
    async with pool_of() as pool:
        answer = await pool.call(pool_tasks.echo, page=[1, {"a": None}])
        assert answer == {"params": {"page": [1, {"a": None}]}, "attempt": 1, "id": "work-1", "is_work": True}
        assert type(await pool.call(pool_tasks.the_work)) is Work
        assert await pool.call(pool_tasks.PARTIAL, more=2) == 42
        assert await pool.call(pool_tasks.Counter(6).up) == 7
        assert await pool.call(pool_tasks.Counter.alone) == "alone"
        assert await pool.call(pool_tasks.Counter(8)) == 8


async def test_two_hundred_works_share_the_same_few_processes() -> None:
    async with pool_of(3) as pool:
        await pool.call(pool_tasks.whoami)
        descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()  # noqa: PTH208
        pids = await asyncio.gather(*(pool.call(pool_tasks.whoami) for _ in range(200)))
        assert len(set(pids)) <= 3
        assert os.getpid() not in pids
        assert len(os.listdir("/proc/self/fd")) <= descriptors + 2  # noqa: PTH208 (one for each new worker)
        assert threading.active_count() <= threads  # one of an earlier test may just have ended


async def test_workers_are_not_forked_from_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """EX11: nothing of this process is in a worker, least of all a lock that one of its threads holds."""
    monkeypatch.setattr(pool_tasks, "SEEN_HERE", ["something"])
    release = threading.Event()

    def hold() -> None:
        with logging._lock:  # type: ignore[attr-defined] # as a thread does that is writing a line
            release.wait(BOUND)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        async with pool_of() as pool:
            pid, parent, seen = await pool.call(pool_tasks.parents)
            assert (parent != os.getpid(), seen) == (True, [])
            assert is_keeper(parent)
            assert pid in children_of(parent)
    finally:
        release.set()
        holder.join()


async def test_no_more_run_at_once_than_there_are_places(tmp_path: Path) -> None:
    async with pool_of(2) as pool:
        go = tmp_path / "go"
        files = [tmp_path / f"{number}" for number in range(3)]
        calls = [pool.begin(pool_tasks.wait_for_file, here=str(file), until=str(go)) for file in files]
        await until(lambda: sum(file.exists() for file in files) == 2)
        assert len(set().union(*map(children_of, filter(is_keeper, pool.pids())))) == 2
        go.touch()
        pids = await asyncio.gather(*calls)
        assert len(set(pids)) == 2
        assert files[2].exists()


async def test_entered_is_called_once_when_the_function_begins(tmp_path: Path) -> None:
    async with pool_of(1) as pool:
        first, second, go = Entered(), Entered(), tmp_path / "go"
        calls = [
            pool.begin(pool_tasks.wait_for_file, entered, here=str(tmp_path / "here"), until=str(go))
            for entered in (first, second)
        ]
        await first.wait()
        assert second.times == []
        go.touch()
        await asyncio.gather(*calls)
        assert (len(first.times), len(second.times)) == (1, 1)
        assert None not in first.times


async def test_a_function_that_could_not_begin_in_time_does_not_begin(tmp_path: Path) -> None:
    async with pool_of(1) as pool:
        for number in range(2):  # by a worker that has to import it first, and by one that has
            late, file = Entered(is_late=True), tmp_path / str(number)
            with pytest.raises(TooLate):
                await pool.call(pool_tasks.hang, late, pids=str(file))
            assert (late.checks, late.times) == (1, [])
            await pool.call(pool_tasks.whoami)
            assert not file.exists()


async def test_progress_is_told_to_the_work_it_is_about() -> None:
    async with pool_of() as pool:
        work = Given()
        await pool.executor.run(work, FakeTask(pool_tasks.progress), None)
        assert work.told == [(0.5, "half of it")]


async def test_progress_of_any_kind_is_told_in_numbers_and_words() -> None:
    async with pool_of(1) as pool:
        work = Given()
        async with asyncio.timeout(BOUND):
            assert await pool.executor.run(work, FakeTask(pool_tasks.odd_progress), None) == "done"
        assert work.told == [(0.5, "one and two")]
        assert type(work.told[0][0]) is float


async def test_orders_wait_for_a_keeper_that_is_busy_and_none_is_lost() -> None:
    async with pool_of(30) as pool:
        await pool.call(pool_tasks.whoami)
        [keeper] = filter(is_keeper, children_of(os.getpid()))
        assert pool.executor._keeper is not None
        pool.executor._keeper._control.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF, 1
        )  # as if it were full
        os.kill(keeper, signal.SIGSTOP)
        try:
            calls = [pool.begin(pool_tasks.whoami) for _ in range(30)]
            await asyncio.sleep(0)
            for call in calls[10:]:
                call.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not any(call.done() for call in calls[10:])
        finally:
            os.kill(keeper, signal.SIGCONT)
        async with asyncio.timeout(BOUND):
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [int] * 10 + [asyncio.CancelledError] * 20


async def test_what_a_function_prints_goes_where_we_print(capfd: pytest.CaptureFixture[str]) -> None:
    async with pool_of() as pool:
        await pool.call(pool_tasks.say, text="hello from a worker")
        assert "hello from a worker" in capfd.readouterr().out


async def test_large_params_and_results_travel() -> None:
    async with pool_of() as pool:
        answer = await pool.call(pool_tasks.echo, text="y" * 3_000_000)
        assert len(answer["params"]["text"]) == 3_000_000
        assert len(await pool.call(pool_tasks.give, what="much")) == 5_000_000


@pytest.mark.parametrize("entry", [Path("/opt"), b"/opt", None, "a\0b", "/x\ud800"])
async def test_a_search_path_with_strange_things_in_it_does_no_harm(
    entry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool_of(1) as pool:
        monkeypatch.setattr(sys, "path", [*sys.path, entry])
        assert await pool.call(pool_tasks.whoami)


async def test_a_keeper_that_cannot_even_be_described_fails_the_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with pool_of(1) as pool:
        monkeypatch.setattr(
            "runcue.executors.process.keeper_link.keeper_command", refusing(ValueError("embedded null"))
        )
        error = await pool.error(pool_tasks.whoami)
        assert isinstance(error, WorkerLost)
        assert "its keeper could not be started: ValueError: embedded null" in str(error)


def test_on_virtual_time_a_function_takes_none(tmp_path: Path) -> None:
    async def main() -> float:
        began = asyncio.get_running_loop().time()
        async with pool_of() as pool:
            worker = await pool.call(pool_tasks.whoami)
            entered = Entered()
            call = pool.begin(pool_tasks.hang, entered, pids=str(tmp_path / "pids"))
            await entered.wait()
            await ended_by(call)
            assert not lives(worker)
        return asyncio.get_running_loop().time() - began

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(main()) == 0


# -------------------------------------------------------------------------------------- cancel and timeout


@pytest.mark.parametrize("function", [pool_tasks.hang, pool_tasks.hang_with_children, pool_tasks.stop_itself])
async def test_a_cancelled_function_is_gone_with_its_children_before_its_call_ends(
    function: Callable[..., Any], tmp_path: Path
) -> None:
    async with pool_of() as pool:
        go = tmp_path / "go"
        other = pool.begin(pool_tasks.wait_for_file, here=str(tmp_path / "here"), until=str(go))
        call, pids = await pool.hanging(function, tmp_path / "pids")
        assert all(map(lives, pids))
        await ended_by(call)
        assert [pid for pid in pids if lives(pid)] == []
        go.touch()
        assert await other == int((tmp_path / "here").read_text())
        assert await pool.call(pool_tasks.whoami) not in pids


@pytest.mark.parametrize("function", [pool_tasks.ignore_the_end, pool_tasks.hang_in_c])
async def test_a_function_that_does_not_heed_the_signal_is_killed_after_the_grace(
    function: Callable[..., Any], tmp_path: Path
) -> None:
    async with pool_of(grace=0.2) as pool:
        call, pids = await pool.hanging(function, tmp_path / "pids")
        await ended_by(call)
        assert not lives(pids[0])


async def test_a_child_whose_parent_became_a_daemon_is_ended_and_the_daemon_is_not(tmp_path: Path) -> None:
    async with pool_of() as pool:
        call, [worker, daemon, child] = await pool.hanging(pool_tasks.hang_beside_a_daemon, tmp_path / "pids")
        try:
            await ended_by(call)
            assert [lives(pid) for pid in (worker, child, daemon)] == [False, False, True]
        finally:
            os.kill(daemon, signal.SIGKILL)
        await until(lambda: not lives(daemon), "it is dead")


async def test_a_function_that_misses_the_signal_is_woken(tmp_path: Path) -> None:
    """A signal that comes between Python's last look and a system call would be noticed only after that."""
    async with pool_of() as pool:
        call, pids = await pool.hanging(pool_tasks.miss_the_signal, tmp_path / "pids")
        await until(lambda: blocks(pids[0], signal.SIGCONT), "it waits for the signal")
        await ended_by(call)
        assert not lives(pids[0])


def blocks(pid: int, number: int) -> bool:
    """Whether a process has a signal blocked."""
    found = re.search(r"^SigBlk:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)


async def test_a_cancelled_function_may_clean_up(tmp_path: Path) -> None:
    async with pool_of() as pool:
        call, _ = await pool.hanging(pool_tasks.clean_up, tmp_path / "pids")
        await ended_by(call)
        assert (tmp_path / "pids.tidy").exists()


async def test_a_second_cancel_does_not_skip_the_end_of_the_process(tmp_path: Path) -> None:
    async with pool_of(grace=0.5) as pool:
        call, pids = await pool.hanging(pool_tasks.ignore_the_end, tmp_path / "pids")
        for _ in range(5):
            call.cancel()
            await asyncio.sleep(0)
        assert not call.done()
        await ended_by(call)
        assert not lives(pids[0])


async def test_a_call_that_is_cancelled_while_it_waits_for_a_process_never_begins(tmp_path: Path) -> None:
    async with pool_of(1) as pool:
        call, pids = await pool.hanging(pool_tasks.hang, tmp_path / "first")
        waiting = pool.begin(pool_tasks.hang, pids=str(tmp_path / "second"))
        await asyncio.sleep(0)
        await ended_by(waiting)
        assert lives(pids[0])
        await ended_by(call)
        await pool.call(pool_tasks.whoami)
        assert not (tmp_path / "second").exists()


async def test_a_call_that_is_cancelled_at_once_leaves_no_process_that_runs_it(tmp_path: Path) -> None:
    async with pool_of(1) as pool:
        for number in range(10):
            call = pool.begin(pool_tasks.hang, pids=str(tmp_path / str(number)))
            for _ in range(number):
                await asyncio.sleep(0)
            await ended_by(call)
        await pool.call(pool_tasks.whoami)
        begun = [int(file.read_text()) for file in tmp_path.iterdir() if not file.suffix]
        assert [pid for pid in begun if lives(pid)] == []


async def test_a_signal_that_the_owner_did_not_send_ends_nothing() -> None:
    """A service manager sends SIGTERM to every process at once; what runs is for the owner to end."""
    async with pool_of() as pool:
        assert await pool.call(pool_tasks.terminated_by_others) == "still here"


# ------------------------------------------------------------------------------------------ death of workers


@pytest.mark.parametrize(
    ("way", "named"),
    [("exit", "exit code 3"), ("kill", "signal:KILL"), ("segv", "signal:SEGV"), ("abort", "signal:ABRT")],
)
async def test_a_dead_worker_fails_only_its_own_work(way: str, named: str, tmp_path: Path) -> None:
    """PD12, HD9."""
    async with pool_of(2) as pool:
        go = tmp_path / "go"
        other = pool.begin(pool_tasks.wait_for_file, here=str(tmp_path / "here"), until=str(go))
        queued = [pool.begin(pool_tasks.whoami) for _ in range(3)]
        error = await pool.error(pool_tasks.die, way=way)
        assert isinstance(error, WorkerLost)
        assert named in str(error)
        assert len(await asyncio.gather(*queued)) == 3
        go.touch()
        assert await other == int((tmp_path / "here").read_text())


async def test_a_worker_that_dies_while_idle_costs_no_work_anything() -> None:
    async with pool_of(1) as pool:
        for _ in range(5):
            pid = await pool.call(pool_tasks.whoami)
            os.kill(pid, signal.SIGKILL)
            assert await pool.call(pool_tasks.whoami) != pid


async def test_a_dead_workers_children_die_with_it(tmp_path: Path) -> None:
    async with pool_of() as pool:
        call, pids = await pool.hanging(pool_tasks.hang_with_children, tmp_path / "pids")
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(WorkerLost, match="signal:KILL"):
            await call
        assert [pid for pid in pids if lives(pid)] == []


async def test_when_the_keeper_is_killed_everything_of_its_workers_dies_and_a_new_one_is_started(
    tmp_path: Path,
) -> None:
    async with pool_of(jobs=tmp_path / "jobs") as pool:
        call, pids = await pool.hanging(pool_tasks.hang_with_children, tmp_path / "pids")
        [keeper] = filter(is_keeper, children_of(os.getpid()))
        os.kill(keeper, signal.SIGKILL)
        with pytest.raises(WorkerLost, match="keeper"):
            await call
        assert [pid for pid in pids if lives(pid)] == []
        assert await pool.call(pool_tasks.whoami) not in pids
        assert len(list((tmp_path / "jobs").iterdir())) == 1


async def test_a_keeper_that_was_just_killed_is_given_no_work() -> None:
    async with pool_of() as pool:
        await pool.call(pool_tasks.whoami)
        keeper = pool.executor._keeper
        [pid] = filter(is_keeper, children_of(os.getpid()))
        os.kill(pid, signal.SIGKILL)
        await until(lambda: keeper is not None and keeper.is_lost)
        assert await asyncio.gather(*(pool.call(pool_tasks.whoami) for _ in range(4)))


async def test_a_worker_whose_keeper_was_just_killed_is_given_no_work() -> None:
    """The keeper's sockets are closed a moment before the kernel kills its workers."""
    async with pool_of() as pool:
        worker = await pool.call(pool_tasks.whoami)
        keeper = pool.executor._keeper
        assert keeper is not None
        [pid] = filter(is_keeper, children_of(os.getpid()))
        keeper.is_lost = True
        try:
            assert await pool.call(pool_tasks.whoami) != worker
        finally:
            os.kill(pid, signal.SIGKILL)


async def test_where_no_process_can_be_started_the_attempt_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pool_of() as pool:
        monkeypatch.setattr("multiprocessing.spawn._python_exe", b"/nowhere/python")
        error = await pool.error(pool_tasks.whoami)
        assert isinstance(error, WorkerLost)
        assert "could not be started" in str(error)
        assert "'/nowhere/python'" in str(error)
        monkeypatch.undo()
        assert await pool.call(pool_tasks.whoami)


def refusing(error: Exception) -> Callable[..., Any]:
    """A call that the system refuses."""

    def refuse(*_: object, **__: object) -> None:
        raise error

    return refuse


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("socket.socketpair", OSError(errno.EMFILE, "Too many open files")),
        ("subprocess.Popen", OSError(errno.EAGAIN, "Resource temporarily unavailable")),
        ("threading.Thread.start", RuntimeError("can't start new thread")),
        ("runcue.executors.process_locks.lock_file", OSError(errno.ENOSPC, "No space left on device")),
    ],
)
async def test_where_there_is_no_room_for_a_process_the_attempt_is_made_later(
    what: str, error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with pool_of(jobs=tmp_path / "jobs") as pool:
        descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        monkeypatch.setattr(what, refusing(error))
        later = await pool.error(pool_tasks.whoami)
        monkeypatch.undo()
        assert isinstance(later, RetryLater)
        assert (later.after, "lower pool_size=" in str(later)) == (1.0, True)
        assert len(os.listdir("/proc/self/fd")) == descriptors  # noqa: PTH208
        assert await pool.call(pool_tasks.whoami)


async def test_a_large_answer_is_read_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pool_of(1) as pool:
        await pool.call(pool_tasks.whoami)
        monkeypatch.setattr("threading.Thread.start", refusing(RuntimeError("can't start new thread")))
        assert len(await pool.call(pool_tasks.give, what="much")) == 5_000_000
        monkeypatch.undo()


async def test_on_a_full_disk_functions_are_called_and_ended_as_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pool = Pool(1, jobs=tmp_path / "jobs")
    descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    monkeypatch.setattr("os.pwrite", refusing(OSError(errno.ENOSPC, "No space left on device")))
    call, pids = await pool.hanging(pool_tasks.hang, tmp_path / "pids")
    await ended_by(call)
    assert not lives(pids[0])
    await pool.executor.close()
    assert list((tmp_path / "jobs").iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == descriptors  # noqa: PTH208


# --------------------------------------------------------------------------------------------- bad functions


@pytest.mark.parametrize(
    ("kind", "type_"),
    [
        ("exit", SystemExit),
        ("interrupt", KeyboardInterrupt),
        ("generator", GeneratorExit),
        ("cancelled", asyncio.CancelledError),
        ("plain", ValueError),
        ("group", ExceptionGroup),
    ],
)
async def test_whatever_a_function_raises_is_its_outcome_and_its_process_lives_on(
    kind: str, type_: type[BaseException]
) -> None:
    """HD1."""
    async with pool_of(1) as pool:
        before = await pool.call(pool_tasks.whoami)
        assert type(await pool.error(pool_tasks.fail, kind=kind)) is type_
        assert await pool.call(pool_tasks.whoami) == before


async def test_what_raises_when_it_is_looked_at_ends_its_call_and_its_process_lives_on() -> None:
    """LU3."""
    async with pool_of(1) as pool:
        before = await pool.call(pool_tasks.whoami)
        for number in hostile.NUMBERS:
            for way in ("raise", "raise odd"):
                await pool.error(hostile.misbehave, way=way, number=number)
            with suppress(Permanent):  # what cannot be pickled; the rest comes as it is
                await pool.call(hostile.misbehave, way="return", number=number)
        assert await pool.call(pool_tasks.whoami) == before


async def test_stop_iteration_comes_out_as_a_coroutine_must_say_it() -> None:
    async with pool_of(1) as pool:
        error = await pool.error(pool_tasks.fail, kind="stop")
        assert isinstance(error, RuntimeError)
        assert isinstance(error.__cause__, StopIteration)


async def test_a_failure_shows_where_it_was_raised() -> None:
    async with pool_of(1) as pool:
        text = classify(await pool.error(pool_tasks.fail_with_a_cause)).traceback
        assert "in fail_with_a_cause" in text
        assert "ValueError: bad value" in text
        assert text.count("RuntimeError: no luck") == 2
        assert "process/worker.py" not in text


async def test_an_exception_keeps_its_class_and_its_attributes() -> None:
    async with pool_of(1) as pool:
        error = await pool.error(pool_tasks.fail, kind="teapot")
        assert isinstance(error, pool_tasks.Teapot)
        assert (error.status_code, error.retry_after) == (418, 7.5)
        assert classify(error).kind == "permanent"


@pytest.mark.parametrize(
    ("kind", "base", "message"),
    [
        ("local", LookupError, "Local: local one"),
        ("two", pool_tasks.NotForPickle, "NotForPickle: one and two"),
        ("http", pool_tasks.HttpError, "HttpError: HTTP 429"),
        ("text", pool_tasks.BadText, "BadText"),
    ],
)
async def test_an_exception_that_cannot_be_pickled_keeps_its_name_text_and_traceback(
    kind: str, base: type[BaseException], message: str
) -> None:
    """HD2, HD10."""
    async with pool_of(1) as pool:
        before = await pool.call(pool_tasks.whoami)
        error = await pool.error(pool_tasks.fail, kind=kind)
        assert isinstance(error, base)  # so that retry_on knows it
        assert classify(error).message == message
        assert "in fail" in classify(error).traceback
        assert await pool.call(pool_tasks.whoami) == before


async def test_numbers_and_texts_of_classes_that_cannot_be_pickled_are_told_as_just_that() -> None:
    async with pool_of(1) as pool:
        error: Any = await pool.error(pool_tasks.fail, kind="local")
        assert (error.status_code, error.headers) == (404, {"Server": "mock"})
        assert classify(error).kind == "permanent"


async def test_a_response_that_cannot_be_pickled_is_understood_all_the_same() -> None:
    async with pool_of(1) as pool:
        failure = classify(await pool.error(pool_tasks.fail, kind="http"))
        assert (failure.kind, failure.after) == ("throttled", 12.0)


async def test_a_huge_message_is_cut() -> None:
    async with pool_of(1) as pool:
        error = await pool.error(pool_tasks.fail, kind="long")
        assert isinstance(error, ValueError)
        assert 1000 < len(str(error)) < 10_000


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("lock", "its result cannot be sent to another process (TypeError: cannot pickle"),
        ("unreadable", "its result came from a worker process and cannot be read here (ValueError:"),
        ("exiting", "its result came from a worker process and cannot be read here (SystemExit: 3"),
    ],
)
async def test_a_result_that_does_not_travel_fails_the_attempt_for_good(what: str, message: str) -> None:
    """HD6, HD10."""
    async with pool_of(1) as pool:
        before = await pool.call(pool_tasks.whoami)
        error = await pool.error(pool_tasks.give, what=what)
        assert isinstance(error, Permanent)
        assert str(error).startswith(message)
        assert await pool.call(pool_tasks.whoami) == before


async def test_a_coroutine_as_a_result_is_refused() -> None:
    async with pool_of(1) as pool:
        assert "returned a coroutine" in str(await pool.error(pool_tasks.give, what="coroutine"))


async def test_params_that_do_not_travel_fail_the_attempt_for_good() -> None:
    async with pool_of(1) as pool:
        error = await pool.error(pool_tasks.echo, lock=threading.Lock())
        assert isinstance(error, Permanent)
        assert str(error).startswith("its params cannot be sent to another process")


@pytest.mark.parametrize("handler", [pool_tasks.HIDDEN, pool_tasks.Locked().up, lambda work: None])
async def test_a_handler_that_does_not_travel_fails_the_attempt_for_good(handler: Callable[..., Any]) -> None:
    async with pool_of(1) as pool:
        error = await pool.error(handler)
        assert isinstance(error, Permanent)
        assert str(error).startswith("its handler cannot be sent to a worker process")
        assert await pool.call(pool_tasks.whoami)


@pytest.mark.parametrize("way", ["descriptors", "streams", "replaced"])
async def test_what_a_function_changes_in_its_process_is_put_back(
    way: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """HD11."""
    async with pool_of(1) as pool:
        before = await pool.call(pool_tasks.surroundings, way=way)
        for _ in range(2):
            assert await pool.call(pool_tasks.spoil, way=way) == before["pid"]
            assert await pool.call(pool_tasks.surroundings, way=way) == before
        assert await pool.call(pool_tasks.terminated_by_others) == "still here"
        await pool.call(pool_tasks.say, text="still heard")
        assert "still heard" in capfd.readouterr().out


async def test_a_child_that_comes_back_from_the_function_does_not_answer() -> None:
    async with pool_of(1) as pool:
        before = await pool.call(pool_tasks.whoami)
        for _ in range(5):
            assert await pool.call(pool_tasks.fork_and_return) == before
        assert await pool.call(pool_tasks.whoami) == before


async def test_a_daemon_that_left_its_session_is_left_alone_and_holds_nothing_up() -> None:
    pool = Pool(1)
    worker, daemon = await pool.call(pool_tasks.leave_a_daemon)
    try:
        os.kill(worker, signal.SIGKILL)
        assert await pool.call(pool_tasks.whoami) != worker
        await pool.executor.close()
        assert (lives(worker), lives(daemon)) == (False, True)
    finally:
        os.kill(daemon, signal.SIGKILL)


# ------------------------------------------------------------------------------------------------ the end


async def test_nothing_is_left_after_close(tmp_path: Path) -> None:
    """HD12, PD18."""
    pool = Pool(3, jobs=tmp_path / "jobs")
    pids = await pool.call(pool_tasks.leave_a_child)
    call, more = await pool.hanging(pool_tasks.hang_with_children, tmp_path / "pids")
    waiting = [pool.begin(pool_tasks.hang, pids=str(tmp_path / f"more{n}")) for n in range(4)]
    await asyncio.sleep(0)
    everybody = pool.pids() | {*pids, *more}
    assert len(everybody) >= 5
    await pool.executor.close()
    assert [pid for pid in everybody if lives(pid)] == []
    assert isinstance((await asyncio.gather(call, return_exceptions=True))[0], WorkerLost)
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(outcome, WorkerLost | asyncio.CancelledError) for outcome in outcomes)
    assert list((tmp_path / "jobs").iterdir()) == []
    await pool.executor.close()


async def test_a_pool_that_nobody_used_has_nothing_to_close() -> None:
    await Pool().executor.close()


def test_a_pool_that_nobody_closes_ends_with_its_loop(tmp_path: Path) -> None:
    async def main() -> set[int]:
        pool = Pool()
        await pool.call(pool_tasks.whoami)
        return pool.pids()

    pids = asyncio.run(main())
    gc.collect()
    until_sync(lambda: not any(map(lives, pids)), "the processes of a forgotten pool end")


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """A program with two functions under way that never return; it is ended by its own pid."""
    started: list[subprocess.Popen[bytes]] = []

    def start(what: str, functions: str = "hang_with_children,ignore_the_end") -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.executors.pool_tasks", tmp_path, functions, what], cwd=ROOT
        )
        started.append(process)
        until_sync(
            lambda: (tmp_path / "ready").exists() or process.poll() is not None, "the program is ready"
        )
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def seen_by(folder: Path, owner: subprocess.Popen[bytes]) -> set[int]:
    """All processes that a program's pool has."""
    noted = {
        int(pid)
        for name in ("hang_with_children", "ignore_the_end")
        for pid in (folder / name).read_text().split()
    }
    keepers = set(filter(is_keeper, children_of(owner.pid)))
    assert (len(noted), len(keepers)) == (4, 1)
    assert all(map(lives, noted))
    return noted | keepers


def test_when_the_owner_is_killed_its_workers_and_their_children_die(
    owner: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """PD5, PD6."""
    process = owner("plain")
    pids = seen_by(tmp_path, process)
    process.kill()
    until_sync(lambda: not any(map(lives, pids)), "everybody is gone")


def test_a_killed_owners_job_lock_is_free_when_its_workers_are_gone(
    owner: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """P4."""
    process = owner("jobs")
    pids = seen_by(tmp_path, process)
    [keeper] = filter(is_keeper, children_of(process.pid))
    [lock] = (tmp_path / "jobs").iterdir()
    assert lock.name.startswith("reaper-")  # which is waited for, and not ended
    process.kill()
    until_sync(lambda: end_leftovers(tmp_path / "jobs"), "the lock is free")
    assert [pid for pid in pids - {keeper} if lives(pid)] == []
    until_sync(lambda: not lives(keeper), "it ends as well")


def test_a_killed_owners_job_lock_is_held_for_the_children_of_a_worker_that_died_before(
    owner: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """P4: they hold nothing themselves, and nobody but the keeper knows of them. If it was stopped, it is woken."""
    process = owner("jobs")
    pids = seen_by(tmp_path, process)
    [keeper] = filter(is_keeper, children_of(process.pid))
    worker, *children = map(int, (tmp_path / "hang_with_children").read_text().split())
    os.kill(keeper, signal.SIGSTOP)
    try:
        os.kill(worker, signal.SIGKILL)
        process.kill()
        until_sync(lambda: not lives(worker), "it is dead")
        assert all(map(lives, children))
        until_sync(lambda: end_leftovers(tmp_path / "jobs"), "the lock is free")
        assert [pid for pid in pids - {keeper} if lives(pid)] == []
    finally:
        if lives(keeper):
            os.kill(keeper, signal.SIGCONT)
    until_sync(lambda: not lives(keeper), "the keeper is gone")


def test_daemons_of_a_killed_owners_functions_are_left_alone_and_hold_nothing_up(
    owner: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = owner("jobs", "hang_with_daemons")
    worker, *daemons = map(int, (tmp_path / "hang_with_daemons").read_text().split())
    try:
        process.kill()
        until_sync(lambda: end_leftovers(tmp_path / "jobs"), "the lock is free")
        assert not lives(worker)
        assert all(map(lives, daemons))
    finally:
        for pid in daemons:
            os.kill(pid, signal.SIGKILL)


def test_a_child_that_the_owner_forked_does_not_keep_its_workers_alive(
    owner: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = owner("fork")
    pids = seen_by(tmp_path, process)
    forked = int(until_sync(lambda: (tmp_path / "forked").exists() and (tmp_path / "forked").read_text()))
    try:
        process.kill()
        until_sync(lambda: not any(map(lives, pids)), "everybody is gone")
        assert lives(forked)
    finally:
        os.kill(forked, signal.SIGKILL)


def test_what_runs_in_keeper_and_workers_needs_no_asyncio() -> None:
    code = "import sys, runcue.executors.process.keeper\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=BOUND, check=True
    )
    assert {"asyncio", "runcue.host.loops"}.isdisjoint(done.stdout.split())


# ------------------------------------------------------------------------------------------ which functions


def make_nested() -> Callable[[Work], None]:
    """A function that exists only here."""

    def nested(work: Work) -> None: ...

    return nested


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (lambda work: None, "is a lambda"),
        (make_nested(), "is defined inside a function"),
        (pool_tasks.Locked().up, "cannot be sent to a worker process (TypeError: cannot pickle"),
        (pool_tasks.HIDDEN, "cannot be sent to a worker process (PicklingError:"),
    ],
)
def test_a_handler_that_workers_could_not_find_is_refused(handler: Callable[..., Any], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_importable(handler)
    assert reason in str(caught.value)
    assert "Define it with def at the top of a module." in str(caught.value)


@pytest.mark.parametrize(
    "handler", [pool_tasks.echo, pool_tasks.PARTIAL, pool_tasks.Counter(1).up, pool_tasks.Counter.alone, len]
)
def test_a_handler_that_workers_can_find_is_accepted(handler: Callable[..., Any]) -> None:
    check_importable(handler)


SCRIPT = """
import asyncio
import sys
from functools import partial
from tests.executors.fakes import FakeTask, RealClock
from runcue import Work
from runcue.executors.process_locks import Jobs
from runcue.executors.process.executor import ProcessExecutor
from runcue.executors.process.functions import check_importable
from runcue.executors.process.keeper_link import KeeperLink

def task(function):
    check_importable(function)
    return function

@task
def double(work):
    return 2 * work.params["n"], __name__

async def main():
    pool = ProcessExecutor(RealClock(), 1, 1.0, partial(KeeperLink, Jobs(None)))
    try:
        print(await pool.run(Work(id="a", task="b", params={"n": 21}), FakeTask(double), None))
    except Exception as error:
        print(type(error).__name__, error)
    await pool.close()
"""
GUARDED = f'{SCRIPT}\nif __name__ == "__main__":\n    asyncio.run(main())\n'


def python(folder: Path, *arguments: str | Path, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python elsewhere, where a warning is an error."""
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
        input=given,
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )


@pytest.mark.parametrize("way", ["file", "module"])
def test_a_function_of_the_script_itself_is_found_again(way: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(GUARDED)
    arguments = ["script.py"] if way == "file" else ["-m", "script"]
    done = python(tmp_path, *arguments)
    assert (done.stdout, done.stderr) == ("(42, '__mp_main__')\n", "")


def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(f"{SCRIPT}\nasyncio.run(main())\n")
    done = python(tmp_path, "script.py")
    assert done.stdout.startswith("Permanent the script could not be imported again in a worker process")
    assert 'put what starts it under `if __name__ == "__main__":`' in done.stdout
    assert done.stdout.count("\n") == 1


def test_a_script_is_not_imported_again_for_functions_of_other_modules(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text("def double(work):\n    return 2 * work.params['n']\n")
    unguarded = SCRIPT.replace("FakeTask(double)", "FakeTask(tasks.double)").replace(
        "import sys", "import tasks"
    )
    (tmp_path / "script.py").write_text(f"{unguarded}\nprint('once')\nasyncio.run(main())\n")
    done = python(tmp_path, "script.py")
    assert (done.stdout, done.stderr) == ("once\n42\n", "")


def test_a_program_that_heeds_broken_pipes_survives_a_worker_that_died(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text("import os\ndef double(work):\n    return os.getpid()\n")
    script = SCRIPT.replace("FakeTask(double)", "FakeTask(tasks.double)").replace(
        "import sys", "import tasks"
    )
    script = script.replace("print(await pool.run(", "first = await pool.run(").replace(
        ", None))\n", ", None)\n"
    )
    (tmp_path / "script.py").write_text(
        f"""{script}
import os, signal
from tests.patience import lives, until_sync
signal.signal(signal.SIGPIPE, signal.SIG_DFL)

async def twice():
    pool = ProcessExecutor(RealClock(), 1, 1.0, partial(KeeperLink, Jobs(None)))
    work = Work(id="a", task="b")
    pid = await pool.run(work, FakeTask(tasks.double), None)
    os.kill(pid, signal.SIGKILL)
    until_sync(lambda: not lives(pid))
    print(await pool.run(work, FakeTask(tasks.double), None) != pid)
    await pool.close()

asyncio.run(twice())
"""
    )
    done = python(tmp_path, "script.py")
    assert (done.stdout, done.stderr, done.returncode) == ("True\n", "", 0)


@pytest.mark.parametrize("way", ["code", "package", "folder", "input"])
def test_a_function_that_could_not_be_imported_again_is_refused(way: str, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(GUARDED)
    arguments = {"code": ["-c", GUARDED], "package": ["-m", "package"], "folder": ["package"], "input": ["-"]}
    done = python(tmp_path, *arguments[way], given=GUARDED)
    assert "ConfigError: The handler 'double' is defined at a prompt" in done.stderr
    assert "Put it into a module and import it." in done.stderr


# -------------------------------------------------------------------------------------------- through a Cue


async def finished(cue: Cue, work_id: str) -> Work:
    """A work that has come to its end."""
    return await cue.wait(work_id, timeout=BOUND)


@pytest.mark.parametrize("place", ["memory", "file"])
async def test_a_work_out_of_time_is_gone_before_its_next_attempt_begins(place: str, tmp_path: Path) -> None:
    cue = Cue() if place == "memory" else Cue(tmp_path / "queue.db")
    cue.task("overlap", executor="process_pool", timeout=1.0, retry=Retry(max_attempts=3, base_delay=0.001))(
        pool_tasks.note_overlap
    )
    cue.task("whoami", executor="process_pool")(pool_tasks.whoami)
    async with cue:
        await cue.result(await cue.submit("whoami"), timeout=BOUND)  # so that the pool is there
        work = await finished(cue, await cue.submit("overlap", params={"folder": str(tmp_path)}))
    await cue.close()
    assert (work.state, work.error, work.attempt) == ("failed", "timeout", 3)
    seen = [file.read_text() for file in tmp_path.glob("attempt-*")]
    assert set(seen) == {"nobody"}
    assert len(seen) >= 2  # on a busy machine the time may be over before one has begun


async def test_a_crash_and_an_exception_look_like_any_failure_of_a_work() -> None:
    cue = Cue(pool_size=1)
    cue.task("die", executor="process_pool")(pool_tasks.die)
    cue.task("fail", executor="process_pool")(pool_tasks.fail)
    cue.task("whoami", executor="process_pool")(pool_tasks.whoami)
    async with cue:
        dead = await finished(cue, await cue.submit("die", params={"way": "kill"}))
        failed = await finished(cue, await cue.submit("fail", params={"kind": "local"}))
        assert await cue.result(await cue.submit("whoami"), timeout=BOUND) != os.getpid()
    await cue.close()
    assert (dead.error or "").startswith("WorkerLost: the process that ran it died: signal:KILL")
    assert failed.error == "Local: local one"
    assert "in fail" in (failed.traceback or "")


async def test_a_cancelled_work_is_ended_and_its_place_is_free_again(tmp_path: Path) -> None:
    cue = Cue(pool_size=1)
    cue.task("hang", executor="process_pool")(pool_tasks.hang_with_children)
    cue.task("whoami", executor="process_pool")(pool_tasks.whoami)
    async with cue:
        work_id = await cue.submit("hang", params={"pids": str(tmp_path / "pids")})
        await until((tmp_path / "pids").exists)
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        assert await cue.cancel(work_id)
        assert await cue.result(await cue.submit("whoami"), timeout=BOUND) not in pids
        assert not any(map(lives, pids))
    await cue.close()


async def test_what_a_function_tells_of_its_progress_is_an_event() -> None:
    cue = Cue()
    cue.task("progress", executor="process_pool")(pool_tasks.progress)
    async with cue:
        await finished(cue, await cue.submit("progress"))
        async for event in cue.events(types="progress"):
            assert (event.fraction, event.text) == (0.5, "half of it")
            break
    await cue.close()


async def test_a_handler_that_workers_could_not_find_is_refused_when_it_is_registered() -> None:
    with pytest.raises(ConfigError, match="is a lambda"):
        Cue().task("nothing", executor="process_pool")(lambda work: None)
