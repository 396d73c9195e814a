"""Mock services: what calls do, and that luck depends on nothing but the seed."""

import asyncio
from collections import Counter
from random import Random
from statistics import fmean, pstdev

import pytest

import runcue
from runcue.sim.config import Behaviour, Latency, Outage
from runcue.sim.mocks import MockService, draw
from runcue.sim.promise import Call
from runcue.testing import run


def service(behaviour: Behaviour, seed: int = 1) -> MockService:
    return MockService("api", behaviour, Random(seed))


async def outcomes(mock: MockService, ids: list[str], attempt: int = 1) -> dict[str, str]:
    """How each call ends when all are made at once; what hangs is cancelled after a minute."""

    async def one(work_id: str) -> str:
        try:
            async with asyncio.timeout(240):
                await mock.call(work_id, attempt)
        except (OSError, runcue.Permanent) as error:
            return type(error).__name__
        return "ok"

    return dict(zip(ids, await asyncio.gather(*map(one, ids)), strict=True))


IDS = [f"w{number}" for number in range(2000)]
SHAKY = Behaviour(latency=Latency(mean=0.1), error_rate=0.1, timeout_rate=0.05, permanent_error_rate=0.02)


def test_calls_fail_as_often_as_they_are_told_to() -> None:
    found = Counter(run(outcomes(service(SHAKY), IDS)).values())
    assert 150 <= found["OSError"] <= 250
    assert 70 <= found["TimeoutError"] <= 130
    assert 20 <= found["Permanent"] <= 65


def test_luck_is_that_of_the_work_and_the_attempt_not_of_the_order() -> None:
    forwards = run(outcomes(service(SHAKY), IDS))
    backwards = run(outcomes(service(SHAKY), IDS[::-1]))
    assert forwards == backwards
    assert forwards != run(outcomes(service(SHAKY), IDS, attempt=2))
    assert forwards != run(outcomes(service(SHAKY, seed=2), IDS))


def test_a_higher_error_rate_only_adds_failures() -> None:
    calm, wild = service(SHAKY), service(SHAKY)
    wild.knobs.error_rate = 0.3
    before, after = run(outcomes(calm, IDS)), run(outcomes(wild, IDS))
    assert all(after[one] == how for one, how in before.items() if how != "ok")
    assert sum(how == "ok" for how in after.values()) < sum(how == "ok" for how in before.values())


@pytest.mark.parametrize(
    ("latency", "mean", "spread"),
    [
        (Latency(mean=2.0), 2.0, 0.0),
        (Latency(distribution="uniform", min=1.0, max=3.0), 2.0, 0.577),
        (Latency(distribution="normal", mean=2.0, stddev=0.3), 2.0, 0.3),
        (Latency(distribution="exponential", mean=2.0), 2.0, 2.0),
        (Latency(distribution="lognormal", mean=2.0, stddev=0.5), 2.0, 0.5),
    ],
)
def test_latencies_have_the_mean_and_the_spread_they_are_given(
    latency: Latency, mean: float, spread: float
) -> None:
    random = Random(7)
    drawn = [draw(latency, random) for _ in range(20_000)]
    assert fmean(drawn) == pytest.approx(mean, rel=0.05)
    assert pstdev(drawn) == pytest.approx(spread, rel=0.07, abs=1e-9)


def test_a_latency_stays_within_its_bounds() -> None:
    latency = Latency(distribution="normal", mean=1.0, stddev=5.0, min=0.5, max=1.5)
    random = Random(1)
    drawn = [draw(latency, random) for _ in range(1000)]
    assert (min(drawn), max(drawn)) == (0.5, 1.5)


def test_a_call_is_logged_as_the_service_saw_it() -> None:
    async def main() -> list[Call]:
        mock = service(Behaviour(latency=Latency(mean=2.0)))
        await asyncio.sleep(1)
        await mock.call("a", 3, node=2)
        task = asyncio.create_task(mock.call("b", 1))
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.wait([task])
        return mock.calls

    first, second = run(main(), epoch=0.0)
    assert first == Call("a", 3, 2, 1.0, (), 3.0, "ok")
    assert second == Call("b", 1, 0, 3.0, (), 3.5, "cancelled")


def test_every_call_fails_during_an_outage_and_while_it_is_down() -> None:
    async def main() -> list[str]:
        mock = service(Behaviour(latency=Latency(mean=0.0), outages=[Outage(at=10, for_=5)]))
        found = []
        for pause in (0, 10, 4, 2):
            await asyncio.sleep(pause)
            found.append((await outcomes(mock, ["a"]))["a"])
        mock.knobs.is_down = True
        return [*found, (await outcomes(mock, ["a"]))["a"]]

    assert run(main()) == ["ok", "OSError", "OSError", "ok", "OSError"]


def test_a_circuit_test_fails_again_and_again() -> None:
    mock = service(Behaviour(circuit_test=True))
    assert [mock.is_failing(second) for second in (0, 79, 80, 119, 120, 200)] == [
        False, False, True, True, False, True]  # fmt: skip


def test_knobs_hold_for_calls_that_begin_afterwards() -> None:
    async def main() -> float:
        mock = service(Behaviour(latency=Latency(mean=1.0)))
        mock.knobs.latency_factor = 5.0
        await mock.call("a", 1)
        return asyncio.get_running_loop().time()

    assert run(main()) == 5.0


def test_a_running_call_can_be_broken() -> None:
    async def main() -> tuple[bool, str, bool]:
        mock = service(Behaviour(latency=Latency(mean=100.0)))
        task = asyncio.create_task(mock.call("a", 1))
        await asyncio.sleep(1)
        was_broken = mock.break_one()
        with pytest.raises(ConnectionAbortedError):
            await task
        return was_broken, mock.calls[0].how, mock.break_one()

    assert run(main()) == (True, "killed", False)


def test_a_script_says_what_each_attempt_does() -> None:
    async def main() -> tuple[float, str]:
        mock = service(Behaviour())
        script = [(3.0, "error"), (4.0, "ok")]
        with pytest.raises(OSError, match="unavailable"):
            await mock.call("a", 1, script=script)
        await mock.call("a", 2, script=script)
        await mock.call("a", 9, script=script)
        return asyncio.get_running_loop().time(), mock.calls[2].how

    assert run(main()) == (11.0, "ok")
