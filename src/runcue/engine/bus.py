"""Publishes committed events, in order, to listeners and readers.

For a queue in memory the bus keeps the last 10,000 events, and of older ones the final event of each unit, so that a
reader may start at the beginning and miss nothing that matters. Where a store logs all events, the bus keeps none.
Readers pull at their own pace from their own place, so no buffer grows. A reader that fell behind gets one `gap`
event with the number of events it missed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from runcue.core.model.events import EVERY_EVENT, Event, EventFilter, News, Passage, draft_of, make_event
from runcue.core.schedule.plan import Plan
from runcue.errors import StorageBusy, StoreError

KEPT = 10_000
SOME = 256
"""How many events a reader gets at once."""
PAUSE = 0.5
"""Seconds before a read that the store refused is tried again."""

Listener = Callable[[Plan], None]
Log = Callable[[int, int, EventFilter], Awaitable[Passage]]
"""Reads the events that a store logs: those after a number that are wanted, about so many at once."""


class Bus:
    """The events of one Cue."""

    def __init__(self, keep_finals: int | None, log: Log | None = None, last_seq: int = 0) -> None:
        """`last_seq` is the number of the last event that the log had when this Cue opened the store."""
        self._log = log
        self._last_seq = last_seq
        self._ring: deque[News] = deque(maxlen=KEPT)
        self._keep_finals = keep_finals
        self._finals: deque[tuple[int, dict[int, News]]] = deque()
        self._amount_of_finals = 0
        self.next_seq = 1
        """The seq that the next event will have."""
        self._arrived: asyncio.Future[None] | None = None
        self._calls = 0
        """How often readers were woken."""
        self._is_over = False
        self.listeners: list[Listener] = []

    @property
    def _first(self) -> int:
        """The seq of the oldest event in the ring."""
        return self.next_seq - len(self._ring)

    def publish(self, plan: Plan) -> None:
        """Publish the events of a committed plan."""
        if self._log is None:
            self._ring.extend(plan.events)
            if plan.finals and self._keep_finals != 0:
                self._keep(self.next_seq, plan.finals)
            self.next_seq += len(plan.events)
        for listener in self.listeners:
            try:
                listener(plan)
            except KeyboardInterrupt:  # Ctrl-C
                raise
            except BaseException as error:  # noqa: BLE001 (such as a log handler's: it must not end the turns)
                self._complain(listener, error)
        self.wake()

    def _keep(self, first: int, finals: dict[int, News]) -> None:
        """Keep the final events of a turn, and drop those of turns that are too old."""
        self._finals.append((first, finals))
        self._amount_of_finals += len(finals)
        keep = self._keep_finals
        while keep is not None and self._amount_of_finals - len(self._finals[0][1]) >= keep:
            self._amount_of_finals -= len(self._finals.popleft()[1])

    @staticmethod
    def _complain(listener: Listener, error: BaseException) -> None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"runcue: the listener {listener!r} raised; events go on", "exception": error}
        )

    def end(self) -> None:
        """Let readers finish once they have read all events."""
        self._is_over = True
        self.wake()

    def begin(self) -> None:
        """Have readers wait for more events again."""
        self._is_over = False

    async def read(self, wanted: EventFilter = EVERY_EVENT, since: int | None = None) -> AsyncIterator[Event]:
        """Yield every wanted event after `since` (None: since this Cue opened the store), until `end`."""
        cursor = max(1, (self._last_seq if since is None else since) + 1)
        while True:
            calls = self._calls
            passage = await self._next(cursor, wanted)
            if passage.until >= cursor:
                cursor = passage.until + 1
                for event in passage.events:
                    yield event
                continue
            if calls == self._calls and self._is_over:
                return
            await self.changed(calls)  # at once where an event came during that read

    @property
    def calls(self) -> int:
        """How often something was published so far."""
        return self._calls

    async def changed(self, calls: int) -> None:
        """Wait until something is published after so many times."""
        while calls == self._calls:
            if self._arrived is None:
                self._arrived = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._arrived)

    async def _next(self, cursor: int, wanted: EventFilter) -> Passage:
        if self._log is None:
            return self._batch(cursor, wanted) if cursor < self.next_seq else Passage([], cursor - 1)
        while True:
            try:
                return await self._log(cursor - 1, SOME, wanted)
            # A reader outlives an outage of the server, as the queue does.
            except StoreError as error:
                if self._is_over or type(error) not in {StoreError, StorageBusy}:
                    raise
            await asyncio.sleep(PAUSE)

    def _batch(self, cursor: int, wanted: EventFilter) -> Passage:
        """The next events from `cursor` on."""
        if cursor < self._first:
            events = self._before_ring(cursor)
            return Passage(
                [one for one in events if wanted.takes(one.type, one.work_id, one.group)], self._first - 1
            )
        start = cursor - self._first
        ring = self._ring  # a deque is quick to index near its end, where most readers are
        end = min(start + SOME, len(ring))
        news = [(cursor + place - start, ring[place]) for place in range(start, end)]
        events = [make_event(seq, one) for seq, one in news if wanted.takes_news(one)]
        return Passage(events, cursor + end - start - 1)

    def _before_ring(self, cursor: int) -> Iterable[Event]:
        """The final events from before the ring, then a `gap` for all others."""
        end = self._first
        finals = [
            make_event(first + place, event)
            for first, batch in self._finals
            for place, event in batch.items()
            if cursor <= first + place < end
        ]
        yield from finals
        missed = end - cursor - len(finals)
        if missed:
            yield Event("gap", end - 1, draft_of(self._ring[0]).at, data={"missed": missed})

    def wake(self) -> None:
        """Have waiting readers look for new events."""
        self._calls += 1
        arrived, self._arrived = self._arrived, None
        if arrived is not None and not arrived.done():
            arrived.set_result(None)
