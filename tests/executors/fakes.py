"""A task, a running work and somebody who has it run, for testing an executor without an engine."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runcue import Work
from runcue.core.model.retry import Retry
from runcue.ports import CommandOptions, Handler, Registered, TooLate
from tests.patience import BOUND


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
        self.handler = self.call = handler
        self.executor = executor
        self.retry = retry if retry is not None else Retry()
        self.retry_delay = None
        self.returns = None
        self.resources = ()
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


class Given(FakeWork):
    """The same with all the fields that a Work has, as functions elsewhere are given it.

    `said` has what was charged and observed.
    """

    def __init__(self, params: dict[str, Any] | None = None) -> None:
        super().__init__(params)
        self.said: list[Any] = []

    def charge(self, **amounts: float) -> None:
        """Remember what was used."""
        self.said.append(amounts)

    def observe(self, headers: dict[str, str], service: str | None = None) -> None:
        """Remember what was left."""
        self.said.append((headers, service))

    def __getattr__(self, name: str) -> Any:
        return getattr(Work(id=self.id, task=self.task), name)


class Entered:
    """Counts the calls of `entered`, for the executor to call: `entered.times` has what each was given."""

    def __init__(self, *, is_late: bool = False) -> None:
        self.times: list[float | None] = []
        self.checks = 0
        self.is_late = is_late
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


class Caller:
    """An executor of functions, and short words for what tests do with it."""

    def __init__(self, executor: Any) -> None:
        self.executor = executor

    def begin(
        self, function: Callable[..., Any], entered: Entered | None = None, **params: Any
    ) -> asyncio.Task[Any]:
        """Have a function called."""
        return self.begin_work(Given(params), function, entered)

    def begin_work(
        self, work: Given, function: Callable[..., Any], entered: Entered | None = None
    ) -> asyncio.Task[Any]:
        """Have a function called for that work."""
        return asyncio.ensure_future(self.executor.run(work, FakeTask(function), entered))

    async def call(self, function: Callable[..., Any], entered: Entered | None = None, **params: Any) -> Any:
        """Have a function called and wait for its answer."""
        async with asyncio.timeout(BOUND):
            return await self.executor.run(Given(params), FakeTask(function), entered)

    async def error(self, function: Callable[..., Any], **params: Any) -> BaseException:
        """What a function raises."""
        try:
            await self.call(function, **params)
        except BaseException as error:  # noqa: BLE001 (all of them are wanted)
            return error
        pytest.fail("nothing was raised")


def registered(task: FakeTask) -> Registered:
    """The same object, as type checkers want it."""
    return task
