"""How fast a simulation runs: as fast as the machine allows, at a multiple of real time, or on a real loop.

Rules:
- A pace changes nothing but the waiting: at `speed` 10 the run is the same, byte for byte, as at full speed.
- `in_real_time` is another thing: a real loop and the system's clock, where chance and the machine have their say.
"""

from __future__ import annotations

import asyncio
import time

from runcue.sim.world import Outcome, Simulation
from runcue.testing import VirtualLoop, run

TICK = 0.05
"""Real seconds between two looks at the clock."""


def at_full_speed(simulation: Simulation) -> Outcome:
    """On virtual time, as fast as it goes."""
    return run(simulation.run())


def at_speed(simulation: Simulation, speed: float) -> Outcome:
    """On virtual time, so many of its seconds in a real one."""
    return run(_paced(simulation, speed))


def in_real_time(simulation: Simulation) -> Outcome:
    """On a real loop, with the system's clock."""
    return asyncio.run(simulation.run())


async def _paced(simulation: Simulation, speed: float) -> Outcome:
    pacer = asyncio.create_task(_pace(speed), name="sim pace")
    try:
        return await simulation.run()
    finally:
        pacer.cancel()


async def _pace(speed: float) -> None:
    """Let virtual time wait for real time, now and then: it stands still while a thread sleeps."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    began, real = loop.time(), time.monotonic()
    while True:
        await asyncio.sleep(TICK * speed)
        ahead = (loop.time() - began) / speed - (time.monotonic() - real)
        if ahead > 0:
            await loop.run_in_executor(None, time.sleep, ahead)
