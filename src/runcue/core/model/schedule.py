"""A schedule as two values: as it is stored, and as users see it.

A schedule makes units at moments: its *slots*. Slots of `every=` are moments of queue time, which never jumps, so
that an interval stays one when the clock is set. Slots of `cron=` are moments of wall time, as people mean them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, Protocol

import msgspec

from runcue.core.model.parse import decode_params
from runcue.core.model.record import Spec

TAG = "schedule"
"""The tag that the units of a schedule have: its value is the name of the schedule."""


class Calendar(Protocol):
    """Finds the slots of cron expressions. It is given to core, because time zones are read from files."""

    def after(self, cron: str, zone: str, moment: float) -> float | None:
        """The first slot after a moment; None when there is none any more."""
        ...

    def latest(self, cron: str, zone: str, after: float, moment: float) -> float:
        """The last slot until a moment (included) of those after another one, which is a slot itself; that slot when
        there is none."""
        ...

    def problem(self, cron: str, zone: str) -> str | None:
        """Why this machine cannot find the slots of an expression; None when it can."""
        ...


class NoCalendar:
    """The calendar of those who decide about no schedules."""

    def after(self, cron: str, zone: str, moment: float) -> float | None:
        """No slot."""
        return None

    def latest(self, cron: str, zone: str, after: float, moment: float) -> float:
        """The known slot."""
        return after

    def problem(self, cron: str, zone: str) -> str | None:
        """There is none."""
        return None


NO_CALENDAR: Final = NoCalendar()


class Timing(msgspec.Struct, frozen=True, omit_defaults=True):
    """When the slots of a schedule are. Either `every` or `cron` is given."""

    every: float | None = None
    cron: str | None = None
    tz: str = "UTC"
    start: float | None = None
    """No slot before this moment of wall time; slots of `every` are counted from it."""
    until: float | None = None
    """No slot after this moment of wall time."""
    jitter: float = 0.0
    """Each slot comes later by up to so many seconds, always by the same for one slot."""

    def __str__(self) -> str:
        if self.cron is not None:
            return self.cron if self.tz == "UTC" else f"{self.cron} {self.tz}"
        return f"every {span(self.every or 0.0)}"


def span(seconds: float) -> str:
    """A length of time as it is written: `90s`, `5m`, `1d`."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{int(seconds // size)}{unit}"
    return f"{seconds:g}s"


class Schedule(msgspec.Struct, frozen=True):
    """A schedule as it is stored."""

    name: str
    timing: Timing
    spec: Spec
    """What every unit of it is submitted with, but for id, key and tag."""
    is_settled: bool = True
    """False when the services of its units are those of their task: whoever added it knows only the name of that."""
    overlap: str = "skip"
    missed: str = "latest"
    source: str | None = None
    """The module that declares it in its code; None for one that was added at run time."""
    declared_at: float = 0.0
    as_of: float = 0.0
    """The wall time at which its next slot was chosen."""
    slot: float | None = None
    """Its next slot; None when there is none."""
    due: float | None = None
    """When that slot's unit is submitted: later than the slot by the jitter. In queue time for `every`, in wall time
    for `cron`."""
    last_slot: float | None = None
    last_at: float | None = None
    """When it last submitted a unit, in queue time."""
    last_id: str | None = None
    runs: int = 0
    skipped: int = 0
    """How often it left slots out."""
    is_paused: bool = False
    problem: str | None = None
    """Why its slots are held back."""
    under_way: tuple[str, ...] = ()
    """Those of its units that may not have ended, where that matters for the next slot."""

    @property
    def is_waiting(self) -> bool:
        """True when it has a slot to wait for."""
        return self.due is not None and not self.is_paused and self.problem is None

    @property
    def is_wrong(self) -> bool:
        """True when its slots cannot be found: whoever added it could not be told."""
        return self.problem is not None and self.slot is None

    @property
    def by_wall(self) -> bool:
        """True when its slots are moments of wall time."""
        return self.timing.cron is not None


class ScheduleInfo(msgspec.Struct, frozen=True):
    """A schedule as users see it. Times are epoch seconds."""

    name: str
    task: str
    params: dict[str, Any]
    when: str
    """Its cron expression with its time zone, or `every 5m`."""
    every: float | None
    cron: str | None
    tz: str
    start: float | None
    until: float | None
    jitter: float
    overlap: str
    missed: str
    queue: str
    priority: float
    source: str | None
    """The module that declares it in its code; None for one that was added at run time."""
    next_at: float | None
    """When its next unit comes; None when none does: it is paused, over, or held back."""
    last_at: float | None
    last_id: str | None
    """Its newest unit."""
    runs: int
    """How many units it has submitted."""
    skipped: int
    """How often slots passed without one, because of `overlap` or `missed`."""
    paused: bool
    problem: str | None
    """Why it submits nothing, if something is wrong."""


def shown(schedule: Schedule) -> ScheduleInfo:
    """What users see of a schedule."""
    timing, spec = schedule.timing, schedule.spec
    return ScheduleInfo(schedule.name, spec.task, decode_params(spec.params), str(timing), timing.every, timing.cron,
                        timing.tz, timing.start, timing.until, timing.jitter, schedule.overlap, schedule.missed,
                        spec.queue, spec.priority, schedule.source, schedule.due if schedule.is_waiting else None,
                        schedule.last_at, schedule.last_id, schedule.runs, schedule.skipped, schedule.is_paused,
                        schedule.problem)  # fmt: skip


# --- Slots ----------------------------------------------------------------------------------------


def key_of(name: str, slot: float) -> str:
    """The idempotency key of the unit of a slot: so no slot has two units."""
    return f"schedule/{name}/{text_of(slot)}"


def text_of(slot: float) -> str:
    """A moment as text, in UTC."""
    kind = "seconds" if slot == int(slot) else "milliseconds"
    return datetime.fromtimestamp(slot, UTC).isoformat(timespec=kind).replace("+00:00", "Z")


def id_of(name: str, slot: float) -> str:
    """The id of the unit of a slot: it sorts by time, as all ids do, and is the same whoever makes it."""
    return f"{int(slot * 1000):012x}{_digest(name, slot).hex()}"


def lag_of(name: str, slot: float, longest: float) -> float:
    """How much later than its slot a unit comes, given the longest jitter."""
    return longest * int.from_bytes(_digest(name, slot)[:4]) / 2**32 if longest else 0.0


def _digest(name: str, slot: float) -> bytes:
    from hashlib import blake2b  # loads a cryptographic library, and only schedules need it

    return blake2b(key_of(name, slot).encode(), digest_size=10).digest()


def next_slot(timing: Timing, calendar: Calendar, after: float) -> float | None:
    """The first slot of a cron after a moment of wall time."""
    assert timing.cron is not None
    if timing.start is not None:
        after = max(after, timing.start - 1e-3)
    slot = calendar.after(timing.cron, timing.tz, after)
    return None if slot is None or (timing.until is not None and slot > timing.until) else slot
