"""What the dashboard looks at: a queue in memory through its Cue, or one in a store (file.py), behind one protocol.

A Cue may live on another event loop than the server: every call is handed over to the Cue's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from msgspec import Struct

from runcue import StorageReplaced, WorkState
from runcue.web.printed import Part
from runcue.web.shapes import Stream

if TYPE_CHECKING:
    from runcue import Cue, Event, Explanation, Metrics, Work

T = TypeVar("T")
SHOWN = 50
"""Rows of each table of the overview."""
LOOKED_AT = 200
"""How many waiting units are asked for their reason."""
GROUPED = 1000
"""How many dead letters are sorted into groups."""
MOST_AHEAD = 5_000
"""How many may wait for one of them to be told its place in line."""
ENDED = ("completed", "failed", "cancelled")
GLANCE = 1.0
"""Seconds after which it is seen whether the loop of a Cue that does not answer has ended."""
ENDED_LOOP = "The event loop that this queue's Cue lives on has ended. Start the application anew."
LOST = "The file was deleted or replaced. Start the application that works on it anew."


class Unavailable(Exception):
    """The queue cannot be looked at just now; the message says why."""


def told(error: Exception) -> str:
    """What is said of that to people who look; a queue's own words are for those who write programs."""
    return LOST if isinstance(error, StorageReplaced) else str(error)


class Facts(Struct, frozen=True):
    """How a queue stands at one moment. `dead` is None when it was not asked for."""

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


class Source(Protocol):
    """A queue to look at and to operate."""

    @property
    def path(self) -> str | None:
        """The file or the address of the queue, without a password; None for a queue in memory."""
        ...

    async def facts(self, with_dead: bool) -> Facts:
        """How everything stands."""
        ...

    async def now(self) -> float:
        """Queue time."""
        ...

    async def services(self) -> list[dict[str, Any]]:
        """Every service."""
        ...

    async def get(self, work_id: str) -> Work | None:
        """One unit."""
        ...

    async def find(self, **wanted: Any) -> list[Work]:
        """Units, newest first: what `Cue.list` takes."""
        ...

    async def dependents(self, work_id: str, limit: int) -> list[Work]:
        """Who depends on that unit."""
        ...

    async def explain(self, work_id: str) -> Explanation:
        """Why one unit stands where it stands."""
        ...

    async def explain_many(self, ids: Iterable[str]) -> dict[str, Explanation]:
        """Why these units stand where they stand, each without what is ahead of it."""
        ...

    async def streams(self, work: Work) -> list[Stream]:
        """What the commands of that unit printed."""
        ...

    async def output(self, work_id: str, stream: str, attempt: int, start: int | None, limit: int) -> Part:
        """A piece of what a command printed (without `start` its end), and what stands around it."""
        ...

    def events(self, types: list[str] | None, since: int) -> AsyncGenerator[Event, None]:
        """What happened after that number, and what happens."""
        ...

    async def last_event(self, types: list[str] | None) -> int:
        """The number of the latest event; ConfigError when there are no events of these types."""
        ...

    async def act(self, action: Callable[[Cue], Awaitable[T]]) -> T:
        """Have a Cue of that queue do something."""
        ...

    async def metrics(self) -> tuple[bytes, str]:
        """The numbers for Prometheus, and what kind of text that is."""
        ...

    async def close(self) -> None:
        """Let go of everything that is not somebody else's. Whoever asks afterwards opens it anew."""
        ...


async def at_home(cue: Cue, action: Callable[[Cue], Awaitable[T]]) -> T:
    """Do something with a Cue on its own loop."""
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
    except RuntimeError:  # it has ended just now
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
    if answer.cancelled():  # with the loop, while it was at it
        raise Unavailable(ENDED_LOOP)
    return answer.result()


async def events_of(cue: Cue, types: list[str] | None, since: int) -> AsyncGenerator[Event, None]:
    """What `cue.events()` tells, wherever the Cue lives."""

    async def begin(cue: Cue) -> AsyncIterator[Event]:
        return cue.events(types, since)

    events = await at_home(cue, begin)

    async def following(_: Cue) -> Event | None:
        return await anext(events, None)

    while (event := await at_home(cue, following)) is not None:
        yield event


async def explained(cue: Cue, work_id: str) -> Explanation:
    """Why a unit stands where it stands; where very many wait, without counting those ahead: that holds up all."""
    if (await cue.count())[WorkState.PENDING] > MOST_AHEAD:
        found = (await cue.explain_many([work_id])).get(work_id)
        if found is not None:
            return found
    return await cue.explain(work_id)


class InMemory:
    """A queue that only its own Cue knows."""

    path = None

    def __init__(self, cue: Cue) -> None:
        self._cue = cue
        self._metrics: Metrics | None = None

    async def facts(self, with_dead: bool) -> Facts:
        """How everything stands."""

        async def some(cue: Cue, state: str, limit: int) -> list[Work]:
            if not counts[state]:
                return []
            await asyncio.sleep(0)  # each goes through the whole queue: other work has its turn in between
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

    async def get(self, work_id: str) -> Work | None:
        """One unit."""
        return await self.act(lambda cue: cue.get(work_id))

    async def find(self, **wanted: Any) -> list[Work]:
        """Units, newest first."""
        return await self.act(lambda cue: cue.list(**wanted))

    async def dependents(self, work_id: str, limit: int) -> list[Work]:
        """Who depends on that unit."""
        return await self.act(lambda cue: cue.dependents(work_id, limit))

    async def explain(self, work_id: str) -> Explanation:
        """Why one unit stands where it stands."""
        return await self.act(lambda cue: explained(cue, work_id))

    async def explain_many(self, ids: Iterable[str]) -> dict[str, Explanation]:
        """Why these units stand where they stand."""
        return await self.act(lambda cue: cue.explain_many(ids))

    async def streams(self, work: Work) -> list[Stream]:
        """Nothing: only a queue that is stored keeps what commands print."""
        return []

    async def output(self, work_id: str, stream: str, attempt: int, start: int | None, limit: int) -> Part:
        """Nothing: only a queue that is stored keeps what commands print."""
        return Part(b"", 0, 0, 0)

    def events(self, types: list[str] | None, since: int) -> AsyncGenerator[Event, None]:
        """What happened after that number, and what happens."""
        return events_of(self._cue, types, since)

    async def last_event(self, types: list[str] | None) -> int:
        """The number of the latest event: a reader that starts there finds nothing waiting for it."""

        async def look(cue: Cue) -> int:
            cue.events(types)
            return await cue.last_event()

        return await self.act(look)

    async def act(self, action: Callable[[Cue], Awaitable[T]]) -> T:
        """Have the Cue do something."""
        return await at_home(self._cue, action)

    async def metrics(self) -> tuple[bytes, str]:
        """The numbers for Prometheus."""
        from runcue import Metrics

        if self._metrics is None:
            self._metrics = Metrics(self._cue)
        metrics = self._metrics
        return await self.act(lambda _: metrics.scrape()), metrics.content_type

    async def close(self) -> None:
        """Stop counting; the Cue is its owner's."""
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
