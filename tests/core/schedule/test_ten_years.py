"""Ten years of schedules in many time zones, by processes that are killed at any moment, beside clocks that are set.

What has to be true is said without runcue's own words for it: the slots of a schedule are found by going through
all minutes of its zone (in `test_calendar.py`) or by asking the calendar from the beginning to the end; each has one
unit, and no unit has no slot.
"""

import random
from datetime import UTC, datetime
from typing import Final
from zoneinfo import available_timezones

import pytest

from runcue.core.model.record import Spec
from runcue.core.model.schedule import Schedule, Timing, key_of
from runcue.core.schedule.plan import Lost, PutSchedule
from runcue.host.calendar import SystemCalendar
from tests.core.bench_of_core import Bench
from tests.core.library import Process, Shared

YEAR: Final = 365.25 * 86400
BEGIN: Final = datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC).timestamp()
CRONS: Final = ("30 2 * * *", "0 0 * * 1-5", "15 1,2,3 * * SUN", "0 12 L * *", "@monthly", "59 23 31 12 *")
FEW: Final = (
    "UTC", "Europe/Zurich", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia",
    "America/Sao_Paulo", "Africa/Casablanca", "Antarctica/Troll", "Asia/Gaza", "America/Nuuk", "Pacific/Chatham",
)  # fmt: skip
"""Zones with half hours, with half an hour or two hours of summer time, with changes at midnight or in Ramadan."""
ZONES: Final = [*FEW, *sorted(available_timezones() - set(FEW))[::12]]
SPEC: Final = Spec("", "task", b"{}", ())


def slots(cron: str, zone: str, start: float, end: float) -> list[float]:
    """All slots in between."""
    found, calendar, at = [], SystemCalendar(), start
    while (slot := calendar.after(cron, zone, at)) is not None and slot <= end:
        found.append(slot)
        at = slot
    return found


def schedule(cron: str, zone: str) -> Schedule:
    return Schedule(cron, Timing(cron=cron, tz=zone), SPEC, overlap="queue", missed="all")


def keys(shared: Shared | Bench) -> list[str]:
    """The slots of all units there are."""
    records = shared.store.records if isinstance(shared, Bench) else shared.records
    return sorted(str(one.spec.idempotency_key) for one in records.values())


@pytest.mark.parametrize("zone", ZONES)
def test_each_slot_of_ten_years_has_one_unit(zone: str) -> None:
    at = Bench(keep_finished=None)
    at.now = at.wall = BEGIN
    at.may_start = False  # what becomes of the units is no matter
    crons = CRONS[:2] if zone in FEW else CRONS[2:5]
    at.turn(*(PutSchedule(schedule(cron, zone)) for cron in crons))
    end = BEGIN + (10 * YEAR if zone in FEW else 3 * YEAR)
    while (due := min(one.due for one in at.store.schedules.values() if one.due is not None)) <= end:
        at.after(due - at.wall)
    assert keys(at) == sorted(key_of(cron, slot) for cron in crons for slot in slots(cron, zone, BEGIN, end))


class Fleet:
    """Two to five processes that share a queue, and are killed and replaced at any moment of a turn."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.shared = Shared()
        self.shared.now = self.shared.wall = BEGIN
        self.number = 0
        self.alive = [self._newcomer() for _ in range(chance.randint(2, 5))]
        for process in self.alive:
            process.turn()

    def _newcomer(self) -> Process:
        self.number += 1
        return Process(self.shared, f"p{self.number}", may_start=False)

    def step(self) -> None:
        """Somebody takes a turn, or dies in it, before or after its commit."""
        process = self.chance.choice(self.alive)
        fate = self.chance.random()
        if fate < 0.7:
            process.turn()
            return
        if fate < 0.9:
            process.turn(is_kept=self.chance.random() < 0.5, is_heard=False)
        self.alive.remove(process)
        other = self._newcomer()
        self.alive.append(other)
        other.turn(Lost(process.tag))


@pytest.mark.parametrize("seed", range(12))
def test_killed_processes_and_clocks_that_are_set_cost_no_slot(seed: int) -> None:
    chance = random.Random(seed)
    fleet = Fleet(chance)
    shared = fleet.shared
    zone = chance.choice(FEW)
    cron = chance.choice(("0 * * * *", "30 2 * * *", "*/20 1-3 * * *"))
    fleet.alive[0].turn(
        PutSchedule(schedule(cron, zone)),
        PutSchedule(Schedule("interval", Timing(every=1800.0), SPEC, overlap="queue", missed="all")),
    )
    begin, latest = shared.now, shared.wall
    for _ in range(500):
        seconds = chance.choice((1.0, 60.0, 600.0, 3600.0, 20_000.0))
        shared.now += seconds
        shared.wall += seconds
        if chance.random() < 0.05:  # the clock is set, by a day at most
            shared.wall += chance.choice((-86400.0, 86400.0, -3600.0, 3600.0, -90.0))
        latest = max(latest, shared.wall)
        fleet.step()
    shared.wall = latest = max(latest, shared.wall)
    for _ in range(20):
        fleet.alive[0].turn()
    expected = [key_of(cron, slot) for slot in slots(cron, zone, BEGIN, latest)]
    count = int((shared.now - begin) // 1800.0)
    expected += [key_of("interval", begin + 1800.0 * number) for number in range(1, count + 1)]
    assert keys(shared) == sorted(expected)
