"""Limits side by side: several rates on one service, work that needs two services, a circuit that opens.

    python examples/limits.py

The far side of each service writes down when it was called; at the end the busiest windows are counted.
"""

import asyncio
import logging
import sys
import time
from bisect import bisect_left

from runcue import Cue, Retry

cue = Cue()

# Both rates hold at once: never more than 5 starts in any 100 ms, never more than 20 in any second.
cue.service("api", rate=["5/100ms", "20/s"])

# At most two uploads at a time, and no rate.
cue.service("disk", concurrent=2)

# After three failures in a row nothing is sent for half a second; then one call finds out whether it is back.
cue.service("flaky", circuit_threshold=3, circuit_timeout=0.5)

calls: dict[str, list[float]] = {"fetch": [], "archive": [], "report": []}
began = time.monotonic()


@cue.task(uses="api")
async def fetch() -> None:
    calls["fetch"].append(time.monotonic())


@cue.task(uses=["api", "disk"])  # starts when both have room, and holds neither while it waits
async def archive() -> None:
    calls["archive"].append(time.monotonic())
    await asyncio.sleep(0.05)


@cue.task(uses="flaky", retry=Retry(max_attempts=5, base_delay=0.05))
async def report() -> None:
    calls["report"].append(time.monotonic())
    if time.monotonic() - began < 0.8:
        raise ConnectionError("the service is down")


def busiest(times: list[float], window: float) -> int:
    """The most calls in any window of that length."""
    times = sorted(times)
    return max(bisect_left(times, first + window) - i for i, first in enumerate(times))


async def tell_circuit() -> None:
    async for event in cue.events(["circuit_opened", "circuit_half_open", "circuit_closed"]):
        print(f"{time.monotonic() - began:5.2f} s  {event.service}: {event.type.replace('_', ' ')}")


async def main() -> None:
    logging.getLogger("runcue").setLevel(logging.ERROR)  # the circuit is told here, not in the log
    async with cue:
        telling = asyncio.create_task(tell_circuit())
        await cue.submit_many(fetch.unit() for _ in range(30))
        await cue.submit_many(archive.unit() for _ in range(15))
        await cue.submit_many(report.unit() for _ in range(10))
        await cue.join()
    await telling  # events end when the Cue stops
    api = calls["fetch"] + calls["archive"]
    in_100_ms, in_a_second = busiest(api, 0.1), busiest(api, 1.0)
    print(f"api:   {len(api)} calls; at most {in_100_ms} in 100 ms and {in_a_second} in a second")
    print(f"flaky: {len(calls['report'])} calls for 10 reports, although it was down for most of a second")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        sys.exit(130)
