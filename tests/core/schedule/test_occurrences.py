"""What schedules submit when, what becomes of slots that come at a bad moment, and how schedules change."""

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace

from runcue.core.model.events import draft_of
from runcue.core.model.record import Extras, Record, Spec, Uniqueness, WorkState
from runcue.core.model.retry import Retry
from runcue.core.model.schedule import NO_CALENDAR, Schedule, ScheduleInfo, Timing, key_of, shown
from runcue.core.model.settings import Rule
from runcue.core.schedule.plan import (
    DeclareSchedules,
    PauseSchedule,
    Plan,
    PutSchedule,
    RunSchedule,
    Submission,
    Submit,
    Unschedule,
)
from runcue.errors import ScheduleConflict, UnknownSchedule
from runcue.host.calendar import SystemCalendar
from tests.core.bench_of_core import START, Bench
from tests.core.library import Process, two

DAY = 86400.0
FREE = Spec("", "task", b"{}", ())


def schedule(name: str = "s", *, spec: Spec = FREE, source: str | None = None, overlap: str = "skip",
             missed: str = "latest", **timing: Any) -> Schedule:  # fmt: skip
    return Schedule(name, Timing(**timing), spec, True, overlap, missed, source)


def bench(**options: Any) -> Bench:
    """A bench with the schedule `s`."""
    made = Bench()
    assert made.reply(PutSchedule(schedule(**options))) is None
    return made


def units(at: Bench) -> list[Record]:
    """What schedules have submitted, in order."""
    return [one for one in at.store.records.values() if one.spec.tags]


def run_out(at: Bench, seconds: float) -> None:
    """Let time pass, from slot to slot, with units that end at once."""
    end = at.now + seconds
    is_first = True
    while at.now < end or is_first:
        is_first = False
        waits = [
            one.due - (at.wall if one.by_wall else at.now) for one in at.store.schedules.values() if one.due
        ]
        at.after(min([*(max(0.0, one) for one in waits), end - at.now]))
        while at.plan.start:
            at.turn(*(at.success(record.id) for record in at.plan.start))


def until_slot(at: Bench, number: int) -> Plan:
    """Let time pass until that slot of a schedule of every minute."""
    return at.after(START + 60 * number - at.now)


def told(plan: Plan, type: str) -> list[dict[str, Any]]:
    return [one.data or {} for one in map(draft_of, plan.events) if one.type == type]


def stored(at: Bench, name: str = "s") -> Schedule:
    return at.store.schedules[name]


# --- Slots ------------------------------------------------------------------------------------------------


def test_an_interval_counts_from_its_declaration() -> None:
    at = bench(every=60.0)
    run_out(at, 200)
    assert [one.created_at - START for one in units(at)] == [60, 120, 180]


def test_the_queue_sleeps_until_the_next_slot() -> None:
    at = bench(every=60.0)
    assert at.plan.wake_at == START + 60


def test_nothing_else_wakes_the_queue() -> None:
    at = bench(every=60.0)
    at.after(59.9)
    assert units(at) == []


def test_a_unit_has_the_key_and_the_tag_of_its_slot() -> None:
    at = bench(every=60.0, spec=replace(FREE, params=b'{"n":1}', priority=5.0, queue="night"))
    at.wake()
    [unit] = units(at)
    assert unit.spec.idempotency_key == "schedule/s/1970-01-01T00:17:40Z" == key_of("s", START + 60)
    assert unit.spec.tags == (("schedule", "s"),)
    assert (unit.spec.params, unit.spec.priority, unit.spec.queue) == (b'{"n":1}', 5.0, "night")


def test_the_unit_and_the_next_slot_are_one_decision() -> None:
    at = bench(every=60.0)
    plan = at.wake()
    assert len(plan.records) == 1
    assert plan.schedules["s"] == stored(at)
    assert (stored(at).slot, stored(at).runs, stored(at).last_at) == (START + 120, 1, START + 60)
    assert stored(at).last_id == units(at)[0].id


def test_cron_is_wall_time_in_its_zone() -> None:
    at = Bench()
    at.wall = datetime(2026, 1, 15, tzinfo=UTC).timestamp()
    at.turn(PutSchedule(schedule(cron="0 3 * * *", tz="Europe/Zurich")))
    assert stored(at).slot == datetime(2026, 1, 15, 3, tzinfo=ZoneInfo("Europe/Zurich")).timestamp()


def test_whoever_waits_for_wall_time_says_so() -> None:
    at = bench(cron="@daily")
    assert at.plan.waits_for_wall
    assert at.plan.wake_at == at.now + DAY - START
    at.wall += 2 * DAY  # somebody sets it, and the engine notices
    at.turn()
    assert len(units(at)) == 1
    at.turn(Unschedule("s"))
    assert not at.plan.waits_for_wall


def test_no_slot_before_start_and_none_after_until() -> None:
    at = Bench()
    at.turn(PutSchedule(schedule(every=60.0, start=START + 90, until=START + 220)))
    run_out(at, 1000)
    assert [one.created_at - START for one in units(at)] == [90, 150, 210]
    assert stored(at).slot is None
    assert shown(stored(at)).next_at is None


@pytest.mark.parametrize("timing", [{"every": 3600.0}, {"cron": "0 * * * *"}])
def test_no_slot_after_until_is_made_up_for(timing: dict[str, Any]) -> None:
    at = Bench()
    at.turn(PutSchedule(schedule(**timing, until=START + 4 * 3600)))
    at.after(DAY)
    [unit] = units(at)
    slot = START + 4 * 3600 if "every" in timing else 4 * 3600.0
    assert unit.spec.idempotency_key == key_of("s", slot)
    assert stored(at).slot is None


def test_an_interval_that_started_long_ago_goes_on_from_there() -> None:
    at = Bench()
    at.turn(PutSchedule(schedule(every=60.0, start=START - 30)))
    assert stored(at).slot == START + 30


def test_cron_has_no_slot_before_start_and_none_after_until() -> None:
    at = Bench()
    start, until = START + 10 * DAY, START + 12 * DAY
    at.turn(PutSchedule(schedule(cron="@daily", start=start, until=until)))
    run_out(at, 20 * DAY)
    assert [one.created_at // DAY for one in units(at)] == [11, 12]


def test_a_slot_at_the_moment_of_start_counts() -> None:
    at = Bench()
    at.turn(PutSchedule(schedule(cron="@daily", start=10 * DAY)))
    assert stored(at).slot == 10 * DAY


def test_jitter_is_the_same_for_everybody_and_never_passes_the_next_slot() -> None:
    delays: set[float] = set()
    for _ in range(2):
        at = bench(every=60.0, jitter=600.0)
        run_out(at, 3600)
        slots = [START + 60 * number for number in range(1, len(units(at)) + 1)]
        late = [one.created_at - slot for one, slot in zip(units(at), slots, strict=True)]
        assert all(0 <= one < 60 for one in late)
        assert len(set(late)) > 20
        delays.update(round(one, 6) for one in late)
    assert len(delays) <= 60


# --- Missed slots -----------------------------------------------------------------------------------------


def test_the_latest_of_the_missed_slots_is_submitted() -> None:
    at = bench(every=60.0)
    at.after(1000)
    assert [one.spec.idempotency_key for one in units(at)] == [key_of("s", START + 960)]
    assert told(at.plan, "schedule_skipped") == [
        {
            "schedule": "s",
            "slot": "1970-01-01T00:17:40Z",
            "until": "1970-01-01T00:31:40Z",
            "reason": "missed",
        }
    ]
    assert stored(at).slot == START + 1020


def test_the_event_of_a_schedule_comes_before_that_of_its_unit() -> None:
    at = bench(every=60.0)
    at.after(60)
    [fired, queued] = [draft_of(one) for one in at.plan.events][:2]
    assert (fired.type, queued.type) == ("schedule_fired", "queued")
    assert fired.data is not None
    assert queued.record is not None
    assert fired.data["unit"] == queued.record.id


def test_all_missed_slots_are_submitted_in_bounded_turns() -> None:
    at = bench(every=60.0, missed="all", overlap="queue")
    at.after(60.0 * 250)
    assert len(units(at)) == 100
    assert at.plan.wake_at <= at.now
    at.turn()
    at.turn()
    assert len(units(at)) == 250
    assert len({one.spec.idempotency_key for one in units(at)}) == 250
    assert at.plan.wake_at > at.now


def test_no_missed_slot_is_submitted_but_one_that_is_hardly_late() -> None:
    at = bench(every=600.0, missed="none")
    at.after(650)
    assert len(units(at)) == 1
    at.finish(units(at)[0].id)
    at.after(600.0 * 3 + 61)  # 61 s and more after the last slot
    assert len(units(at)) == 1
    assert told(at.plan, "schedule_skipped")[0]["reason"] == "missed"
    assert stored(at).slot == START + 5 * 600


@pytest.mark.parametrize("missed", ["latest", "none", "all"])
def test_missed_slots_of_cron(missed: str) -> None:
    at = bench(cron="0 * * * *", missed=missed, overlap="queue")
    at.after(3600 * 5 + 1800)
    submitted = {"latest": 1, "none": 0, "all": 5}[missed]
    assert len(units(at)) == submitted
    assert stored(at).slot == 3600 * 6


def test_the_last_slot_that_is_due_is_found_beside_one_that_waits_for_its_jitter() -> None:
    for seconds in range(61, 400, 7):
        at = bench(every=60.0, jitter=59.0)
        at.after(seconds)
        slot, due = stored(at).slot, stored(at).due
        assert slot is not None
        assert due is not None
        assert due > at.now
        assert slot - at.now < 60
        submitted = [key_of("s", slot - 60)] if seconds > 120 or units(at) else []
        assert [unit.spec.idempotency_key for unit in units(at)] == submitted


# --- Overlap ----------------------------------------------------------------------------------------------


def test_a_slot_is_left_out_while_the_unit_before_has_not_ended() -> None:
    at = bench(every=60.0)
    until_slot(at, 1)
    until_slot(at, 2)
    assert len(units(at)) == 1
    assert told(at.plan, "schedule_skipped")[0]["reason"] == "overlap"
    assert stored(at).skipped == 1
    at.finish(units(at)[0].id)
    at.after(START + 180 - at.now)
    assert len(units(at)) == 2


def test_a_slot_is_queued_all_the_same() -> None:
    at = bench(every=60.0, overlap="queue")
    until_slot(at, 1)
    until_slot(at, 2)
    assert [one.state for one in units(at)] == [WorkState.RUNNING, WorkState.RUNNING]


def test_a_slot_replaces_the_unit_before() -> None:
    at = bench(every=60.0, overlap="replace")
    until_slot(at, 1)
    until_slot(at, 2)
    first, second = units(at)
    assert (first.state, second.state) == (WorkState.CANCELLED, WorkState.RUNNING)
    assert at.plan.stop == [at.tokens[first.id]]


@pytest.mark.parametrize("overlap", ["skip", "queue", "replace"])
def test_a_unit_that_has_ended_stands_in_nobodys_way(overlap: str) -> None:
    at = bench(every=60.0, overlap=overlap)
    run_out(at, 600)
    assert [one.state for one in units(at)] == [WorkState.COMPLETED] * 10
    assert stored(at).skipped == 0


def test_a_failed_unit_is_not_submitted_again() -> None:
    at = bench(every=60.0)
    at.wake()
    [unit] = units(at)
    at.fail(unit.id)
    at.turn()
    assert [one.state for one in units(at)] == [WorkState.FAILED]


# --- Clocks that are set ----------------------------------------------------------------------------------


def test_an_interval_does_not_care_for_the_wall_clock() -> None:
    at = bench(every=60.0)
    at.wall += DAY
    run_out(at, 150)
    at.wall -= 2 * DAY
    run_out(at, 150)
    assert [one.created_at - START for one in units(at)] == [60, 120, 180, 240, 300]


def test_a_slot_comes_once_though_the_clock_is_set_back_and_forth() -> None:
    at = bench(cron="0 * * * *")
    for moved in (DAY, -DAY, DAY / 2, -DAY / 2, 3600, -3600):
        at.wall += moved
        run_out(at, 0)
        run_out(at, 7200)
    keys = [one.spec.idempotency_key for one in units(at)]
    assert len(keys) == len(set(keys))
    run_out(at, 2 * DAY)
    slots = [one.created_at for one in units(at)][-10:]
    assert len(slots) == 10


def test_a_clock_that_was_a_year_ahead_holds_nothing_up() -> None:
    at = bench(cron="0 * * * *")
    at.wall += 365 * DAY
    run_out(at, 3600)
    before = len(units(at))
    at.wall -= 365 * DAY
    at.turn()  # the engine notices
    run_out(at, 7200)
    assert len(units(at)) == before + 2


def test_who_takes_over_sees_that_the_clock_was_wrong() -> None:
    shared, one, other = two()
    shared.wall += 365 * DAY
    one.turn(PutSchedule(schedule(cron="0 * * * *")))
    shared.wall -= 365 * DAY
    other.turn()
    slot = shared.schedules["s"].slot
    assert slot is not None
    assert slot - shared.wall <= 3600


# --- Changes ----------------------------------------------------------------------------------------------


def test_the_same_declaration_changes_nothing() -> None:
    at = bench(every=60.0)
    at.after(30, PutSchedule(schedule(every=60.0)))
    assert at.plan.schedules == {}
    assert stored(at).slot == START + 60


def test_other_params_keep_the_next_slot() -> None:
    at = bench(every=60.0)
    at.after(30, PutSchedule(schedule(every=60.0, spec=replace(FREE, params=b'{"n":2}'))))
    assert stored(at).slot == START + 60
    at.wake()
    assert units(at)[0].spec.params == b'{"n":2}'


def test_another_timing_counts_from_now() -> None:
    at = bench(every=60.0)
    at.after(30, PutSchedule(schedule(every=100.0)))
    assert stored(at).slot == START + 130
    assert told(at.plan, "schedule_changed") == [{"schedule": "s", "change": "changed", "when": "every 100s"}]


def test_a_schedule_is_deleted_and_its_units_stay() -> None:
    at = bench(every=60.0)
    at.wake()
    assert at.reply(Unschedule("s")) is True
    assert at.reply(Unschedule("s")) is False
    assert at.store.schedules == {}
    at.after(1000)
    assert len(units(at)) == 1


def test_slots_that_pass_while_it_is_paused_are_nobodys() -> None:
    at = bench(every=60.0, missed="all")
    assert at.reply(PauseSchedule("s", True)) is None
    at.after(1000)
    assert units(at) == []
    assert shown(stored(at)).paused
    at.reply(PauseSchedule("s", False))
    assert stored(at).slot == START + 1020
    at.reply(PauseSchedule("s", False))
    assert told(at.plan, "schedule_changed") == []


def test_a_schedule_that_is_resumed_before_its_slot_keeps_it() -> None:
    at = bench(every=60.0)
    at.reply(PauseSchedule("s", True))
    at.after(30, PauseSchedule("s", False))
    assert stored(at).slot == START + 60


def test_cron_goes_on_after_a_pause_with_its_next_slot() -> None:
    at = bench(cron="0 * * * *", missed="all")
    at.reply(PauseSchedule("s", True))
    at.after(10 * 3600.0, PauseSchedule("s", False))
    assert stored(at).slot == 11 * 3600


def test_a_unit_can_be_asked_for_by_hand() -> None:
    at = bench(every=60.0)
    assert at.reply(RunSchedule("s", "by-hand")) == "by-hand"
    unit = at.store.records["by-hand"]
    assert unit.spec.idempotency_key is None
    assert unit.spec.tags == (("schedule", "s"),)
    assert stored(at).slot == START + 60
    at.wake()
    assert len(units(at)) == 1  # the one by hand has not ended


@pytest.mark.parametrize("item", [PauseSchedule("x", True), RunSchedule("x", "id")])
def test_what_does_not_exist_is_refused_with_what_does(item: Any) -> None:
    at = bench(every=60.0)
    with pytest.raises(UnknownSchedule, match="There are: 's'"):
        at.reply(item)


def test_a_queue_that_is_full_fails_the_unit_where_it_is_seen() -> None:
    at = Bench(max_queued=1)
    at.may_start = False
    at.submit("first")
    at.turn(PutSchedule(schedule(every=60.0)))
    at.after(60)
    [unit] = units(at)
    assert unit.state is WorkState.FAILED
    assert "full" in str(unit.error).lower()


# --- Programs ---------------------------------------------------------------------------------------------


def declare(at: Bench, *schedules: Schedule, **modules: tuple[str, ...]) -> Plan:
    return at.turn(DeclareSchedules(list(schedules), modules))


def test_what_a_module_no_longer_declares_is_deleted() -> None:
    at = Bench()
    declare(at, schedule("a", every=60.0, source="app"), schedule("b", every=60.0, source="app"))
    at.turn(PutSchedule(schedule("by-hand", every=60.0)))
    declare(at, app=("a",), other=())
    assert set(at.store.schedules) == {"a", "by-hand"}


def test_what_another_module_declares_stays() -> None:
    at = Bench()
    declare(at, schedule("a", every=60.0, source="app"))
    declare(at, other=())
    assert set(at.store.schedules) == {"a"}


def test_a_name_that_code_declares_is_not_to_be_had_by_hand() -> None:
    at = Bench()
    declare(at, schedule(every=60.0, source="app"))
    with pytest.raises(ScheduleConflict, match="declared by app"):
        at.reply(PutSchedule(schedule(every=1.0)))
    assert stored(at).timing.every == 60.0


def test_the_declaration_of_another_program_is_refused_and_said() -> None:
    at = Bench()
    declare(at, schedule(every=60.0, source="app"))
    plan = declare(at, schedule(every=1.0, source="other", spec=replace(FREE, task="else")))
    assert stored(at).source == "app"
    assert told(plan, "schedule_changed")[0]["change"] == "refused"


def test_a_declaration_that_moved_to_another_module_goes_on() -> None:
    at = Bench()
    declare(at, schedule(every=60.0, source="app"))
    declare(at, schedule(every=60.0, source="app.tasks"))
    assert (stored(at).source, stored(at).slot) == ("app.tasks", START + 60)


def test_code_may_take_over_what_was_added_by_hand() -> None:
    at = bench(every=60.0)
    declare(at, schedule(every=60.0, source="app"))
    assert stored(at).source == "app"


def test_a_task_that_nobody_knows_holds_its_schedule_back_and_no_other() -> None:
    shared, one, _ = two()
    lost = schedule("lost", every=60.0, spec=replace(FREE, task="later"))
    one.turn(PutSchedule(lost), PutSchedule(schedule(every=60.0)))
    one.after(60)
    assert [unit.spec.tags for unit in units(one)] == [(("schedule", "s"),)]
    assert shown(shared.schedules["lost"]).problem == "no program has registered its task 'later' yet"
    assert shown(shared.schedules["lost"]).next_at is None
    newcomer = Process(shared, "three", rules={"later": Rule(Retry())})
    newcomer.after(100)
    assert shared.schedules["lost"].problem is None
    assert [unit.spec.task for unit in units(newcomer)] == ["task", "later"]


def test_a_unit_from_sql_takes_its_services_from_its_task() -> None:
    shared, one, _ = two()
    one.rules["task"] = Rule(Retry(), services=("api",), timeout=7.0)
    made = replace(schedule(every=60.0), is_settled=False)
    one.turn(PutSchedule(made))
    one.after(60)
    [unit] = units(one)
    assert (unit.spec.services, unit.spec.timeout) == (("api",), 7.0)
    assert list(shared.schedules) == ["s"]


# --- Crashes ----------------------------------------------------------------------------------------------


def test_a_turn_that_was_not_kept_submitted_nothing() -> None:
    shared, one, other = two()
    one.turn(PutSchedule(schedule(every=60.0)))
    shared.now += 60
    shared.wall += 60
    one.turn(is_kept=False)
    assert units(one) == []
    other.turn()
    assert [unit.spec.idempotency_key for unit in units(other)] == [key_of("s", START + 60)]


def test_a_turn_that_was_kept_and_not_heard_of_submits_once() -> None:
    shared, one, _ = two()
    one.turn(PutSchedule(schedule(every=60.0)))
    shared.now += 60
    shared.wall += 60
    one.turn(is_heard=False)
    one.turn()
    assert len(units(one)) == 1


def test_a_slot_that_was_submitted_already_is_not_submitted_again() -> None:
    """Whatever becomes of the schedule's row: a backup of it, or another release."""
    shared, one, other = two()
    one.turn(PutSchedule(schedule(every=60.0)))
    before = shared.schedules["s"]
    one.after(60)
    shared.schedules["s"] = before
    other.turn()
    assert len(units(other)) == 1


def test_ordinary_submissions_still_look_up_what_they_need() -> None:
    at = bench(every=60.0)
    at.after(60, Submission(Submit([at.spec("named")], is_plain=False)))
    assert {"named"} < set(at.store.records)


# --- What users see ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timing", "text"),
    [
        (Timing(every=90.0), "every 90s"),
        (Timing(every=300.0), "every 5m"),
        (Timing(every=7200.0), "every 2h"),
        (Timing(every=86400.0), "every 1d"),
        (Timing(every=1.5), "every 1.5s"),
        (Timing(cron="@daily"), "@daily"),
        (Timing(cron="0 3 * * *", tz="Europe/Zurich"), "0 3 * * * Europe/Zurich"),
    ],
)
def test_a_timing_reads_as_it_is_written(timing: Timing, text: str) -> None:
    assert str(timing) == text


def test_what_users_see_of_a_schedule() -> None:
    at = bench(every=60.0, spec=replace(FREE, params=b'{"n":1}'))
    at.wake()
    info = shown(stored(at))
    assert isinstance(info, ScheduleInfo)
    assert (info.name, info.task, info.params, info.when) == (
        "s",
        "task",
        {"n": 1},
        "every 60s".replace("60s", "1m"),
    )
    assert (info.next_at, info.last_at, info.runs) == (START + 120, START + 60, 1)


# --- Corners ----------------------------------------------------------------------------------------------


def test_the_last_slot_of_cron_that_is_due_is_found_beside_one_that_waits_for_its_jitter() -> None:
    for minutes in range(61, 400, 17):
        at = bench(cron="0 * * * *", jitter=3500.0)
        at.after(60.0 * minutes)
        slot, due = stored(at).slot, stored(at).due
        assert slot is not None
        assert due is not None
        assert due > at.wall
        assert slot - at.wall < 3600
        assert len(units(at)) <= 1


def test_a_task_that_came_lets_go_on_what_waited_for_it_and_nothing_else() -> None:
    shared, one, _ = two()
    for task in ("later", "never"):
        one.turn(PutSchedule(schedule(task, every=60.0, spec=replace(FREE, task=task))))
    one.after(60)
    Process(shared, "three", rules={"later": Rule(Retry())}).after(1)
    assert {name: one.problem is None for name, one in shared.schedules.items()} == {
        "later": True,
        "never": False,
    }


def test_a_moment_that_no_schedule_waits_for_any_more_is_passed_over() -> None:
    at = bench(every=60.0)
    at.turn(PutSchedule(schedule(every=100.0)))
    assert at.after(60).wake_at == START + 100
    assert units(at) == []
    at = bench(every=60.0)
    at.after(59, PutSchedule(schedule("other", every=60.0)))
    at.after(1, PauseSchedule("s", True))
    at.after(60)
    assert [unit.spec.tags for unit in units(at)] == [(("schedule", "other"),)]


def test_who_decides_about_no_schedules_has_an_empty_calendar() -> None:
    assert NO_CALENDAR.after("@daily", "UTC", 5.0) is None
    assert NO_CALENDAR.latest("@daily", "UTC", 5.0, 9.0) == 5.0
    assert NO_CALENDAR.problem("nonsense", "nowhere") is None


# --- Schedules from outside -------------------------------------------------------------------------------


def wrong(**timing: Any) -> Schedule:
    """A schedule whose slots nobody can find, by somebody who could not be told."""
    return replace(schedule(**(timing or {"cron": "61 * * * *"})), is_settled=False, problem="no such minute")


def test_what_is_wrong_with_a_schedule_is_kept_and_told() -> None:
    at = Bench()
    assert at.reply(PutSchedule(wrong())) is None
    assert [one["change"] for one in told(at.plan, "schedule_changed")] == ["added", "held back"]
    assert (stored(at).problem, stored(at).due) == ("no such minute", None)
    at.after(DAY)
    at.wall -= 365 * DAY  # a clock that was wrong does not make it right
    at.after(DAY)
    assert stored(at).problem == "no such minute"
    assert units(at) == []


def test_a_schedule_that_is_mended_begins_then_and_one_that_is_broken_stops() -> None:
    at = Bench()
    at.reply(PutSchedule(wrong()))
    at.reply(PutSchedule(schedule(every=60.0)))
    assert (stored(at).problem, stored(at).slot) == (None, at.now + 60)
    at.reply(PutSchedule(wrong(every=60.0)))
    assert (stored(at).problem, stored(at).slot) == ("no such minute", None)
    at.reply(PutSchedule(schedule(every=60.0)))
    assert stored(at).slot == at.now + 60


def test_a_process_that_knows_its_task_does_not_make_a_wrong_schedule_right() -> None:
    shared, one, _ = two()
    one.turn(PutSchedule(wrong()))
    Process(shared, "three", rules={"task": Rule(Retry()), "other": Rule(Retry())}).after(100)
    assert shared.schedules["s"].problem == "no such minute"


def test_a_refusal_that_nobody_waits_for_is_told_by_an_event() -> None:
    at = Bench()
    at.turn(DeclareSchedules([schedule(every=60.0, source="app")]))
    at.turn(PutSchedule(replace(schedule(every=5.0), is_settled=False)))
    [said] = told(at.plan, "schedule_changed")
    assert said["change"] == "refused"
    assert "is declared by app" in said["reason"]
    at.turn(PutSchedule(schedule(every=5.0)))
    assert told(at.plan, "schedule_changed") == []


def test_a_schedule_that_is_declared_again_is_still_held_back_while_nobody_has_its_task() -> None:
    shared, one, _ = two()
    lost = schedule(every=60.0, spec=replace(FREE, task="later"))
    one.turn(PutSchedule(lost))
    one.after(60)
    plan = one.turn(PutSchedule(lost))
    assert plan.schedules == {}
    assert shown(shared.schedules["s"]).problem is not None


def test_a_unit_by_hand_does_not_hide_the_one_that_still_runs() -> None:
    at = bench(every=60.0)
    until_slot(at, 1)
    [first] = units(at)
    at.turn(RunSchedule("s", "by-hand"))
    at.finish("by-hand")
    until_slot(at, 2)
    assert len(units(at)) == 2
    at.finish(first.id)
    until_slot(at, 3)
    assert len(units(at)) == 3


def test_units_of_a_schedule_may_be_unique() -> None:
    spec = replace(FREE, unique_key="k", extras=Extras(unique=Uniqueness()))
    at = bench(every=60.0, overlap="queue", spec=spec)
    until_slot(at, 1)
    until_slot(at, 2)
    at.turn(RunSchedule("s", "by-hand"))
    assert [unit.state for unit in units(at)] == [WorkState.RUNNING, WorkState.CANCELLED, WorkState.CANCELLED]


def test_a_duplicate_stands_in_nobodys_way() -> None:
    spec = replace(FREE, unique_key="k", extras=Extras(unique=Uniqueness()))
    at = bench(every=60.0, spec=spec)
    until_slot(at, 1)
    [first] = units(at)
    at.turn(RunSchedule("s", "by-hand"))
    assert stored(at).under_way == (first.id,)
    assert at.reply(RunSchedule("s", "by-hand-again")) == "by-hand-again"


class Blind(SystemCalendar):
    """The calendar of a machine without time zones."""

    def problem(self, cron: str, zone: str) -> str | None:
        return None if zone == "UTC" else f"it has no time zone {zone!r}"


def test_a_schedule_that_this_machine_cannot_find_the_slots_of_stops_nobody() -> None:
    shared, one, other = two()
    one.turn(
        PutSchedule(schedule(cron="* * * * *", tz="Europe/Zurich")),
        PutSchedule(schedule("u", cron="* * * * *")),
    )
    other.turn()
    other.scheduler.ledger.calendar = Blind()
    other.after(60)
    assert [unit.spec.tags for unit in units(other)] == [(("schedule", "u"),)]
    assert str(shared.schedules["s"].problem).endswith("it has no time zone 'Europe/Zurich'")
    other.turn(PutSchedule(schedule("new", cron="@daily", tz="Europe/Zurich")), PauseSchedule("s", True))
    other.turn(PauseSchedule("s", False))
    assert shared.schedules["new"].slot is None
    one.after(30)  # it takes over, and knows that zone
    assert [shared.schedules[name].problem for name in ("s", "new")] == [None, None]
    assert shared.schedules["new"].slot is not None
    assert len(units(one)) == 2


def test_a_schedule_that_is_due_where_its_zone_is_unknown_is_read_by_nobody() -> None:
    shared, one, other = two()
    one.turn(PutSchedule(schedule(cron="* * * * *", tz="Europe/Zurich")))
    other.turn()
    other.scheduler.ledger.calendar = Blind()
    other.after(60)
    assert units(other) == []
    assert shared.schedules["s"].slot is not None


@pytest.mark.parametrize("timing", [{"every": 60.0}, {"cron": "* * * * *"}])
def test_a_clock_that_was_ahead_for_a_while_ends_no_schedule(timing: dict[str, Any]) -> None:
    at = Bench()
    at.turn(PutSchedule(schedule(**timing, until=START + 3600)))
    at.wall += DAY
    run_out(at, 61)
    assert stored(at).slot is None
    at.wall -= DAY
    run_out(at, 120)
    assert stored(at).slot is not None
    at.turn(Unschedule("s"))
    at.turn()
    assert at.store.schedules == {}


def test_what_was_added_by_hand_is_not_overwritten_by_code_for_another_task() -> None:
    at = bench(every=60.0)
    plan = declare(at, schedule(every=1.0, source="app", spec=replace(FREE, task="else")))
    assert told(plan, "schedule_changed")[0]["change"] == "refused"
    assert stored(at).source is None


def test_an_unknown_name_is_deleted_all_the_same_for_its_row_may_be_damaged() -> None:
    at = bench(every=60.0)
    at.turn(Unschedule("damaged"))
    assert at.plan.schedules == {"damaged": None}
