"""Tells everybody what happened, in order, after it was committed.

The bus keeps the last 10,000 events, and of older ones the final event of each work, so that a reader may
start at the beginning and miss nothing that matters; or none at all where a store keeps them all, in its log.
Readers pull at their own pace from where they are; nobody has a queue that could grow. A reader that fell behind
gets one `gap` event with the number it missed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from runcue.core.model.events import Event, News, draft_of, make_event
from runcue.core.schedule.plan import Plan
from runcue.errors import StorageBusy, StoreError

KEPT = 10_000
SOME = 256
"""How many events a reader is given at once."""
PAUSE = 0.5
"""Seconds between two tries to read from a store that has trouble."""

Listener = Callable[[Plan], None]
Log = Callable[[int, int], Awaitable[list[Event]]]
"""Reads events that a store keeps: those after a number, some at a time."""


class Bus:
    """The events of one Cue."""

    def __init__(self, keep_finals: int | None, log: Log | None = None, told: int = 0) -> None:
        """`told` is the number of the last event in the log that is older than this Cue."""
        self._log = log
        self._told = told
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
        """What the plan tells has happened, in this order."""
        if self._log is None:
            self._ring.extend(plan.events)
            if plan.finals and self._keep_finals != 0:
                self._keep(self.next_seq, plan.finals)
            self.next_seq += len(plan.events)
        for listener in self.listeners:
            try:
                listener(plan)
            except KeyboardInterrupt:  # the user's, at the terminal
                raise
            except BaseException as error:  # noqa: BLE001 (such as a log handler's: it must not end the turns)
                self._complain(listener, error)
        self._wake()

    def _keep(self, first: int, finals: dict[int, News]) -> None:
        """Keep the final events of a turn as they came, and let go of turns that are too long ago."""
        self._finals.append((first, finals))
        self._amount_of_finals += len(finals)
        keep = self._keep_finals
        while keep is not None and self._amount_of_finals - len(self._finals[0][1]) >= keep:
            self._amount_of_finals -= len(self._finals.popleft()[1])

    @staticmethod
    def _complain(listener: Listener, error: BaseException) -> None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"runcue: {listener!r} failed to hear what happened", "exception": error}
        )

    def end(self) -> None:
        """No more will come for now: readers finish once they have read everything."""
        self._is_over = True
        self._wake()

    def begin(self) -> None:
        """More will come."""
        self._is_over = False

    async def read(self, types: frozenset[str] | None, since: int | None = None) -> AsyncIterator[Event]:
        """Every event after `since` (None: of this Cue's time), then those to come, until the bus ends."""
        cursor = max(1, (self._told if since is None else since) + 1)
        while True:
            calls = self._calls
            if batch := await self._next(cursor):
                cursor = batch[-1].seq + 1
                for event in batch:
                    if types is None or event.type in types or event.type == "gap":
                        yield event
                continue
            if calls != self._calls:  # something was told since that look, and nobody else says so
                continue
            if self._is_over:
                return
            if self._arrived is None:
                self._arrived = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._arrived)

    async def _next(self, cursor: int) -> list[Event]:
        if self._log is None:
            return self._batch(cursor) if cursor < self.next_seq else []
        while True:
            try:
                return await self._log(cursor - 1, SOME)
            # A reader outlives a server that is away for a while, as the queue does.
            except StoreError as error:
                if self._is_over or type(error) not in {StoreError, StorageBusy}:
                    raise
            await asyncio.sleep(PAUSE)

    def heard(self) -> None:
        """Another process told something: readers may go on."""
        self._wake()

    def _batch(self, cursor: int) -> list[Event]:
        """Some events from `cursor` on."""
        if cursor < self._first:
            return list(self._old(cursor))
        start = cursor - self._first
        ring = self._ring  # who keeps up reads at its end, where looking by number is quick
        end = min(start + SOME, len(ring))
        return [make_event(cursor + place - start, ring[place]) for place in range(start, end)]

    def _old(self, cursor: int) -> Iterable[Event]:
        """What is left of the time before the ring: final events, and how many others are gone."""
        end = self._first
        finals = [
            make_event(first + place, news)
            for first, batch in self._finals
            for place, news in batch.items()
            if cursor <= first + place < end
        ]
        yield from finals
        missed = end - cursor - len(finals)
        if missed:
            yield Event("gap", end - 1, draft_of(self._ring[0]).at, data={"missed": missed})

    def _wake(self) -> None:
        self._calls += 1
        arrived, self._arrived = self._arrived, None
        if arrived is not None and not arrived.done():
            arrived.set_result(None)
