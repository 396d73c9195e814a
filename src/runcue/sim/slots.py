"""What the checker knows of schedules: each slot is decided about once, in order, and none is left out.

    fired     a slot has one unit, which is accepted at that moment; never before its time
    left out  only where `overlap` and `missed` say so
    next      the slot that comes after the last one, whoever decides then

A slot is one of the schedule's own: with `every` so many seconds after the last one, with `cron` the next one in the
calendar. Slots of `every` are moments of queue time, those of `cron` moments of the clock on the wall, of which the
checker has to be told when it is set (`clock_set`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Final

import msgspec

from runcue import Event
from runcue.host.calendar import SystemCalendar
from runcue.sim.timetable import ScheduleConfig

SHORT: Final = 0.002
"""Seconds by which a slot may differ: events tell it in milliseconds."""
LATEST: Final = 10.0
"""Seconds after which a slot counts as forgotten."""
HELD_BACK: Final = frozenset({"held back", "paused", "removed"})
"""Changes after which no slot has to come."""

Complaint = tuple[str, float]
"""What is wrong, and when."""


class _Slots(msgspec.Struct):
    """One schedule, as far as events tell."""

    expected: float | None = None
    """The slot that comes next, where that is known."""
    last: float | None = None
    unit: str | None = None
    """The last unit."""


class Slots:
    """Judges the events of schedules."""

    def __init__(self, schedules: Mapping[str, ScheduleConfig], state_of: Callable[[str], str]) -> None:
        """`state_of` says how a unit stands: by a word in `LIVE`, or by another one when it has ended."""
        self._schedules = schedules
        self._state_of = state_of
        self._known: dict[str, _Slots] = {}
        self._clocks = [(-math.inf, 0.0)]
        self._calendar = SystemCalendar()
        self._fired: dict[str, float] = {}
        """When each unit was submitted."""
        self.ends_at = math.inf
        """The queue time after which no slot has to come."""

    def clock_set(self, at: float, ahead: float) -> None:
        """Note by how many seconds the clock on the wall is ahead of queue time from a moment on."""
        self._clocks.append((at, ahead))

    def hear(self, event: Event) -> Iterator[Complaint]:
        """Take in an event of a schedule, and say what is wrong with it."""
        name = str(event.data["schedule"])
        plan = self._schedules.get(name)
        if plan is None:
            return
        if event.type == "schedule_changed":
            yield from self._changed(name, plan, event)
            return
        slots = self._known.setdefault(name, _Slots())
        if event.type == "schedule_skipped":
            yield from self._skipped(name, plan, slots, event)
            return
        unit = str(event.data["unit"])
        if event.data.get("slot") is not None:
            slot = _moment(event.data["slot"])
            for text in (*self._next(plan, slots, slot), *self._early(plan, slot, event.at)):
                yield f"schedule {name} {text}", event.at
            if plan.overlap != "queue" and self._is_under_way(slots):
                yield f"schedule {name} submitted {unit}, and {slots.unit} had not ended", event.at
            self._decided(plan, slots, slot)
        slots.unit = unit
        self._fired[unit] = event.at

    def finish(self, now: float) -> Iterator[Complaint]:
        """Say which slots never came, and which never had their unit."""
        now = min(now, self.ends_at)
        for name in self._known:
            yield from self._overdue(name, self._schedules[name], now)
        for unit, at in self._fired.items():
            if not self._state_of(unit):
                yield f"unit {unit} of a schedule was never accepted", at

    # one for each kind of event ---------------------------------------------------------------------------

    def _changed(self, name: str, plan: ScheduleConfig, event: Event) -> Iterator[Complaint]:
        change = event.data["change"]
        if change in HELD_BACK:
            yield from self._overdue(name, plan, event.at)
            self._known.setdefault(name, _Slots()).expected = None
        elif change == "added":
            known = self._known[name] = _Slots()
            if plan.every is not None:
                known.expected = event.at + plan.every
            elif len(clocks := self._walls(event.at)) == 1:
                known.expected = self._after(plan, clocks[0])
        elif change == "changed":
            yield f"schedule {name} was changed, and nobody changed it", event.at

    def _skipped(self, name: str, plan: ScheduleConfig, slots: _Slots, event: Event) -> Iterator[Complaint]:
        first, last = _moment(event.data["slot"]), _moment(event.data["until"])
        reason = event.data["reason"]
        for text in (*self._next(plan, slots, first), *self._early(plan, last, event.at)):
            yield f"schedule {name} {text}", event.at
        if reason == "overlap" and (plan.overlap != "skip" or not self._is_under_way(slots)):
            yield f"schedule {name} left a slot out, and no unit was in its way", event.at
        if reason == "missed" and plan.missed == "all":
            yield f"schedule {name} left slots out that it had missed", event.at
        self._decided(plan, slots, last)

    def _decided(self, plan: ScheduleConfig, slots: _Slots, slot: float) -> None:
        slots.last, slots.expected = slot, self._after(plan, slot)

    # what is right ----------------------------------------------------------------------------------------

    def _next(self, plan: ScheduleConfig, slots: _Slots, slot: float) -> Iterator[str]:
        if slots.last is not None and slot <= slots.last + SHORT:
            yield f"decided about slot {slot:.3f}, and had come to {slots.last:.3f} before"
        elif slots.expected is not None and abs(slot - slots.expected) > SHORT:
            yield f"decided about slot {slot:.3f}, expected {slots.expected:.3f}"

    def _early(self, plan: ScheduleConfig, slot: float, at: float) -> Iterator[str]:
        now = at if plan.every is not None else max(self._walls(at))
        if now < slot - SHORT:
            yield f"decided about slot {slot:.3f} {slot - now:.3f} s before its time"

    def _overdue(self, name: str, plan: ScheduleConfig, now: float) -> Iterator[Complaint]:
        expected = self._known.setdefault(name, _Slots()).expected
        wall = now if plan.every is not None else min(self._walls(now))
        if expected is not None and expected + plan.jitter + LATEST < wall:
            yield f"schedule {name} has forgotten slot {expected:.3f}", now

    def _is_under_way(self, slots: _Slots) -> bool:
        return slots.unit is not None and self._state_of(slots.unit) in LIVE

    def _after(self, plan: ScheduleConfig, slot: float) -> float | None:
        if plan.cron is None:
            assert plan.every is not None
            return slot + plan.every
        return self._calendar.after(plan.cron, plan.tz, slot)

    def _walls(self, at: float) -> list[float]:
        """What the clock on the wall may have said at a moment: two things while it is being set."""
        found = [at + ahead for since, ahead in self._clocks if since <= at]
        before = [at + ahead for since, ahead in self._clocks if since < at - LATEST]
        return found[max(0, len(before) - 1) :]


LIVE: Final = frozenset({"pending", "running", "failing"})


def _moment(text: object) -> float:
    return datetime.fromisoformat(str(text)).timestamp()
