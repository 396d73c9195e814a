"""submit(unique=…) and submit(expires=…), on each store."""

import asyncio
from typing import Any

import pytest

from runcue import (
    Cue,
    DuplicateWork,
    RuncueError,
    RunningWork,
    Unique,
    Work,
    WorkExpired,
    WorkFailed,
    WorkState,
)
from tests.engine.seen import told


async def echo(work: RunningWork) -> dict[str, Any]:
    return work.params


def made() -> Cue:
    cue = Cue()
    cue.task("echo")(echo)
    return cue


async def test_a_second_unit_within_the_window_is_answered_with_the_id_of_the_first() -> None:
    cue, unique = made(), Unique(by=["url"], within="10m")
    async with cue:
        first = await cue.submit("echo", params={"url": "a", "n": 1}, unique=unique)
        assert await cue.submit("echo", params={"url": "a", "n": 2}, unique=unique) == first
        assert await cue.submit("echo", params={"url": "b"}, unique=unique) != first
        await cue.join()
        await asyncio.sleep(599)
        assert await cue.submit("echo", params={"url": "a"}, unique=unique) == first
        await asyncio.sleep(2)
        assert await cue.submit("echo", params={"url": "a"}, unique=unique) != first
        await cue.join()
    assert await cue.result(first) == {"url": "a", "n": 1}


async def test_without_by_all_params_and_the_target_have_to_be_equal() -> None:
    cue, unique = made(), Unique(while_active=True)
    first = await cue.submit("echo", params={"a": 1, "b": 2}, target="t", unique=unique)
    assert await cue.submit("echo", params={"b": 2, "a": 1}, target="t", unique=unique) == first
    others = [
        await cue.submit("echo", params={"a": 1}, target="t", unique=unique),
        await cue.submit("echo", params={"a": 1, "b": 2}, unique=unique),
        await cue.submit("echo", params={"a": 1, "b": 2.0}, target="t", unique=unique),
    ]
    assert len({first, *others}) == 4


async def test_a_function_of_the_params_says_what_is_the_same() -> None:
    cue, unique = made(), Unique(by=lambda params: params["url"].lower(), while_active=True)
    first = await cue.submit("echo", params={"url": "A"}, unique=unique)
    assert await cue.submit("echo", params={"url": "a"}, unique=unique) == first


async def test_long_values_are_compared_in_full() -> None:
    cue, unique = made(), Unique(while_active=True)
    long = "x" * 5000
    first = await cue.submit("echo", params={"text": f"{long}a"}, unique=unique)
    assert await cue.submit("echo", params={"text": f"{long}a"}, unique=unique) == first
    assert await cue.submit("echo", params={"text": f"{long}b"}, unique=unique) != first


async def test_of_a_flood_of_changes_the_last_is_carried_out_once() -> None:
    cue = Cue()
    seen: list[Any] = []

    @cue.task("index")
    async def index(work: RunningWork) -> None:
        seen.append(work.params["version"])

    unique = Unique(by=["page"], while_active=True, on_conflict="extend", at_most="5m")
    async with cue:
        ids = set()
        for version in range(20):
            ids.add(
                await cue.submit("index", params={"page": 7, "version": version}, delay="10s", unique=unique)
            )
            await asyncio.sleep(1)
        await cue.join()
    assert (seen, len(ids)) == ([19], 1)
    assert len(await told(cue, "edited")) == 19


async def test_a_flood_that_never_ends_is_carried_out_as_often_as_at_most_says() -> None:
    cue = Cue()
    seen: list[Any] = []

    @cue.task("index")
    async def index(work: RunningWork) -> None:
        seen.append(work.params["version"])

    unique = Unique(by=lambda params: "all", on_conflict="extend", while_active=True, at_most=20)
    async with cue:
        for version in range(60):
            await cue.submit("index", params={"version": version}, delay=10, unique=unique)
            await asyncio.sleep(1)
        await cue.join()
    assert len(seen) == 3
    assert seen[-1] == 59


async def test_raise_names_the_unit_that_is_there() -> None:
    cue, unique = made(), Unique(while_active=True, on_conflict="raise")
    first = await cue.submit("echo", unique=unique)
    with pytest.raises(DuplicateWork, match="by unique=, which is pending") as caught:
        await cue.submit("echo", unique=unique)
    assert caught.value.work_id == first
    assert (await cue.count())[WorkState.PENDING] == 1


async def test_replace_changes_a_pending_unit() -> None:
    cue, unique = made(), Unique(by=["url"], while_active=True, on_conflict="replace")
    ids = await cue.submit_many(
        {"task": "echo", "params": {"url": "a", "n": n}, "unique": unique, "priority": n} for n in range(3)
    )
    assert ids == [ids[0]] * 3
    more = await cue.submit("echo", params={"url": "a", "n": 9}, unique=unique)
    assert more == ids[0]
    work = await cue.get(ids[0])
    assert work is not None
    assert (work.params, work.priority, work.state) == ({"url": "a", "n": 9}, 0, "pending")
    async with cue:
        assert await cue.result(ids[0]) == {"url": "a", "n": 9}


async def test_a_unit_that_expires_fails_and_whoever_waits_for_it_is_told_so() -> None:
    cue = Cue()
    cue.service("gate", concurrent=1)
    cue.task("echo", uses="gate")(echo)
    failures: list[tuple[str, str, bool]] = []

    @cue.on_failure
    def failed(work: Work, error: RuncueError, will_retry: bool) -> None:
        failures.append((work.id, str(error), will_retry))

    async with cue:
        await cue.pause("gate")
        work_id = await cue.submit("echo", expires="1h")
        work = await cue.get(work_id)
        assert work is not None
        assert work.expires_at == work.created_at + 3600
        assert (await cue.explain(work_id)).expires_at == work.expires_at
        with pytest.raises(WorkExpired, match="was not started in time: expired") as caught:
            await cue.result(work_id)
        assert isinstance(caught.value, WorkFailed)
        assert [one.id for one in await cue.dead()] == [work_id]
        await cue.retry(work_id)
        await cue.resume("gate")
        assert await cue.result(work_id) == {}
    assert failures == [(work_id, "expired", False)]


async def test_a_unit_that_is_edited_before_it_starts_is_run_with_its_new_params() -> None:
    cue = made()
    work_id = await cue.submit("echo", params={"n": 1})
    await cue.edit(work_id, params={"n": 2}, priority=3)
    async with cue:
        assert await cue.result(work_id) == {"n": 2}
    work = await cue.get(work_id)
    assert work is not None
    assert (work.params, work.priority) == ({"n": 2}, 3)
    assert [event.work_id for event in await told(cue, "edited")] == [work_id]


async def test_a_dead_unit_is_edited_and_retried() -> None:
    cue = Cue()

    @cue.task("check")
    async def check(work: RunningWork) -> int:
        if work.params["n"] == 1:
            raise ValueError("one")
        return int(work.params["n"])

    async with cue:
        work_id = await cue.submit("check", params={"n": 1})
        assert (await cue.wait(work_id)).state == "failed"
        await cue.edit(work_id, params={"n": 2})
        work = await cue.get(work_id)
        assert work is not None
        assert (work.state, work.params) == ("failed", {"n": 2})
        await cue.retry(work_id)
        assert await cue.result(work_id) == 2


async def test_an_edited_unit_uses_the_service_that_its_new_params_name() -> None:
    cue = Cue()
    cue.service("host_a")
    cue.service("host_b")
    cue.task("echo", uses="host_{host}")(echo)
    work_id = await cue.submit("echo", params={"host": "a"})
    await cue.edit(work_id, params={"host": "b"})
    work = await cue.get(work_id)
    assert work is not None
    assert work.services == ("host_b",)


async def test_the_progress_of_a_unit_is_read_while_it_runs_and_afterwards() -> None:
    cue = Cue()
    reported = asyncio.Event()
    go_on = asyncio.Event()

    @cue.task("call")
    async def call(work: RunningWork) -> tuple[Any, Any]:
        work.progress(0.25, "a quarter")
        reported.set()
        await go_on.wait()
        return work.progress.fraction, work.progress.text

    async with cue:
        work_id = await cue.submit("call")
        before = await cue.get(work_id)
        assert before is not None
        assert (before.progress.fraction, before.progress.text) == (None, None)
        await reported.wait()
        await cue.count()
        [work] = await cue.list("running")
        assert (work.progress.fraction, work.progress.text) == (0.25, "a quarter")
        go_on.set()
        after = await cue.wait(work_id)
        assert list(after.result) == [0.25, "a quarter"]
        assert (after.progress.fraction, after.progress.text) == (0.25, "a quarter")


async def test_a_handle_says_that_its_unit_is_a_duplicate() -> None:
    cue, unique = made(), Unique(by=["url"], while_active=True)
    first = await cue.submit("echo", params={"url": "a"}, unique=unique)
    again = await cue.submit("echo", params={"url": "a"}, unique=unique)
    assert (first == again, first.is_duplicate, again.is_duplicate) == (True, False, True)
    many = await cue.submit_many([{"task": "echo", "params": {"url": url}, "unique": unique} for url in "bb"])
    assert [one.is_duplicate for one in many] == [False, True]
