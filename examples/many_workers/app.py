"""The application that all machines run: one Cue in the queue that $QUEUE names, with one set of limits.

    QUEUE=postgresql://user@host/database runcue worker app:cue --count 4

It is the same program on every machine. $QUEUE may name a file as well; then all workers have to be on one machine.
"""

import asyncio
import os
import platform
import time

from runcue import Cue, Work

RATE, CONCURRENT = 40, 8

cue = Cue(os.environ["QUEUE"], lease="10s")

# For all processes on all machines together: never more than 40 starts in any second, never more than 8 at once.
cue.service("api", rate=(RATE, 1.0), concurrent=CONCURRENT)


@cue.task(uses="api", retry=3)
async def call(work: Work) -> dict[str, object]:
    """Stands for a call to somebody else's server; says where and when it was made."""
    began = time.time()
    await asyncio.sleep(0.15)
    machine = os.environ.get("MACHINE") or platform.node()
    return {"machine": machine, "process": os.getpid(), "began": began, "ended": time.time()}
