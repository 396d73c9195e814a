"""When a queue will be done: what is said is within a tenth of what then happens, for steady loads."""

import asyncio
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

import runcue
from runcue import Cue, Forecast, WorkState
from tests.engine.seen import epoch
from tests.handlers import taking

WITHIN = 0.1


async def truth(
    cue: Cue, items: list[dict[str, Any]], share: float, uses: str, takes: Callable[[], float], **task: Any
) -> tuple[Forecast, float]:
    """What is forecast when that share is done, and how long the rest then took."""

    @cue.task(uses=uses, **task)
    async def call(work: runcue.RunningWork) -> None:
        await asyncio.sleep(takes())
        if work.params.get("fails", 0) >= work.attempt:
            raise OSError("once more")

    async with cue:
        await cue.submit_many([{"task": "call", "params": item} for item in items])
        while (await cue.count())[WorkState.COMPLETED] < share * len(items):  # noqa: ASYNC110 (virtual seconds)
            await asyncio.sleep(0.5)
        said, asked_at = await cue.forecast(), epoch()
        await cue.join()
        return said, epoch() - asked_at


CASES: dict[str, tuple[dict[str, Any], str, dict[str, Any], tuple[str, str]]] = {
    "rate": ({"api": {"rate": "60/min"}}, "api", {}, ("api", "rate")),
    "concurrency": ({"api": {"concurrent": 5}}, "api", {}, ("api", "concurrency")),
    "both, the rate binds": ({"api": {"concurrent": 50, "rate": "100/min"}}, "api", {}, ("api", "rate")),
    "both, places bind": ({"api": {"concurrent": 3, "rate": "900/min"}}, "api", {}, ("api", "concurrency")),
    "a quantity": (
        {"api": {"rate": "600/min", "tokens": "10k/min"}},
        "api",
        {"cost": lambda work: {"tokens": work.params["n"]}},
        ("api", "tokens"),
    ),
    "a group": (
        {"ssh_a": {"concurrent": 2}, "ssh_b": {"concurrent": 3}},
        "ssh_*",
        {},
        ("ssh_b", "concurrency"),
    ),
    "keys": ({"api": {"concurrent": 2, "per": "host", "total": 5}}, "api", {}, ("api", "concurrency")),
}


@pytest.mark.parametrize("share", [0.2, 0.6])
@pytest.mark.parametrize("case", CASES)
async def test_a_forecast_is_within_a_tenth_of_what_happens(case: str, share: float) -> None:
    services, uses, task, (bottleneck, limit) = CASES[case]
    cue, chance = Cue(), random.Random(5)
    for name, limits in services.items():
        cue.service(name, **limits)
    items = [{"n": chance.randint(100, 900), "host": chance.choice("abcdef")} for _ in range(400)]
    said, took = await truth(cue, items, share, uses, lambda: chance.uniform(1.5, 2.5), **task)
    assert said.seconds == pytest.approx(took, rel=WITHIN)
    assert said.done_at is not None
    assert (said.bottleneck, said.limit) == (bottleneck, limit)


async def test_retries_are_expected_as_they_were() -> None:
    cue, chance = Cue(), random.Random(5)
    cue.service("api", concurrent=4)
    items = [{"fails": chance.choice([0, 0, 1])} for _ in range(400)]
    retry = {"max_attempts": 3, "base_delay": 0.01}
    said, took = await truth(cue, items, 0.3, "api", lambda: 2.0, retry=retry)
    assert said.seconds == pytest.approx(took, rel=WITHIN)


async def test_an_empty_queue_is_done() -> None:
    cue = Cue()
    async with cue:
        said = await cue.forecast()
    assert (said.pending, said.running, said.seconds, said.bottleneck) == (0, 0, 0, None)


async def test_nobody_knows_when_before_anything_has_ended_unless_a_rate_says_it() -> None:
    cue = Cue()
    cue.service("api", rate="10/min")
    cue.service("box", concurrent=1)
    for name in ("api", "box"):
        cue.task(name, uses=name)(lambda work: None)
    await cue.submit_many([{"task": "box", "params": {}} for _ in range(5)])
    unknown = await cue.forecast()
    assert (unknown.seconds, unknown.done_at) == (None, None)
    assert unknown.details == "nothing is known yet of how long box takes"
    other = Cue()
    other.service("api", rate="10/min")
    other.task("api", uses="api")(lambda work: None)
    await other.submit_many([{"task": "api", "params": {}} for _ in range(35)])
    known = await other.forecast()
    assert (known.seconds, known.limit) == (pytest.approx(180, rel=0.01), "rate")


async def test_what_is_paused_has_no_end() -> None:
    cue = Cue()
    cue.service("api", rate="10/min")
    cue.task("call", uses="api")(lambda work: None)
    await cue.submit_many([{"task": "call", "params": {}} for _ in range(3)])
    await cue.pause("api")
    said = await cue.forecast()
    assert (said.seconds, said.bottleneck, said.limit, said.details) == (
        None,
        "api",
        "paused",
        "3 cannot continue",
    )
    await cue.resume("api")
    await cue.pause("default")
    said = await cue.forecast()
    assert (said.bottleneck, said.limit) == ("default", "paused")


async def test_dependencies_and_times_are_waited_for() -> None:
    cue = Cue()
    cue.task("call")(taking(3))
    async with cue:
        await cue.wait(await cue.submit("call"))
        before = await cue.submit("call")
        for _ in range(4):
            before = await cue.submit("call", depends_on=[before])
        chain = await cue.forecast()
        began = epoch()
        await cue.join()
        took = epoch() - began
        await cue.submit("call", delay=500)
        later = await cue.forecast()
        await cue.join()
    assert chain.seconds == pytest.approx(took, rel=WITHIN)
    assert later.seconds == pytest.approx(503, rel=0.01)


async def test_what_waits_for_work_that_nobody_submitted_has_no_end() -> None:
    cue = Cue()
    cue.task("call")(lambda work: None)
    await cue.submit("call", depends_on=["nobody"])
    said = await cue.forecast()
    assert (said.seconds, said.bottleneck, said.limit) == (None, "nobody", "dependency")


async def test_a_chain_that_was_submitted_from_its_end_is_no_trouble() -> None:
    cue = Cue()
    cue.service("api", rate="1000/s")
    cue.task("call", uses="api")(lambda work: None)
    ids = [f"w{number}" for number in range(500)]
    for work_id, need in pairwise(ids):
        await cue.submit("call", id=work_id, depends_on=[need])
    await cue.submit("call", id=ids[-1])
    said = await cue.forecast()
    assert said.pending == 500
    assert said.limit != "dependency"
