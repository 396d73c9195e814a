"""What went wrong once when processes shared a file, each in the smallest world that shows it (on virtual time)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import runcue
from runcue import Cue, Work
from runcue.testing import fail_commit, settle


async def test_work_that_others_depend_on_is_started_though_it_was_in_mind_for_them(tmp_path: Path) -> None:
    async def work(work: Work) -> None: ...

    one, two = Cue(tmp_path / "queue.db"), Cue(tmp_path / "queue.db")
    for cue in (one, two):
        cue.task("work")(work)
    await one.submit("work", id="a")
    await one.close()
    two.start()
    await two.submit_many([{"task": "work", "id": "b"}, {"task": "work", "id": "c", "depends_on": ["a"]}])
    await two.join(timeout=60)
    assert (await two.count())[runcue.WorkState.COMPLETED] == 3
    await two.close()


async def test_work_is_not_held_for_ever_when_its_code_ends_in_a_turn_that_is_not_kept(
    tmp_path: Path,
) -> None:
    cue = Cue(tmp_path / "queue.db")

    @cue.task("work", retry=3, timeout=1)
    async def work(work: Work) -> str:
        if work.attempt > 1:
            return "done"
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            await asyncio.sleep(1)  # it takes a second to give up
        fail_commit(cue, took_place=False)  # and the disk says no just then
        return "too late"

    cue.start()
    await cue.submit("work", id="a")
    assert await cue.result("a", timeout=60) == "done"
    await cue.close()


async def test_the_first_of_a_lane_of_which_nothing_was_read_is_known(tmp_path: Path) -> None:
    order: list[str] = []

    def make() -> Cue:
        cue = runcue.Cue(tmp_path / "queue.db")
        cue.service("api", concurrent=1)

        async def work(work: Work) -> None:
            order.append(work.id)
            await asyncio.sleep(1)

        cue.task("x", uses="api")(work)
        cue.task("y", uses="api")(work)
        return cue

    one = make()
    await one.submit_many(
        [
            {"task": "x", "id": "busy", "priority": 2},
            {"task": "x", "id": "low x", "priority": 1},
            {"task": "y", "id": "low y"},
        ]
    )
    await one.close()
    two = make()
    two.start()
    await asyncio.sleep(0.5)
    await two.submit("y", id="high", priority=9)
    await two.join(timeout=60)
    assert order == ["busy", "high", "low x", "low y"]
    await two.close()


async def test_work_cancelled_by_others_while_nothing_could_be_kept_is_stopped_and_keeps_its_place(
    tmp_path: Path,
) -> None:
    log: list[str] = []

    def make() -> Cue:
        cue = Cue(tmp_path / "queue.db")
        cue.service("api", concurrent=1)

        @cue.task("work", uses="api")
        async def work(work: Work) -> None:
            log.append(f"{work.id} began")
            try:
                await asyncio.sleep(20 if work.id == "a" else 1)
            except asyncio.CancelledError:
                await asyncio.sleep(3)  # it takes its time
            log.append(f"{work.id} ended")

        return cue

    one, other = make(), make()
    one.start()
    await one.submit("work", id="a")
    await asyncio.sleep(1)
    await other.count()
    fail_commit(one, took_place=False)
    with pytest.raises(runcue.StoreError):
        await one.submit("work", id="never")
    assert await other.cancel("a")
    other.start()
    await other.submit("work", id="b")
    await other.wait("b", timeout=60)
    assert log == ["a began", "a ended", "b began", "b ended"]
    await one.close()
    await other.close()


@pytest.mark.file
async def test_a_lane_whose_best_is_cancelled_while_a_place_becomes_free_takes_its_turn(
    tmp_path: Path,
) -> None:
    order: list[str] = []

    def program() -> Cue:
        cue = Cue(str(tmp_path / "queue.db"))
        cue.service("api", concurrent=1)

        async def call(work: Work) -> None:
            order.append(work.id)
            await asyncio.sleep(1)

        cue.task("one", uses="api")(call)
        cue.task("two", uses="api")(call)
        return cue

    cue, other = program(), program()
    cue.start()
    await cue.submit("two", id="running")
    await settle()
    await cue.submit_many([{"task": name, "priority": -2} for name in ("one", "two")])
    await settle()
    several: list[dict[str, Any]] = [
        {"task": "one", "id": "best", "priority": 4},
        {"task": "two", "id": "second", "priority": 2},
        {"task": "one", "id": "last", "priority": 0},
    ]
    submitted = asyncio.create_task(other.submit_many(several))
    freed = asyncio.create_task(cue.cancel("running"))
    for _ in range(2):  # so that the turn which frees the place is the one that hears of these first
        await asyncio.sleep(0)
    assert await cue.cancel("best")
    await asyncio.gather(freed, submitted)
    await cue.wait("second")
    assert order[:2] == ["running", "second"]
    await cue.close()
    await other.close()
