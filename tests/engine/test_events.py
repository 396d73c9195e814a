"""What is told, to whom, and in which order."""

import asyncio

import pytest

from runcue import Cue, Event, Work, WorkState
from runcue.testing import settle
from tests.engine.seen import clock, epoch, story, told


def with_call(cue: Cue) -> None:
    @cue.task("call")
    async def call(work: Work) -> str:
        await asyncio.sleep(work.params.get("seconds", 0))
        return "done"


async def read(cue: Cue, into: list[Event], pause: float = 0, **how: object) -> None:
    """Read events into a list until they end, so many seconds apart."""
    async for event in cue.events(**how):  # type: ignore[arg-type]
        into.append(event)
        if pause:
            await asyncio.sleep(pause)


# --- What an event has ----------------------------------------------------------------------------


async def test_an_event_has_what_belongs_to_it() -> None:
    cue = Cue()
    cue.service("api", concurrent=1)

    @cue.task("call", uses="api")
    async def call(work: Work) -> str:
        await asyncio.sleep(5)
        return "done"

    began = epoch()
    async with cue:
        work_id = await cue.submit("call")
        await cue.join()
    queued, started, completed = await told(cue, "queued", "started", "completed")
    assert (queued.type, queued.name, queued.at) == ("queued", "work_queued", began)
    assert (started.work_id, started.task, started.task_type) == (work_id, "call", "call")
    assert (started.attempt, started.service, started.final) == (1, "api", False)
    assert (completed.result, completed.duration, completed.at) == ("done", 5, began + 5)
    assert (completed.name, completed.final, completed.error) == ("work_completed", True, None)


async def test_events_not_about_work_have_one_name() -> None:
    cue = Cue()
    with_call(cue)
    async with cue:
        await cue.wait(await cue.submit("call"))
    status = (await told(cue, "queue_status"))[0]
    assert (status.type, status.name, status.work_id, status.task) == (
        "queue_status",
        "queue_status",
        None,
        None,
    )


async def test_an_event_without_such_a_field_says_so() -> None:
    cue = Cue()
    with_call(cue)
    async with cue:
        await cue.wait(await cue.submit("call"))
    event = (await told(cue, "queued"))[0]
    with pytest.raises(AttributeError, match="'queued' event has no 'colour'"):
        _ = event.colour


async def test_seq_counts_up_from_one_without_a_gap() -> None:
    cue = Cue()
    with_call(cue)
    async with cue:
        await cue.submit_many({"task": "call"} for _ in range(50))
        await cue.join()
    events = await told(cue)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))


async def test_queue_status_is_told_every_second_while_busy_and_not_while_idle() -> None:
    cue = Cue()
    with_call(cue)
    async with cue:
        await cue.wait(await cue.submit("call", params={"seconds": 10}))
        await asyncio.sleep(1000)
    statuses = await told(cue, "queue_status")
    assert 10 <= len(statuses) <= 13
    assert (statuses[0].pending, statuses[0].running) == (0, 1)


async def test_the_interval_of_queue_status_is_an_option() -> None:
    cue = Cue(status_interval=60)
    with_call(cue)
    async with cue:
        await cue.wait(await cue.submit("call", params={"seconds": 600}))
    assert len(await told(cue, "queue_status")) == pytest.approx(11, abs=1)


# --- Order ----------------------------------------------------------------------------------------


async def test_the_events_of_each_work_are_a_path_through_its_life() -> None:
    cue = Cue()
    cue.service("api", concurrent=3)

    @cue.task("call", uses="api", retry=2)
    async def call(work: Work) -> None:
        await asyncio.sleep(work.params["n"] % 4)
        if work.params["n"] % 3 == 0:
            raise OSError("no")

    async with cue:
        ids = await cue.submit_many({"task": "call", "params": {"n": n}} for n in range(30))
        await asyncio.sleep(5)
        for work_id in ids[::7]:
            await cue.cancel(work_id)
        await cue.join()
    path = {
        None: {"queued"},
        "queued": {"started", "cancelled"},
        "started": {"completed", "failed", "cancelled"},
        "failed": {"retrying"},
        "retrying": {"started", "cancelled"},
    }
    for work_id in ids:
        before: str | None = None
        events = [event for event in await told(cue) if event.work_id == work_id]
        for event in events:
            assert event.type in path[before]
            before = event.type
        assert [event.final for event in events] == [False] * (len(events) - 1) + [True]


async def test_times_never_go_back() -> None:
    cue = Cue()
    with_call(cue)
    async with cue:
        for _ in range(20):
            await cue.submit("call", params={"seconds": 0.3})
            await asyncio.sleep(0.1)
        await cue.join()
    times = [event.at for event in await told(cue)]
    assert times == sorted(times)


async def test_completed_is_told_only_when_the_result_can_be_read() -> None:
    cue = Cue()
    with_call(cue)
    results: list[object] = []

    async def watch() -> None:
        async for event in cue.events("completed"):
            work = await cue.get(str(event.work_id))
            assert work is not None
            results.append((work.state, work.result))

    async with cue:
        watching = asyncio.create_task(watch())
        await cue.submit_many({"task": "call"} for _ in range(5))
        await cue.join()
    await watching
    assert results == [(WorkState.COMPLETED, "done")] * 5


# --- Readers --------------------------------------------------------------------------------------


async def test_a_reader_that_comes_late_misses_nothing() -> None:
    cue = Cue()
    with_call(cue)
    seen: list[Event] = []
    async with cue:
        await cue.submit("call", id="a")
        await cue.join()
        reading = asyncio.create_task(read(cue, seen))
        await settle()
        assert [event.type for event in seen if event.work_id == "a"] == ["queued", "started", "completed"]
        await cue.submit("call", id="b")
        await cue.join()
    await reading
    assert [event.type for event in seen if event.work_id == "b"] == ["queued", "started", "completed"]


async def test_since_goes_on_after_that_event() -> None:
    cue = Cue()
    with_call(cue)
    async with cue:
        await cue.submit_many({"task": "call"} for _ in range(5))
        await cue.join()
    everything = await told(cue)
    rest = [event async for event in cue.events(since=everything[3].seq)]
    assert rest == everything[4:]
    assert [event async for event in cue.events(since=everything[-1].seq)] == []


@pytest.mark.parametrize("since", [-1, -1000])
async def test_a_since_before_the_beginning_is_the_beginning(since: int) -> None:
    cue = Cue()
    with_call(cue)
    cue.start()
    await cue.stop()
    assert [event async for event in cue.events(since=since)] == []
    async with cue:
        await cue.wait(await cue.submit("call"))
    assert [event async for event in cue.events(since=since)] == await told(cue)


async def test_types_pick_what_is_read() -> None:
    cue = Cue()
    with_call(cue)
    async with cue:
        await cue.submit("call")
        await cue.join()
    assert [event.type async for event in cue.events("completed")] == ["completed"]
    assert [event.type async for event in cue.events(["queued", "started"])] == ["queued", "started"]
    assert [event.type async for event in cue.events(types={"cancelled"})] == []


async def test_readers_end_at_stop_once_they_have_read_everything() -> None:
    cue = Cue()
    with_call(cue)
    seen: list[Event] = []
    cue.start()
    reading = asyncio.create_task(read(cue, seen, pause=10))
    await cue.submit_many({"task": "call"} for _ in range(3))
    await settle()
    await cue.stop()
    assert not reading.done()
    await reading
    assert [event.type for event in seen].count("completed") == 3


async def test_a_reader_after_the_next_start_goes_on() -> None:
    cue = Cue()
    with_call(cue)
    async with cue:
        await cue.wait(await cue.submit("call", id="a"))
    seen: list[Event] = []
    async with cue:
        reading = asyncio.create_task(read(cue, seen, types="completed"))
        await settle()
        assert not reading.done()
        await cue.wait(await cue.submit("call", id="b"))
    await reading
    assert [event.work_id for event in seen] == ["a", "b"]


async def test_two_readers_each_get_everything() -> None:
    cue = Cue()
    with_call(cue)
    fast: list[Event] = []
    slow: list[Event] = []
    async with cue:
        reading = [asyncio.create_task(read(cue, fast)), asyncio.create_task(read(cue, slow, pause=0.5))]
        for _ in range(20):
            await cue.submit("call")
            await asyncio.sleep(0.1)
    await asyncio.gather(*reading)
    assert fast == slow == await told(cue)


async def test_a_reader_that_raises_or_leaves_does_not_disturb_the_other() -> None:
    cue = Cue()
    with_call(cue)
    seen: list[Event] = []

    async def leave() -> None:
        async for event in cue.events():
            if event.type == "started":
                raise ZeroDivisionError

    async with cue:
        leaving = asyncio.create_task(leave())
        cancelled = asyncio.create_task(read(cue, []))
        reading = asyncio.create_task(read(cue, seen))
        await cue.submit("call")
        await settle()
        cancelled.cancel()
        await cue.wait(await cue.submit("call"))
    await reading
    with pytest.raises(ZeroDivisionError):
        await leaving
    assert seen == await told(cue)


# --- Falling behind -------------------------------------------------------------------------------

KEPT = 10_000


async def busy(cue: Cue, works: int) -> list[str]:
    """Run that much work to its end."""
    ids = await cue.submit_many({"task": "call"} for _ in range(works))
    await cue.join()
    return list(ids)


async def in_batches(cue: Cue, works: int) -> None:
    """Run that much work, fifty at a time."""
    for _ in range(works // 50):
        await busy(cue, 50)


@pytest.mark.memory
async def test_a_reader_that_falls_behind_gets_one_gap_with_the_number() -> None:
    cue = Cue(keep_finished=10)
    with_call(cue)
    async with cue:
        await cue.submit("call")
        reader = cue.events()
        seen = [await anext(reader)]
        await in_batches(cue, 3_500)
    seen += [event async for event in reader]
    gaps = [event for event in seen if event.type == "gap"]
    assert [event.name for event in gaps] == ["gap"]
    assert gaps[0].missed > 0
    others = [event.seq for event in seen if event.type != "gap"]
    assert others == sorted(others)
    assert others[-1] == len(others) + gaps[0].missed


async def test_what_is_read_and_what_was_missed_add_up() -> None:
    cue = Cue(keep_finished=100)
    with_call(cue)
    async with cue:
        await busy(cue, 5_000)
    events = await told(cue)
    missed = sum(event.missed for event in events if event.type == "gap")
    others = [event for event in events if event.type != "gap"]
    assert others[-1].seq == len(others) + missed


async def test_the_final_event_of_each_kept_work_survives() -> None:
    cue = Cue()
    with_call(cue)
    async with cue:
        ids = await busy(cue, 4_000)
        await in_batches(cue, 1_000)
    finals = [event.work_id for event in await told(cue, "completed") if event.type != "gap"]
    assert finals[:4_000] == ids
    assert len(finals) == 5_000


@pytest.mark.memory
@pytest.mark.parametrize("keep", [0, 50])
async def test_final_events_of_forgotten_work_are_forgotten_with_it(keep: int) -> None:
    cue = Cue(keep_finished=keep)
    with_call(cue)
    async with cue:
        await busy(cue, 8_000)
        await in_batches(cue, 3_500)
    others = [event for event in await told(cue) if event.type != "gap"]
    assert len(others) <= KEPT + keep


@pytest.mark.memory
async def test_a_reader_that_never_reads_gets_a_gap_when_it_does() -> None:
    cue = Cue(keep_finished=10)
    with_call(cue)
    async with cue:
        await cue.submit("call")
        lazy = cue.events()
        await anext(lazy)
        await busy(cue, 5_000)
        rest = [await anext(lazy) for _ in range(KEPT)]
    assert sum(event.missed for event in rest if event.type == "gap") > 0


# --- While nothing runs ---------------------------------------------------------------------------


async def test_events_before_start_are_kept_for_readers() -> None:
    cue = Cue()
    with_call(cue)
    work_id = await cue.submit("call")
    await cue.cancel(work_id)
    cue.start()
    await cue.stop()
    assert await story(cue, work_id) == ["queued", "cancelled"]


async def test_an_idle_queue_tells_nothing() -> None:
    cue = Cue()
    with_call(cue)
    async with cue:
        await asyncio.sleep(86_400)
    assert await told(cue) == []
    assert clock() == 86_400
