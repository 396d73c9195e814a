"""Limits set by hand: at once, for all, until the program says something new."""

from pathlib import Path
from typing import Any

import pytest

from runcue import ConfigError, Cue, InvalidOption, InvalidRate, UnknownService, adaptive
from runcue.testing import settle
from tests.handlers import taking


def program(concurrent: int = 2, **options: Any) -> Cue:
    cue = Cue(**options)
    cue.service("api", concurrent=concurrent, rate="100/s", tokens="200k/min", circuit_threshold=5)
    cue.task("call", uses="api", cost={"tokens": 1})(taking(60))
    return cue


async def api(cue: Cue) -> dict[str, Any]:
    return next(one for one in await cue.services() if one["name"] == "api")


async def running(cue: Cue) -> int:
    await settle()
    return int((await api(cue))["running"])


async def test_what_is_set_holds_at_once_and_the_rest_stays() -> None:
    cue = program()
    async with cue:
        await cue.submit_many([{"task": "call"}] * 9)
        assert await running(cue) == 2
        await cue.set_limits("api", concurrent=5)
        assert await running(cue) == 5
        found = await api(cue)
        assert found["concurrent"] == 5
        assert [rate["rate"] for rate in found["rates"]] == ["100/s"]
        assert [one["name"] for one in found["quantities"]] == ["tokens"]
        assert found["circuit_threshold"] == 5
        assert found["declared"] == "100/s, 2 at once, 200000 tokens/min, circuit opens after 5"
        await cue.set_limits("api", rate=None, tokens=None, circuit_threshold=None, pages="5/min")
        found = await api(cue)
        assert (found["rates"], found["circuit"]) == ([], None)
        assert [one["name"] for one in found["quantities"]] == ["pages"]
        await cue.stop(0)


async def test_a_number_takes_the_place_of_an_adaptive_limit_and_the_other_way_round() -> None:
    cue = program()
    await cue.set_limits("api", concurrent=adaptive(min=1, start=3, max=9))
    assert ((await api(cue))["concurrent"], (await api(cue))["adaptive"]["max"]) == (3, 9)
    await cue.set_limits("api", concurrent=4)
    assert ((await api(cue))["concurrent"], (await api(cue))["adaptive"]) == (4, None)
    await cue.close()


async def test_a_quantity_may_have_any_name() -> None:
    cue = program()
    await cue.set_limits("api", self="1/s", service="2/s")
    assert [one["name"] for one in (await api(cue))["quantities"]] == ["tokens", "self", "service"]
    await cue.close()


async def test_everybody_is_told() -> None:
    cue = program()
    async with cue:
        await cue.set_limits("api", concurrent=7)
        async for event in cue.events(types="service_status"):
            assert (event.service, event.limits) == (
                "api",
                "100/s, 7 at once, 200000 tokens/min, circuit opens after 5",
            )
            break


async def test_declaring_the_same_again_leaves_it_and_declaring_something_new_ends_it() -> None:
    cue = program()
    await cue.set_limits("api", concurrent=7)
    cue.service("api", concurrent=2, rate="100/s", tokens="200k/min", circuit_threshold=5)
    assert (await api(cue))["concurrent"] == 7
    cue.service("api", concurrent=3)
    found = await api(cue)
    assert (found["concurrent"], found["declared"], found["rates"]) == (3, None, [])
    await cue.close()


async def test_what_cannot_be_is_refused_and_changes_nothing() -> None:
    cue = program()
    before = await api(cue)
    for wrong, error in (
        ({"concurrent": 0}, ConfigError),
        ({"rate": "often"}, InvalidRate),
        ({"circuit_timeout": None}, InvalidOption),
        ({"concurent": 5}, ConfigError),
        ({"tokens": 5}, ConfigError),
    ):
        with pytest.raises(error):
            await cue.set_limits("api", **wrong)
    with pytest.raises(UnknownService, match="Did you mean 'api'"):
        await cue.set_limits("apu", concurrent=1)
    assert await api(cue) == before
    await cue.close()


@pytest.mark.file
async def test_it_survives_a_restart_of_the_program_but_not_a_new_version_of_it(tmp_path: Path) -> None:
    path = str(tmp_path / "queue.db")
    first = program(store=path)
    await first.set_limits("api", concurrent=1)
    await first.close()
    second = program(store=path)
    assert (await api(second))["concurrent"] == 1
    third = program(concurrent=6, store=path)
    assert (await api(third))["concurrent"] == 6
    assert (await api(second))["concurrent"] == 6
    await second.close()
    await third.close()


@pytest.mark.file
async def test_a_program_without_the_task_sets_limits_for_one_that_runs(tmp_path: Path) -> None:
    path = str(tmp_path / "queue.db")
    cue, operator = program(store=path), Cue(path)
    async with cue:
        await cue.submit_many([{"task": "call"}] * 9)
        assert await running(cue) == 2
        await operator.set_limits("api", concurrent=4)
        async for event in cue.events(types="started"):
            if event.attempt and (await api(cue))["running"] == 4:
                break
        await operator.close()
        await cue.stop(0)
