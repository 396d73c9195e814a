"""The overview of a queue, made once for all clients that watch it.

Rules:
- One task reads the queue: at most twice a second, for at most a twentieth of the time (every ten seconds if reading
  takes more than half a second), and only while a client watches: the first client starts the task, the last ends it.
- An overview is encoded once for all clients. A slow client gets the latest one when it is ready: nothing is queued.
- An overview is sent when something changed, and every five seconds anyway. A queue that cannot be read is reported
  to the clients, and tried again. So is any other error, which is logged as well.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from msgspec import UNSET, structs

from runcue import RuncueError
from runcue.web.file import Source
from runcue.web.rows import (
    WallClock,
    encoded,
    failures_of,
    reasons_of,
    rows_of,
    service_of,
    why_of,
    worker_of,
)
from runcue.web.shapes import Counts, Failures, History, Pace, Queue, Row, Sample, Status, Waiting, Why
from runcue.web.source import SHOWN, Facts, Unavailable, public_message

logger = logging.getLogger("runcue")

PAUSE = 0.5
SHARE = 20
"""The queue is read for at most one part in so many of the time."""
LONGEST_PAUSE = 10.0
HEARTBEAT = 5.0
MOST_SERVICES = 200
KEPT = 600
"""Seconds of history."""
HOLE = 10
"""Seconds without a client after which the history goes on; after more it begins anew."""
PACE_OVER = 10
"""Seconds over which the pace is measured."""
DEAD_EVERY = 5.0
"""Seconds after which dead letters are grouped again, if their number has changed."""
OWN_FAULT = "The dashboard failed to look at the queue; its log says why."

Message = tuple[str, bytes]
"""What is sent to clients: the name of an event, and its data."""


class Past:
    """The history of the last minutes: a point for each second that is over."""

    def __init__(self) -> None:
        self._points: deque[tuple[int, int, int, int]] = deque(maxlen=KEPT)
        self._second: int | None = None
        """The second that is not over yet."""
        self._flows = [0, 0]
        """How many units completed and failed in that second so far."""
        self._totals = [0, 0]
        """How many had completed and failed in all when the counts were added last."""

    def add(self, at: float, counts: Counts) -> None:
        """Add the present counts. Units that ended since the last call are spread evenly over the time since."""
        second, totals = int(at), [counts.completed, counts.failed]
        if self._second is None or not 0 <= second - self._second <= HOLE:
            self._points.clear()
            self._flows = [0, 0]
        else:
            ended = [max(0, total - was) for total, was in zip(totals, self._totals, strict=True)]
            flows = [old + new for old, new in zip(self._flows, ended, strict=True)]
            steps = second - self._second
            for step in range(steps):
                completed, failed = (one * (step + 1) // steps - one * step // steps for one in flows)
                self._points.append((counts.pending, counts.running, completed, failed))
            self._flows = [0, 0] if steps else flows
        self._second, self._totals = second, totals

    @property
    def until(self) -> float:
        """The last second that is over."""
        return float((self._second or 1) - 1)

    def history(self) -> History:
        """All points."""
        columns = [list(column) for column in zip(*self._points, strict=True)] or [[], [], [], []]
        pending, running, completed, failed = columns
        return History(
            step=1, until=self.until, pending=pending, running=running, completed=completed, failed=failed
        )

    def since(self, at: float, counts: Counts) -> Sample:
        """The present counts, and how many units ended after that second, up to the last second that is over."""
        new = list(self._points)[-int(self.until - at) :] if self.until > at else []
        return Sample(
            at=self.until,
            pending=counts.pending,
            running=counts.running,
            completed=sum(point[2] for point in new),
            failed=sum(point[3] for point in new),
        )

    def pace(self) -> Pace:
        """Units that ended per second, over the last seconds."""
        recent = list(self._points)[-PACE_OVER:]
        seconds = max(1, len(recent))
        return Pace(
            completed=sum(point[2] for point in recent) / seconds,
            failed=sum(point[3] for point in recent) / seconds,
        )


class Overview:
    """Makes the overview that people see."""

    def __init__(self, source: Source, read_only: bool) -> None:
        path = source.path
        self._source = source
        self._queue = Queue(
            name="in memory" if path is None else Path(path).name,
            path=path,
            read_only=read_only,
            durable=path is not None,
        )
        self.clock = WallClock()
        self.past = Past()
        self._failures = Failures(groups=[], looked_at=0)
        self._dead: int | None = None
        """How many dead letters there were when they were last grouped."""
        self._grouped_at = 0.0
        self._latest: Status | None = None
        self._looked_at = 0.0
        self._one_at_a_time = asyncio.Lock()

    async def status(self) -> Status:
        """The whole overview, at most half a second old."""
        async with self._one_at_a_time:
            if self._latest is None or time.monotonic() - self._looked_at > PAUSE:
                self._latest = await self._look()
                self._looked_at = time.monotonic()
            return self._latest

    def outdate(self) -> None:
        """Have the next `status` read the queue, because a client has changed something."""
        self._looked_at = self._grouped_at = 0.0
        self._dead = None

    async def _look(self) -> Status:
        is_new = self._latest is None or self._latest.counts.failed != self._dead
        is_time = is_new and time.monotonic() - self._grouped_at > DEAD_EVERY
        facts = await self._source.facts(is_time)
        at = self.clock.tell(facts.now)
        if facts.dead is not None:
            self._failures = await failures_of(facts.dead, self.clock)
            self._dead = facts.counts["failed"]
            self._grouped_at = time.monotonic()
        counts = Counts(**facts.counts)
        self.past.add(at, counts)
        services = [service_of(one, self.clock) for one in facts.services[:MOST_SERVICES]]
        return Status(
            at=at,
            queue=self._queue,
            counts=counts,
            pace=self.past.pace(),
            services=services,
            services_more=max(0, len(facts.services) - MOST_SERVICES),
            paused=facts.paused,
            workers=[worker_of(one, self.clock) for one in facts.workers],
            running=await rows_of(facts.running, self.clock),
            waiting=await self._waiting(facts),
            recent=await self._recent(facts),
            failures=self._failures,
            history=self.past.history(),
        )

    async def _waiting(self, facts: Facts) -> Waiting:
        whys: dict[str, Why] = {
            work_id: why_of(found, self.clock, facts.now)
            for work_id, found in facts.whys.items()
            if found.state == "pending"
        }
        waiting = [work for work in facts.pending if work.id in whys]
        return Waiting(
            rows=await rows_of(waiting[:SHOWN], self.clock, whys),
            reasons=reasons_of(whys.values()),
            looked_at=len(whys),
        )

    async def _recent(self, facts: Facts) -> list[Row]:
        ended = sorted(facts.ended, key=lambda work: work.completed_at or 0.0, reverse=True)
        return await rows_of(ended[:SHOWN], self.clock)


class Broadcast:
    """Sends the overview to all clients that watch."""

    def __init__(self, overview: Overview) -> None:
        self._overview = overview
        self._watchers = 0
        self._task: asyncio.Task[None] | None = None
        self._latest: Message | None = None
        self._number = 0
        self._news = asyncio.Event()
        self._key: Any = None
        self._sent_at = 0.0
        self._sampled = 0.0
        """The second up to which the units that ended have been sent."""
        self._hurry = asyncio.Event()
        self._is_over = False

    async def listen(self) -> AsyncGenerator[Message, None]:
        """The messages for one client, beginning with the present overview."""
        self._watchers += 1
        seen = 0
        try:
            if self._task is None:
                self._latest = self._key = None
                self._sampled = self._overview.past.until
                self._task = asyncio.create_task(self._watch(), name="runcue dashboard")
            while not self._is_over:
                news = self._news
                if self._latest is not None and seen != self._number:
                    seen = self._number
                    yield self._latest
                else:
                    await news.wait()
        finally:
            self._watchers -= 1
            if not self._watchers and self._task is not None:
                self._task.cancel()
                self._task = None

    def hurry(self) -> None:
        """Read the queue again now, because a client has changed something."""
        self._overview.outdate()
        self._hurry.set()

    def begin(self) -> None:
        """Accept clients, also after `end`."""
        self._is_over = False

    def end(self) -> None:
        """End the streams of all clients."""
        self._is_over = True
        self._wake()

    async def _watch(self) -> None:
        while True:
            began = time.monotonic()
            self._hurry.clear()
            try:
                self._send_status(await self._overview.status())
            except (RuncueError, Unavailable) as error:
                self._send_trouble(public_message(error))
            except Exception as error:  # clients are told, and the next look may succeed
                if self._key != OWN_FAULT:
                    logger.error("dashboard: looking at the queue failed", exc_info=error)
                self._send_trouble(OWN_FAULT)
            took = time.monotonic() - began
            try:
                async with asyncio.timeout(min(LONGEST_PAUSE, max(PAUSE, SHARE * took))):
                    await self._hurry.wait()
            except TimeoutError:
                continue

    def _send_trouble(self, why: str) -> None:
        self._send("unavailable", encoded({"error": why}), why)

    def _send_status(self, status: Status) -> None:
        key = _essence(status)
        if not self._is_news(key):
            return
        sample = self._overview.past.since(self._sampled, status.counts)
        self._sampled = sample.at
        self._send("status", encoded(structs.replace(status, history=UNSET, sample=sample)), key)

    def _is_news(self, key: Any) -> bool:
        return key != self._key or time.monotonic() - self._sent_at >= HEARTBEAT

    def _send(self, name: str, data: bytes, key: Any) -> None:
        if not self._is_news(key):
            return
        self._key, self._sent_at = key, time.monotonic()
        self._number += 1
        self._latest = name, data
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


def _essence(status: Status) -> Any:
    """The parts of an overview whose change is news: all that does not change by time alone."""

    def row(one: Row) -> Any:
        why = one.why
        return one.id, one.state, one.attempt, None if why is None else (why.text, why.until)

    return (
        status.counts,
        status.pace,
        [structs.replace(one, until=None) for one in status.services],
        status.paused,
        [(one.id, one.state, one.serving, one.running) for one in status.workers],
        [row(one) for one in (*status.running, *status.waiting.rows, *status.recent)],
        status.failures,
    )
