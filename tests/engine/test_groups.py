"""Globs: any one of several services will do, and the least loaded is taken."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

import runcue
from runcue import Cue, Work
from tests.engine.seen import epoch, told


class Hosts:
    """What ran where."""

    def __init__(self) -> None:
        self.used: list[str] = []
        self.active: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def __call__(self, work: Work) -> str | None:
        host = work.service
        assert host is not None
        self.used.append(host)
        self.active[host] += 1
        self.most[host] = max(self.most[host], self.active[host])
        await asyncio.sleep(1)
        self.active[host] -= 1
        if work.params.get("throttled") == host:
            raise runcue.RateLimited(retry_after=50)
        if work.params.get("fails") == host:
            raise OSError("down")
        return host


def on_any(cue: Cue, **places: int) -> Hosts:
    """A task that may run on any host."""
    for host, amount in places.items():
        cue.service(f"ssh_{host}", concurrent=amount, circuit_threshold=2, circuit_timeout=60)
    cue.service("other", concurrent=100)
    hosts = Hosts()
    cue.task("call", uses="ssh_*", retry={"max_attempts": 5, "base_delay": 0.1})(hosts)
    return hosts


async def test_all_places_of_all_members_are_used_and_no_more() -> None:
    cue = Cue()
    hosts = on_any(cue, a=1, b=2, c=3)
    async with cue:
        began = epoch()
        ids = await cue.submit_many([{"task": "call", "params": {}} for _ in range(30)])
        await cue.join()
        works = [await cue.wait(work_id) for work_id in ids]
    assert hosts.most == {"ssh_a": 1, "ssh_b": 2, "ssh_c": 3}
    assert Counter(hosts.used) == {"ssh_a": 5, "ssh_b": 10, "ssh_c": 15}
    assert epoch() - began == pytest.approx(5)
    assert [work.result for work in works] == [work.service for work in works]


async def test_the_least_loaded_goes_first() -> None:
    cue = Cue()
    hosts = on_any(cue, a=4, b=4)
    async with cue:
        for _ in range(4):
            await cue.submit("call")
        await cue.join()
    assert hosts.used == ["ssh_a", "ssh_b", "ssh_a", "ssh_b"]


async def test_a_member_that_is_paused_is_passed_over() -> None:
    cue = Cue()
    hosts = on_any(cue, a=5, b=5)
    async with cue:
        await cue.pause("ssh_a")
        await cue.submit_many([{"task": "call", "params": {}} for _ in range(10)])
        await cue.join()
    assert set(hosts.used) == {"ssh_b"}


async def test_a_member_that_fails_is_left_alone_and_the_work_goes_elsewhere() -> None:
    cue = Cue()
    hosts = on_any(cue, a=1, b=1)
    async with cue:
        await cue.submit_many([{"task": "call", "params": {"fails": "ssh_a"}} for _ in range(12)])
        await cue.join()
        counts = await cue.count()
    assert counts[runcue.WorkState.COMPLETED] == 12
    assert hosts.used.count("ssh_a") == 2  # then its circuit opened


async def test_throttling_pauses_the_member_that_said_so() -> None:
    cue = Cue()
    hosts = on_any(cue, a=2, b=2)
    async with cue:
        await cue.wait(await cue.submit("call", params={"throttled": "ssh_a"}))
        [paused] = [one["name"] for one in await cue.services() if one["blocked"] == "throttled"]
    assert hosts.used == ["ssh_a", "ssh_b"]
    assert paused == "ssh_a"


async def test_work_waits_when_no_member_has_a_place_and_says_why() -> None:
    cue = Cue()
    on_any(cue, a=1, b=1)
    async with cue:
        ids = await cue.submit_many([{"task": "call", "params": {}} for _ in range(3)])
        await asyncio.sleep(0.5)
        why = await cue.explain(ids[2])
        await cue.pause("ssh_a")
        await cue.pause("ssh_b")
        held = await cue.submit("call")
        await asyncio.sleep(5)
        assert (await cue.explain(held)).reason == "paused"
        await cue.resume("ssh_b")
        await cue.wait(held)
    assert (why.reason, why.service, why.ahead) == ("concurrency", "ssh_*", 0)
    assert why.details == "each of 2: 1/1 running"


async def test_pausing_the_pattern_pauses_its_members() -> None:
    cue = Cue()
    hosts = on_any(cue, a=1, b=1)
    async with cue:
        await cue.pause("ssh_*")
        held = await cue.submit("call")
        await asyncio.sleep(5)
        assert hosts.used == []
        assert [one["paused"] for one in await cue.services()] == [True, True, False]
        await cue.resume("ssh_*")
        await cue.wait(held)
    assert len(hosts.used) == 1


async def test_throttling_by_the_pattern_pauses_the_member_that_was_used() -> None:
    cue = Cue()
    cue.service("ssh_a", concurrent=1)
    cue.service("ssh_b", concurrent=1)
    used: list[str | None] = []

    @cue.task(uses="ssh_*")
    async def call(work: Work) -> None:
        used.append(work.service)
        if len(used) == 1:
            raise runcue.RateLimited(retry_after=30, service="ssh_*")

    async with cue:
        began = epoch()
        await cue.wait(await cue.submit("call"))
    assert used == ["ssh_a", "ssh_b"]
    assert epoch() == began


async def test_a_service_that_is_declared_later_joins() -> None:
    cue = Cue()
    hosts = on_any(cue, a=1)
    async with cue:
        await cue.submit_many([{"task": "call", "params": {}} for _ in range(6)])
        await asyncio.sleep(0.5)
        cue.service("ssh_late", concurrent=2)
        await cue.join()
    assert hosts.used[1:3] == ["ssh_late", "ssh_late"]


async def test_quantities_of_the_members_count() -> None:
    cue = Cue()
    cue.service("llm_small", tokens="100/min")
    cue.service("llm_large", tokens="1000/min")
    used: list[str | None] = []

    @cue.task(uses="llm_*", cost=lambda work: {"tokens": work.params["n"]})
    async def call(work: Work) -> None:
        used.append(work.service)

    async with cue:
        await cue.wait(await cue.submit("call", params={"n": 500}))
        for _ in range(6):
            await cue.submit("call", params={"n": 90})
        await cue.join()
        with pytest.raises(runcue.SubmitError, match="needs 2,000 tokens"):
            await cue.submit("call", params={"n": 2000})
    assert Counter(used) == {"llm_large": 6, "llm_small": 1}


async def test_a_glob_that_matches_nothing_is_refused() -> None:
    cue = Cue()
    cue.service("api")
    with pytest.raises(runcue.UnknownService, match="ssh_"):
        cue.task("call", uses="ssh_*")(lambda work: None)


@pytest.mark.file
async def test_two_programs_share_the_members(tmp_path: Path) -> None:
    hosts = Hosts()
    cues = [Cue(f"{tmp_path}/shared.db") for _ in range(2)]
    for cue in cues:
        on_any(cue, a=2, b=3)
        cue.task("any", uses="ssh_*")(hosts)
        cue.start()
    ids = await cues[0].submit_many([{"task": "any", "params": {}} for _ in range(40)])
    await cues[0].join()
    works = [await cues[0].wait(work_id) for work_id in ids]
    for cue in cues:
        await cue.close()
    assert max(hosts.most["ssh_a"] - 2, hosts.most["ssh_b"] - 3) <= 0
    assert all(work.result == work.service for work in works)


async def test_events_name_the_member_and_not_the_pattern() -> None:
    cue = Cue()
    on_any(cue, a=1, b=1)
    async with cue:
        for _ in range(2):
            await cue.submit("call")
        await cue.join()
    seen = {(event.type, event.service) for event in await told(cue, "started", "completed")}
    assert seen == {(kind, host) for kind in ("started", "completed") for host in ("ssh_a", "ssh_b")}
