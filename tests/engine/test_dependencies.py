"""depends_on: who waits for whom, and what becomes of those who wait in vain."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import runcue
from runcue import Cue, Work, WorkState
from runcue.testing import settle
from tests.engine.seen import clock, story, told


def with_steps(cue: Cue) -> list[str]:
    """Register "step", which sleeps, fails or returns as its params say; the ids as they started."""
    started: list[str] = []

    @cue.task("step")
    async def step(work: Work) -> str:
        started.append(work.id)
        await asyncio.sleep(work.params.get("seconds", 0))
        if work.params.get("fails"):
            raise ValueError("as asked")
        return work.id

    return started


async def states(cue: Cue) -> dict[str, tuple[str, str | None]]:
    return {work.id: (work.state.value, work.error) for work in await cue.list(limit=1000)}


# --- Waiting --------------------------------------------------------------------------------------


async def test_work_waits_until_each_dependency_completed() -> None:
    cue = Cue()
    started = with_steps(cue)
    async with cue:
        await cue.submit("step", id="slow", params={"seconds": 20})
        await cue.submit("step", id="fast", params={"seconds": 5})
        await cue.submit("step", id="after", depends_on=["slow", "fast"])
        await cue.join()
    assert started == ["slow", "fast", "after"]
    assert clock() == 20


async def test_a_dependency_that_completed_before_the_submit_counts() -> None:
    cue = Cue()
    started = with_steps(cue)
    async with cue:
        first = await cue.submit("step")
        await cue.wait(first)
        await cue.wait(await cue.submit("step", id="after", depends_on=[first]))
    assert started == [first, "after"]


async def test_a_single_id_may_be_given_without_a_list() -> None:
    cue = Cue()
    started = with_steps(cue)
    async with cue:
        await cue.submit("step", id="ab", params={"seconds": 1})
        await cue.submit("step", id="after", depends_on="ab")
        await cue.join()
    assert started == ["ab", "after"]


async def test_an_id_given_twice_counts_once() -> None:
    cue = Cue()
    with_steps(cue)
    async with cue:
        await cue.submit("step", id="a")
        work = await cue.wait(await cue.submit("step", depends_on=["a", "a"]))
    assert work.depends_on == ("a",)


async def test_work_may_wait_for_an_id_that_comes_later() -> None:
    cue = Cue()
    started = with_steps(cue)
    async with cue:
        await cue.submit("step", id="after", depends_on=["before"])
        await asyncio.sleep(100)
        explanation = await cue.explain("after")
        assert (explanation.reason, explanation.waits_for) == ("dependency", ("before",))
        assert "never submitted" in explanation.details
        await cue.submit("step", id="before")
        await cue.join()
    assert started == ["before", "after"]


@pytest.mark.memory
async def test_forgotten_work_still_satisfies() -> None:
    cue = Cue(keep_finished=1)
    with_steps(cue)
    async with cue:
        named = await cue.submit("step", id="named")
        made = await cue.submit("step")
        await cue.join()
        for _ in range(3):
            await cue.wait(await cue.submit("step"))
        assert await cue.get(named) is None
        assert await cue.get(made) is None
        work = await cue.wait(await cue.submit("step", depends_on=[named, made]), timeout=5)
    assert work.state == "completed"


@pytest.mark.memory
async def test_forgotten_work_that_failed_still_fails_its_dependents() -> None:
    cue = Cue(keep_finished=1)
    with_steps(cue)
    async with cue:
        failed = await cue.submit("step", params={"fails": True})
        await cue.join()
        for _ in range(3):
            await cue.wait(await cue.submit("step"))
        assert await cue.get(failed) is None
        work = await cue.wait(await cue.submit("step", depends_on=[failed]), timeout=5)
    assert (work.state, work.error) == ("failed", "prerequisite_failed")


async def test_a_diamond_runs_in_order_and_each_once() -> None:
    cue = Cue()
    started = with_steps(cue)
    async with cue:
        await cue.submit("step", id="top", params={"seconds": 1})
        await cue.submit("step", id="left", depends_on=["top"], params={"seconds": 1})
        await cue.submit("step", id="right", depends_on=["top"], params={"seconds": 2})
        await cue.submit("step", id="bottom", depends_on=["left", "right"])
        await cue.join()
    assert started == ["top", "left", "right", "bottom"]
    assert clock() == 3


async def test_a_chain_of_three_thousand_runs_to_its_end() -> None:
    cue = Cue()
    started = with_steps(cue)
    async with cue:
        await cue.submit_many(
            {"task": "step", "id": f"s{n}", "depends_on": [f"s{n - 1}"] if n else []} for n in range(3000)
        )
        await cue.join()
    assert started == [f"s{n}" for n in range(3000)]


async def test_fan_out_and_fan_in_of_three_thousand() -> None:
    cue = Cue()
    started = with_steps(cue)
    middle = [f"m{n}" for n in range(3000)]
    async with cue:
        await cue.submit("step", id="split")
        await cue.submit_many({"task": "step", "id": name, "depends_on": ["split"]} for name in middle)
        await cue.submit("step", id="merge", depends_on=middle)
        await cue.join()
    assert (started[0], started[-1], len(started)) == ("split", "merge", 3002)


# --- Cycles ---------------------------------------------------------------------------------------


async def test_work_cannot_wait_for_itself() -> None:
    cue = Cue()
    with_steps(cue)
    with pytest.raises(runcue.DependencyCycle, match="'a' → 'a'"):
        await cue.submit("step", id="a", depends_on=["a"])
    assert await cue.list() == []


async def test_an_edge_that_closes_a_cycle_is_refused_and_nothing_is_queued() -> None:
    cue = Cue()
    with_steps(cue)
    await cue.submit("step", id="a", depends_on=["c"])
    await cue.submit("step", id="b", depends_on=["a"])
    with pytest.raises(runcue.DependencyCycle) as raised:
        await cue.submit("step", id="c", depends_on=["b"])
    assert set(raised.value.cycle) == {"a", "b", "c"}
    assert await cue.get("c") is None
    await cue.submit("step", id="c")
    async with cue:
        await cue.join()
    assert set(await states(cue)) == {"a", "b", "c"}


async def test_a_cycle_of_twenty_thousand_is_refused() -> None:
    cue = Cue()
    with_steps(cue)
    size = 20_000
    with pytest.raises(runcue.DependencyCycle):
        await cue.submit_many(
            {"task": "step", "id": f"s{n}", "depends_on": [f"s{(n + 1) % size}"]} for n in range(size)
        )
    assert await cue.list() == []


# --- Failing --------------------------------------------------------------------------------------


async def test_a_failed_dependency_fails_its_dependents_at_once_and_theirs() -> None:
    cue = Cue()
    started = with_steps(cue)
    async with cue:
        await cue.submit("step", id="bad", params={"seconds": 5, "fails": True})
        await cue.submit("step", id="child", depends_on=["bad"])
        await cue.submit("step", id="grandchild", depends_on=["child"])
        await cue.submit("step", id="both", depends_on=["bad", "never"])
        await cue.join()
    assert started == ["bad"]
    assert clock() == 5
    assert await states(cue) == {
        "bad": ("failed", "ValueError: as asked"),
        "child": ("failed", "prerequisite_failed"),
        "grandchild": ("failed", "prerequisite_failed"),
        "both": ("failed", "prerequisite_failed"),
    }


async def test_a_dependency_that_had_failed_before_the_submit_fails_it_too() -> None:
    cue = Cue()
    with_steps(cue)
    async with cue:
        await cue.wait(await cue.submit("step", id="bad", params={"fails": True}))
        work = await cue.wait(await cue.submit("step", id="late", depends_on=["bad"]))
    assert (work.state, work.error) == ("failed", "prerequisite_failed")
    assert await story(cue, "late") == ["queued", "failed"]


async def test_a_dependency_that_will_be_retried_does_not_fail_its_dependents_yet() -> None:
    cue = Cue()

    @cue.task("flaky", retry=2)
    async def flaky(work: Work) -> None:
        if work.attempt == 1:
            raise OSError("no")

    async with cue:
        await cue.submit("flaky", id="first")
        work = await cue.wait(await cue.submit("flaky", id="second", depends_on=["first"]))
    assert work.state == "completed"


async def test_a_cancelled_dependency_fails_its_dependents() -> None:
    cue = Cue()
    with_steps(cue)
    async with cue:
        await cue.submit("step", id="a", delay=60)
        await cue.submit("step", id="b", depends_on=["a"])
        await cue.submit("step", id="c", depends_on=["b"])
        assert await cue.cancel("a")
    assert await states(cue) == {
        "a": ("cancelled", "cancelled"),
        "b": ("failed", "prerequisite_cancelled"),
        "c": ("failed", "prerequisite_failed"),
    }


async def test_a_dropped_dependency_fails_its_dependents() -> None:
    cue = Cue(max_queued=2, reject_policy="drop_oldest")
    with_steps(cue)
    await cue.submit("step", id="old")
    await cue.submit("step", id="child", depends_on=["old"])
    await cue.submit("step", id="new")
    assert await states(cue) == {
        "old": ("failed", "dropped"),
        "child": ("failed", "prerequisite_failed"),
        "new": ("pending", None),
    }


async def test_cascade_cancels_dependents_each_once() -> None:
    cue = Cue()
    with_steps(cue)
    cancelled: list[str] = []
    cue.on_cancel(lambda work: cancelled.append(work.id))
    async with cue:
        await cue.submit("step", id="top", params={"seconds": 60})
        await cue.submit("step", id="left", depends_on=["top"])
        await cue.submit("step", id="right", depends_on=["top"])
        await cue.submit("step", id="bottom", depends_on=["left", "right"])
        await settle()
        assert await cue.cancel("top", cascade=True)
        await cue.join()
    assert {state for state, _ in (await states(cue)).values()} == {"cancelled"}
    assert sorted(cancelled) == ["bottom", "left", "right", "top"]


async def test_a_failed_dependency_tells_on_failure_of_each_dependent_once() -> None:
    cue = Cue()
    with_steps(cue)
    failures: list[tuple[str, str]] = []
    cue.on_failure(lambda work, error: failures.append((work.id, str(error))))
    async with cue:
        await cue.submit("step", id="bad", params={"fails": True})
        for name in ("a", "b"):
            await cue.submit("step", id=name, depends_on=["bad"])
        await cue.submit("step", id="c", depends_on=["a", "b"])
        await cue.join()
    assert sorted(failures) == [
        ("a", "prerequisite_failed"),
        ("b", "prerequisite_failed"),
        ("bad", "as asked"),
        ("c", "prerequisite_failed"),
    ]


async def test_thousands_of_dependents_fail_in_one_go() -> None:
    cue = Cue()
    started = with_steps(cue)
    async with cue:
        await cue.submit("step", id="bad", params={"fails": True, "seconds": 1})
        await cue.submit_many(
            {"task": "step", "id": f"s{n}", "depends_on": [f"s{n - 1}" if n else "bad"]} for n in range(3_000)
        )
        await cue.join()
        assert (await cue.count())[WorkState.FAILED] == 3_001
    assert started == ["bad"]


# --- Timeout --------------------------------------------------------------------------------------


async def test_dependencies_that_do_not_come_in_time_fail_the_work_exactly_then() -> None:
    cue = Cue()
    with_steps(cue)
    async with cue:
        work = await cue.wait(await cue.submit("step", depends_on=["never"], dependency_timeout=90))
    assert (work.state, work.error, clock()) == ("failed", "dependency_timeout", 90)


async def test_dependencies_that_come_in_time_end_the_timeout() -> None:
    cue = Cue()
    with_steps(cue)
    cue.service("api", concurrent=1)
    async with cue:
        await cue.submit("step", id="a", params={"seconds": 5})
        await cue.submit("step", id="b", depends_on=["a"], dependency_timeout=10, delay=60)
        work = await cue.wait("b")
    assert work.state == "completed"


async def test_a_timeout_of_dependencies_fails_dependents_too() -> None:
    cue = Cue()
    with_steps(cue)
    async with cue:
        await cue.submit("step", id="a", depends_on=["never"], dependency_timeout=5)
        work = await cue.wait(await cue.submit("step", depends_on=["a"]))
    assert (work.error, clock()) == ("prerequisite_failed", 5)


# --- The callback ---------------------------------------------------------------------------------


async def test_a_registered_callback_decides_instead() -> None:
    cue = Cue()
    with_steps(cue)
    asked: list[str] = []

    @cue.dependency_satisfied
    def satisfied(work_id: str) -> bool:
        asked.append(work_id)
        return clock() >= 30

    async with cue:
        work = await cue.wait(await cue.submit("step", depends_on=["outside"]))
    assert work.state == "completed"
    assert 30 <= clock() <= 31.1
    assert set(asked) == {"outside"}


async def test_an_async_callback_decides_too() -> None:
    cue = Cue()
    with_steps(cue)

    @cue.dependency_satisfied
    async def satisfied(work_id: str) -> bool:
        await asyncio.sleep(0.01)
        return True

    async with cue:
        await cue.wait(await cue.submit("step", depends_on=["outside"]))
    assert clock() < 1


async def test_whatever_the_callback_says_a_failed_dependency_fails_its_dependents() -> None:
    cue = Cue()
    with_steps(cue)
    cue.dependency_satisfied(lambda work_id: False)
    async with cue:
        await cue.submit("step", id="bad", params={"fails": True, "seconds": 2})
        work = await cue.wait(await cue.submit("step", depends_on=["bad"]), timeout=10)
    assert (work.error, clock()) == ("prerequisite_failed", 2)


async def test_a_callback_that_never_says_yes_is_bounded_by_the_timeout() -> None:
    cue = Cue()
    with_steps(cue)
    cue.dependency_satisfied(lambda work_id: False)
    async with cue:
        work = await cue.wait(await cue.submit("step", depends_on=["x"], dependency_timeout=20))
    assert (work.error, clock()) == ("dependency_timeout", 20)


def raising(work_id: str) -> bool:
    raise LookupError(work_id)


@pytest.mark.parametrize("callback", [raising, lambda work_id: None])
async def test_a_callback_that_gives_no_answer_means_not_satisfied(callback: Callable[[str], Any]) -> None:
    cue = Cue()
    started = with_steps(cue)
    cue.dependency_satisfied(callback)
    async with cue:
        work_id = await cue.submit("step", depends_on=["x"])
        await asyncio.sleep(10)
        assert started == []
        assert (await cue.explain(work_id)).reason == "dependency"
        await cue.cancel(work_id)
    assert [event.callback for event in await told(cue, "callback_failed")] == ["dependency_satisfied"]


async def test_work_without_dependencies_is_not_asked_about() -> None:
    cue = Cue()
    with_steps(cue)
    asked: list[str] = []

    @cue.dependency_satisfied
    def satisfied(work_id: str) -> bool:
        asked.append(work_id)
        return False

    async with cue:
        await cue.wait(await cue.submit("step"), timeout=1)
    assert asked == []


# --- Retry by hand --------------------------------------------------------------------------------


async def test_dependents_stay_failed_when_their_dependency_is_retried() -> None:
    cue = Cue()
    broken = [True]

    @cue.task("step")
    async def step(work: Work) -> None:
        if work.id == "a" and broken[0]:
            raise OSError("no")

    async with cue:
        await cue.submit("step", id="a")
        await cue.submit("step", id="b", depends_on=["a"])
        await cue.join()
        broken[0] = False
        assert await cue.retry("a")
        await cue.join()
        assert (await cue.wait("a")).state == "completed"
        assert (await cue.wait("b")).state == "failed"


async def test_cascade_retries_those_that_failed_with_it() -> None:
    cue = Cue()
    broken = [True]
    started: list[str] = []

    @cue.task("step")
    async def step(work: Work) -> None:
        started.append(work.id)
        if work.id in {"a", "own fault"} and broken[0]:
            raise OSError("no")

    async with cue:
        await cue.submit("step", id="a")
        await cue.submit("step", id="b", depends_on=["a"])
        await cue.submit("step", id="c", depends_on=["b"])
        await cue.submit("step", id="own fault")
        await cue.join()
        broken[0] = False
        assert await cue.retry("a", cascade=True)
        await cue.join()
    assert started == ["a", "own fault", "a", "b", "c"]
    assert (await cue.wait("own fault")).state == "failed"
