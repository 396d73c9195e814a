"""A service that says "slow down" is left alone: as the far side sees it, on virtual time, with every library.

A call takes no virtual time here, so the far side's log tells to the second when each call arrived.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from runcue import Cue, Event, Retry, Work
from runcue.testing import VirtualLoop
from tests.throttling.clients import ASYNCHRONOUS, CLIENTS, PLAIN, aws
from tests.throttling.farside import Answer, FarSide

ONE_ATTEMPT = 1
THREE_ATTEMPTS = Retry(max_attempts=3, backoff="fixed", base_delay=10, jitter=False)


def register(cue: Cue, client: str, far_side: FarSide, retry: Any = ONE_ATTEMPT) -> None:
    """A task `call` that calls the far side with that library, one call at a time."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    far_side.clock = loop.time
    cue.service("api", concurrent=1, circuit_threshold=1, circuit_timeout=1000)
    handler: Callable[[Work], Any]
    if client in PLAIN:

        def handler(work: Work) -> None:
            PLAIN[client](f"{far_side.url}/{work.id}")
    else:

        async def handler(work: Work) -> None:
            loop.hold()
            try:
                await ASYNCHRONOUS[client](f"{far_side.url}/{work.id}")
            finally:
                loop.release()

    cue.task("call", uses="api", retry=retry)(handler)


async def run(cue: Cue, works: int) -> list[Work]:
    """Let that many works come to their end."""
    async with cue:
        ids = [await cue.submit("call", id=f"work{number}") for number in range(works)]
        return [await cue.wait(work_id) for work_id in ids]


async def told(cue: Cue, *types: str) -> list[Event]:
    return [event async for event in cue.events(types)]


async def circuit(cue: Cue) -> list[str]:
    """What became of the circuit."""
    return [event.type for event in await told(cue, "circuit_opened", "circuit_half_open", "circuit_closed")]


def spent(works: list[Work]) -> list[tuple[str, int, int]]:
    return [(work.state.value, work.attempt, work.failures) for work in works]


@pytest.mark.parametrize("client", CLIENTS)
async def test_the_whole_service_pauses_and_nobody_pays_for_it(
    store: str | None, far_side: FarSide, client: str
) -> None:
    far_side.answers.append(Answer(429, {"Retry-After": "600"}))
    far_side.answers.append(Answer(503, {"Retry-After": "100"}))
    cue = Cue(store)
    register(cue, client, far_side)
    works = await run(cue, 3)
    assert far_side.arrivals == [0, 600, 700, 700, 700]
    assert spent(works) == [("completed", 1, 0)] * 3
    assert await circuit(cue) == []


@pytest.mark.parametrize("client", CLIENTS)
async def test_without_a_time_the_pauses_double(store: str | None, far_side: FarSide, client: str) -> None:
    far_side.answers.extend([Answer(429)] * 4)
    cue = Cue(store)
    register(cue, client, far_side)
    works = await run(cue, 2)
    assert far_side.arrivals == [0, 1, 3, 7, 15, 15]
    assert spent(works) == [("completed", 1, 0)] * 2
    assert await circuit(cue) == []


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_refusal_fails_the_work_at_once_and_nothing_else(
    store: str | None, far_side: FarSide, client: str
) -> None:
    far_side.answers.extend([Answer(400), Answer(404)])
    cue = Cue(store)
    register(cue, client, far_side, THREE_ATTEMPTS)
    works = await run(cue, 3)
    assert far_side.arrivals == [0, 0, 0]
    assert spent(works) == [("failed", 1, 1), ("failed", 1, 1), ("completed", 1, 0)]
    assert await circuit(cue) == []


@pytest.mark.parametrize("client", CLIENTS)
async def test_trouble_is_tried_again_and_counts_for_the_circuit(
    store: str | None, far_side: FarSide, client: str
) -> None:
    far_side.answers.extend([Answer(500), Answer(503)])
    cue = Cue(store)
    register(cue, client, far_side, THREE_ATTEMPTS)
    works = await run(cue, 1)
    assert far_side.arrivals == [0, 1000, 3000]
    assert spent(works) == [("completed", 3, 2)]
    turns = ["circuit_opened", "circuit_half_open", "circuit_opened", "circuit_half_open", "circuit_closed"]
    assert await circuit(cue) == turns


@pytest.mark.parametrize("client", CLIENTS)
async def test_trouble_that_stays_uses_up_the_attempts(
    store: str | None, far_side: FarSide, client: str
) -> None:
    far_side.answers.extend([Answer(500)] * 9)
    cue = Cue(store)
    register(cue, client, far_side, THREE_ATTEMPTS)
    cue.service("api", concurrent=1)  # no circuit
    works = await run(cue, 1)
    assert far_side.arrivals == [0, 10, 20]
    assert spent(works) == [("failed", 3, 3)]


async def test_a_date_is_a_pause_by_the_clock_of_the_far_side(store: str | None, far_side: FarSide) -> None:
    far_side.answers.append(Answer(429, {"Retry-After": "Sun, 06 Nov 1994 08:51:37 GMT"}))
    cue = Cue(store)
    register(cue, "httpx", far_side)
    await run(cue, 2)
    assert far_side.arrivals == [0, 120, 120]


async def test_a_code_of_aws_pauses_the_service_though_its_status_is_400(
    store: str | None, far_side: FarSide
) -> None:
    body = b'{"__type": "com.amazonaws.dynamodb#ProvisionedThroughputExceededException"}'
    far_side.answers.append(Answer(400, {}, body))
    cue = Cue(store)
    register(cue, "botocore", far_side)
    works = await run(cue, 2)
    assert far_side.arrivals == [0, 1, 1]
    assert spent(works) == [("completed", 1, 0)] * 2
    assert await circuit(cue) == []


async def test_another_service_goes_on_meanwhile(store: str | None, far_side: FarSide) -> None:
    far_side.answers.append(Answer(429, {"Retry-After": "600"}))
    cue = Cue(store)
    register(cue, "requests", far_side)
    cue.service("other", concurrent=1)
    client = aws("dynamodb", far_side.url)

    @cue.task("other", uses="other")
    def other(work: Work) -> None:
        client.list_tables()

    async with cue:
        paused = await cue.submit("call")
        await anext(cue.events("service_rate_limited"))
        await cue.wait(await cue.submit("other"))
        assert (await cue.explain(paused)).reason == "throttled"
        await cue.wait(paused)
    client.close()
    assert far_side.arrivals == [0, 0, 600]


async def test_work_that_is_put_off_for_too_long_fails_as_rate_limited(
    store: str | None, far_side: FarSide
) -> None:
    far_side.answers.extend([Answer(429, {"Retry-After": "40"})] * 9)
    cue = Cue(store, throttle_timeout=100)
    register(cue, "httpx", far_side)
    [work] = await run(cue, 1)
    assert far_side.arrivals == [0, 40, 80]
    assert work.state.value == "failed"
    assert work.error is not None
    assert "rate_limited" in work.error
