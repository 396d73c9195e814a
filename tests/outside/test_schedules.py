"""Schedules that somebody adds from outside: by rows of their own, and by the functions of a queue in PostgreSQL."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from psycopg import errors

from runcue import Cue, Reader, ScheduleInfo
from runcue.stores.postgres import functions, schema
from tests.outside.inserting import Outsider, on_postgres
from tests.patience import until
from tests.queues import make_empty

pytestmark = pytest.mark.timeout(300)


async def schedules(cue: Cue) -> dict[str, ScheduleInfo]:
    return {one.name: one for one in await cue.schedules()}


async def taken(cue: Cue, outsider: Outsider) -> dict[str, ScheduleInfo]:
    """All schedules, once every row has been taken."""
    cue.wake()
    await until(lambda: outsider.left() == 0)
    return await schedules(cue)


def made(target: str) -> Cue:
    cue = Cue(target)
    cue.service("api", concurrent=2)

    @cue.task(uses="api", timeout=30)
    async def task(page: int = 0) -> int:
        return page

    return cue


async def test_a_row_adds_a_schedule_whose_units_have_the_services_of_their_task(outsider: Outsider) -> None:
    async with made(outsider.target) as cue:
        await cue.count()
        outsider.change("schedule", "hourly", task="task", every=3600, params={"page": 4}, overlap="queue")
        info = (await taken(cue, outsider))["hourly"]
        assert (info.task, info.params, info.when, info.overlap) == ("task", {"page": 4}, "every 1h", "queue")
        assert (info.problem, info.source) == (None, None)
        assert info.next_at is not None
        work = await cue.wait(await cue.run_now("hourly"), timeout=60)
        assert (work.result, work.services, work.timeout) == (4, ("api",), 30.0)
        outsider.change("unschedule", "hourly")
        assert await taken(cue, outsider) == {}


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"cron": "61 * * * *"}, "Invalid cron: '61 * * * *'. Expected five fields"),
        ({"cron": "0 0 30 2 *"}, "this one never does"),
        ({"cron": "@daily", "tz": "Mars/Base"}, "Invalid tz: 'Mars/Base'"),
        ({"every": 0}, "Invalid every: 0.0. Expected 1 to"),
        ({"every": 0.5}, "1 to 1,000,000,000 seconds"),
        ({"every": 1e15}, "Invalid every"),
        ({"every": 60, "start": 1e15}, "Invalid start"),
        ({"every": "5m"}, "Expected `float | null`, got `str` - at `$.every`"),
        ({"every": 60, "jitter": -1}, "Invalid jitter"),
        ({"every": 60, "until": 0}, "a moment after start"),
        ({}, "either this or every"),
        ({"every": 60, "cron": "@daily"}, "either this or every"),
        ({"every": 60, "overlap": "maybe"}, "Invalid enum value 'maybe' - at `$.overlap`"),
        ({"every": 60, "params": [1]}, "a JSON object"),
        ({"every": 60, "evry": 5}, "unknown field `evry`"),
        ({"every": 60, "task": 5}, "Expected `str`, got `int` - at `$.task`"),
        ({"every": 60, "task": "a\nb"}, "Invalid task"),
    ],
)
async def test_what_is_wrong_is_shown_and_others_go_on(
    outsider: Outsider, said: dict[str, Any], problem: str
) -> None:
    async with made(outsider.target) as cue:
        await cue.count()
        outsider.change("schedule", "wrong", **{"task": "task", **said})
        outsider.change("schedule", "right", task="task", every=60)
        found = await taken(cue, outsider)
        assert problem in (found["wrong"].problem or "")
        assert found["wrong"].next_at is None
        assert found["right"].next_at is not None
        await cue.schedules.pause("wrong")
        await cue.schedules.resume("wrong")
        assert (await schedules(cue))["wrong"].next_at is None
        outsider.change("schedule", "wrong", task="task", every=60)
        mended = (await taken(cue, outsider))["wrong"]
        assert (mended.problem, mended.task) == (None, "task")
        assert mended.next_at is not None


async def test_what_was_right_and_is_changed_into_what_is_wrong_stops(outsider: Outsider) -> None:
    async with made(outsider.target) as cue:
        await cue.count()
        outsider.change("schedule", "s", task="task", cron="@hourly")
        assert (await taken(cue, outsider))["s"].next_at is not None
        outsider.change("schedule", "s", task="task", cron="@hourly", tz="Mars/Base")
        info = (await taken(cue, outsider))["s"]
        assert (info.next_at, info.when) == (None, "@hourly Mars/Base")
    async with made(outsider.target) as again:  # which knows the task, and takes over
        assert (await schedules(again))["s"].problem == info.problem


async def test_a_name_that_a_program_declares_is_refused_by_an_event(outsider: Outsider) -> None:
    cue = made(outsider.target)
    cue.every("1h", name="mine")(cue.get_task("task").handler)
    async with cue:
        await cue.run_now("mine")  # once it is declared
        outsider.change("schedule", "mine", task="other", every=60)
        info = (await taken(cue, outsider))["mine"]
        assert (info.task, info.every) == ("task", 3600.0)
        with Reader(outsider.target) as reader:
            said = [event.data for event in reader.events("schedule_changed")]
        assert [one["change"] for one in said] == ["added", "refused"]
        assert "is declared by" in said[1]["reason"]


async def test_a_row_whose_name_is_none_stays(outsider: Outsider) -> None:
    async with made(outsider.target) as cue:
        await cue.count()
        outsider.change("schedule", "a\nb", task="task", every=60)
        outsider.change("schedule", "fine", task="task", every=60)
        cue.wake()
        await until(lambda: outsider.left() == 1)
        assert list(await schedules(cue)) == ["fine"]


# --- the functions of PostgreSQL ------------------------------------------------------------------


@pytest.fixture
async def queue(pg: str) -> str:
    """A database with a queue in it."""
    await make_empty(pg)
    return pg


@pytest.mark.parametrize(
    ("call", "item"),
    [
        ("schedule('s', 'task', every => '90 minutes')", {"task": "task", "every": 5400, "params": {}}),
        (
            """schedule('s', 'task', '{"page": 1}', cron => '0 3 * * *', tz => 'Europe/Zurich', overlap => 'queue',
                missed => 'all', jitter => '30 seconds', priority => 2.5, queue => 'night',
                start => '2030-01-01 00:00:00+00', until => '2031-01-01 00:00:00+00')""",
            {
                "task": "task",
                "params": {"page": 1},
                "cron": "0 3 * * *",
                "tz": "Europe/Zurich",
                "overlap": "queue",
                "missed": "all",
                "jitter": 30,
                "priority": 2.5,
                "queue": "night",
                "start": 1893456000,
                "until": 1924992000,
            },
        ),
    ],
)
async def test_a_call_adds_the_schedule_that_it_says(queue: str, call: str, item: dict[str, Any]) -> None:
    with psycopg.connect(queue) as connection:
        connection.execute(f"SELECT runcue.{call}")
        [row] = connection.execute("SELECT kind, id, item FROM runcue.submissions").fetchall()
    assert (row[0], row[1], json.loads(row[2])) == ("schedule", "s", item)
    async with Cue(queue) as cue:
        info = (await taken(cue, on_postgres(queue)))["s"]
        assert info.problem is None
        assert (info.every, info.cron, info.jitter) == (
            item.get("every"), item.get("cron"), item.get("jitter", 0.0)
        )  # fmt: skip
        with psycopg.connect(queue) as connection:
            connection.execute("SELECT runcue.unschedule('s'), runcue.unschedule(NULL)")
        assert await taken(cue, on_postgres(queue)) == {}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("schedule(NULL, 'a', cron => '@daily')", "needs a name"),
        ("schedule(repeat('a', 129), 'a', cron => '@daily')", "needs a name"),
        ("schedule('s', '', cron => '@daily')", "needs the name of a task"),
        ("schedule('s', 'a')", "either cron => or every =>"),
        ("schedule('s', 'a', cron => '@daily', every => '1 hour')", "either cron => or every =>"),
        ("schedule('s', 'a', '[]', every => '1 hour')", "a JSON object, not array"),
        ("schedule('s', 'a', NULL, every => '1 hour')", "a JSON object, not null"),
        ("schedule('s', 'a', jsonb_build_object('x', repeat('a', 1048576)), every => '1 h')", "more than 1048576"),
    ],
)  # fmt: skip
async def test_what_makes_no_schedule_is_an_error_at_once(queue: str, call: str, said: str) -> None:
    with psycopg.connect(queue) as connection:
        with pytest.raises(errors.InvalidParameterValue, match=said):
            connection.execute(f"SELECT runcue.{call}")
        connection.rollback()
        assert connection.execute("SELECT count(*) FROM runcue.submissions").fetchone() == (0,)


async def test_the_functions_to_grant_are_all_that_there_are_and_nobody_else_may_call_them(
    queue: str,
) -> None:
    with psycopg.connect(queue, autocommit=True) as connection:
        there = connection.execute(
            "SELECT proname, prosecdef FROM pg_proc WHERE pronamespace = 'runcue'::regnamespace ORDER BY proname"
        ).fetchall()
        assert there == [(name, True) for name in sorted(functions.GRANTED)]
        connection.execute("CREATE ROLE clerk")
        try:
            connection.execute("GRANT USAGE ON SCHEMA runcue TO clerk; SET ROLE clerk")
            for call in ("schedule('s', 'a', every => '1 hour')", "unschedule('s')"):
                with pytest.raises(errors.InsufficientPrivilege):
                    connection.execute(f"SELECT runcue.{call}")
            connection.execute("RESET ROLE")
            for name in functions.GRANTED:
                connection.execute(f"GRANT EXECUTE ON FUNCTION runcue.{name} TO clerk")
            connection.execute("SET ROLE clerk; SELECT runcue.schedule('s', 'a', every => '1 hour')")
        finally:
            connection.execute("RESET ROLE; DROP OWNED BY clerk; DROP ROLE clerk")


async def test_a_queue_from_before_gets_them_when_it_is_opened(queue: str) -> None:
    with psycopg.connect(queue) as connection:
        connection.execute("DROP FUNCTION runcue.schedule, runcue.unschedule")
        connection.execute("UPDATE runcue.about SET version = %s", (schema.VERSION - 1,))
    await make_empty(queue)
    with psycopg.connect(queue) as connection:
        connection.execute("SELECT runcue.schedule('s', 'a', every => '1 hour')")


async def test_no_argument_becomes_sql(queue: str) -> None:
    evil = "x'); DROP TABLE runcue.head; --"
    given = {"name": evil, "task": evil, "queue": evil, "cron": evil, "tz": evil}
    said = ", ".join(f"{one} => %({one})s" for one in given)
    with psycopg.connect(queue) as connection:
        connection.execute(f"SELECT runcue.schedule({said})", given)
    async with Cue(queue) as cue:
        info = (await taken(cue, on_postgres(queue)))[evil]
        assert (info.task, info.cron, info.tz) == (evil, evil, evil)
        assert info.problem is not None
