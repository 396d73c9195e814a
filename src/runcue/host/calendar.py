"""Finds the slots of cron expressions, by cronsim and the time zones of this machine.

Rules:
- Slots are those of Debian's cron. Where a clock is set forward, jobs of the missing hour run right after it; where
  it is set back, jobs with fixed times run once, and those with stars in every hour that there is.
- A slot is a whole second, as epoch seconds. The slots after a moment are the same from wherever one looks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from itertools import takewhile
from typing import Final

from runcue.errors import InvalidOption
from runcue.host.system import clock

NAMES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
LONGEST: Final = 256
FORMS: Final = (
    "five fields (minute hour day-of-month month day-of-week) such as '0 3 * * 1-5', six with seconds before "
    "them, or one of " + ", ".join(NAMES)
)
NEVER: Final = "an expression for moments that come: this one never does"
SHORT: Final = 120.0
"""Seconds before a moment in which its latest slot is looked for first."""
LAST: Final = 250_000_000_000.0
"""No slot comes after this moment, in the year 9892: dates end soon after it."""


class SystemCalendar:
    """The calendar of this machine."""

    def after(self, cron: str, zone: str, moment: float) -> float | None:
        """The first slot after a moment; None when there is none any more."""
        return next((slot for slot in _slots(cron, zone, moment) if slot > moment), None)

    def latest(self, cron: str, zone: str, after: float, moment: float) -> float:
        """The last slot until a moment (included) of those after another one, which is a slot itself; that slot when
        there is none.

        Slots are only ever looked for forward, from further and further back: backward, where a clock was set back by
        less than an hour, cronsim comes to no end.
        """
        back = SHORT
        while True:
            start = max(after, moment - back)
            slots = takewhile(lambda slot: slot <= moment, _slots(cron, zone, start))
            found = deque(slots, maxlen=1)
            if found or start <= after:
                return found[0] if found else after
            back *= 8

    def problem(self, cron: str, zone: str) -> str | None:
        """Why this machine cannot find the slots of an expression; None when it can."""
        return _problem(cron, zone)


@lru_cache(maxsize=20_000)
def _problem(cron: str, zone: str) -> str | None:
    from cronsim import CronSim, CronSimError

    try:
        zone_of(zone)
    except (LookupError, ValueError, OSError):
        return f"it has no time zone {zone!r}"
    try:
        CronSim(expression(cron), datetime.fromtimestamp(0, UTC))
    except (CronSimError, ValueError) as error:
        return f"{cron!r} is no cron expression ({error})"
    return None


def _slots(cron: str, zone: str, moment: float) -> Iterator[float]:
    """The slots from about a moment on, in order."""
    from cronsim import CronSim

    start = datetime.fromtimestamp(min(max(moment, 0.0), LAST), zone_of(zone))
    last = moment
    for found in CronSim(expression(cron), start):
        slot = found.timestamp()
        if slot > LAST:
            return
        if slot > last:
            last = slot
            yield slot


def expression(cron: str) -> str:
    """The fields of a cron expression, also of one that has a name."""
    return NAMES.get(cron, cron)


@lru_cache(maxsize=1000)
def zone_of(name: str) -> tzinfo:
    """The time zone of that name; raises LookupError or ValueError where there is none."""
    from zoneinfo import ZoneInfo

    return UTC if name == "UTC" else ZoneInfo(name)


def machine_zone() -> str | None:
    """The name of the time zone of this machine; None where it has no name that is known."""
    for name in clock.zone_names():
        try:
            zone_of(name)
        except (LookupError, ValueError, OSError):
            continue
        return name
    return None


# --- What people write ----------------------------------------------------------------------------


def read_zone(value: object) -> str:
    """The name of a time zone that this machine knows."""
    try:
        if not isinstance(value, str):
            raise TypeError
        zone_of(value)
    except (LookupError, ValueError, TypeError, OSError):
        expected = "the name of a time zone, such as 'Europe/Zurich' or 'UTC'"
        raise InvalidOption("tz", value, expected) from None
    return str.__str__(value)


def read_cron(value: object, zone: str, now: float) -> str:
    """A cron expression that has a slot after now."""
    from cronsim import CronSim, CronSimError

    if not isinstance(value, str) or len(value) > LONGEST:
        raise InvalidOption("cron", value, FORMS)
    cron = " ".join(value.split())
    try:
        CronSim(expression(cron), datetime.fromtimestamp(now, UTC))
    except (CronSimError, ValueError) as error:
        if _is_no_date(cron):
            raise InvalidOption("cron", value, NEVER) from None
        expected = FORMS if str(error) == "Wrong number of fields" else f"{FORMS} ({error})"
        raise InvalidOption("cron", value, expected) from None
    if SystemCalendar().after(cron, zone, now) is None:
        raise InvalidOption("cron", value, NEVER)
    return cron


def _is_no_date(cron: str) -> bool:
    """True when a day is given that none of the given months has, such as 30 February."""
    from cronsim import CronSim, CronSimError

    *others, days, months, weekdays = expression(cron).split() if len(cron.split()) > 2 else ("",) * 3
    try:
        for fields in ((days, "*"), ("*", months)):
            CronSim(" ".join((*others, *fields, weekdays)), datetime.fromtimestamp(0, UTC))
    except (CronSimError, ValueError):
        return False
    return True
