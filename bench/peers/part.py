"""In a process of its own: submit units by one queue, or run them, or both.

A queue is a module of `bench.peers.queues` with

- `NEEDS`, the packages it needs, and `HOME`, the folder they are installed in (see `homes`);
- `prepare(where)`: make the tables, if it has to be done before;
- `left(where, count)`: how many of so many units have not ended, as the store knows it;
- `opened(where, call, runs)`: an asynchronous context manager, in which the queue is open, and runs what is there if
  it is to; it gives a coroutine function that submits the units of a range, as one batch if the queue has batches.

Each unit runs `call(page)`, or `await call.wait(page)` if the queue runs coroutines. A queue whose workers are
programs starts them as its documentation says; they find the board, the place and what to do in their environment.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

from bench.child import LONGEST, ROOT, ready
from bench.peers import homes
from bench.peers.board import LOOK, TIMED, Board
from bench.peers.processor import with_parent

BATCH = 100
WARM = 20
"""Units that run before anything is measured, so that all is imported and connected."""
SOON = 0.001
GRACE = 10.0

Submit = Callable[[range], Awaitable[None]]


class Call:
    """What a unit does: be counted, tell when it was started, or hang."""

    def __init__(self, board: Board, mode: str) -> None:
        self._board = board
        self._is_timed = mode != "count"
        self._hangs = mode == "hang"

    def __call__(self, page: int) -> int:
        """A unit, in a thread or a process."""
        self._begin(page)
        if self._hangs:
            time.sleep(LONGEST)
        return 1

    async def wait(self, page: int) -> int:
        """A unit, in an event loop."""
        self._begin(page)
        if self._hangs:
            await asyncio.sleep(LONGEST)
        return 1

    def _begin(self, page: int) -> None:
        if self._is_timed and 0 <= page < TIMED:
            self._board.start(page)
        self._board.ran()


class Queue(Protocol):
    """What a module of a queue has."""

    NEEDS: tuple[str, ...]
    HOME: str

    def prepare(self, where: str) -> None:
        """Make the tables, if it has to be done before."""

    def left(self, where: str, count: int) -> int:
        """How many of so many units have not ended, as the store knows it."""
        ...

    def opened(self, where: str, call: Call, runs: bool) -> AbstractAsyncContextManager[Submit]:
        """The queue, open."""
        ...


def queue(name: str) -> Queue:
    """A queue by its name, in this process."""
    found: Any = import_module(f"bench.peers.queues.{name}")
    homes.use(found.HOME)
    return found  # type: ignore[no-any-return] # a module is what the protocol says, and mypy cannot know


# --- Workers that are programs --------------------------------------------------------------------


def place() -> str:
    """In a worker that is a program: where the units are, or nothing in any other process."""
    return os.environ.get("RUNCUE_BENCH_PLACE", "")


@cache
def call() -> Call:
    """In a worker that is a program, and after it has forked: what a unit does."""
    return Call(Board.claimed(os.environ["RUNCUE_BENCH_BOARD"]), os.environ["RUNCUE_BENCH_MODE"])


@asynccontextmanager
async def program(home: str, *arguments: str, executable: str = sys.executable) -> AsyncIterator[None]:
    """Such a worker: Python with arguments, asked to end and made to; what it says is kept beside the board."""
    process = _started(home, executable, arguments)
    try:
        yield
    finally:
        _ended(process)


def _started(home: str, executable: str, arguments: tuple[str, ...]) -> subprocess.Popen[bytes]:
    with Path(os.environ["RUNCUE_BENCH_BOARD"] + ".said").open("ab") as said:
        return subprocess.Popen(
            [executable, *arguments],
            cwd=ROOT,
            env=homes.environment(home),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
            preexec_fn=with_parent,  # noqa: PLW1509 (it calls one function of the system, and takes no lock)
        )


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    try:
        os.killpg(process.pid, signal.SIGKILL)  # what it has started and left
    except ProcessLookupError:  # nothing
        pass


# --- What a process does --------------------------------------------------------------------------


def work(name: str, where: str, path: str, plan: dict[str, Any]) -> Any:
    """Do as the plan says: its `mode`, the `place` on the board, whether it runs, and what it submits."""
    try:
        found = queue(name)
        os.environ.update(RUNCUE_BENCH_PLACE=where, RUNCUE_BENCH_BOARD=path, RUNCUE_BENCH_MODE=plan["mode"])
        runner = import_module("uvloop").run if "uvloop" in found.NEEDS else asyncio.run
        with Board(path, plan["place"]) as board:
            return runner(_work(found, where, board, plan))
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 (whatever it is, it is told)
        Path(f"{path}.error").write_text(f"{type(error).__name__}: {error}")
        sys.exit(1)


async def _work(found: Queue, where: str, board: Board, plan: dict[str, Any]) -> list[float]:
    async with found.opened(where, Call(board, plan["mode"]), plan["runs"]) as submit:
        if plan["warm"]:
            if plan["share"]:
                await submit(range(-WARM, 0))
            await until(lambda: board.total() >= plan["warm"], "the end of the first units")
        at = await asyncio.to_thread(ready)
        await asyncio.sleep(max(0.0, at - perf_counter()))
        if plan["mode"] == "time" and plan["share"]:
            return await _probe(submit, board, plan["share"], plan["seconds"])
        for start in range(plan["first"], plan["first"] + plan["share"], BATCH):
            await submit(range(start, min(start + BATCH, plan["first"] + plan["share"])))
        await board.until_stopped()
    return []


async def _probe(submit: Submit, board: Board, most: int, seconds: float) -> list[float]:
    """One unit after the other, with a pause before each: seconds from the call to the start."""
    pauses = random.Random(1)
    found: list[float] = []
    deadline = perf_counter() + seconds
    while len(found) < most and perf_counter() < deadline:
        page = len(found)
        await asyncio.sleep(pauses.uniform(0.01, 0.03))
        began = perf_counter()
        await submit(range(page, page + 1))
        await until(lambda page=page: board.started(page) > 0, "the start of a unit", SOON)  # type: ignore[misc]
        found.append(board.started(page) - began)
    return found


async def until(is_so: Callable[[], bool], what: str, pause: float = LOOK) -> None:
    """Wait for something that another process does."""
    deadline = perf_counter() + LONGEST / 2
    while not is_so():
        if perf_counter() > deadline:
            raise RuntimeError(f"{what} did not come within {LONGEST / 2:g} s")
        await asyncio.sleep(pause)
