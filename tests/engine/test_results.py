"""A result is one value, whoever asks for it: what the handler returned in memory, what is stored elsewhere."""

import asyncio
from enum import StrEnum
from typing import Any

import pytest

from runcue import Cue, Work
from tests.engine.seen import told


class Colour(StrEnum):
    RED = "red"


class Share(float):
    """A number of somebody's own class, as NumPy has them."""


RESULTS: list[tuple[Any, Any]] = [
    ((1, 2), [1, 2]),
    ({"pair": (1, (2, 3))}, {"pair": [1, [2, 3]]}),
    (Colour.RED, "red"),
    ([Share(0.5)], [0.5]),
]


@pytest.mark.parametrize(("returned", "stored"), RESULTS, ids=["tuple", "nested", "enum", "number"])
async def test_everybody_who_asks_for_a_result_gets_the_same_one(
    returned: Any, stored: Any, store: str
) -> None:
    cue = Cue()
    heard: list[Any] = []
    cue.task("give")(giving(returned))

    @cue.on_complete
    def completed(work: Work, result: Any, duration: float) -> None:
        heard.extend([work.result, result])

    async with cue:
        work_id = await cue.submit("give")
        heard.append(await cue.result(work_id))
        heard.append((await cue.wait(work_id)).result)
        heard += [work.result async for work in cue.map("give", [1])]
        heard += [work.result for work in await cue.list()]
    heard += [event.result for event in await told(cue, "completed")]
    expected = returned if store == "memory" else stored
    assert len(heard) == 11
    assert {repr(value) for value in heard} == {repr(expected)}


def giving(value: Any) -> Any:
    async def give(work: Work) -> Any:
        return value

    return give


async def test_what_a_handler_changes_after_it_returned_does_not_change_what_is_stored(store: str) -> None:
    cue = Cue()

    @cue.task("give")
    async def give(work: Work) -> list[Any]:
        given: list[Any] = [1]
        asyncio.get_running_loop().call_soon(given.append, {2})
        return given

    async with cue:
        result = await cue.result(await cue.submit("give"))
    assert result == ([1, {2}] if store == "memory" else [1])


async def test_wait_and_get_tell_the_same_of_work_however_it_ended() -> None:
    cue = Cue()
    cue.task("give")(giving((1, 2)))

    @cue.task("fail", retry={"max_attempts": 2, "base_delay": 1})
    async def fail(work: Work) -> None:
        raise OSError("no")

    cue.is_stale(lambda work: not work.params.get("is_done"))
    async with cue:
        for submission in (
            {"task": "give"},
            {"task": "give", "params": {"is_done": True}},
            {"task": "fail"},
            {"task": "fail", "retry": 3, "priority": 2, "target": "x"},
        ):
            work_id = await cue.submit(**submission)
            assert await cue.wait(work_id) == await cue.get(work_id)
        work_id = await cue.submit("give", run_at=2_000_000_000)
        waiting = asyncio.ensure_future(cue.wait(work_id))
        await asyncio.sleep(1)
        await cue.cancel(work_id)
        assert await waiting == await cue.get(work_id)


@pytest.mark.file
async def test_a_result_that_raises_when_it_is_looked_at_is_refused_for_good() -> None:
    class Hostile:
        __class__ = property(lambda self: 1 / 0)

    cue = Cue()
    cue.task("give", retry=3)(giving(Hostile()))
    async with cue:
        work = await cue.wait(await cue.submit("give"))
    assert (work.state, work.failures) == ("failed", 1)
    assert str(work.error).startswith("Permanent: its result")
