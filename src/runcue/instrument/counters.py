"""Counts what happened, for the metrics.

Rules:
- Nothing is counted until the application makes a Metrics object.
- A label has at most 200 values. Later ones are counted as `other`; the keys of a service (`name[key]`) count under
  the service's name. An id is never a label.
- Counting happens on the event loop, reading in any thread: a reader takes a copy first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import accumulate
from typing import Final

from runcue.core.model.events import EventDraft, is_final
from runcue.core.model.record import Record
from runcue.core.model.state import base_name
from runcue.core.schedule.plan import Plan

MOST_LABELS: Final = 200
OTHER: Final = "other"

BOUNDS: Final = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
                 2.5, 5.0, 10.0)  # fmt: skip
"""Where the buckets of a duration end: 10 µs to 10 s, three to each power of ten."""


class Label:
    """The values of one label: the first 200 names; all later ones are `other`."""

    def __init__(self) -> None:
        self._known: dict[str, None] = {}

    def __call__(self, name: str) -> str:
        """The value that this name is counted under."""
        name = base_name(name) or name
        if name not in self._known:
            if len(self._known) >= MOST_LABELS:
                return OTHER
            self._known[name] = None
        return name

    def known(self) -> list[str]:
        """The values so far, in the order they came."""
        return list(self._known)


class Durations:
    """A histogram of durations."""

    def __init__(self) -> None:
        self._buckets = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self._buckets[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def up_to(self) -> list[int]:
        """For each bound, how many durations were no longer; last, how many there were."""
        return list(accumulate(self._buckets))


class Counters:
    """Counts what one process does, from when it is made: an observer of a Cue."""

    def __init__(self, task: Label, service: Label, schedule: Label) -> None:
        self._task = task
        self._service = service
        self._schedule = schedule
        self.completed: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.rate_limited: Counter[str] = Counter()
        self.fired: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.durations: dict[str, Durations] = {}
        self.errors: Counter[str] = Counter()

    def heard(self, plan: Plan) -> None:
        """Count the starts, ends and events of a committed turn."""
        ended = [event.spec.task for event in plan.finals.values() if type(event) is Record]
        for task, amount in Counter(ended).items():
            self.completed[self._task(task)] += amount
        used = [unit.spec.services if unit.chosen is None else unit.services for unit in plan.start]
        for services, amount in Counter(used).items():
            for service in {self._service(name) for name in services}:
                self.requests[service] += amount
        if plan.is_notable:
            for event in plan.events:
                if type(event) is EventDraft:
                    self._count_notable(event)

    def called(self, callback: str, seconds: float) -> None:
        """Count how long a callback took, whether or not it answered."""
        durations = self.durations.get(callback)
        if durations is None:
            durations = self.durations[callback] = Durations()
        durations.add(seconds)

    def complained(self, callback: str) -> None:
        """Count an error of a callback: it raised, overran or returned a wrong value."""
        self.errors[callback] += 1

    def _count_notable(self, draft: EventDraft) -> None:
        record, data = draft.record, draft.data or {}
        if draft.type == "service_rate_limited":
            self.rate_limited[self._service(data["service"])] += 1
        elif draft.type == "schedule_fired":
            self.fired[self._schedule(data["schedule"])] += 1
        elif draft.type == "schedule_skipped":
            self.skipped[self._schedule(data["schedule"])] += 1
        elif record is not None and draft.type == "skipped":
            self.completed[self._task(record.spec.task)] += 1
        elif record is not None and draft.type == "failed" and is_final(draft):
            self.failed[self._task(record.spec.task)] += 1
