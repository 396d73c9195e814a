"""Functions that the tests of the Dask executor have called on workers, and a program that ends without closing.

Run as a script it has no guard around what starts it: a local cluster does not import it again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from runcue import Cue, Work


def noted(work: Work) -> str:
    """Add this process to a file, and return when another file is there."""
    with Path(work.params["begun"]).open("a") as file:
        file.write(f"{os.getpid()}\n")
    while not Path(work.params["until"]).exists():
        threading.Event().wait(0.005)
    return "done"


def noted_and_killed(work: Work) -> None:
    """Add this process to a file, and let nothing be left of it."""
    with Path(work.params["begun"]).open("a") as file:
        file.write(f"{os.getpid()}\n")
    os.kill(os.getpid(), signal.SIGKILL)


def say_all(work: Work) -> None:
    """Say everything that can be said while a function runs."""
    work.progress(0.5, "half of it")
    work.charge(tokens=7)
    work.observe({"x-ratelimit-remaining-requests": "3"}, "api")


def closing_over_a_lock() -> Callable[[Work], bool]:
    """A function that cannot be pickled in any way."""
    lock = threading.Lock()
    return lambda work: lock.locked()


if __name__ == "__main__":
    cue = Cue(pool_size=1)

    @cue.task(executor="dask")
    def who(work: Work) -> list[int]:
        """A function of the script itself."""
        return [os.getpid(), os.getppid()]

    @cue.task(executor="dask")
    def die(work: Work) -> None:
        """A worker is lost, of which Dask has much to say."""
        os.kill(os.getpid(), signal.SIGKILL)

    async def main() -> None:
        """A worker dies, and the program ends without closing its Cue."""
        async with cue:
            before = await cue.result(await cue.submit(who))
            dead = await cue.wait(await cue.submit(die))
            after = await cue.result(await cue.submit(who))
            sys.stdout.write(f"{dead.error}\n{' '.join(map(str, before + after))}\n")
            sys.stdout.flush()
            if sys.argv[1] == "is killed":
                os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(main())
