"""The smallest useful queue: twenty calls through a limit of ten a second, three at a time.

Run it: python examples/quickstart.py
"""

import asyncio

from runcue import Cue, RunningWork

cue = Cue()
cue.service("api", rate="10/s", concurrent=3)


@cue.task(uses="api", retry=3)
async def square(work: RunningWork, number: int) -> int:
    await asyncio.sleep(0.05)  # the call to somebody else's server
    if number == 7 and work.attempt == 1:
        raise ConnectionError("the line was bad")  # tried again, up to three times in all
    return number * number


async def main() -> None:
    async with cue:
        units = await cue.submit_many(square.unit(number=n) for n in range(20))
        print("squares:", *await cue.results(units))


asyncio.run(main())
