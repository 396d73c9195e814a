"""Services with keys: each key has limits of its own, all of them share a total, and they take turns."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import runcue
from runcue import Cue, Work
from tests.engine.seen import epoch


class Calls:
    """What a handler saw of its keys."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.at: dict[str, list[float]] = {}
        self.active: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def __call__(self, work: Work) -> None:
        key = str(work.params["host"])
        self.order.append(key)
        self.at.setdefault(key, []).append(epoch())
        for name in (key, "all"):
            self.active[name] += 1
            self.most[name] = max(self.most[name], self.active[name])
        await asyncio.sleep(work.params.get("seconds", 1))
        self.active.subtract((key, "all"))
        if work.params.get("fails"):
            raise OSError("down")


def on_hosts(cue: Cue, **limits: Any) -> Calls:
    """A task on a service with a key for each host."""
    calls = Calls()
    cue.service("ssh", per="host", **limits)
    cue.task("call", uses="ssh")(calls)
    return calls


def items(**amounts: int) -> list[dict[str, Any]]:
    return [
        {"task": "call", "params": {"host": host}} for host, amount in amounts.items() for _ in range(amount)
    ]


async def test_each_key_has_its_own_places_and_its_own_rate() -> None:
    cue = Cue()
    calls = on_hosts(cue, concurrent=2, rate="3/min")
    async with cue:
        began = epoch()
        await cue.submit_many(items(a=6, b=2, c=1))
        await cue.join()
    assert calls.most == {"a": 2, "b": 2, "c": 1, "all": 5}
    assert [round(at - began) for at in calls.at["a"]] == [0, 0, 1, 60, 60, 61]


async def test_the_total_holds_and_is_used() -> None:
    cue = Cue()
    calls = on_hosts(cue, concurrent=3, total=4)
    async with cue:
        began = epoch()
        await cue.submit_many(items(a=12, b=12, c=12))
        await cue.join()
    assert calls.most["all"] == 4
    assert max(calls.most[key] for key in "abc") <= 3
    assert epoch() - began == pytest.approx(9)


async def test_a_total_may_be_a_rate_and_a_quantity() -> None:
    cue = Cue()
    calls = Calls()
    cue.service("ssh", per="host", tokens="100/min", total={"rate": "8/min", "tokens": "150/min"})
    cue.task("call", uses="ssh", cost={"tokens": 20})(calls)
    async with cue:
        began = epoch()
        await cue.submit_many(items(a=8, b=8))
        await cue.join()
    times = sorted(at - began for stamps in calls.at.values() for at in stamps)
    assert [round(at) for at in times] == [0] * 7 + [60] * 7 + [120] * 2  # 150 tokens are seven calls of 20
    assert all(len([at for at in stamps if at - began < 60]) <= 5 for stamps in calls.at.values())


async def test_keys_take_turns_however_much_of_each_is_queued() -> None:
    cue = Cue()
    calls = on_hosts(cue, concurrent=10, total=1)
    await cue.submit_many(items(a=30, b=3, c=5))
    async with cue:
        await cue.join()
    assert "".join(calls.order) == "abcabcabc" + "acac" + "a" * 25


async def test_a_key_that_comes_later_is_not_behind_those_who_wait() -> None:
    cue = Cue()
    calls = on_hosts(cue, concurrent=10, total=1)
    async with cue:
        await cue.submit_many(items(a=30, b=30))
        await asyncio.sleep(10.5)
        await cue.submit_many(items(c=2))
        await cue.join()
    assert "c" in calls.order[11:14]
    assert calls.order.index("c") < 14
    assert calls.order[:30].count("c") == 2


async def test_a_key_whose_places_are_taken_keeps_nobody_from_the_rest_of_the_total() -> None:
    cue = Cue()
    calls = on_hosts(cue, concurrent=1, total=2)
    async with cue:
        began = epoch()
        await cue.submit_many(items(a=5, b=5))
        await cue.join()
    assert epoch() - began == pytest.approx(5)
    assert calls.most == {"a": 1, "b": 1, "all": 2}


async def test_order_within_a_key_is_by_priority() -> None:
    cue, order = Cue(age_step=None), list[int]()
    cue.service("ssh", per="host", total=1)

    @cue.task(uses="ssh")
    async def call(work: Work) -> None:
        order.append(work.params["n"])

    for n in range(3):
        await cue.submit("call", params={"host": "a", "n": n}, priority=n)
    async with cue:
        await cue.join()
    assert order == [2, 1, 0]


async def test_a_circuit_opens_for_its_key_alone() -> None:
    cue = Cue()
    calls = on_hosts(cue, circuit_threshold=2, circuit_timeout=60)
    async with cue:
        for _ in range(2):
            await cue.wait(await cue.submit("call", params={"host": "a", "fails": True}))
        waits = await cue.submit("call", params={"host": "a"})
        await cue.wait(await cue.submit("call", params={"host": "b"}))
        why = await cue.explain(waits)
        await cue.wait(waits)
    assert (why.reason, why.service) == ("circuit", "ssh[a]")
    assert calls.at["a"][2] - calls.at["a"][1] >= 60


async def test_throttling_pauses_its_key_and_pausing_the_service_all_of_them() -> None:
    cue, starts = Cue(), list[tuple[str, float]]()
    cue.service("api", per=lambda work: work.params["user"].lower())

    @cue.task(uses="api")
    async def call(work: Work) -> None:
        starts.append((work.params["user"], epoch()))
        if work.params["user"] == "Ann" and len(starts) == 1:
            raise runcue.RateLimited(retry_after=30)

    async with cue:
        began = epoch()
        throttled = await cue.submit("call", params={"user": "Ann"})
        await asyncio.sleep(1)
        await cue.wait(await cue.submit("call", params={"user": "Bob"}))
        await cue.wait(throttled)
        await cue.pause("api")
        held = await cue.submit("call", params={"user": "Bob"})
        await asyncio.sleep(100)
        why = await cue.explain(held)
        await cue.resume("api")
        await cue.wait(held)
    assert [(user, round(at - began)) for user, at in starts] == [
        ("Ann", 0),
        ("Bob", 1),
        ("Ann", 30),
        ("Bob", 130),
    ]
    assert (why.reason, why.service) == ("paused", "api")


async def test_limits_that_are_declared_anew_hold_for_keys_that_are_in_use() -> None:
    cue = Cue()
    calls = on_hosts(cue, concurrent=1)
    async with cue:
        await cue.submit_many(items(a=9))
        await asyncio.sleep(0.5)
        cue.service("ssh", per="host", concurrent=4)
        await cue.join()
    assert calls.most["a"] == 4


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({}, "None"),
        ({"host": None}, "None"),
        ({"host": 1.5}, "1.5"),
        ({"host": True}, "True"),
        ({"host": ["a"]}, "a"),
    ],
)
async def test_a_key_that_is_missing_or_none_is_refused(params: dict[str, Any], said: str) -> None:
    cue = Cue()
    on_hosts(cue)
    with pytest.raises(runcue.SubmitError, match=r"params\['host'\]") as caught:
        await cue.submit("call", params=params)
    assert said in str(caught.value)


async def test_a_function_that_gives_no_key_is_refused() -> None:
    cue = Cue()
    cue.service("api", per=lambda work: work.params["user"])
    cue.task("call", uses="api")(lambda work: None)
    with pytest.raises(runcue.SubmitError, match="The per= of service 'api' returned 5"):
        await cue.submit("call", params={"user": 5})
    with pytest.raises(runcue.SubmitError, match="The per= of service 'api' raised"):
        await cue.submit("call")


async def test_a_service_with_keys_may_be_declared_after_the_task() -> None:
    cue = Cue()
    calls = Calls()
    cue.task("call", services=["ssh"])(calls)
    cue.service("ssh", per="host", concurrent=1)
    async with cue:
        await cue.submit_many(items(a=2, b=1))
        await cue.join()
    assert calls.most == {"a": 1, "b": 1, "all": 2}


async def test_keys_are_forgotten_when_nothing_is_left_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runcue.core.schedule.ready.FEW_LANES", 100)
    cue = Cue()
    on_hosts(cue, rate="5/s", concurrent=1, total=50)
    async with cue:
        for first in range(0, 600, 50):
            some = [{"task": "call", "params": {"host": f"h{first + n}", "seconds": 0}} for n in range(50)]
            await cue.submit_many(some)
            await cue.join()
            await asyncio.sleep(2)
        names = [one["name"] for one in await cue.services()]
    assert len(names) < 300


@pytest.mark.file
async def test_two_programs_share_each_key_and_the_total(tmp_path: Path) -> None:
    calls = Calls()
    cues = [Cue(f"{tmp_path}/shared.db") for _ in range(2)]
    for cue in cues:
        cue.service("ssh", per="host", concurrent=2, rate="20/min", total={"concurrent": 3, "rate": "50/min"})
        cue.task("call", uses="ssh")(calls)
        cue.start()
    for number in range(3):
        await cues[number % 2].submit_many(items(a=8, b=8, c=8))
    await cues[0].join()
    for cue in cues:
        await cue.close()
    assert len(calls.order) == 72
    assert calls.most["all"] <= 3
    assert max(calls.most[key] for key in "abc") <= 2
    for key in "abc":
        stamps = calls.at[key]
        assert all(last - first >= 60 for first, last in zip(stamps, stamps[20:], strict=False))
    everything = sorted(at for stamps in calls.at.values() for at in stamps)
    assert all(last - first >= 60 for first, last in zip(everything, everything[50:], strict=False))


@pytest.mark.parametrize(
    "key", ["a*b", "*", "[", "]", "a]b", "a[b]", "{x}", "#threads", "../x", "k" * 128, "ü"]
)
async def test_any_text_may_be_a_key(key: str) -> None:
    cue = Cue()
    calls = on_hosts(cue, concurrent=1, total=5)
    async with cue:
        await cue.submit_many([{"task": "call", "params": {"host": key}} for _ in range(3)])
        await cue.join()
    assert (calls.order, calls.most[key]) == ([key] * 3, 1)


@pytest.mark.parametrize("key", ["", "a\nb", "k" * 129])
async def test_but_not_every_text(key: str) -> None:
    cue = Cue()
    on_hosts(cue)
    with pytest.raises(runcue.SubmitError, match="printable characters"):
        await cue.submit("call", params={"host": key})


async def test_a_service_cannot_come_to_have_keys_while_its_work_waits() -> None:
    cue = Cue()
    cue.service("api", concurrent=1)
    with pytest.raises(runcue.ConfigError, match="was declared without per="):
        cue.service("api", concurrent=1, per="host")
    on_hosts(cue, concurrent=1)
    with pytest.raises(runcue.ConfigError, match="was declared with per="):
        cue.service("ssh", concurrent=1)
    with pytest.raises(runcue.ConfigError, match="no '\\['"):
        cue.service("gpu[0]", per="host")


@pytest.mark.file
async def test_work_of_a_program_that_knows_no_keys_shares_the_part_of_those_without(tmp_path: Path) -> None:
    cue = Cue(f"{tmp_path}/queue.db")
    calls = on_hosts(cue, concurrent=1)
    await cue.submit_many([])
    await cue.services()
    other = Cue(f"{tmp_path}/queue.db")
    other.task("call", uses=lambda work: "ssh")(lambda work: None)
    await other.submit_many(items(a=3, b=3))
    await other.close()
    async with cue:
        await cue.join()
    assert calls.most["all"] == 1
    assert len(calls.order) == 6


async def test_two_services_with_keys_keep_nobody_waiting_for_ever() -> None:
    cue = Cue()
    cue.service("llm", per="host", tokens="100/min", total={"tokens": "150/min"})
    cue.service("web", per="host", concurrent=1)
    calls = Calls()
    cue.task("call", uses="llm", cost={"tokens": 60})(calls)
    cue.task("both", uses=["web", "llm"], cost={"tokens": 60})(calls)
    async with cue:
        await cue.submit_many(items(a=2, b=2))
        await cue.submit_many([{"task": "both", "params": {"host": "a"}} for _ in range(3)])
        async with asyncio.timeout(3600):
            await cue.join()
    assert len(calls.order) == 7
