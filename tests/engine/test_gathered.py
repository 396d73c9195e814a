"""Units that no rule can refuse are accepted by the next turn, many at once; whoever looks sees them all the same."""

from __future__ import annotations

import asyncio
import logging

import pytest

import runcue
from runcue import Cue, Work, WorkState
from runcue.core.schedule.plan import Item
from runcue.engine.engine import Engine
from runcue.testing import settle
from tests.engine.seen import epoch


def made(**options: object) -> Cue:
    """A Cue in memory with one task."""
    cue = Cue(None, **options)  # type: ignore[arg-type]  # the options of each test

    @cue.task("echo")
    async def echo(work: Work) -> int:
        return int(work.params.get("n", 0))

    return cue


async def submitted(cue: Cue, amount: int) -> list[str]:
    return [await cue.submit("echo", params={"n": n}) for n in range(amount)]


@pytest.mark.memory
async def test_submissions_in_a_row_are_accepted_by_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[Engine] = []
    take_inbox = Engine.take_inbox

    def counted(engine: Engine) -> list[Item]:
        turns.append(engine)
        return take_inbox(engine)

    monkeypatch.setattr(Engine, "take_inbox", counted)
    async with made() as cue:
        await cue.pause("default")
        await settle()
        turns.clear()
        ids = await submitted(cue, 50)
        assert turns == []
        assert (await cue.count())[WorkState.PENDING] == 50
        assert len(turns) == 1
        assert [work.id for work in await cue.list()] == ids[::-1]


async def test_every_way_to_look_sees_what_was_submitted_just_before() -> None:
    cue = made()
    assert (await cue.count())[WorkState.PENDING] == 0
    (first,) = await submitted(cue, 1)
    assert await cue.get(first) is not None
    (second,) = await submitted(cue, 1)
    assert [work.id for work in await cue.list()] == [second, first]
    await submitted(cue, 1)
    assert await cue.tally() == {"pending": {"echo": 3}, "running": {}}
    (fourth,) = await submitted(cue, 1)
    assert (await cue.explain(fourth)).reason == "not_started"
    (fifth,) = await submitted(cue, 1)
    assert await cue.cancel(fifth)


async def test_what_is_submitted_after_another_request_is_accepted_after_it() -> None:
    cue = made()
    (first,) = await submitted(cue, 1)
    named = await cue.submit("echo", id="named")
    (third,) = await submitted(cue, 1)
    assert [work.id for work in await cue.list()] == [third, named, first]
    async with cue:
        await cue.join()
        events = [event.work_id async for event in _ended(cue, "queued")]
    assert events == [first, named, third]


async def _ended(cue: Cue, type: str):  # type: ignore[no-untyped-def]  # an async generator of events
    await cue.stop()
    async for event in cue.events(types=[type]):
        yield event


async def test_the_result_of_a_unit_can_be_awaited_at_once() -> None:
    async with made() as cue:
        assert [await cue.result(await cue.submit("echo", params={"n": n})) for n in range(3)] == [0, 1, 2]


@pytest.mark.memory
async def test_leaving_with_units_that_no_turn_has_accepted_warns_of_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "runcue")
    async with made() as cue:
        await submitted(cue, 3)
        await cue.pause("default")
        await submitted(cue, 4)
    assert "7" in caplog.text


async def test_a_full_queue_refuses_each_submission_by_itself() -> None:
    cue = made(max_queued=2)
    await submitted(cue, 2)
    with pytest.raises(runcue.QueueFull):
        await cue.submit("echo")
    await settle()
    assert (await cue.count())[WorkState.PENDING] == 2


async def test_a_closed_cue_accepts_nothing() -> None:
    cue = made()
    await submitted(cue, 1)
    await cue.close()
    with pytest.raises(runcue.RuncueError):
        await cue.submit("echo")


async def test_before_the_start_a_unit_is_accepted_at_once_and_its_delay_counts_from_then() -> None:
    cue, loop = made(), asyncio.get_running_loop()
    first = await cue.submit("echo", delay=10)
    await asyncio.sleep(20)
    began = loop.time()
    async with cue:
        work = await cue.wait(first)
        assert loop.time() - began < 5
        assert work.created_at is not None
        assert work.started_at is not None
        assert work.started_at - work.created_at >= 20


async def test_after_a_stop_a_unit_is_accepted_at_once() -> None:
    async with made() as cue:
        await cue.join()
    submitted_at = epoch()
    work_id = await cue.submit("echo")
    await asyncio.sleep(10)
    work = await cue.get(work_id)
    assert work is not None
    assert work.created_at == submitted_at


async def test_before_the_start_events_tell_what_was_submitted() -> None:
    cue = made()
    work_id = await cue.submit("echo")
    async with asyncio.timeout(5):
        async for event in cue.events():
            assert (event.type, event.work_id) == ("queued", work_id)
            break
