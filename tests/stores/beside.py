"""Another process on the same queue, and waiting for what it does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 240.0
"""Seconds that anything here may take: far longer than it ever does."""

HANGING = """
import asyncio, sys
import runcue
cue = runcue.Cue(sys.argv[1])
cue.service("api", concurrent=2)

@cue.task(uses="api")
async def hang(work):
    print("running", flush=True)
    await asyncio.Event().wait()

async def main():
    async with cue:
        await cue.submit(hang, id="stuck")
        await asyncio.Event().wait()

asyncio.run(main())
"""


@contextmanager
def hanging(store: str) -> Iterator[subprocess.Popen[str]]:
    """A process whose only work, `stuck`, never ends; it is running when this begins."""
    process = subprocess.Popen([sys.executable, "-c", HANGING, store], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)
