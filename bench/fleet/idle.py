"""What eight processes with nothing to do take, against one: each has run a unit before, and waits."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.child import HEAD_START, Child, ready
from bench.fleet.machine import Watch
from bench.measure import Line
from bench.measure import run as run_loop
from bench.peers.part import queue
from bench.peers.processor import with_parent
from runcue import Cue

if TYPE_CHECKING:
    from bench.peers.places import Place, Places

PROCESSES = 8
REST = 0.25
"""How long it rests before anything counts, as a part of how long it is watched."""


def idler(where: str, seconds: float) -> float:
    """In a process of its own: the share of a core that it takes."""
    with_parent()

    async def main() -> float:
        async with Cue(where) as cue:

            @cue.task("work")
            async def no_op(work: Any) -> int:
                return 1

            await cue.result(await cue.submit("work"))
            at = await asyncio.to_thread(ready)
            await asyncio.sleep(max(0.0, at + REST * seconds - perf_counter()))
            began, used = perf_counter(), process_time()
            await asyncio.sleep(seconds)
            share = (process_time() - used) / (perf_counter() - began)
        await cue.close()
        return share

    return run_loop(main)


class Found(NamedTuple):
    """Shares of a core: of one process on average, of the most expensive, and of the server."""

    each: float
    most: float
    server: float
    others: float


def one(place: Place, processes: int, seconds: float) -> Found:
    """One run in a fresh place."""
    queue("runcue").prepare(place.where)
    with ExitStack() as stack:
        children = [
            stack.enter_context(Child(__name__, "idler", place.where, seconds)) for _ in range(processes)
        ]
        for child in children:
            child.until_ready()
        at = perf_counter() + HEAD_START
        for child in children:
            child.begin(at)
        time.sleep(max(0.0, at + REST * seconds - perf_counter()))
        watch, began, before = Watch(place.server), perf_counter(), place.used()
        time.sleep(seconds)
        server, others = (place.used() - before) / (perf_counter() - began), watch.others()
        shares = [child.answer() for child in children]
    return Found(sum(shares) / processes, max(shares), server, others)


def run(places: Places, asked: dict[str, Any]) -> dict[tuple[str, int], Found]:
    """One and several in each store."""
    found = {}
    for store in asked["stores"]:
        for processes in (1, 2 if asked["quick"] else PROCESSES):
            with places.fresh(store) as place:
                found[store, processes] = one(place, processes, asked["seconds"])
    return found


def table(found: dict[tuple[str, int], Found]) -> list[list[str]]:
    """A row for each store and number of processes."""
    rows = [["idle", "P", "each, of a core", "most", "server", "others took"]]
    return rows + [
        [store, str(processes), f"{100 * this.each:.2f} %", f"{100 * this.most:.2f}", f"{100 * this.server:.2f}",
         f"{100 * this.others:.0f} %"]
        for (store, processes), this in found.items()
    ]  # fmt: skip


def lines(found: dict[tuple[str, int], Found]) -> list[Line]:
    """What it costs to wait."""
    told = []
    for (store, processes), this in found.items():
        name, server = f"{store}, idle, the most of {processes}", 100 * this.server
        told.append(Line(name, 100 * this.most, "% of a core", below=0.5, note=f"server {server:.2f} %"))
        told.append(Line(f"{store}, idle, server of {processes}", server, "% of a core", is_detail=True))
    return told
