"""A queue in a file or in PostgreSQL, read from outside with Readers.

Rules:
- Three Readers, each in a thread of its own: one for the overview, one for lists (a search through everything takes
  long), and one for all other questions. None delays the others, and no worker waits for any.
- The password in an address is never shown.
- The application's own Cue makes changes, or else a Cue that is opened for one change and runs no units. A change
  that has begun is finished, also when the server ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from runcue import GroupNotFound, Reader
from runcue.web.printed import AROUND, Part
from runcue.web.reader_thread import DEFAULT, ReaderThread, without_password
from runcue.web.shapes import Stream
from runcue.web.source import ENDED, GROUPED, LOOKED_AT, MOST_SCHEDULES, SHOWN, Facts, InMemory, Scheduled

if TYPE_CHECKING:
    from runcue import Cue, Event, Explanation, GroupCounts, Metrics, Work

T = TypeVar("T")
ATTEMPTS = 20
"""The latest attempts whose output is listed."""
SOME_EVENTS = 256
PAUSE = 1.0
"""Seconds between two looks for events."""


class InFile:
    """A queue in a file or at an address; `cue` is that of the application that the dashboard is mounted in."""

    def __init__(self, path: str, cue: Cue | None = None, name: str = DEFAULT) -> None:
        self.path: str | None = without_password(path)
        self._file = path
        self._name = name
        self._cue = cue
        self._own = None if cue is None else InMemory(cue)
        """Answers and does what needs the application's own Cue."""
        self._overview = ReaderThread(path, name)
        self._lists = ReaderThread(
            path, name, "This takes too long in {path}. Narrow the filter: name a state, or search for less."
        )
        self._others = ReaderThread(path, name)
        self._changing = asyncio.Lock()
        self._metrics: Metrics | None = None
        self._measured: Reader | None = None
        """The Reader that the metrics are made from, where there is no Cue."""

    async def _ask(self, thread: ReaderThread, question: Callable[[Reader], T]) -> T:
        if self._cue is not None and self._cue.loop is None:
            await self._cue.count()  # opens the queue of the Cue, whose file may not exist yet
        return await thread.ask(question)

    async def facts(self, with_dead: bool) -> Facts:
        """The state of the whole queue at one moment."""
        cue = self._cue

        def look(reader: Reader) -> Facts:
            pending = reader.list("pending", limit=LOOKED_AT)
            return Facts(
                reader.now(),
                {str(state): count for state, count in reader.count().items()},
                reader.services(),
                reader.paused(),
                [one for one in reader.workers() if one["state"] != "gone" or one["running"]],
                reader.list("running", limit=SHOWN),
                pending,
                [work for state in ENDED for work in reader.list(state, limit=SHOWN)],
                {} if cue is not None else reader.explain_many([work.id for work in pending]),
                reader.dead(limit=GROUPED) if with_dead else None,
            )

        facts = await self._ask(self._overview, look)
        if cue is not None:
            facts.whys.update(await self.explain_many([work.id for work in facts.pending]))
        return facts

    async def now(self) -> float:
        """Queue time."""
        return await self._ask(self._others, lambda reader: reader.now())

    async def services(self) -> list[dict[str, Any]]:
        """Every service."""
        return await self._ask(self._others, lambda reader: reader.services())

    async def schedules(self) -> Scheduled:
        """The schedules, and their last units."""

        def look(reader: Reader) -> Scheduled:
            found = reader.schedules()
            first = found[:MOST_SCHEDULES]
            last = [reader.get(one.last_id) for one in first if one.last_id is not None]
            return Scheduled(
                reader.now(), first, len(found), {work.id: work for work in last if work is not None}
            )

        return await self._ask(self._others, look)

    async def get(self, work_id: str) -> Work | None:
        """One unit."""
        return await self._ask(self._others, lambda reader: reader.get(work_id))

    async def find(self, **wanted: Any) -> list[Work]:
        """Units, newest first; takes what `Cue.list` takes."""
        return await self._ask(self._lists, lambda reader: reader.list(**wanted))

    async def group(self, name: str) -> GroupCounts | None:
        """How the units of a group stand; None when there is none."""
        try:
            return await self._ask(self._others, lambda reader: reader.group(name))
        except GroupNotFound:
            return None

    async def dependents(self, work_id: str, limit: int) -> list[Work]:
        """The units that depend on this one."""
        return await self._ask(self._others, lambda reader: reader.dependents(work_id, limit))

    async def explain(self, work_id: str) -> Explanation:
        """Why a unit has its state."""
        if self._own is not None:
            return await self._own.explain(work_id)
        return await self._ask(self._others, lambda reader: reader.explain(work_id))

    async def explain_many(self, ids: Iterable[str]) -> dict[str, Explanation]:
        """Why these units have their states, each without the units ahead of it."""
        if self._own is not None:
            return await self._own.explain_many(ids)
        return await self._ask(self._others, lambda reader: reader.explain_many(ids))

    async def streams(self, work: Work) -> list[Stream]:
        """The streams that the commands of a unit printed to, those of the latest attempt first."""

        def look(reader: Reader) -> list[Stream]:
            attempts = range(work.attempt, max(0, work.attempt - ATTEMPTS), -1)
            found = [
                Stream(
                    attempt=attempt,
                    stream=stream,
                    size=reader.output(work.id, stream, attempt=attempt, limit=1).size,
                )
                for attempt in attempts
                for stream in ("stdout", "stderr")
            ]
            return [one for one in found if one.size]

        return await self._ask(self._others, look)

    async def output(self, work_id: str, stream: str, attempt: int, start: int | None, limit: int) -> Part:
        """A piece of a command's output (without `start` its end), with the bytes around it."""

        def look(reader: Reader) -> Part:
            size = reader.output(work_id, stream, attempt=attempt, limit=1).size
            first = max(0, size - limit) if start is None else min(start, size)
            begin = max(0, first - AROUND)
            length = first - begin + limit + AROUND
            found = reader.output(work_id, stream, attempt=attempt, start=begin, limit=length)
            return Part(found.data, found.start, max(first, found.start), found.size)

        return await self._ask(self._others, look)

    async def events(self, types: list[str] | None, since: int) -> AsyncGenerator[Event, None]:
        """The events after that number, then those that follow."""
        if self._own is not None:
            async for event in self._own.events(types, since):
                yield event
            return
        while True:
            found = await self._ask(self._others, partial(_events_after, since))
            for event in found:
                since = event.seq
                if types is None or event.type == "gap" or not {event.type, event.name}.isdisjoint(types):
                    yield event
            if not found:
                await asyncio.sleep(PAUSE)

    async def last_event(self, types: list[str] | None) -> int:
        """The number of the latest event; ConfigError when there are no events of these types."""

        def look(reader: Reader) -> int:
            reader.events(types)
            return reader.last_event()

        return await self._ask(self._others, look)

    async def act(self, action: Callable[[Cue], Awaitable[T]]) -> T:
        """Run an action with a Cue of this queue."""
        if self._own is not None:
            return await self._own.act(action)
        await self.now()  # raises for a file that does not exist: the Cue below would create it
        async with self._changing:
            return await asyncio.to_thread(self._act, action)

    def _act(self, action: Callable[[Cue], Awaitable[T]]) -> T:
        from runcue import Cue

        async def do() -> T:
            cue = Cue(self._file, name=self._name, age_step=None, retention=None)
            try:
                return await action(cue)
            finally:
                await cue.close()

        return asyncio.run(do())

    async def metrics(self) -> tuple[bytes, str]:
        """The metrics for Prometheus, and their content type."""
        if self._own is not None:
            return await self._own.metrics()
        return await self._ask(self._others, self._scraped)

    def _scraped(self, reader: Reader) -> tuple[bytes, str]:
        """The metrics from a Reader. One Metrics for each Reader: it keeps for a while what takes long to count."""
        from runcue import Metrics

        metrics = self._metrics
        if metrics is None or self._measured is not reader:
            metrics = self._metrics = Metrics(reader)
            self._measured = reader
        return metrics.text(), metrics.content_type

    async def close(self) -> None:
        """Close the Readers; the Cue, if any, stays open."""
        if self._own is not None:
            await self._own.close()
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = self._measured = None
        await self._overview.close()
        await self._others.close()
        await self._lists.close()


def _events_after(number: int, reader: Reader) -> list[Event]:
    """The next events of all types: the caller skips those of other types once, and never reads them again."""
    return list(islice(reader.events(since=number), SOME_EVENTS))


Source = InMemory | InFile
"""A queue that the dashboard shows and changes. Both classes have the same methods."""
