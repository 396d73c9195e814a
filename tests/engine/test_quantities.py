"""Quantities: what work costs is reserved at its start, settled at that time, and never exceeds a window."""

import asyncio
import random
import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import runcue
from runcue import Cue, RunningWork
from runcue.testing import fail_commit
from tests.engine.seen import epoch

Use = tuple[float, float]


def overfull(uses: Sequence[Use], limit: float, window: float) -> list[Use]:
    """The moments at which more than `limit` was used in the window that ends with them."""
    ordered = sorted(uses)
    found = []
    for last, (end, _) in enumerate(ordered):
        used = sum(amount for at, amount in ordered[: last + 1] if end - at < window)
        if used > limit:
            found.append((end, used))
    return found


def calling(cue: Cue, uses: list[Use], seconds: float = 1.0) -> None:
    """A task that costs `n` tokens, really uses `used` of them, and may fail after that."""

    @cue.task(uses="api", cost=lambda work: {"tokens": work.params["n"]}, retry=2)
    async def call(work: RunningWork) -> None:
        started = epoch()
        await asyncio.sleep(seconds)
        used = work.params.get("used", work.params["n"])
        work.charge(tokens=used)
        uses.append((started, used))
        if work.params.get("fails"):
            raise runcue.Permanent("no")


async def test_no_window_holds_more_than_its_limit() -> None:
    cue, uses = Cue(), list[Use]()
    cue.service("api", tokens=["1000/min", "300/10s"], concurrent=20)
    calling(cue, uses)
    chance = random.Random(3)
    async with cue:
        for _ in range(100):
            await cue.submit("call", params={"n": chance.randint(1, 300)})
            await asyncio.sleep(chance.random())
        await cue.join()
    assert len(uses) == 100
    assert overfull(uses, 1000, 60) == []
    assert overfull(uses, 300, 10) == []


async def test_what_was_not_used_is_there_for_the_next() -> None:
    cue, uses = Cue(), list[Use]()
    cue.service("api", tokens="1000/min")
    calling(cue, uses)
    async with cue:
        began = epoch()
        await cue.submit_many([{"task": "call", "params": {"n": 500, "used": 10}} for _ in range(6)])
        await cue.join()
    assert [at - began for at, _ in uses] == pytest.approx([0, 0, 1, 2, 3, 4][: len(uses)], abs=1.5)
    assert epoch() - began < 10  # with the estimates it would have taken two minutes


@pytest.mark.parametrize("fails", [False, True])
async def test_what_was_used_beyond_the_estimate_is_waited_for(fails: bool) -> None:
    cue, uses = Cue(), list[Use]()
    cue.service("api", tokens="1000/min")
    calling(cue, uses)
    async with cue:
        began = epoch()
        await cue.submit("call", params={"n": 10, "used": 1500, "fails": fails})
        await asyncio.sleep(5)
        await cue.submit("call", params={"n": 10})
        await cue.join()
    assert [at - began for at, _ in uses] == pytest.approx([0, 60])


async def test_charges_add_up_and_the_sum_takes_the_place_of_the_estimate() -> None:
    cue = Cue()
    cue.service("api", tokens="1000/min")

    @cue.task(uses="api", cost={"tokens": 400})
    async def call(work: RunningWork) -> None:
        work.charge(tokens=100)
        work.charge(tokens=50)

    async with cue:
        await cue.wait(await cue.submit("call"))
        [service] = await cue.services()
    assert service["quantities"] == [{"name": "tokens", "used": 150, "limit": 1000, "per": 60.0}]


async def test_work_without_an_estimate_is_counted_by_what_it_charges() -> None:
    cue = Cue()
    cue.service("api", tokens="1000/min")
    starts: list[float] = []

    @cue.task(uses="api")
    async def call(work: RunningWork) -> None:
        starts.append(epoch())
        work.charge(tokens=1000)

    @cue.task(uses="api", cost={"tokens": 1})
    async def small(work: RunningWork) -> None:
        starts.append(epoch())

    async with cue:
        await cue.wait(await cue.submit("call"))
        await cue.wait(await cue.submit("small"))
    assert starts[1] - starts[0] == pytest.approx(60)


async def test_large_work_is_not_overtaken_by_younger_small_work_of_another_task() -> None:
    cue = Cue()
    cue.service("api", tokens="1000/min")
    order: list[str] = []

    @cue.task(uses="api", cost=lambda work: {"tokens": work.params["n"]})
    async def large(work: RunningWork) -> None:
        order.append("large")

    @cue.task(uses="api", cost={"tokens": 100})
    async def small(work: RunningWork) -> None:
        order.append("small")

    @cue.task(uses="api")
    async def free(work: RunningWork) -> None:
        order.append("free")

    async with cue:
        await cue.submit("large", params={"n": 500})
        await cue.submit("large", params={"n": 1000})
        await cue.submit_many([{"task": "small", "params": {}} for _ in range(5)])
        await asyncio.sleep(30)
        await cue.submit("free")
        await cue.submit("small")
        await cue.join()
    assert order[:3] == ["large", "free", "large"]
    assert sorted(order[3:]) == ["small"] * 6


async def test_work_that_costs_nothing_takes_nobody_along_that_does() -> None:
    cue, uses = Cue(), list[Use]()
    cue.service("api", tokens="10/min")
    calling(cue, uses, seconds=0)
    await cue.submit_many([{"task": "call", "params": {"n": n}} for n in (0, 10, 10, 10)])
    async with cue:
        began = epoch()
        await cue.join()
    assert [(round(at - began), amount) for at, amount in uses] == [(0, 0), (0, 10), (60, 10), (120, 10)]


async def test_all_services_or_none() -> None:
    cue = Cue()
    cue.service("api", tokens="100/min")
    cue.service("disk", bytes="1000/min")
    starts: list[float] = []

    @cue.task(uses=["api", "disk"], cost={"tokens": 10, "bytes": 600})
    async def call(work: RunningWork) -> None:
        starts.append(epoch())

    async with cue:
        await cue.submit_many([{"task": "call", "params": {}} for _ in range(3)])
        await asyncio.sleep(1)
        used = {one["name"]: one["quantities"][0]["used"] for one in await cue.services()}
        await cue.join()
    assert used == {"api": 10, "disk": 600}
    assert [second - first for first, second in pairwise(starts)] == pytest.approx([60, 60])


async def test_a_cost_that_never_fits_is_refused_and_nothing_is_queued() -> None:
    cue = Cue()
    cue.service("api", tokens=["1000/min", "5k/h"])
    calling(cue, [])
    with pytest.raises(runcue.SubmitError, match="needs 1,001 tokens, more than 'api' ever allows"):
        await cue.submit_many([{"task": "call", "params": {"n": 1}}, {"task": "call", "params": {"n": 1001}}])
    assert (await cue.count())[runcue.WorkState.PENDING] == 0


async def test_a_cost_of_something_that_no_service_limits_is_refused() -> None:
    cue = Cue()
    cue.service("api", tokens="1000/min")
    cue.task("call", uses="api", cost={"token": 5})(lambda work: None)
    with pytest.raises(runcue.SubmitError, match="costs token, and none of its services"):
        await cue.submit("call")


async def test_work_that_waits_for_a_quantity_says_so_and_until_when() -> None:
    cue, uses = Cue(), list[Use]()
    cue.service("api", tokens="1000/min")
    calling(cue, uses, seconds=0)
    async with cue:
        began = epoch()
        ids = [await cue.submit("call", params={"n": 300}) for _ in range(8)]
        await asyncio.sleep(1)
        why = await cue.explain(ids[-1])
        await cue.join()
    assert (why.reason, why.service, why.details) == ("rate", "api", "needs 300 of 1,000 tokens, 100 left")
    assert why.until == pytest.approx(uses[-1][0]) == pytest.approx(began + 120)


async def test_a_limit_that_was_lowered_is_explained_and_can_be_raised_again() -> None:
    cue, uses = Cue(), list[Use]()
    cue.service("api", tokens="1000/min")
    calling(cue, uses, seconds=0)
    async with cue:
        await cue.submit("call", params={"n": 900})
        waits = await cue.submit("call", params={"n": 900})
        cue.service("api", tokens="500/min")
        await asyncio.sleep(200)
        why = await cue.explain(waits)
        cue.service("api", tokens="2000/min")
        await cue.wait(waits)
    assert (why.reason, why.until) == ("rate", None)
    assert "needs 900 tokens and there are never more than 500" in why.details


@pytest.mark.parametrize("amount", [-1, True, "5", float("nan"), float("inf"), None])
async def test_what_is_no_amount_is_refused(amount: Any) -> None:
    cue = Cue()
    cue.service("api", tokens="1000/min")

    @cue.task(uses="api")
    async def call(work: RunningWork) -> None:
        work.charge(tokens=amount)

    cue.task("dear", uses="api", cost=lambda work: {"tokens": amount})(lambda work: None)
    with pytest.raises(runcue.ConfigError, match="cost"):
        cue.task("odd", uses="api", cost={"tokens": amount})
    async with cue:
        with pytest.raises(runcue.SubmitError, match="The cost= of task 'dear' returned"):
            await cue.submit("dear")
        work = await cue.wait(await cue.submit("call"))
    assert "charge(tokens)" in str(work.error)


@pytest.mark.file
async def test_a_queue_that_is_opened_again_remembers_what_was_used(tmp_path: Path) -> None:
    uses: list[Use] = []
    path = f"{tmp_path}/again.db"
    for _ in range(3):
        cue = Cue(path)
        cue.service("api", tokens="1000/min")
        calling(cue, uses, seconds=0)
        async with cue:
            await cue.submit_many([{"task": "call", "params": {"n": 400, "used": 350}} for _ in range(2)])
            await cue.join()
        await cue.close()
        await asyncio.sleep(5)
    assert len(uses) == 6
    assert overfull(uses, 1000, 60) == []


@pytest.mark.file
async def test_two_programs_share_a_quantity(tmp_path: Path) -> None:
    uses: list[Use] = []
    cues = [Cue(f"{tmp_path}/shared.db") for _ in range(2)]
    for cue in cues:
        cue.service("api", tokens="1000/min", concurrent=10)
        calling(cue, uses, seconds=2)
        cue.start()
    chance = random.Random(7)
    for number in range(60):
        amount = chance.randint(10, 400)
        used = max(1, amount - chance.randint(0, 50))
        await cues[number % 2].submit("call", params={"n": amount, "used": used})
        await asyncio.sleep(chance.random() * 2)
    await cues[0].join()
    for cue in cues:
        await cue.close()
    assert len(uses) == 60
    assert overfull(uses, 1000, 60) == []


@pytest.mark.file
async def test_what_is_charged_after_a_commit_failed_is_counted() -> None:
    cue = Cue()
    cue.service("api", tokens="100/min")
    may_go_on = asyncio.Event()

    @cue.task(uses="api", cost={"tokens": 10})
    async def call(work: RunningWork) -> None:
        await may_go_on.wait()
        work.charge(tokens=90)

    cue.task("other")(lambda work: None)
    async with cue:
        running = await cue.submit("call")
        await asyncio.sleep(1)
        fail_commit(cue, took_place=False)
        with pytest.raises(runcue.StoreError):
            await cue.submit("other")
        await asyncio.sleep(1)
        may_go_on.set()
        await cue.wait(running)
        [service] = await cue.services()
    assert service["quantities"][0]["used"] == 90


async def test_threads_of_one_handler_may_charge_at_once() -> None:
    cue = Cue()
    cue.service("api", tokens="1M/min")

    @cue.task(uses="api")
    async def call(work: RunningWork) -> None:
        def some() -> None:
            for _ in range(500):
                work.charge(tokens=1)

        threads = [threading.Thread(target=some) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    async with cue:
        await cue.wait(await cue.submit("call"))
        [service] = await cue.services()
    assert service["quantities"][0]["used"] == 2000


@pytest.mark.file
async def test_a_window_of_months_is_remembered_and_seen_from_outside(tmp_path: Path) -> None:
    starts: list[float] = []
    for _ in range(2):
        cue = Cue(f"{tmp_path}/long.db")
        cue.service("api", tokens="100/90d")

        @cue.task("call", uses="api", cost={"tokens": 80})
        async def call(work: RunningWork) -> None:
            starts.append(epoch())

        async with cue:
            await cue.submit("call")
            await asyncio.sleep(40 * 86400)
        await cue.close()
    assert len(starts) == 1
    with runcue.Reader(tmp_path / "long.db") as reader:
        assert reader.services()[0]["quantities"][0]["used"] == 80
