"""Concurrency that finds itself, and what the headers of a response say."""

import asyncio
from typing import Any

import pytest

import runcue
from runcue import Cue, RunningWork
from tests.engine.seen import epoch


class Api:
    """A far side that bears so many calls at once and says "too many" beyond that."""

    def __init__(self, bears: int) -> None:
        self.bears = bears
        self.active = 0
        self.refused = 0
        self.most = 0

    async def __call__(self, work: RunningWork) -> None:
        if self.active >= self.bears:
            self.refused += 1
            raise runcue.RateLimited(retry_after=1)
        self.active += 1
        self.most = max(self.most, self.active)
        await asyncio.sleep(1)
        self.active -= 1


def adapting(cue: Cue, api: Api, **adaptive: int) -> None:
    cue.service("api", concurrent=runcue.adaptive(**adaptive))
    cue.task("call", uses="api")(api)


async def width(cue: Cue) -> int:
    [service] = await cue.services()
    return int(service["concurrent"])


async def test_it_grows_by_one_place_for_each_round_that_ends_well() -> None:
    cue, api = Cue(), Api(1000)
    adapting(cue, api, min=1, start=4, max=10)
    seen = []
    async with cue:
        await cue.submit_many([{"task": "call", "params": {}} for _ in range(100)])
        for _ in range(9):
            await asyncio.sleep(1.01)
            seen.append(await width(cue))
        await cue.join()
    assert seen == [4, 5, 6, 7, 8, 9, 10, 10, 10]
    assert api.most == 10


async def test_it_halves_once_for_a_burst_of_refusals() -> None:
    cue, api = Cue(), Api(2)
    adapting(cue, api, min=2, start=16, max=40)
    async with cue:
        await cue.submit_many([{"task": "call", "params": {}} for _ in range(16)])
        await asyncio.sleep(0.5)
        assert api.refused == 14
        assert await width(cue) == 8
        await cue.join()
    assert (await cue.count())[runcue.WorkState.COMPLETED] == 16


async def test_it_settles_near_what_the_far_side_bears_and_no_attempt_is_burned() -> None:
    cue, api = Cue(), Api(10)
    adapting(cue, api, min=2, start=40, max=100)
    async with cue:
        ids = await cue.submit_many([{"task": "call", "params": {}} for _ in range(600)])
        await cue.join()
        works = [await cue.wait(work_id) for work_id in ids]
    assert {work.attempt for work in works} == {1}
    assert api.most == 10
    assert api.refused < 60  # 30 of them are the first burst


async def test_it_does_not_grow_while_its_places_are_not_used() -> None:
    cue, api = Cue(), Api(1000)
    adapting(cue, api, min=1, start=8, max=100)
    async with cue:
        for _ in range(100):
            await cue.wait(await cue.submit("call"))
        assert await width(cue) == 8


async def test_it_shows_its_bounds() -> None:
    cue = Cue()
    cue.service("api", concurrent=runcue.adaptive(min=4, start=20, max=100))
    async with cue:
        [service] = await cue.services()
    assert service["concurrent"] == 20
    assert service["adaptive"] == {"min": 4, "start": 20, "max": 100}


@pytest.mark.file
async def test_others_and_later_programs_go_on_with_what_was_found(tmp_path: Any) -> None:
    api = Api(2)
    for expected in (16, 8):
        cue = Cue(f"{tmp_path}/again.db")
        adapting(cue, api, min=2, start=16, max=40)
        async with cue:
            assert await width(cue) == expected
            await cue.submit_many(
                [{"task": "call", "params": {}} for _ in range(16 if expected == 16 else 1)]
            )
            await asyncio.sleep(0.5)
        await cue.close()
        if expected == 16:
            await asyncio.sleep(5)


@pytest.mark.parametrize(
    "options",
    [
        {"min": 0},
        {"min": 5, "max": 4},
        {"min": 5, "start": 4},
        {"start": 200},
        {"min": True},
        {"max": "many"},
    ],
)
def test_bounds_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(runcue.ConfigError):
        runcue.adaptive(**options)


# --- What headers say -------------------------------------------------------------------------------


def observing(cue: Cue, headers: list[dict[str, str]], seconds: float = 0.5) -> list[float]:
    """A task that is told these headers, one after the other; when it started."""
    starts: list[float] = []

    @cue.task(uses="api", cost={"tokens": 10} if any("tokens" in str(one) for one in headers) else None)
    async def call(work: RunningWork) -> None:
        starts.append(epoch())
        await asyncio.sleep(seconds)
        if len(headers) >= len(starts):
            work.observe(headers[len(starts) - 1])

    return starts


async def test_nothing_starts_until_the_reset_when_nothing_is_left() -> None:
    cue = Cue()
    cue.service("api", concurrent=1)
    gone = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "20s"}
    starts = observing(cue, [gone])
    async with cue:
        began = epoch()
        ids = await cue.submit_many([{"task": "call", "params": {}} for _ in range(3)])
        await asyncio.sleep(1)
        why = await cue.explain(ids[1])
        await cue.join()
    assert [at - began for at in starts] == pytest.approx([0, 20.5, 21])
    assert (why.reason, why.until) == ("rate", pytest.approx(began + 20.5))
    assert "as the service said itself" in why.details


async def test_no_more_start_than_are_left() -> None:
    cue = Cue()
    cue.service("api", concurrent=10)
    starts = observing(cue, [{"ratelimit-remaining": "3", "ratelimit-reset": "30"}])
    async with cue:
        began = epoch()
        await cue.wait(await cue.submit("call"))
        await cue.submit_many([{"task": "call", "params": {}} for _ in range(5)])
        await cue.join()
    assert [round(at - began, 1) for at in starts] == [0, 0.5, 0.5, 0.5, 30.5, 30.5]


async def test_what_is_left_of_a_quantity_counts_too() -> None:
    cue = Cue()
    cue.service("api", tokens="1000/min")
    left = {"x-ratelimit-remaining-tokens": "25", "x-ratelimit-reset-tokens": "40s"}
    starts = observing(cue, [left])
    async with cue:
        began = epoch()
        await cue.wait(await cue.submit("call"))
        await cue.submit_many([{"task": "call", "params": {}} for _ in range(3)])
        await cue.join()
    assert [round(at - began, 1) for at in starts] == [0, 0.5, 0.5, 40.5]


@pytest.mark.parametrize("headers", [{}, {"content-type": "json"}, {"x-ratelimit-remaining": "many"}])
async def test_headers_that_say_nothing_change_nothing(headers: dict[str, str]) -> None:
    cue = Cue()
    cue.service("api", concurrent=1)
    starts = observing(cue, [headers], seconds=0)
    async with cue:
        began = epoch()
        await cue.submit_many([{"task": "call", "params": {}} for _ in range(3)])
        await cue.join()
    assert [at - began for at in starts] == [0, 0, 0]
