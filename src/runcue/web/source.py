"""A queue in memory, read and changed through its Cue; file.py has the queues in a store, with the same methods.

A Cue may live on another event loop than the server: every call runs on the Cue's own loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from runcue import GroupNotFound, StorageReplaced, WorkState
from runcue.web.printed import Part
from runcue.web.shapes import Stream

if TYPE_CHECKING:
    from runcue import Cue, Event, Explanation, GroupCounts, Metrics, ScheduleInfo, Work

T = TypeVar("T")
SHOWN = 50
"""Rows of each table of the overview."""
LOOKED_AT = 200
"""Pending units whose reason for waiting is determined."""
GROUPED = 1000
"""Dead letters that are sorted into groups."""
MOST_AHEAD = 5_000
"""With more pending units than this, the units ahead of one are not counted."""
MOST_SCHEDULES = 500
"""Schedules that are shown."""
ENDED = ("completed", "failed", "cancelled")
GLANCE = 1.0
"""Seconds between two checks whether the loop of a Cue that does not answer has ended."""
ENDED_LOOP = "The event loop that this queue's Cue lives on has ended. Start the application anew."
LOST = "The file was deleted or replaced. Start the application that works on it anew."


class Unavailable(Exception):
    """The queue cannot be read just now; the message says why."""


def public_message(error: Exception) -> str:
    """The message of an error for people at a browser; that of StorageReplaced is for programmers."""
    return LOST if isinstance(error, StorageReplaced) else str(error)


class Scheduled(Struct, frozen=True):
    """The first schedules of a queue at one moment, how many there are in all, and their last units by id."""

    now: float
    first: list[ScheduleInfo]
    amount: int
    last: dict[str, Work]


class Facts(Struct, frozen=True):
    """The state of a queue at one moment. `dead` is None when nobody asked for it."""

    now: float
    counts: dict[str, int]
    services: list[dict[str, Any]]
    paused: list[str]
    workers: list[dict[str, Any]]
    running: list[Work]
    pending: list[Work]
    ended: list[Work]
    whys: dict[str, Explanation]
    dead: list[Work] | None


async def at_home(cue: Cue, action: Callable[[Cue], Awaitable[T]]) -> T:
    """Run an action with a Cue on the Cue's own loop."""
    loop = cue.loop
    if loop is None or loop is asyncio.get_running_loop():
        return await action(cue)

    async def there() -> T:
        return await action(cue)

    if not loop.is_running():
        raise Unavailable(ENDED_LOOP)
    asked = there()
    try:
        answer = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked, loop))
    except RuntimeError:  # the loop has ended just now
        asked.close()
        raise Unavailable(ENDED_LOOP) from None
    try:
        while not answer.done():
            await asyncio.wait({answer}, timeout=GLANCE)
            if not answer.done() and not loop.is_running():
                raise Unavailable(ENDED_LOOP)
    finally:
        if loop.is_running():
            answer.cancel()
    if answer.cancelled():  # the loop ended during the action
        raise Unavailable(ENDED_LOOP)
    return answer.result()


async def events_of(cue: Cue, types: list[str] | None, since: int) -> AsyncGenerator[Event, None]:
    """The events of `cue.events()`, read on the Cue's own loop."""

    async def begin(cue: Cue) -> AsyncIterator[Event]:
        return cue.events(types, since)

    events = await at_home(cue, begin)

    async def following(_: Cue) -> Event | None:
        return await anext(events, None)

    while (event := await at_home(cue, following)) is not None:
        yield event


async def explained(cue: Cue, work_id: str) -> Explanation:
    """Why a unit has its state. Where very many wait, the units ahead are not counted: that would block the loop."""
    if (await cue.count())[WorkState.PENDING] > MOST_AHEAD:
        found = (await cue.explain_many([work_id])).get(work_id)
        if found is not None:
            return found
    return await cue.explain(work_id)


class InMemory:
    """A queue in memory, which only its own Cue can read."""

    path = None

    def __init__(self, cue: Cue) -> None:
        self._cue = cue
        self._metrics: Metrics | None = None

    async def facts(self, with_dead: bool) -> Facts:
        """The state of the whole queue at one moment."""

        async def some(cue: Cue, state: str, limit: int) -> list[Work]:
            if not counts[state]:
                return []
            await asyncio.sleep(0)  # each list goes through the whole queue: let other tasks run in between
            return await cue.list(state, limit=limit)

        async def look(cue: Cue) -> Facts:
            counts.update((str(state), count) for state, count in (await cue.count()).items())
            pending = await some(cue, "pending", LOOKED_AT)
            return Facts(
                await cue.now(),
                counts,
                await cue.services(),
                await cue.paused(),
                [],
                await some(cue, "running", SHOWN),
                pending,
                [work for state in ENDED for work in await some(cue, state, SHOWN)],
                await cue.explain_many([work.id for work in pending]),
                await some(cue, "failed", GROUPED) if with_dead else None,
            )

        counts: dict[str, int] = {}
        return await self.act(look)

    async def now(self) -> float:
        """Queue time."""
        return await self.act(lambda cue: cue.now())

    async def services(self) -> list[dict[str, Any]]:
        """Every service."""
        return await self.act(lambda cue: cue.services())

    async def schedules(self) -> Scheduled:
        """The schedules, and their last units."""

        async def look(cue: Cue) -> Scheduled:
            found = await cue.schedules()
            first = found[:MOST_SCHEDULES]
            last = [await cue.get(one.last_id) for one in first if one.last_id is not None]
            return Scheduled(
                await cue.now(), first, len(found), {work.id: work for work in last if work is not None}
            )

        return await self.act(look)

    async def get(self, work_id: str) -> Work | None:
        """One unit."""
        return await self.act(lambda cue: cue.get(work_id))

    async def find(self, **wanted: Any) -> list[Work]:
        """Units, newest first; takes what `Cue.list` takes."""
        return await self.act(lambda cue: cue.list(**wanted))

    async def group(self, name: str) -> GroupCounts | None:
        """How the units of a group stand; None when there is none."""
        try:
            return await self.act(lambda cue: cue.group(name).progress())
        except GroupNotFound:
            return None

    async def dependents(self, work_id: str, limit: int) -> list[Work]:
        """The units that depend on this one."""
        return await self.act(lambda cue: cue.dependents(work_id, limit))

    async def explain(self, work_id: str) -> Explanation:
        """Why a unit has its state."""
        return await self.act(lambda cue: explained(cue, work_id))

    async def explain_many(self, ids: Iterable[str]) -> dict[str, Explanation]:
        """Why these units have their states, each without the units ahead of it."""
        return await self.act(lambda cue: cue.explain_many(ids))

    async def streams(self, work: Work) -> list[Stream]:
        """Nothing: only a stored queue keeps the output of commands."""
        return []

    async def output(self, work_id: str, stream: str, attempt: int, start: int | None, limit: int) -> Part:
        """Nothing: only a stored queue keeps the output of commands."""
        return Part(b"", 0, 0, 0)

    def events(self, types: list[str] | None, since: int) -> AsyncGenerator[Event, None]:
        """The events after that number, then those that follow."""
        return events_of(self._cue, types, since)

    async def last_event(self, types: list[str] | None) -> int:
        """The number of the latest event; ConfigError when there are no events of these types."""

        async def look(cue: Cue) -> int:
            cue.events(types)
            return await cue.last_event()

        return await self.act(look)

    async def act(self, action: Callable[[Cue], Awaitable[T]]) -> T:
        """Run an action with the Cue."""
        return await at_home(self._cue, action)

    async def metrics(self) -> tuple[bytes, str]:
        """The metrics for Prometheus, and their content type."""
        from runcue import Metrics

        if self._metrics is None:
            self._metrics = Metrics(self._cue)
        metrics = self._metrics
        return await self.act(lambda _: metrics.scrape()), metrics.content_type

    async def close(self) -> None:
        """Stop counting for the metrics; the Cue stays open, it is its owner's."""
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
