"""Timed: 500 × `true`, four at once, against `xargs -P4` and a bare asyncio loop that starts the same processes.

The bare loop is `create_subprocess_exec` under a Semaphore(4): as it is; with a session for each process, which costs
something where the kernel makes a scheduling group of every session; and with a session and the output collected
through pipes, as whoever wants a result has to. Figures are how many times as long runcue takes; each of its commands
has a session, files for its output, a place with the reaper and, in a file, a job lock and its commits.

`python -m bench.commands 10000` counts instead what that many commands leave behind.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from bench.measure import Line, best_in_turns, run
from runcue import Cue, WorkState

AT_ONCE = 4
KINDS = (
    ["true"],
    ["false"],
    ["sh", "-c", "echo out; echo err >&2"],
    ["sh", "-c", "sleep 600 & exit 3"],
    ["/no/such/program"],
)
"""What the count of leftovers runs: one after the other, round and round."""


def by_xargs(count: int) -> float:
    """Seconds for so many by xargs."""
    began = perf_counter()
    numbers = "\n".join(map(str, range(count)))
    subprocess.run(["xargs", f"-P{AT_ONCE}", "-I{}", "true"], input=numbers, text=True, check=True)
    return perf_counter() - began


async def by_loop(count: int, has_session: bool, is_collected: bool) -> float:
    """Seconds for so many by asyncio alone."""
    places = asyncio.Semaphore(AT_ONCE)
    where = subprocess.PIPE if is_collected else None

    async def one() -> None:
        async with places:
            process = await asyncio.create_subprocess_exec(
                "true", stdout=where, stderr=where, start_new_session=has_session
            )
            await process.communicate()
            if process.returncode:
                raise RuntimeError(f"true ended with {process.returncode}")

    began = perf_counter()
    await asyncio.gather(*(one() for _ in range(count)))
    return perf_counter() - began


def prepared(target: str | None, handler: Callable[[Any], Any]) -> Cue:
    """A Cue with one task that runs commands."""
    cue = Cue() if target is None else Cue(target)
    cue.service("places", concurrent=AT_ONCE)
    cue.task("command", uses="places", executor="subprocess")(handler)
    return cue


async def by_cue(count: int, target: str | None) -> float:
    """Seconds for so many by runcue."""
    cue = prepared(target, lambda work: ["true"])
    async with cue:
        began = perf_counter()
        await cue.submit_many({"task": "command"} for _ in range(count))
        await cue.join()
        took = perf_counter() - began
        completed = (await cue.count())[WorkState.COMPLETED]
    await cue.close()
    if completed != count:
        raise RuntimeError(f"only {completed} of {count} commands completed")
    return took


def in_a_file(count: int) -> float:
    """Seconds for so many by runcue with a file of its own."""
    with TemporaryDirectory() as directory:
        return run(partial(by_cue, count, str(Path(directory, "queue.db"))))


def measure(quick: bool) -> list[Line]:
    """What a command costs above its process."""
    count, rounds = (20, 1) if quick else (500, 7)
    xargs, bare, session, piped, memory, file = best_in_turns(
        rounds,
        partial(by_xargs, count),
        lambda: run(partial(by_loop, count, False, False)),
        lambda: run(partial(by_loop, count, True, False)),
        lambda: run(partial(by_loop, count, True, True)),
        lambda: run(partial(by_cue, count, None)),
        partial(in_a_file, count),
    )

    def line(name: str, time: float, base: float, at_most: float | None) -> Line:
        note = f"{count / time:,.0f}/s, the other {count / base:,.0f}/s"
        return Line(name, time / base, "×", at_most=at_most, note=note)

    return [
        line("in memory, to a bare loop", memory, bare, 1.5),
        line("in a file, to a bare loop", file, bare, 1.5),
        line("in memory, to one with sessions", memory, session, None),
        line("in memory, to one with pipes", memory, piped, None),
        line("in memory, to xargs -P4", memory, xargs, None),
        line("in a file, to xargs -P4", file, xargs, None),
    ]


# --- What many commands leave behind --------------------------------------------------------------


def counted(mark: str) -> dict[str, int]:
    """What there is of this process: descriptors, threads, zombies, and processes that carry a mark."""
    zombies = orphans = 0
    for path in Path("/proc").glob("[0-9]*"):
        try:
            _, _, rest = (path / "stat").read_bytes().rpartition(b")")
            environment = (path / "environ").read_bytes()
        except OSError:  # it went away
            continue
        state, parent = rest.split()[:2]
        zombies += state == b"Z" and int(parent) == os.getpid()
        orphans += mark.encode() in environment and path.name != str(os.getpid())
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    return {
        "descriptors": descriptors,
        "threads": threading.active_count(),
        "zombies": zombies,
        "orphans": orphans,
    }


async def leftovers(count: int) -> list[str]:
    """Run so many commands of every kind, and say what is there before, at the end and after closing."""
    mark = f"MARK_OF_BENCH={os.getpid()}"
    name, _, value = mark.partition("=")
    with TemporaryDirectory() as directory:
        cue = Cue(str(Path(directory, "queue.db")), keep_finished=100)
        cue.service("places", concurrent=AT_ONCE)

        @cue.task("command", uses="places", executor="subprocess", env={name: value})
        def command(work: Any) -> list[str]:
            return KINDS[work.params["number"] % len(KINDS)]

        async with cue:
            await cue.submit_many({"task": "command", "params": {"number": n}} for n in range(20))
            await cue.join()
            before = counted(mark)
            await cue.submit_many({"task": "command", "params": {"number": n}} for n in range(count))
            await cue.join()
            after = counted(mark)
            states = await cue.count()
        await cue.close()
        closed = counted(mark)
    return [
        f"{states[WorkState.COMPLETED]:,} completed, {states[WorkState.FAILED]:,} failed",
        f"before {before}",
        f"after  {after}",
        f"closed {closed}",
    ]


if __name__ == "__main__":
    logging.disable()  # most of these commands are meant to fail
    for found in asyncio.run(leftovers(int(sys.argv[1]))):
        print(found)
