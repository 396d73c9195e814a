"""Tells everybody what happened, in order, after it was committed.

The bus keeps the last 10,000 events, and of older ones the final event of each work, so that a reader may
start at the beginning and miss nothing that matters. Readers pull at their own pace from where they are;
nobody has a queue that could grow. A reader that fell behind gets one `gap` event with the number it missed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import islice

from runcue.core.events import Event, Told, is_final, make_event

KEPT = 10_000

Listener = Callable[[list[Told]], None]


class Bus:
    """The events of one Cue."""

    def __init__(self, keep_finals: int | None) -> None:
        self._ring: deque[Told] = deque()
        self._first = 1
        self._finals: deque[tuple[int, Told]] = deque(maxlen=keep_finals)
        self._arrived: asyncio.Future[None] | None = None
        self._is_over = False
        self.listeners: list[Listener] = []

    @property
    def next_seq(self) -> int:
        """The seq that the next event will have."""
        return self._first + len(self._ring)

    def publish(self, events: list[Told]) -> None:
        """These happened, in this order."""
        ring = self._ring
        ring.extend(events)
        while len(ring) > KEPT:
            told = ring.popleft()
            if is_final(told):
                self._finals.append((self._first, told))
            self._first += 1
        for listener in self.listeners:
            listener(events)
        self._wake()

    def end(self) -> None:
        """No more will come for now: readers finish once they have read everything."""
        self._is_over = True
        self._wake()

    def begin(self) -> None:
        """More will come."""
        self._is_over = False

    async def read(self, types: frozenset[str] | None, since: int) -> AsyncIterator[Event]:
        """Every event after `since`, then those to come, until the bus ends."""
        cursor = since + 1
        while True:
            while cursor < self.next_seq:
                cursor, batch = self._batch(cursor)
                for event in batch:
                    if types is None or event.type in types or event.type == "gap":
                        yield event
            if self._is_over:
                return
            if self._arrived is None:
                self._arrived = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._arrived)

    def _batch(self, cursor: int) -> tuple[int, list[Event]]:
        """Up to 256 events from `cursor` on, and where to go on."""
        if cursor < self._first:
            return self._first, list(self._old(cursor))
        start = cursor - self._first
        batch = [
            make_event(cursor + index, told)
            for index, told in enumerate(islice(self._ring, start, start + 256))
        ]
        return cursor + len(batch), batch

    def _old(self, cursor: int) -> Iterable[Event]:
        """What is left of the time before the ring: final events, and how many others are gone."""
        finals = [make_event(seq, told) for seq, told in self._finals if seq >= cursor]
        yield from finals
        missed = self._first - cursor - len(finals)
        if missed:
            at = self._ring[0][1]
            yield Event("gap", self._first - 1, at, data={"missed": missed})

    def _wake(self) -> None:
        arrived, self._arrived = self._arrived, None
        if arrived is not None and not arrived.done():
            arrived.set_result(None)
