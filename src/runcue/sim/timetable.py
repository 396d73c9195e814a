"""The schedules of a simulation: what is submitted at moments, beside what arrives."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from runcue import InvalidOption
from runcue.host.calendar import read_cron, read_zone
from runcue.sim import reading as read
from runcue.sim.reading import BadConfig

OVERLAP = ("skip", "queue", "replace")
MISSED = ("latest", "all", "none")
MIDNIGHT = "2024-01-01T00:00:00Z"
"""A Monday."""


def _cron(value: object, path: str) -> str:
    return _taken(lambda: read_cron(value, "UTC", 0.0), value, path)


def _zone(value: object, path: str) -> str:
    return _taken(lambda: read_zone(value), value, path)


def _taken(reading: Any, value: object, path: str) -> str:
    try:
        return str(reading())
    except InvalidOption as error:
        raise BadConfig(path, error.expected, value) from None


class ScheduleConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One schedule: when its slots are, and what its units are."""

    every: Annotated[float | None, read.optional(read.duration(1.0))] = None
    cron: Annotated[str | None, read.optional(_cron)] = None
    tz: Annotated[str, _zone] = "UTC"
    overlap: Annotated[str, read.choice(*OVERLAP)] = "skip"
    missed: Annotated[str, read.choice(*MISSED)] = "latest"
    jitter: Annotated[float, read.duration()] = 0.0
    task: Annotated[str | None, read.optional(read.name)] = None
    uses: Annotated[list[str], read.several(read.name, 100)] = []
    priority: Annotated[float, read.number(-1e9, 1e9)] = 0.0

    def options(self) -> dict[str, Any]:
        """Its part of the options of `cue.schedule`, `cue.every` and `cue.cron`."""
        when = {"every": self.every} if self.cron is None else {"cron": self.cron, "tz": self.tz}
        return {**when, "overlap": self.overlap, "missed": self.missed, "jitter": self.jitter or None}

    @property
    def most(self) -> float:
        """How many units it submits in a second, at most."""
        if self.cron is None:
            return 1.0 / (self.every or 1.0)
        return 1.0 if len(self.cron.split()) > 5 else 1 / 60


def _schedule(value: object, path: str) -> ScheduleConfig:
    schedule = read.record(ScheduleConfig, value, path, "every: or cron:, and what belongs to a schedule")
    if (schedule.every is None) == (schedule.cron is None):
        raise BadConfig(path, "either every: or cron:")
    if schedule.every is not None and schedule.tz != "UTC":
        raise BadConfig(read.at(path, "tz"), "cron: beside it: an interval is the same in every zone")
    if schedule.task is not None and schedule.uses:
        raise BadConfig(read.at(path, "uses"), "no task: beside it, which has services of its own")
    return schedule


read_schedules = read.mapping(read.name, _schedule, "a schedule for each name")
