"""Functions on a Dask cluster: what they are given, what comes back, when they begin, and what happens when they,
their workers or the scheduler do not do what they should.

One small cluster serves most tests; a proxy in front of it plays a scheduler that goes away and comes back. Rows of
the fault catalogue: PD5, PD12 (workers), HD1, HD2, HD6, HD8 to HD10 (bad functions).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import runcue
from runcue import ConfigError, Cue, InvalidOption, Permanent, Unreachable, Work, WorkerLost
from runcue.executors.dask.executor import DaskExecutor
from runcue.executors.process_locks import Jobs, end_leftovers
from runcue.host.posix.processes import session_members
from runcue.ports import TooLate
from runcue.testing import VirtualLoop
from tests.executors import dask_tasks, pool_tasks
from tests.executors.daskserver import cluster
from tests.executors.fakes import Caller, Entered, Given, RealClock
from tests.patience import BOUND, lives, until, until_sync

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.xdist_group("dask")


def caller_at(address: str | None, connect_timeout: float = BOUND) -> Caller:
    """A caller of the cluster at that address, or of one of its own."""
    return Caller(DaskExecutor(RealClock(), address, 1, Jobs(None), connect_timeout=connect_timeout))


@asynccontextmanager
async def caller_of(address: str, connect_timeout: float = BOUND) -> AsyncIterator[Caller]:
    """A caller that leaves nothing behind."""
    caller = caller_at(address, connect_timeout)
    try:
        yield caller
    finally:
        async with asyncio.timeout(BOUND):
            await caller.executor.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a scheduler is that has two workers of one thread each."""
    with cluster(tmp_path_factory.mktemp("dask")) as address:
        yield address


@pytest.fixture
async def caller(address: str) -> AsyncIterator[Caller]:
    """A caller of the shared cluster."""
    async with caller_of(address) as caller:
        yield caller


class Proxy:
    """Stands before a scheduler, and can go away, come back or fall silent."""

    def __init__(self, target: str) -> None:
        self._target = target.removeprefix("tcp://").rpartition(":")
        self._server: asyncio.Server | None = None
        self._ways: set[asyncio.StreamWriter] = set()
        self._copies: set[asyncio.Task] = set()
        self.port = 0

    @property
    def address(self) -> str:
        """Where it can be reached."""
        return f"tcp://127.0.0.1:{self.port}"

    async def open(self) -> None:
        """Be there, always at the same port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Go away, with all connections."""
        if self._server is not None:
            self._server.close()
        for way in self._ways:
            way.transport.abort()
        if self._copies:
            await asyncio.wait(self._copies)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(self._target[0], int(self._target[2]))
        self._ways |= {writer, there[1]}
        for source, sink in ((reader, there[1]), (there[0], writer)):
            task = asyncio.ensure_future(self._copy(source, sink))
            self._copies.add(task)
            task.add_done_callback(self._copies.discard)

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while chunk := await source.read(65536):
                sink.write(chunk)
                await sink.drain()
        sink.close()


def clusters() -> set[int]:
    """The cluster processes that this process has started, and not the one of the fixture."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if b"cluster.keep(1," in file.read_bytes() and lives(int(file.parent.name)):
                status = (file.parent / "status").read_text()
                if f"PPid:\t{os.getpid()}\n" in status:
                    found.add(int(file.parent.name))
    return found


def pids_in(file: Path) -> list[int]:
    """The processes that noted themselves there."""
    return [int(line) for line in file.read_text().split()] if file.exists() else []


# --- What a function is given, and what comes back ------------------------------------------------------


async def test_a_function_gets_a_plain_work_in_another_process(caller: Caller) -> None:
    assert await caller.call(pool_tasks.echo, n=1) == {
        "params": {"n": 1}, "attempt": 1, "id": "work-1", "is_work": True
    }  # fmt: skip
    assert type(await caller.call(pool_tasks.the_work)) is Work
    assert await caller.call(pool_tasks.whoami) != os.getpid()


async def test_a_function_that_no_worker_could_import_travels_as_it_is(caller: Caller) -> None:
    amount = 5
    assert await caller.call(lambda work: work.params["n"] + amount, n=2) == 7


async def test_a_large_result_comes_back(caller: Caller) -> None:
    assert await caller.call(pool_tasks.give, what="much") == b"x" * 5_000_000


@pytest.mark.parametrize(
    ("function", "params", "said"),
    [
        (
            pool_tasks.echo,
            {"lock": threading.Lock()},
            "its params cannot be sent to another process (TypeError: ",
        ),
        (dask_tasks.closing_over_a_lock(), {}, "its handler cannot be sent to a Dask worker (TypeError: "),
        (pool_tasks.give, {"what": "lock"}, "its result cannot be sent to another process (TypeError: "),
        (
            pool_tasks.give,
            {"what": "unreadable"},
            "its result came from a worker process and cannot be read here",
        ),
    ],
)
async def test_what_cannot_be_pickled_fails_for_good_and_says_what_it_is(
    caller: Caller, function: Any, params: dict[str, Any], said: str
) -> None:
    error = await caller.error(function, **params)
    assert isinstance(error, Permanent)
    assert str(error).startswith(said)
    assert "\n" not in str(error)


async def test_a_handler_that_a_worker_cannot_import_fails_for_good(caller: Caller, tmp_path: Path) -> None:
    (tmp_path / "only_here.py").write_text("def handler(work):\n    return 1\n")
    sys.path.insert(0, str(tmp_path))
    try:
        import only_here  # type: ignore[import-not-found]

        error = await caller.error(only_here.handler)
    finally:
        sys.path.remove(str(tmp_path))
        del sys.modules["only_here"]
    assert isinstance(error, Permanent)
    assert str(error).startswith("its handler cannot be imported on the Dask worker (ModuleNotFoundError: ")


async def test_an_exception_arrives_as_itself_with_the_traceback_of_the_worker(caller: Caller) -> None:
    error = await caller.error(pool_tasks.fail, kind="plain")
    assert (type(error), str(error)) == (ValueError, "bad value")
    assert "in fail" in error.__cause__.__notes__[0]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("kind", "name", "text", "base"),
    [
        ("two", "NotForPickle", "one and two", Exception),
        ("local", "Local", "local one", LookupError),
        ("exit", "SystemExit", "4", SystemExit),
        ("cancelled", "CancelledError", "", asyncio.CancelledError),
    ],
)
async def test_an_exception_of_any_kind_is_a_failure_of_that_name(
    caller: Caller, kind: str, name: str, text: str, base: type[BaseException]
) -> None:
    error = await caller.error(pool_tasks.fail, kind=kind)
    assert (type(error).__name__, str(error), isinstance(error, base)) == (name, text, True)


async def test_a_coroutine_is_no_result(caller: Caller) -> None:
    error = await caller.error(pool_tasks.give, what="coroutine")
    assert (type(error), "returned a coroutine" in str(error)) == (TypeError, True)


async def test_what_a_function_says_while_it_runs_is_heard(caller: Caller) -> None:
    work = Given({})
    await caller.begin_work(work, dask_tasks.say_all)
    assert work.told == [(0.5, "half of it")]
    assert work.said == [{"tokens": 7}, ({"x-ratelimit-remaining-requests": "3"}, "api")]


# --- When a function begins -----------------------------------------------------------------------------


async def test_the_moment_is_checked_before_and_told_after_it(caller: Caller, tmp_path: Path) -> None:
    entered = Entered()
    call = caller.begin(
        dask_tasks.noted, entered, begun=str(tmp_path / "begun"), until=str(tmp_path / "until")
    )
    await entered.wait()
    assert (entered.checks, len(entered.times)) == (1, 1)
    (tmp_path / "until").touch()
    assert await call == "done"
    assert len(entered.times) == 1


async def test_a_call_that_comes_too_late_does_not_begin(caller: Caller, tmp_path: Path) -> None:
    entered = Entered()
    entered.is_late = True
    with pytest.raises(TooLate):
        await caller.call(dask_tasks.noted, entered, begun=str(tmp_path / "begun"), until=str(tmp_path))
    assert await caller.call(pool_tasks.echo)
    assert (pids_in(tmp_path / "begun"), entered.times) == ([], [])


async def test_what_was_given_up_before_it_began_never_begins(caller: Caller, tmp_path: Path) -> None:
    until_file = str(tmp_path / "until")
    busy = [caller.begin(dask_tasks.noted, begun=str(tmp_path / "busy"), until=until_file) for _ in range(2)]
    await until(lambda: len(pids_in(tmp_path / "busy")) == 2)
    waiting = Given({"begun": str(tmp_path / "begun"), "until": until_file})
    call = caller.begin_work(waiting, dask_tasks.noted)
    await asyncio.sleep(0)
    waiting.cancelled = True
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(call, BOUND)
    (tmp_path / "until").touch()
    assert await asyncio.gather(*busy) == ["done", "done"]
    assert await caller.call(pool_tasks.echo)
    assert pids_in(tmp_path / "begun") == []


async def test_a_call_whose_waiting_is_cancelled_is_taken_back(caller: Caller, tmp_path: Path) -> None:
    begun, until_file = tmp_path / "begun", tmp_path / "until"
    busy = [
        caller.begin(dask_tasks.noted, begun=str(tmp_path / "busy"), until=str(until_file)) for _ in range(2)
    ]
    await until(lambda: len(pids_in(tmp_path / "busy")) == 2)
    call = caller.begin(dask_tasks.noted, begun=str(begun), until=str(until_file))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    until_file.touch()
    await asyncio.gather(*busy)
    assert await caller.call(pool_tasks.echo)
    assert pids_in(begun) == []


async def test_a_cancelled_function_runs_on_and_keeps_its_place(address: str, tmp_path: Path) -> None:
    cue = Cue(dask=address)
    cue.service("one", concurrent=1)
    cue.task("noted", executor="dask", uses="one")(dask_tasks.noted)
    begun, until_file = tmp_path / "begun", tmp_path / "until"
    params = {"begun": str(begun), "until": str(until_file)}
    async with cue:
        first = await cue.submit("noted", params=params)
        await until(lambda: len(pids_in(begun)) == 1)
        second = await cue.submit("noted", params=params)
        assert await cue.cancel(first)
        work = await cue.wait(first)
        assert work.state == "cancelled"
        assert (await cue.explain(second)).reason == "concurrency"
        until_file.touch()
        assert await cue.result(second, timeout=BOUND) == "done"
        work = await cue.wait(first)
        assert (work.state, work.result, len(pids_in(begun))) == ("cancelled", None, 2)
    await cue.close()


async def test_a_retry_after_a_timeout_waits_for_the_end_of_the_function(
    address: str, tmp_path: Path
) -> None:
    cue = Cue(dask=address)
    cue.task("noted", executor="dask", retry=2)(dask_tasks.noted)
    async with cue, asyncio.timeout(BOUND):
        numbers = itertools.count()
        while True:  # until the machine lets the function begin before its time is over
            number = next(numbers)
            begun, until_file = tmp_path / f"begun-{number}", tmp_path / f"until-{number}"
            params = {"begun": str(begun), "until": str(until_file)}
            work_id = await cue.submit("noted", params=params, timeout=0.5 * 2**number)
            while (await cue.explain(work_id)).reason != "overdue":  # noqa: ASYNC110 (nothing is told of it)
                await asyncio.sleep(0.01)
            if pids_in(begun):
                break
            until_file.touch()
            await cue.wait(work_id)
        assert len(pids_in(begun)) == 1
        until_file.touch()
        assert await cue.result(work_id) == "done"
    assert len(pids_in(begun)) == 2
    await cue.close()


# --- Workers and schedulers that go away ----------------------------------------------------------------


async def test_a_dead_worker_fails_its_own_call_alone_and_nothing_is_done_twice(
    caller: Caller, tmp_path: Path
) -> None:
    until_file = tmp_path / "until"
    other = caller.begin(dask_tasks.noted, begun=str(tmp_path / "other"), until=str(until_file))
    await until(lambda: pids_in(tmp_path / "other"))
    dying = caller.begin(dask_tasks.noted_and_killed, begun=str(tmp_path / "dying"))
    behind = [caller.begin(pool_tasks.whoami) for _ in range(4)]
    with pytest.raises(WorkerLost, match="the Dask worker that ran it died, or was cut off: tcp://"):
        await asyncio.wait_for(dying, BOUND)
    pids = await asyncio.wait_for(asyncio.gather(*behind), BOUND)
    until_file.touch()
    assert await asyncio.wait_for(other, BOUND) == "done"
    assert len(pids_in(tmp_path / "dying")) == 1  # Dask would have run it four times
    assert not set(pids) & set(pids_in(tmp_path / "dying"))


async def test_a_lost_connection_fails_what_ran_and_the_next_call_makes_another(
    address: str, tmp_path: Path
) -> None:
    proxy = Proxy(address)
    await proxy.open()
    begun, until_file = tmp_path / "begun", tmp_path / "until"
    async with caller_of(proxy.address, connect_timeout=1.0) as caller:
        try:
            running = caller.begin(dask_tasks.noted, begun=str(begun), until=str(until_file))
            await until(lambda: pids_in(begun))
            await proxy.close()
            with pytest.raises(Unreachable) as lost:
                await asyncio.wait_for(running, BOUND)
            assert str(lost.value) == (
                f"the connection to the Dask scheduler at {proxy.address} was lost while it ran: "
                "what it did is unknown, look before it runs again"
            )
            gone = await caller.error(pool_tasks.echo)
            assert isinstance(gone, Unreachable)
            assert str(gone).startswith(f"cannot reach the Dask scheduler at {proxy.address} (")
            assert "\n" not in str(gone)
            await proxy.open()
            assert await caller.call(pool_tasks.echo, n=1)
        finally:
            until_file.touch()
            await caller.executor.close()
            await proxy.close()
    assert len(pids_in(begun)) == 1


async def test_what_runs_on_when_the_executor_is_closed_does_not_look_like_an_end(
    address: str, tmp_path: Path
) -> None:
    begun, until_file = tmp_path / "begun", tmp_path / "until"
    async with caller_of(address) as caller:
        running = caller.begin(dask_tasks.noted, begun=str(begun), until=str(until_file))
        await until(lambda: pids_in(begun))
    assert not running.done()
    until_file.touch()
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()


async def test_a_scheduler_that_says_nothing_is_given_up_and_holds_up_no_closing() -> None:
    connected = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    address = f"tcp://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    async with caller_of(address, connect_timeout=0.2) as caller:
        error = await caller.error(pool_tasks.echo)
        assert isinstance(error, Unreachable)
        assert str(error).startswith(f"cannot reach the Dask scheduler at {address} (")
    connected.clear()
    async with caller_of(address) as caller:
        call = caller.begin(pool_tasks.echo)
        await connected.wait()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(call, BOUND)
    silent.close()


# --- A cluster of its own -------------------------------------------------------------------------------


async def test_a_local_cluster_is_there_when_it_is_needed_and_gone_with_the_cue(tmp_path: Path) -> None:
    threads = set(threading.enumerate())
    cue = Cue(tmp_path / "queue.db", pool_size=1)
    cue.task("noted", executor="dask")(dask_tasks.noted)
    cue.task("whoami", executor="dask")(pool_tasks.whoami)
    begun, until_file = tmp_path / "begun", tmp_path / "until"
    params = {"begun": str(begun), "until": str(until_file)}
    async with cue:
        assert clusters() == set()
        running = await cue.submit("noted", params=params)
        await until(lambda: pids_in(begun))
        [first] = clusters()
        waits = await cue.submit("whoami")
        assert (await cue.explain(waits)).reason == "concurrency"  # one process, one place
        members = [member.pid for member in session_members(first)]
        [locks] = tmp_path.glob("*/*.jobs")
        await until(lambda: end_leftovers(locks))  # as whoever takes over from a dead process does
        work = await cue.wait(running, timeout=BOUND)
        assert (work.error or "").startswith("Unreachable: the connection to the local Dask cluster was lost")
        assert not any(map(lives, members))  # before anybody heard of it
        assert await cue.result(waits, timeout=BOUND) not in members
        [second] = clusters()
        members = [member.pid for member in session_members(second)]
    await cue.close()
    assert not any(map(lives, [second, *members]))

    def left() -> list[str]:
        names = [thread.name for thread in set(threading.enumerate()) - threads]
        return [name for name in names if not name.startswith("Dask-Offload")]  # one of the library, for good

    await until(lambda: not left(), "the threads have ended")


async def test_closing_is_bounded_when_the_scheduler_hangs(tmp_path: Path) -> None:
    cue = Cue(pool_size=1)
    cue.task("noted", executor="dask")(dask_tasks.noted)
    cue.start()
    await cue.submit("noted", params={"begun": str(tmp_path / "begun"), "until": str(tmp_path / "until")})
    await until(lambda: pids_in(tmp_path / "begun"))
    [cluster] = clusters()
    members = [member.pid for member in session_members(cluster)]
    os.kill(cluster, signal.SIGSTOP)
    async with asyncio.timeout(BOUND):
        await cue.stop(timeout=0)
        await cue.close()
    assert not any(map(lives, [cluster, *members]))


@pytest.mark.parametrize("end", ["returns", "is killed"])
def test_a_program_that_ends_without_closing_leaves_nothing_and_dask_says_nothing(end: str) -> None:
    script = [sys.executable, "-W", "default", str(ROOT / "tests" / "executors" / "dask_tasks.py"), end]
    done = subprocess.run(script, capture_output=True, text=True, check=False, timeout=BOUND, cwd=ROOT)
    error, pids = done.stdout.splitlines()
    assert error.startswith("WorkerLost: the Dask worker that ran it died, or was cut off: tcp://127.0.0.1:")
    assert [line for line in done.stderr.splitlines() if not line.startswith("work_failed: ")] == []
    before, cluster, after, same = map(int, pids.split())
    assert (before != after, cluster) == (True, same)
    until_sync(lambda: not any(map(lives, [before, cluster, after])))


# --- At the edge ----------------------------------------------------------------------------------------


def test_on_virtual_time_one_line_says_that_it_cannot_run() -> None:
    loop = VirtualLoop()
    with pytest.raises(Permanent, match="runs in real time only"):
        loop.run_until_complete(caller_at(None).call(pool_tasks.echo))
    loop.close()


def test_without_distributed_one_line_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['distributed'] = None; import runcue; "
        "runcue.Cue().task('length', executor='dask')(len)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=BOUND
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last == 'runcue.errors.ConfigError: executor="dask" needs distributed: pip install "runcue[dask]"'


def test_importing_runcue_imports_no_dask_and_importing_dask_here_leaves_logging_alone() -> None:
    code = (
        "import logging, sys, runcue; cue = runcue.Cue(); assert 'dask' not in sys.modules; "
        "cue.task('length', executor='dask')(len); assert 'distributed' in sys.modules; "
        "print(*[type(one).__name__ for one in logging.getLogger('distributed').handlers], "
        "logging.getLogger('distributed').propagate, logging.getLogger('tornado').handlers)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=BOUND, check=True
    )
    assert done.stdout == "NullHandler True []\n"


@pytest.mark.parametrize(
    "wrong",
    ["", "localhost", "localhost:8786", "http://here:8786", "tcp://here", "tcp://u:p@here:1", 8786, b"tcp"],
)
def test_an_address_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^Invalid dask: (?!.*u:p)"):
        Cue(dask=wrong)


@pytest.mark.parametrize(
    "right", [None, "tcp://10.0.0.1:8786", "tls://dask.example:8786", "tcp://[::1]:8786"]
)
def test_an_address_is_kept_as_it_is(right: str | None) -> None:
    assert Cue(dask=right)._registry.options.dask == right


def test_a_coroutine_function_is_refused() -> None:
    async def handler(work: Work) -> None:
        """Runs on the loop."""

    with pytest.raises(ConfigError, match="Use def with executor='dask'"):
        Cue().task("handler", executor="dask")(handler)


# --- Handlers with params -------------------------------------------------------------------------


async def test_a_handler_with_params_gets_them_on_a_worker(address: str) -> None:
    cue = Cue(dask=address)
    turned = cue.task(executor="dask")(pool_tasks.turned)
    with_work = cue.task(executor="dask")(pool_tasks.turned_with_work)
    page = pool_tasks.Page(1, datetime(2026, 1, 2, tzinfo=UTC))
    async with cue, asyncio.timeout(BOUND):
        first = await turned.submit(page)
        second = await turned.submit(page=runcue.output(first), times=10, more=100)
        assert await second.result() == pool_tasks.Page(112, page.read_at)
        unit = await cue.submit(with_work, params={"page": page})
        assert await unit.result() == (unit, unit, page)


SCRIPT = """
from __future__ import annotations
import asyncio, sys
from dataclasses import dataclass
from runcue import Cue

cue = Cue(dask=sys.argv[1])

@dataclass
class Page:
    number: int

@cue.task(executor="dask")
def turn(page: Page) -> int:
    return page.number + 1

@cue.task(executor="dask")
def params(work) -> str:
    return str(work.params)

@cue.task(executor="dask")
def submit() -> str:
    return str(turn.unit(page=Page(1)))

async def main():
    async with cue:
        print(await (await turn.submit(Page(1))).result(), await (await params.submit(a=1)).result())
        print((await (await submit.submit()).wait()).error)

asyncio.run(main())
"""


def test_a_handler_of_a_script_travels_without_the_cue_that_it_is_registered_on(
    address: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), address],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True, text=True, check=False, timeout=BOUND,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "2 {'a': 1}",
        "RuncueError: A handler in another process cannot submit: let it return what is to be submitted.",
    ], done.stderr
