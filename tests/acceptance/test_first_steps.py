"""What a newcomer tries first: submit, run, look, list, be told about mistakes."""

import asyncio
import threading

import pytest

import runcue
from runcue import Work, WorkState
from tests.patience import BOUND, happens


async def test_submitting_gives_an_id_and_the_work_can_be_looked_up() -> None:
    cue = runcue.Cue()
    cue.service("printer", rate="30/min")

    @cue.task("label", uses="printer")
    def label(work: Work) -> None: ...

    first = await cue.submit("label", params={"copies": 2})
    second = await cue.submit("label", params={"copies": 5})

    found = await cue.get(first)
    assert found is not None
    assert (found.id, found.task, found.params, found.attempt) == (first, "label", {"copies": 2}, 1)
    assert found.state is WorkState.PENDING
    assert first != second
    assert await cue.get("nobody") is None


async def test_a_plain_function_runs_off_the_loop_and_a_coroutine_on_it() -> None:
    cue = runcue.Cue()
    cue.service("anything", concurrent=4)

    @cue.task("plain", uses="anything")
    def plain(work: Work) -> int:
        return threading.get_ident()

    @cue.task("coroutine", uses="anything")
    async def coroutine(work: Work) -> int:
        await asyncio.sleep(0)
        return threading.get_ident()

    async with cue:
        off = await cue.result(await cue.submit("plain"), BOUND)
        on = await cue.result(await cue.submit("coroutine"), BOUND)

    assert on == threading.get_ident()
    assert off != on


async def test_work_submitted_before_the_start_waits_for_it() -> None:
    cue = runcue.Cue()
    greeted: list[str] = []

    @cue.task
    async def greet(work: Work) -> None:
        greeted.append(work.params["whom"])

    work_id = await cue.submit("greet", params={"whom": "early bird"})
    waiting = await cue.get(work_id)
    assert waiting is not None
    assert waiting.state is WorkState.PENDING
    assert greeted == []

    cue.start()
    assert (await cue.wait(work_id, BOUND)).state is WorkState.COMPLETED
    assert greeted == ["early bird"]
    await cue.stop()


async def test_lists_and_counts_tell_the_states_apart() -> None:
    cue = runcue.Cue()

    @cue.task
    async def fine(work: Work) -> str:
        return "well"

    @cue.task
    async def broken(work: Work) -> None:
        raise OSError("the disk has gone")

    waiting = await cue.submit_many([{"task": "fine"}, {"task": "broken"}, {"task": "fine"}])
    assert {work.id for work in await cue.list(state=WorkState.PENDING)} == set(waiting)
    assert {work.id for work in await cue.list(state="queued", task="fine")} == {waiting[0], waiting[2]}

    async with cue:
        await cue.join(timeout=BOUND)

    counts = await cue.count()
    assert (counts[WorkState.COMPLETED], counts[WorkState.FAILED], counts[WorkState.PENDING]) == (2, 1, 0)
    assert [work.id for work in await cue.dead()] == [waiting[1]]
    assert [work.id for work in await cue.list(task="fine", limit=1)] == [waiting[2]]


async def test_what_a_handler_raises_is_kept_with_the_work() -> None:
    cue = runcue.Cue()
    cue.service("oven", rate="100/hour")

    @cue.task("bake", uses="oven")
    def bake(work: Work) -> None:
        raise RuntimeError("the dough has not risen")

    async with cue:
        work_id = await cue.submit("bake")
        with pytest.raises(runcue.WorkFailed, match="the dough has not risen") as caught:
            await cue.result(work_id, BOUND)

    work = await cue.get(work_id)
    assert work is not None
    assert work.state is WorkState.FAILED
    assert work.error == "RuntimeError: the dough has not risen"
    assert work.traceback is not None
    assert "in bake" in work.traceback
    assert caught.value.work.id == work_id


def test_a_task_cannot_use_a_service_nobody_declared() -> None:
    cue = runcue.Cue()
    cue.service("telescope")
    with pytest.raises(ValueError, match=r"Unknown service: 'telescop'.* Did you mean 'telescope'\?"):

        @cue.task("observe", uses="telescop")
        def observe(work: Work) -> None: ...


async def test_the_function_stands_for_its_task() -> None:
    cue = runcue.Cue()

    @cue.task
    async def double(work: Work) -> int:
        number: int = work.params["number"]
        return 2 * number

    async with cue:
        assert await cue.result(await cue.submit(double, params={"number": 21}), BOUND) == 42


async def test_another_thread_submits_and_waits_through_sync() -> None:
    cue = runcue.Cue()

    @cue.task
    def shout(work: Work) -> str:
        return str(work.params["word"]).upper()

    def elsewhere() -> object:
        work_id = cue.sync.submit("shout", params={"word": "hey"})
        return cue.sync.result(work_id, timeout=BOUND)

    async with cue:
        assert await asyncio.to_thread(elsewhere) == "HEY"
        older = await asyncio.to_thread(cue.sync.submit, task_type="shout", params={"word": "ho"})
        assert await cue.result(older, BOUND) == "HO"
        with pytest.raises(runcue.WrongThread, match="Use await and the method of Cue instead"):
            cue.sync.get("whatever")


async def test_reading_events_after_submitting_misses_nothing() -> None:
    cue = runcue.Cue()
    done = asyncio.Event()

    @cue.task
    async def measure(work: Work) -> dict[str, int]:
        done.set()
        return {"metres": 3}

    cue.start()
    work_id = await cue.submit("measure")
    await happens(done)
    async with asyncio.timeout(BOUND):
        seen = []
        async for event in cue.events():
            if event.work_id == work_id:
                seen.append(event.name)
            if event.type == "completed":
                assert (event.result, event.final) == ({"metres": 3}, True)
                break
    assert seen == ["work_queued", "work_started", "work_completed"]
    await cue.stop()


async def test_events_are_chosen_by_either_name_and_a_misspelt_one_is_refused() -> None:
    cue = runcue.Cue()

    @cue.task
    async def chirp(work: Work) -> None: ...

    async with cue:
        await cue.wait(await cue.submit("chirp"), BOUND)

    for name in ("completed", "work_completed"):
        assert [event.type async for event in cue.events(types=name)] == ["completed"]
    assert [event.type async for event in cue.events(types=["queued", "work_started"])] == [
        "queued",
        "started",
    ]
    with pytest.raises(ValueError, match=r"Invalid event type: 'completd'\. Expected one of 'queued'"):
        cue.events(types=["completd"])
    assert [event.type async for event in cue.events(types="started", since=2)] == []
