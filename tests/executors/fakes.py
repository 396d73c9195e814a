"""A task, a running work and a place to run them in, for testing an executor without an engine."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runcue.core.retry import Retry
from runcue.ports import CommandOptions, Handler, Registered, TooLate

BOUND = 40.0
"""How long a condition is waited for before a test fails: far longer than it ever takes."""


def jobs_folder(directory: Path) -> Path:
    """Where a worker keeps the locks of its commands: of a name that no other has, as those of real workers are.

    Recovery knows by it who writes to the output of a dead worker's commands, and ends them. Another test that runs
    at the same time must not be among them.
    """
    name = hashlib.sha256(str(directory).encode()).hexdigest()[:16]
    return directory / "queue.db.runcue" / f"{name}.jobs"


class RealClock:
    """A clock for executors, which only ever ask what time it is."""

    def now(self) -> float:
        """Queue time."""
        return time.time()

    def wall(self) -> float:
        """Time of day."""
        return time.time()


class FakeTask:
    """What an executor needs of a registered task: `FakeTask(handler, shell=True, env={…})`."""

    def __init__(
        self, handler: Handler, *, executor: str = "fake", retry: Retry | None = None, **command: Any
    ) -> None:
        self.handler = handler
        self.executor = executor
        self.retry = retry if retry is not None else Retry()
        self.command = CommandOptions(**command)


class FakeWork:
    """What an executor needs of a running work, and what the executor told it.

    `cancelled` is set by hand; `told` has the (fraction, text) of every call of `progress`.
    """

    def __init__(
        self,
        params: dict[str, Any] | None = None,
        id: str = "work-1",
        attempt: int = 1,
        task: str = "fake",
    ) -> None:
        self.id = id
        self.task = task
        self.params = params if params is not None else {}
        self.attempt = attempt
        self.cancelled = False
        self.told: list[tuple[float | None, str | None]] = []

    def progress(self, fraction: float | None = None, text: str | None = None) -> None:
        """Remember what was told."""
        self.told.append((fraction, text))


class Entered:
    """Counts the calls of `entered`, for the executor to call: `entered.times` has what each was given."""

    def __init__(self) -> None:
        self.times: list[float | None] = []
        self.checks = 0
        self.is_late = False
        self.event = asyncio.Event()

    def check(self) -> None:
        """Count who asks; with `is_late` nobody may enter any more."""
        self.checks += 1
        if self.is_late:
            raise TooLate

    def soon(self) -> None:
        """It is entered in this step of the loop."""
        asyncio.get_running_loop().call_soon(self, None)

    def __call__(self, at: float | None) -> None:
        self.times.append(at)
        self.event.set()

    async def wait(self) -> None:
        """Until it was called."""
        async with asyncio.timeout(BOUND):
            await self.event.wait()


def registered(task: FakeTask) -> Registered:
    """The same object, as type checkers want it."""
    return task


async def until(condition: Callable[[], Any], what: str = "") -> Any:
    """Wait for a condition to become true, and give what it returned."""
    ending = time.monotonic() + BOUND
    while not (found := condition()):
        assert time.monotonic() < ending, f"never came true: {what or condition}"
        await asyncio.sleep(0.005)
    return found


def until_sync(condition: Callable[[], Any], what: str = "") -> Any:
    """The same, where no loop runs."""
    ending = time.monotonic() + BOUND
    while not (found := condition()):
        assert time.monotonic() < ending, f"never came true: {what or condition}"
        threading.Event().wait(0.005)
    return found


def lives(pid: int) -> bool:
    """Whether that process runs: zombies do not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        if os.path.isdir("/proc/self"):  # noqa: PTH112
            return False
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}
