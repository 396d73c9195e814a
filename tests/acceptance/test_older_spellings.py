"""Code written against the earlier designs runs as it is: every older name means what the new one means."""

import asyncio
from typing import Any

import pytest

import runcue
from runcue.models import PriorityContext, WorkUnit
from tests.patience import BOUND


async def test_a_script_in_the_older_spelling_runs_from_end_to_end() -> None:
    cue = runcue.Cue(":memory:")
    cue.service("scanner", rate_limit=(40, 60), max_concurrent=2)
    cue.service("archive", rate_limit=25, rate_window=1, max_concurrent=3)
    scanned: list[str | None] = []

    @cue.task("scan", services=["scanner"], executor="async", retry=2)
    async def scan(work: WorkUnit) -> dict[str, int]:
        scanned.append(work.target)
        assert (work.task_type, work.attempt_count, work.last_error) == ("scan", 1, None)
        return {"sheets": 3}

    @cue.task("file", services=["scanner", "archive"])
    async def file(work: WorkUnit) -> dict[str, str]:
        return {"shelf": work.params["shelf"]}

    @cue.priority
    def urgency(ctx: PriorityContext) -> float:
        return 0.9 if ctx.work_unit.task_type == "file" else 0.3 + min(ctx.wait_time / 3600, 0.5)

    cue.start()
    scan_id = await cue.submit(task_type="scan", target="letter.pdf")
    file_id = await cue.submit("file", params={"shelf": "B2"}, depends_on=[scan_id])
    types: list[str | None] = []
    async with asyncio.timeout(BOUND):
        async for event in cue.events():
            if event.type == "completed":
                types.append(event.task_type)
            if event.work_id == file_id and event.name == "work_completed":
                assert event.result == {"shelf": "B2"}
                break
    await cue.stop()

    assert types == ["scan", "file"]
    assert scanned == ["letter.pdf"]


def test_old_and_new_limits_are_the_same_limits() -> None:
    cue = runcue.Cue()
    cue.service("same", rate="40/min", rate_limit=(40, 60), concurrent=2, max_concurrent=2)
    with pytest.raises(ValueError, match="mean the same thing and differ"):
        cue.service("contrary", rate="40/min", rate_limit=(41, 60))
    with pytest.raises(ValueError, match="mean the same thing and differ"):
        cue.service("contrary", concurrent=1, max_concurrent=2)


async def test_a_service_named_by_services_may_be_declared_later() -> None:
    cue = runcue.Cue()

    @cue.task("paint", services=["studio"])
    def paint(work: WorkUnit) -> str:
        return "done"

    with pytest.raises(ValueError, match="Unknown service: 'studio'"):
        await cue.submit("paint")
    cue.service("studio", max_concurrent=1)
    async with cue:
        assert await cue.result(await cue.submit("paint"), BOUND) == "done"


def test_a_registered_task_tells_what_it_uses() -> None:
    cue = runcue.Cue()
    cue.service("north")
    cue.service("south")

    @cue.task("march", services=["north", "south"], executor="async", retry=4)
    def march(work: WorkUnit) -> None: ...

    task = cue.get_task("march")
    assert (task.name, task.service, task.services) == ("march", "north", ("north", "south"))
    assert task.handler is march
    assert task.executor == "thread"  # what a plain function gets, also when "async" is asked for
    assert task.retry.max_attempts == 4


async def test_the_older_names_of_fields_are_readable() -> None:
    cue = runcue.Cue()

    @cue.task("trip")
    def trip(work: WorkUnit) -> None:
        raise OSError("lost the map")

    async with cue:
        work = await cue.wait(await cue.submit("trip", params=None), BOUND)

    assert isinstance(work, WorkUnit)
    assert work.last_error == work.error == "OSError: lost the map"
    assert work.attempt_count == work.attempt == 1
    assert work.task_type == work.task == "trip"


async def test_ready_made_callbacks_are_registered_like_any_other() -> None:
    cue = runcue.Cue()
    order: list[Any] = []
    cue.service("queue", concurrent=1)

    @cue.task("step", services=["queue"])
    async def step(work: WorkUnit) -> None:
        order.append(work.params["n"])

    cue.priority(runcue.priority_constant(0.5))
    for n in range(3):
        await cue.submit("step", params={"n": n})
    cue.priority(runcue.priority_by_wait_time)
    async with cue:
        await cue.join(timeout=BOUND)
    assert order == [0, 1, 2]
