"""The slots of cron expressions: what counts as one, also where a clock is set forward or back."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runcue.errors import InvalidOption
from runcue.host.calendar import SystemCalendar, read_cron, read_zone
from tests.core.schedule.test_ten_years import FEW

CALENDAR = SystemCalendar()
NOW = datetime(2026, 3, 1, tzinfo=UTC).timestamp()
ZURICH = "Europe/Zurich"


def after(cron: str, zone: str, *at: int) -> str:
    """The first slot after a moment of that zone, as its clocks show it."""
    moment = datetime(*at, tzinfo=ZoneInfo(zone)).timestamp()  # type: ignore[misc, arg-type]
    slot = CALENDAR.after(cron, zone, moment)
    assert slot is not None
    return f"{datetime.fromtimestamp(slot, ZoneInfo(zone)):%Y-%m-%d %H:%M:%S %Z}"


def test_days_and_weekdays() -> None:
    assert after("0 3 * * 1-5", ZURICH, 2026, 1, 2, 4) == "2026-01-05 03:00:00 CET"
    assert after("0 0 L * *", "UTC", 2028, 2, 1) == "2028-02-29 00:00:00 UTC"
    assert after("*/30 5 0 * * *", "UTC", 2026, 1, 1, 0, 5, 1) == "2026-01-01 00:05:30 UTC"


def test_a_job_of_the_missing_hour_runs_right_after_it() -> None:
    assert after("30 2 * * *", ZURICH, 2026, 3, 28, 3) == "2026-03-29 03:00:00 CEST"
    assert after("30 2 * * *", ZURICH, 2026, 3, 29, 12) == "2026-03-30 02:30:00 CEST"


def test_a_job_with_a_fixed_time_runs_once_in_the_hour_that_comes_twice() -> None:
    assert after("30 2 * * *", ZURICH, 2026, 10, 24, 3) == "2026-10-25 02:30:00 CEST"
    assert after("30 2 * * *", ZURICH, 2026, 10, 25, 2, 31) == "2026-10-26 02:30:00 CET"


def test_a_job_of_every_hour_runs_in_every_hour_that_there_is() -> None:
    first = datetime(2026, 10, 24, 23, 59, tzinfo=UTC).timestamp()
    slots = []
    at = first
    for _ in range(3):
        slot = CALENDAR.after("0 * * * *", ZURICH, at)
        assert slot is not None
        slots.append(slot)
        at = slot
    assert [slot - slots[0] for slot in slots] == [0, 3600, 7200]


@pytest.mark.parametrize("zone", FEW)
def test_slots_of_stars_are_all_minutes_that_clocks_show(zone: str) -> None:
    """Asked minute by minute, without the library that finds slots."""
    begin = datetime(2026, 3, 20, tzinfo=UTC)
    minutes = (begin + timedelta(minutes=number) for number in range(1, 60 * 24 * 20))
    local = [(one.timestamp(), one.astimezone(ZoneInfo(zone))) for one in minutes]
    expected = [at for at, clock in local if clock.minute in {0, 15, 30, 45} and clock.isoweekday() < 6]
    found, at = [], begin.timestamp()
    while (slot := CALENDAR.after("*/15 * * * 1-5", zone, at)) is not None and slot <= local[-1][0]:
        found.append(slot)
        at = slot
    assert found == expected


MOMENTS = st.integers(1_700_000_000, 1_900_000_000)
CRONS = st.sampled_from(
    [
        "30 2 * * *",
        "*/7 * * * *",
        "0 0 * * *",
        "15 1,2,3 * * SUN",
        "5 */2 * * *",
        "0 0 29 2 *",
        "0,59 23 31 * *",
    ]
)


@given(CRONS, st.sampled_from(FEW), MOMENTS, st.integers(0, 3 * 86400))
@example("30 2 * * *", "Europe/Zurich", 1_774_742_400, 86400)
@example("15 1,2,3 * * SUN", "Australia/Lord_Howe", 1_775_300_000, 86400)
def test_slots_are_the_same_from_wherever_one_looks(cron: str, zone: str, moment: int, later: int) -> None:
    ahead: list[float] = []
    at = float(moment)
    while (
        len(ahead) < 600
        and (slot := CALENDAR.after(cron, zone, at)) is not None
        and slot <= moment + 5 * 86400
    ):
        ahead.append(slot)
        at = slot
    assert ahead == sorted(set(ahead))
    rest = [slot for slot in ahead if slot > moment + later]
    if rest:
        assert CALENDAR.after(cron, zone, moment + later) == rest[0]


@given(CRONS, st.sampled_from(FEW), MOMENTS, st.integers(0, 5 * 86400).map(float) | st.floats(0, 5 * 86400))
@example("5 */2 * * *", "UTC", 1_774_742_400, 7199.999)
@example("5 */2 * * *", "UTC", 1_774_742_400, 7200.0)
def test_the_latest_slot_is_the_last_of_all(cron: str, zone: str, moment: int, later: float) -> None:
    first = CALENDAR.after(cron, zone, moment)
    assert first is not None
    end, last, at = first + later, first, first
    while (slot := CALENDAR.after(cron, zone, at)) is not None and slot <= end:
        last = at = slot
    assert CALENDAR.latest(cron, zone, first, end) == last


def test_a_moment_that_is_no_later_than_the_known_slot_has_that_slot() -> None:
    assert CALENDAR.latest("0 * * * *", "UTC", 7200.0, 7100.0) == 7200.0


# --- What people write ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cron", ["* * * * *", "*/5 0 3 * * 1", "@hourly", " 0  3 * * mon-fri ", "0 0 29 2 *"]
)
def test_what_is_a_cron_expression(cron: str) -> None:
    assert read_cron(cron, "UTC", NOW) == " ".join(cron.split())


@pytest.mark.parametrize(
    "cron",
    [
        "",
        "3",
        "0 3 * *",
        "0 0 0 3 * * *",
        "61 * * * *",
        "a b c d e",
        "@never",
        "@reboot",
        5,
        None,
        "* " * 200,
    ],
)
def test_what_is_none_is_refused_with_what_is_expected(cron: object) -> None:
    with pytest.raises(InvalidOption, match=r"Invalid cron: .*Expected five fields"):
        read_cron(cron, "UTC", NOW)


@pytest.mark.parametrize("cron", ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "5 0 0 31 2 *"])
def test_an_expression_for_days_that_no_month_has_is_refused(cron: str) -> None:
    with pytest.raises(InvalidOption, match="this one never does"):
        read_cron(cron, "UTC", NOW)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Zurich", "Etc/GMT+5"])
def test_what_is_a_time_zone(zone: str) -> None:
    assert read_zone(zone) == zone


@pytest.mark.parametrize(
    "zone", ["", "Mars/Phobos", "../etc/passwd", "/etc/passwd", "CEST2", 3, None, "a" * 1000, "\0"]
)
def test_what_is_none_is_refused(zone: object) -> None:
    with pytest.raises(InvalidOption, match="Invalid tz"):
        read_zone(zone)


# --- Odd machines and odd times ---------------------------------------------------------------------------


@pytest.mark.parametrize("cron", ["30 */2 * * *", "*/20 2 * * *", "0 30 2 * * *", "*/20 30 2 * * *"])
def test_a_clock_that_is_set_back_by_less_than_an_hour_ends_every_search(cron: str) -> None:
    zone = "Pacific/Chatham"
    begin = datetime(2026, 4, 4, 12, tzinfo=UTC).timestamp()
    first = CALENDAR.after(cron, zone, begin - 86400)
    assert first is not None
    for minutes in range(0, 300, 7):
        moment, last = begin + 60 * minutes, first
        while (slot := CALENDAR.after(cron, zone, last)) is not None and slot <= moment:
            last = slot
        assert CALENDAR.latest(cron, zone, first, moment) == last


@pytest.mark.parametrize("moment", [-1e6, 0.0, 253_402_300_000.0, 1e12])
def test_no_time_is_too_odd_to_be_asked_for(moment: float) -> None:
    slot = CALENDAR.after("0 0 1 1 *", "Asia/Kathmandu", moment)
    assert slot is None or slot > moment
    assert CALENDAR.latest("0 0 1 1 *", "Asia/Kathmandu", 0.0, max(0.0, moment)) >= 0.0


def test_what_this_machine_cannot_find_is_said() -> None:
    assert CALENDAR.problem("@daily", "Europe/Zurich") is None
    assert CALENDAR.problem("@daily", "Mars/Phobos") == "it has no time zone 'Mars/Phobos'"
    assert "no cron expression" in str(CALENDAR.problem("nonsense", "UTC"))
