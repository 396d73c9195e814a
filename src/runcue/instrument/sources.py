"""Reads the numbers of metrics from a Cue of this process or from a Reader.

Rules:
- A source answers on any thread and any loop, and opens nothing: while a Cue has no running loop, it gives its latest
  answer.
- To count the pending units of each task all of them are read. With a long queue an older count is used again, so
  that counting takes at most 2 % of the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from time import perf_counter
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import msgspec

from runcue.core.model.record import WorkState
from runcue.core.model.schedule import ScheduleInfo
from runcue.errors import RuncueError
from runcue.instrument.counters import Counters
from runcue.ports import Observer

T = TypeVar("T")
Tally = Mapping[str, Mapping[str, int]]

FEW: Final = 10_000
"""Up to so many live units are counted anew for each scrape."""
REST: Final = 50
"""A count of more units is used for so many times as long as it took."""
ANSWER_WITHIN: Final = 10.0
"""Seconds that a scrape waits for the event loop of a Cue."""


@runtime_checkable
class Live(Protocol):
    """What Metrics need of a Cue."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None: ...
    @property
    def path(self) -> str | None: ...
    async def services(self) -> list[dict[str, Any]]: ...
    async def tally(self) -> dict[str, dict[str, int]]: ...
    def observe(self, observer: Observer) -> Callable[[], None]: ...


@runtime_checkable
class Still(Protocol):
    """What Metrics need of a Reader."""

    def services(self) -> list[dict[str, Any]]: ...
    def tally(self) -> dict[str, dict[str, int]]: ...
    def count(self) -> dict[WorkState, int]: ...
    def schedules(self) -> list[ScheduleInfo]: ...


class Glance(msgspec.Struct, frozen=True):
    """The state of a queue at one moment."""

    tally: Tally
    services: list[dict[str, Any]]
    ended: Mapping[WorkState, int] | None = None
    """How many units ever ended; None where Counters have that by task."""
    fired: Mapping[str, int] = {}
    """How many units each schedule ever submitted; nothing where Counters have that."""
    skipped: Mapping[str, int] = {}
    """How often each left slots out."""


class _Tallying:
    """Keeps the latest count of units by task, and says when it is too old."""

    def __init__(self) -> None:
        self._latest: Tally | None = None
        self._good_until = 0.0

    def known(self) -> Tally | None:
        """The latest count, unless it is too old."""
        return self._latest if perf_counter() < self._good_until else None

    def learn(self, tally: Tally, began: float) -> None:
        """Keep a count that was asked for at `began`."""
        self._latest, now = tally, perf_counter()
        is_much = sum(sum(tasks.values()) for tasks in tally.values()) > FEW
        self._good_until = now + REST * (now - began) if is_much else 0.0


class StillSource:
    """A queue in a file or in PostgreSQL, read through a Reader."""

    counters = None
    """A Reader sees no events."""

    def __init__(self, reader: Still) -> None:
        self._reader = reader
        self._tallying = _Tallying()

    def now(self) -> Glance:
        """The state of the queue, from any thread."""
        tally = self._tallying.known()
        if tally is None:
            began = perf_counter()
            tally = self._reader.tally()
            self._tallying.learn(tally, began)
        schedules = self._reader.schedules()
        return Glance(
            tally,
            self._reader.services(),
            self._reader.count(),
            {one.name: one.runs for one in schedules},
            {one.name: one.skipped for one in schedules},
        )

    async def later(self) -> Glance:
        """The state of the queue, read in a thread."""
        return await asyncio.to_thread(self.now)

    def close(self) -> None:
        """Do nothing: the reader belongs to the application."""


class LiveSource:
    """A Cue in this process."""

    def __init__(self, cue: Live, counters: Counters) -> None:
        self.counters = counters
        self._cue = cue
        self._tallying = _Tallying()
        self._latest: Glance | None = None
        self._looking: asyncio.Task[Glance] | None = None
        self.close = cue.observe(counters)
        """Stop counting."""

    def now(self) -> Glance | None:
        """The state of the queue, from any thread.

        Called on the loop of a Cue with a store, this cannot wait for the store: it gives the latest answer, and
        asks for a new one.
        """
        loop = self._cue.loop
        if loop is None or not loop.is_running():
            return self._latest
        if not _is_running_here(loop):
            return _answer_of(asyncio.run_coroutine_threadsafe(self._look(), loop))
        if self._cue.path is None:
            return _at_once(self._look())
        return self._asked_before(loop)

    async def later(self) -> Glance | None:
        """The state of the queue, for a coroutine on any loop."""
        loop = self._cue.loop
        if loop is None or not loop.is_running():
            return self._latest
        if _is_running_here(loop):
            return await self._look()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._look(), loop))

    async def _look(self) -> Glance:
        tally = self._tallying.known()
        if tally is None:
            began = perf_counter()
            tally = await self._cue.tally()
            self._tallying.learn(tally, began)
        self._latest = Glance(tally, await self._cue.services())
        return self._latest

    def _asked_before(self, loop: asyncio.AbstractEventLoop) -> Glance | None:
        """The answer or the error of the last question; asks the next one."""
        before = self._looking
        if before is None or before.done():
            self._looking = loop.create_task(self._look(), name="runcue metrics")
            self._looking.add_done_callback(_mark_retrieved)
        if before is not None and before.done() and not before.cancelled():
            return before.result()
        return self._latest


Source = StillSource | LiveSource


def _is_running_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _answer_of(asked: Future[T]) -> T:
    try:
        return asked.result(ANSWER_WITHIN)
    except TimeoutError:
        asked.cancel()
        raise TimeoutError(f"the event loop did not answer within {ANSWER_WITHIN:g} s") from None
    except CancelledError:
        raise RuncueError("the event loop ended before it answered") from None


def _at_once(answer: Coroutine[Any, Any, T]) -> T:
    """The answer of a coroutine that never suspends."""
    try:
        answer.send(None)
    except StopIteration as done:
        found: T = done.value
        return found
    answer.close()
    raise AssertionError("a queue in memory answers at once")


def _mark_retrieved(looking: asyncio.Task[Glance]) -> None:
    """Mark the error of a task as retrieved: the next scrape raises it, if there is one."""
    if not looking.cancelled():
        looking.exception()
