"""The same on the real clock: by the far side's own log, nobody comes before the pause is over."""

import asyncio

import pytest

from runcue import Cue, Work
from tests.throttling.clients import ASYNCHRONOUS, PLAIN
from tests.throttling.farside import Answer, FarSide

BOUND = 240.0
PAUSE = 0.3


async def run(cue: Cue) -> list[Work]:
    """Let five works come to their end, of which the far side puts some off."""
    async with cue:
        ids = await cue.submit_many({"task": "call"} for _ in range(5))
        return [await cue.wait(work_id, timeout=BOUND) for work_id in ids]


def check(cue: Cue, far_side: FarSide) -> None:
    """Two calls are answered with "slow down"; each answer keeps everybody away for the time it names."""
    far_side.answers.append(Answer(429, {"retry-after-ms": str(round(PAUSE * 1000))}))
    far_side.answers.append(Answer(503, {"retry-after": str(PAUSE)}))
    works = asyncio.run(run(cue))
    assert [call.status for call in far_side.calls] == [429, 503, 200, 200, 200, 200, 200]
    first, second, *others = far_side.arrivals
    assert second - first >= PAUSE
    assert all(arrival - second >= PAUSE for arrival in others)
    assert [(work.state.value, work.attempt, work.failures) for work in works] == [("completed", 1, 0)] * 5


@pytest.mark.parametrize("client", ["httpx", "requests", "openai", "botocore"])
def test_a_plain_function_in_a_thread_pauses_its_service(
    store: str | None, far_side: FarSide, client: str
) -> None:
    cue = Cue(store)
    cue.service("api", concurrent=1, circuit_threshold=1)

    @cue.task("call", uses="api")
    def call(work: Work) -> None:
        PLAIN[client](far_side.url)

    check(cue, far_side)


@pytest.mark.parametrize("client", ["async httpx", "aiohttp", "async anthropic"])
def test_a_coroutine_pauses_its_service(store: str | None, far_side: FarSide, client: str) -> None:
    cue = Cue(store)
    cue.service("api", concurrent=1, circuit_threshold=1)

    @cue.task("call", uses="api")
    async def call(work: Work) -> None:
        await ASYNCHRONOUS[client](far_side.url)

    check(cue, far_side)
