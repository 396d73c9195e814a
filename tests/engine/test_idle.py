"""A queue in which nothing can happen does nothing: no polling where an event can wake."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any, TypeVarTuple, Unpack

import pytest

from runcue import Cue, Work
from runcue.testing import VirtualLoop, settle
from tests.handlers import no_op

MANY = 10_000
Ts = TypeVarTuple("Ts")


class CountingLoop(VirtualLoop):
    """Counts the timers that are set on it."""

    timers = 0

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Like asyncio's, and counted."""
        self.timers += 1
        return super().call_at(when, callback, *args, context=context)


def timers_in_an_hour(block: Callable[[Cue], Awaitable[object]], **options: Any) -> int:
    """How often the loop is woken in an hour in which everything is blocked."""
    cue = Cue(**options)
    cue.service("api", rate="1/day", concurrent=1)
    cue.task("call", uses="api")(no_op)
    cue.task("free")(no_op)

    async def main() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        async with cue:
            await block(cue)
            await asyncio.sleep(10)
            before = loop.timers
            await asyncio.sleep(3600)
            timers = loop.timers - before - 1
            await cue.stop(timeout=0)
        return timers

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        return runner.run(main())


async def nothing(cue: Cue) -> None:
    await settle()


async def on_a_rate(cue: Cue) -> None:
    await cue.submit_many({"task": "call"} for _ in range(MANY))


async def on_dependencies(cue: Cue) -> None:
    await cue.submit_many({"task": "free", "depends_on": [f"never {n}"]} for n in range(MANY))


async def on_a_pause(cue: Cue) -> None:
    await cue.pause("default")
    await cue.submit_many({"task": "free"} for _ in range(MANY))


async def on_their_time(cue: Cue) -> None:
    await cue.submit_many({"task": "free", "delay": 86_400 + n} for n in range(MANY))


async def on_an_open_circuit(cue: Cue) -> None:
    cue.service("api", circuit_threshold=1, circuit_timeout=86_400)

    @cue.task("bad", uses="api")
    async def bad(work: Work) -> None:
        raise OSError("no")

    await cue.wait(await cue.submit("bad"))
    await cue.submit_many({"task": "call"} for _ in range(MANY))


@pytest.mark.parametrize(
    "block", [nothing, on_a_rate, on_dependencies, on_a_pause, on_their_time, on_an_open_circuit]
)
def test_what_waits_wakes_nobody(block: Callable[[Cue], Awaitable[object]]) -> None:
    assert timers_in_an_hour(block) <= 2


def test_deadlines_far_away_wake_nobody_before() -> None:
    options = {"pending_timeout": 86_400, "stall_timeout": 86_400, "stall_warn_after": 80_000}
    assert timers_in_an_hour(on_dependencies, **options) <= 2
