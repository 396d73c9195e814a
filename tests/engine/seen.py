"""What the tests of the engine look through: the virtual clock, and what was told."""

import asyncio

from runcue import Cue, Event
from runcue.testing import VirtualLoop


def virtual() -> VirtualLoop:
    """The loop this test runs on."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


def clock() -> float:
    """Virtual seconds since the test began."""
    return virtual().time()


def epoch() -> float:
    """The same moment as runcue writes it into records."""
    return virtual().now()


async def told(cue: Cue, *types: str) -> list[Event]:
    """Every event of these types so far, of a Cue that has stopped."""
    return [event async for event in cue.events(types or None)]


async def story(cue: Cue, work_id: str) -> list[str]:
    """What was told about one work, in order, of a Cue that has stopped."""
    return [event.type for event in await told(cue) if event.work_id == work_id]
