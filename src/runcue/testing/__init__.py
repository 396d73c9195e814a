"""Test asyncio code without waiting: an event loop whose time is virtual.

    import asyncio
    from runcue.testing import run

    async def main() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    assert run(main()) == 3600.0  # and it took no time

`run` is `asyncio.run` on a `VirtualLoop`. `settle` waits for the end of the present instant. `Deadlock` is raised
where real time would hang. `kill`, `fail_commit` and `fill_disk` make a Cue fail (faults.py), and `watch` passes on
all its events. docs/testing.md shows how to run a whole pytest suite this way.
"""

from runcue.testing.faults import fail_commit, fill_disk, kill
from runcue.testing.virtual import Deadlock, VirtualLoop, run, settle
from runcue.testing.watcher import watch

__all__ = ["Deadlock", "VirtualLoop", "fail_commit", "fill_disk", "kill", "run", "settle", "watch"]
