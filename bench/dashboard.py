"""Timed: work in a file while a dashboard of the same program is open, against the same without it.

The dashboard is mounted into the program that does the work, on its own loop, which costs more than one beside it.
Its live stream is read by clients in another process. Nine of ten units are no-ops and the tenth fails for good with
an error of a kilobyte: dead letters are what costs the dashboard most, and there are some from before as well. At
full speed the figure is the share of the throughput that is left; at 1,000 units a second it is the share of the
units that were done in the same time.

Without a client, with one and with five take turns, in many short runs that each have a new file, and the best of
each counts: what a shared machine does meanwhile hits some runs of each, but not all.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from bench.durable import CHUNK, CONCURRENT
from bench.measure import Line, best_in_turns, run
from runcue import Cue, Permanent
from runcue.web import app
from runcue.web.serving import Server, listen

TOKEN = "0123456789abcdef"
PACE = 1000
"""Units a second."""
STEPS = 20
"""Portions of a second."""
FAILING = 10
"""One in so many fails."""
DEAD = 200
"""Dead letters from before."""

WATCH = """
import socket, sys, threading
def watch(port):
    with socket.create_connection(("127.0.0.1", port)) as asker:
        asker.sendall(b"GET /live HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nAuthorization: Bearer %s\\r\\n\\r\\n")
        is_told = False
        while piece := asker.recv(1 << 16):
            if b"event: status" in piece and not is_told:
                is_told = True
                sys.stdout.write("x"); sys.stdout.flush()
for _ in range(int(sys.argv[2])):
    threading.Thread(target=watch, args=(int(sys.argv[1]),), daemon=True).start()
sys.stdin.read()
"""


@asynccontextmanager
async def watched(cue: Cue, clients: int) -> AsyncIterator[None]:
    """A dashboard that so many look at; none for 0."""
    import uvicorn

    if not clients:
        yield
        return
    made = app(cue, token=TOKEN)
    with listen("127.0.0.1", 0, has_token=True) as listener:
        config = uvicorn.Config(made, log_level="warning", http="h11", timeout_graceful_shutdown=2)
        server = Server(config, made.state.end_streams, made.state.log_limit)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        port = listener.getsockname()[1]
        watching = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WATCH % TOKEN, str(port), str(clients),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert watching.stdin is not None
        assert watching.stdout is not None
        await watching.stdout.readexactly(clients)  # each has seen something
        try:
            yield
        finally:
            watching.stdin.close()
            await watching.wait()
            server.should_exit = True
            await serving


async def prepared(path: str) -> Cue:
    """A Cue in a file, with one service, one task, and some dead letters."""
    cue = Cue(path)
    cue.service("outside", concurrent=CONCURRENT)

    @cue.task("work", uses="outside")
    async def work(work: Any) -> int:
        if work.params["page"] % FAILING == 0:
            raise Permanent(f"page {work.params['page']}: " + "no such thing as this one here, " * 32)
        return 1

    cue.start()
    await cue.submit_many(some(DEAD * FAILING))
    await cue.join()
    return cue


def some(count: int) -> list[dict[str, Any]]:
    """So many units, each with a page of its own."""
    return [{"task": "work", "params": {"page": page}} for page in range(count)]


async def full_speed(path: str, count: int, clients: int) -> float:
    """Seconds for so many units."""
    cue = await prepared(path)
    async with cue, watched(cue, clients):
        began = perf_counter()
        for _ in range(0, count, CHUNK):
            await cue.submit_many(some(CHUNK))
        await cue.join()
        took = perf_counter() - began
    await cue.close()
    return took


async def paced(path: str, seconds: float, clients: int) -> float:
    """Seconds from the first submit to the end of the last unit, at a steady pace."""
    cue = await prepared(path)
    async with cue, watched(cue, clients):
        began = perf_counter()
        for step in range(int(seconds * STEPS)):
            await asyncio.sleep(max(0.0, began + step / STEPS - perf_counter()))
            await cue.submit_many(some(PACE // STEPS))
        await cue.join()
        took = perf_counter() - began
    await cue.close()
    return took


def timed(way: Any, amount: float, clients: int) -> float:
    """What a way takes with a file of its own."""
    with TemporaryDirectory() as folder:
        took: float = run(partial(way, str(Path(folder, "queue.db")), amount, clients))
    return took


def measure(quick: bool) -> list[Line]:
    """What being looked at costs."""
    count, seconds, rounds = (500, 0.2, 1) if quick else (10_000, 2.0, 12)
    logger = logging.getLogger("runcue")
    level = logger.level
    logger.setLevel(logging.ERROR)  # that work fails is no news here
    try:
        fast = best_in_turns(rounds, *(partial(timed, full_speed, count, clients) for clients in (0, 1, 5)))
        slow = best_in_turns(
            min(rounds, 4), *(partial(timed, paced, seconds, clients) for clients in (0, 1, 5))
        )
    finally:
        logger.setLevel(level)

    def lines(name: str, times: list[float], amount: float) -> list[Line]:
        alone = times[0]
        return [
            Line(
                f"{name}, {clients} {'client' if clients == 1 else 'clients'}",
                alone / time,
                "×",
                at_least=0.95,
                note=f"{amount / time:,.0f}/s, alone {amount / alone:,.0f}/s",
            )
            for clients, time in zip((1, 5), times[1:], strict=True)
        ]

    return [*lines("full speed", fast, count), *lines(f"{PACE:,}/s", slow, seconds * PACE)]
