"""Runs a simulation at a multiple of real time. The run is the same, byte for byte, as at full speed."""

from __future__ import annotations

import asyncio
import time

from runcue.sim.world import Outcome, Simulation
from runcue.testing import VirtualLoop

TICK = 0.05
"""Real seconds between two looks at the clock."""


async def at_speed(simulation: Simulation, speed: float) -> Outcome:
    """Run on a virtual loop, that many of its seconds in a real one."""
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
