"""A queue in a file or in PostgreSQL, looked at from outside with a Reader.

Rules:
- Readers work in threads of their own: one for glances, one for lists, which may take long (a search through
  everything), and one for all else. None keeps the others waiting, and no worker ever waits for the dashboard.
- An answer that does not come in time is not waited for, and a question that nobody waits for any more is not begun.
- A file that is locked, damaged, gone or exchanged makes an answer Unavailable, and so does a server that cannot be
  reached. The next question starts over with a new Reader, so that all is well again when they are.
- Of an address the password is shown to nobody.
- What changes something is done by the application's own Cue, or by one that is opened for a moment and starts
  nothing.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from runcue import ForkedConnection, Reader, StorageReplaced, StoreError, mask
from runcue.address import is_postgres
from runcue.web.printed import AROUND, Part
from runcue.web.shapes import Stream
from runcue.web.source import (
    ENDED,
    GROUPED,
    LOOKED_AT,
    SHOWN,
    Facts,
    Unavailable,
    at_home,
    events_of,
    explained,
)

if TYPE_CHECKING:
    from runcue import Cue, Event, Explanation, Metrics, Work

T = TypeVar("T")
PATIENCE = 5.0
"""Seconds until an answer that does not come makes the queue unavailable."""
ATTEMPTS = 20
"""Of how many attempts the output is listed: the latest."""
SOME_EVENTS = 256
PAUSE = 1.0
"""Seconds between two looks for events."""
GONE = "The file is gone. It is looked for again."
REPLACED = "The file was replaced; looking again."
OTHER_QUEUE = "There is another queue now; looking again."
DEFAULT = "default"


class Hand:
    """A thread that does one thing at a time, and is there when it is needed."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None

    def do(self, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Have it do that."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="runcue-web")
        return asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def rest(self) -> None:
        """No more for now; what is under way goes on to its end."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(wait=False)


class Desk:
    """A Reader in a thread, which answers one question at a time."""

    def __init__(
        self,
        path: str,
        name: str = DEFAULT,
        slow: str = "{path} does not answer: it is locked, or its disk or network is slow.",
    ) -> None:
        self._path = path
        self._name = name
        self._is_file = not is_postgres(path)
        self._slow = slow.format(path=_shown(path))
        self._hand = Hand()
        self._reader: Reader | None = None
        self._was_there = False
        self._late: asyncio.Future[Any] | None = None

    async def ask(self, question: Callable[[Reader], T]) -> T:
        """The answer, or Unavailable when there is none in time."""
        if self._late is not None and not self._late.done():
            raise Unavailable(self._slow)
        left = threading.Event()
        answer = self._hand.do(self._answer, question, left)
        try:
            await asyncio.wait({answer}, timeout=PATIENCE)
        finally:
            if not answer.done():
                left.set()
                answer.add_done_callback(_heard)
        if not answer.done():
            self._late = answer
            raise Unavailable(self._slow)
        found: T = answer.result()
        return found

    def _answer(self, question: Callable[[Reader], T], left: threading.Event) -> T:
        if left.is_set():
            raise Unavailable(self._slow)
        try:
            if self._reader is None:
                self._reader = Reader(self._path, name=DEFAULT if self._is_file else self._name)
                self._was_there = True
            return question(self._reader)
        except StoreError as error:
            self._let_go()
            raise Unavailable(self._told(error)) from error

    def _told(self, error: StoreError) -> str:
        """What to tell of that: all is done here that has to be done about a file which is not what it was."""
        if self._is_file and self._was_there and not os.path.lexists(self._path):
            return GONE
        if isinstance(error, (StorageReplaced, ForkedConnection)):
            return REPLACED if self._is_file else OTHER_QUEUE
        return str(error)

    def _let_go(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    async def close(self) -> None:
        """Let go of the queue, unless somebody waits for it in vain."""
        if self._late is None or self._late.done():
            await self._hand.do(self._let_go)
        self._hand.rest()


def _shown(path: str) -> str:
    """A path as it is, an address without its password."""
    return str(mask(path)) if is_postgres(path) else path


def _heard(late: asyncio.Future[Any]) -> None:
    """What came too late is nobody's error any more."""
    if not late.cancelled():
        late.exception()


class InFile:
    """A queue in a file or at an address; with a Cue, when the application that runs it is the one that asks."""

    def __init__(self, path: str, cue: Cue | None = None, name: str = DEFAULT) -> None:
        self.path: str | None = _shown(path)
        self._file = path
        self._name = name
        self._cue = cue
        self._glances = Desk(path, name)
        self._looks = Desk(path, name)
        self._lists = Desk(
            path, name, "This takes too long in {path}. Narrow the filter: name a state, or search for less."
        )
        self._hand = Hand()
        self._metrics: Metrics | None = None
        self._measured: Reader | None = None
        """Of whom these are, when nobody here has a Cue."""

    async def _ask(self, desk: Desk, question: Callable[[Reader], T]) -> T:
        if self._cue is not None and self._cue.loop is None:
            await self._cue.count()  # that opens its file, which may not be there yet
        return await desk.ask(question)

    async def facts(self, with_dead: bool) -> Facts:
        """How everything stands."""
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

        facts = await self._ask(self._glances, look)
        if cue is not None:
            facts.whys.update(await self.explain_many([work.id for work in facts.pending]))
        return facts

    async def now(self) -> float:
        """Queue time."""
        return await self._ask(self._looks, lambda reader: reader.now())

    async def services(self) -> list[dict[str, Any]]:
        """Every service."""
        return await self._ask(self._looks, lambda reader: reader.services())

    async def get(self, work_id: str) -> Work | None:
        """One work."""
        return await self._ask(self._looks, lambda reader: reader.get(work_id))

    async def find(self, **wanted: Any) -> list[Work]:
        """Works, newest first."""
        return await self._ask(self._lists, lambda reader: reader.list(**wanted))

    async def dependents(self, work_id: str, limit: int) -> list[Work]:
        """Who depends on that work."""
        return await self._ask(self._looks, lambda reader: reader.dependents(work_id, limit))

    async def explain(self, work_id: str) -> Explanation:
        """Why one work stands where it stands."""
        if self._cue is not None:
            return await at_home(self._cue, lambda cue: explained(cue, work_id))
        return await self._ask(self._looks, lambda reader: reader.explain(work_id))

    async def explain_many(self, ids: Iterable[str]) -> dict[str, Explanation]:
        """The same for many."""
        if self._cue is not None:
            return await at_home(self._cue, lambda cue: cue.explain_many(ids))
        return await self._ask(self._looks, lambda reader: reader.explain_many(ids))

    async def streams(self, work: Work) -> list[Stream]:
        """What the commands of that work printed, the latest attempt first."""

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

        return await self._ask(self._looks, look)

    async def output(self, work_id: str, stream: str, attempt: int, start: int | None, limit: int) -> Part:
        """A piece of what a command printed, and what stands around it."""

        def look(reader: Reader) -> Part:
            size = reader.output(work_id, stream, attempt=attempt, limit=1).size
            first = max(0, size - limit) if start is None else min(start, size)
            begin = max(0, first - AROUND)
            length = first - begin + limit + AROUND
            found = reader.output(work_id, stream, attempt=attempt, start=begin, limit=length)
            return Part(found.data, found.start, max(first, found.start), found.size)

        return await self._ask(self._looks, look)

    async def events(self, types: list[str] | None, since: int) -> AsyncGenerator[Event, None]:
        """What happened after that number, and what happens."""
        if self._cue is not None:
            async for event in events_of(self._cue, types, since):
                yield event
            return
        while True:
            found = await self._ask(self._looks, partial(_events_after, since))
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

        return await self._ask(self._looks, look)

    async def act(self, action: Callable[[Cue], Awaitable[T]]) -> T:
        """Have a Cue of that queue do something."""
        if self._cue is not None:
            return await at_home(self._cue, action)
        await self.now()  # a file that is not there is not made
        return await self._hand.do(self._act, action)

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
        """The numbers for Prometheus."""
        from runcue import Metrics

        if self._cue is None:
            return await self._ask(self._looks, self._scraped)
        if self._metrics is None:
            self._metrics = Metrics(self._cue)
        metrics = self._metrics
        return await at_home(self._cue, lambda _: metrics.scrape()), metrics.content_type

    def _scraped(self, reader: Reader) -> tuple[bytes, str]:
        """The numbers of a file: what takes long to count is kept for a while, as long as the Reader is the same."""
        from runcue import Metrics

        metrics = self._metrics
        if metrics is None or self._measured is not reader:
            metrics = self._metrics = Metrics(reader)
            self._measured = reader
        return metrics.text(), metrics.content_type

    async def close(self) -> None:
        """Let go of the file; the Cue, if any, is its owner's."""
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = self._measured = None
        await self._glances.close()
        await self._looks.close()
        await self._lists.close()
        self._hand.rest()


def _events_after(number: int, reader: Reader) -> list[Event]:
    """The next events of all types, so that those that nobody wants are passed over once and for all."""
    return list(islice(reader.events(since=number), SOME_EVENTS))
