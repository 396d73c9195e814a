"""Schedules as an application has them, on every store."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import runcue
from runcue import Cue, Work, WorkState
from runcue.core.model.schedule import key_of
from runcue.errors import ScheduleConflict, UnknownSchedule, UnknownTask
from tests.engine.seen import epoch, told, virtual

HOUR = 3600.0


async def test_a_function_is_submitted_so_often() -> None:
    cue = Cue()
    ran: list[float] = []

    @cue.every("5m")
    async def sweep() -> None:
        ran.append(epoch())

    async with cue:
        await cue.count()
        began = epoch()
        await asyncio.sleep(HOUR + 1)
    assert [round(at - began) for at in ran] == [300 * number for number in range(1, 13)]


async def test_a_function_is_submitted_at_times_of_the_day_with_its_params() -> None:
    cue = Cue()
    ran: list[tuple[datetime, int]] = []

    @cue.cron("0 3 * * *", tz="Europe/Zurich", params={"pages": 2})
    @cue.task(retry=2)
    async def nightly(pages: int) -> None:
        ran.append((datetime.fromtimestamp(asyncio.get_running_loop().wall(), UTC), pages))  # type: ignore[attr-defined]

    async with cue:
        await asyncio.sleep(3 * 24 * HOUR)
    assert [(at.hour, at.minute, pages) for at, pages in ran] == [(2, 0, 2)] * 3


async def test_a_wall_clock_that_is_set_is_noticed_at_once() -> None:
    cue = Cue()
    ran: list[float] = []

    @cue.cron("0 3 * * *")
    async def nightly() -> None:
        ran.append(epoch())

    async with cue:
        await cue.count()
        virtual().jump_wall(24 * HOUR)
        await asyncio.sleep(1)
        assert len(ran) == 1
        virtual().jump_wall(-24 * HOUR)
        await asyncio.sleep(28 * HOUR)
    assert len(ran) == 1  # that slot has come already


async def test_the_runs_of_a_schedule_are_found_by_its_tag() -> None:
    cue = Cue()

    @cue.task
    async def report(n: int) -> int:
        return n

    async with cue:
        await cue.schedule(
            "hourly", "report", every="1h", params={"n": 7}, tags={"by": "ada"}, group="reports"
        )
        await asyncio.sleep(3 * HOUR + 1)
        runs = await cue.list(tags={"schedule": "hourly"})
    assert [run.result for run in runs] == [7, 7, 7]
    assert runs[0].tags == {"by": "ada", "schedule": "hourly"}
    assert runs[0].group == "reports"
    assert runs[0].idempotency_key is not None
    assert runs[0].idempotency_key.startswith("schedule/hourly/")


async def test_what_is_listed() -> None:
    cue = Cue()

    @cue.every("1h", name="b")
    async def sweep() -> None: ...

    async with cue:
        await cue.schedule("a", sweep, cron="@daily", overlap="queue", missed="all", priority=3)
        a, b = await cue.schedules()
        assert (a.name, a.task, a.when, a.overlap, a.missed, a.priority, a.source) == (
            "a", "sweep", "@daily", "queue", "all", 3, None)  # fmt: skip
        assert (b.name, b.source, b.every) == ("b", __name__, HOUR)
        assert b.next_at is not None
        assert b.next_at - epoch() == pytest.approx(HOUR, abs=1)
        await asyncio.sleep(HOUR + 1)
        b = (await cue.schedules())[1]
    assert b.runs == 1
    assert b.last_id is not None
    assert b.last_at is not None


async def test_a_schedule_is_paused_resumed_run_and_deleted_by_hand() -> None:
    cue = Cue()
    ran: list[float] = []

    @cue.every("1h")
    async def sweep() -> str:
        ran.append(epoch())
        return "swept"

    async with cue:
        await cue.schedules.pause("sweep")
        await asyncio.sleep(5 * HOUR)
        assert ran == []
        unit = await cue.run_now("sweep")
        assert await unit.result() == "swept"
        await cue.schedules.resume("sweep")
        await asyncio.sleep(HOUR + 1)
        assert len(ran) == 2
        assert await cue.unschedule("sweep")
        assert not await cue.unschedule("sweep")
        await asyncio.sleep(5 * HOUR)
    assert len(ran) == 2


async def test_what_does_not_exist_is_said() -> None:
    cue = Cue()

    @cue.every("1h")
    async def sweep() -> None: ...

    async with cue:
        for call in (cue.run_now, cue.schedules.pause, cue.schedules.resume):
            with pytest.raises(UnknownSchedule, match="Did you mean 'sweep'"):
                await call("sweeep")
        with pytest.raises(UnknownTask):
            await cue.schedule("x", "unknown", every="1h")
        with pytest.raises(ScheduleConflict, match="declared by"):
            await cue.schedule("sweep", sweep, every="2h")
        with pytest.raises(runcue.InvalidParams):
            await cue.schedule("x", sweep, every="1h", params={"no": 1})


async def test_a_slow_run_is_not_joined_by_another() -> None:
    cue = Cue()
    active = most = 0

    @cue.every("10m")
    async def slow() -> None:
        nonlocal active, most
        active += 1
        most = max(most, active)
        await asyncio.sleep(25 * 60)
        active -= 1

    async with cue:
        await asyncio.sleep(2 * HOUR)
        await cue.schedules.pause("slow")
    skipped = await told(cue, "schedule_skipped")
    assert most == 1
    assert len(skipped) == 7
    assert {one.reason for one in skipped} == {"overlap"}


async def test_a_run_is_replaced_by_the_next() -> None:
    cue = Cue()

    @cue.every("10m", overlap="replace")
    async def slow() -> None:
        await asyncio.sleep(25 * 60)

    async with cue:
        await asyncio.sleep(35 * 60)
        states = [run.state for run in await cue.list(tags={"schedule": "slow"})]
        await cue.unschedule("slow")
    assert states == [WorkState.RUNNING, WorkState.CANCELLED, WorkState.CANCELLED]


async def test_a_schedule_may_be_declared_while_the_cue_runs() -> None:
    cue = Cue()
    ran: list[Work] = []
    async with cue:
        await cue.count()

        @cue.every("1m")
        async def late(work: Work) -> None:
            ran.append(work)

        await asyncio.sleep(150)
    assert len(ran) == 2


async def test_a_service_that_is_declared_after_the_schedule_is_found() -> None:
    cue = Cue()
    ran: list[Work] = []

    @cue.every("1m")
    @cue.task(services=["api"])
    async def call(work: Work) -> None:
        ran.append(work)

    cue.service("api", concurrent=1)
    async with cue:
        await asyncio.sleep(61)
    assert len(ran) == 1
    assert ran[0].services == ("api",)


async def test_events_say_what_a_schedule_did() -> None:
    cue = Cue()

    @cue.every("1h")
    async def sweep() -> None: ...

    async with cue:
        await asyncio.sleep(HOUR + 1)
        await cue.schedules.pause("sweep")
        await cue.unschedule("sweep")
    heard = await told(cue, "schedule_fired", "schedule_changed")
    assert [(one.type, one.data.get("change")) for one in heard] == [
        ("schedule_changed", "added"), ("schedule_fired", None), ("schedule_changed", "paused"),
        ("schedule_changed", "removed"),
    ]  # fmt: skip


@pytest.mark.file
async def test_a_schedule_goes_on_where_it_was_after_a_restart(tmp_path: Path) -> None:
    def program() -> tuple[Cue, list[Any]]:
        cue = Cue(tmp_path / "q.db")
        ran: list[Any] = []

        @cue.every("1h", missed="all", overlap="queue")
        async def sweep(work: Work) -> None:
            ran.append(work.idempotency_key)

        return cue, ran

    cue, before = program()
    async with cue:
        await cue.count()
        began = epoch()
        await asyncio.sleep(2.5 * HOUR)
    await cue.close()
    await asyncio.sleep(3 * HOUR)
    cue, after = program()
    async with cue:
        await asyncio.sleep(2 * HOUR)
    await cue.close()
    assert len(before) == 2
    assert sorted([*before, *after]) == [key_of("sweep", began + HOUR * number) for number in range(1, 8)]


@pytest.mark.file
async def test_what_code_no_longer_declares_is_retired_when_its_program_starts(tmp_path: Path) -> None:
    async def sweep() -> None: ...

    first = Cue(tmp_path / "q.db")
    first.every("1h")(sweep)
    async with first:
        await first.schedule("by-hand", "sweep", every="2h")
    await first.close()
    second = Cue(tmp_path / "q.db")
    second.task(sweep)
    await second.count()
    assert [one.name for one in await second.schedules()] == ["by-hand", "sweep"]  # it does not run units yet
    async with second:
        await second.count()
        assert [one.name for one in await second.schedules()] == ["by-hand"]
    await second.close()


@pytest.mark.file
async def test_a_schedule_of_a_program_that_is_gone_is_shown_with_its_task(tmp_path: Path) -> None:
    async def sweep() -> None: ...

    first = Cue(tmp_path / "q.db")
    first.every("1h")(sweep)
    await first.count()
    await first.close()
    other = Cue(tmp_path / "q.db")
    [found] = await other.schedules()
    assert (found.name, found.task) == ("sweep", "sweep")
    await other.close()
