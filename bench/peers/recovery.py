"""Counted: four units that run for long, or wait behind such, whose worker is killed (`kill -9`) and started anew.

The store lives on. How many of them run again, and how long after the kill the last of them began; nobody waits
longer than a minute and a half, at the settings that the other measures have. They are killed one after the
other, and wait together.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Lock
from time import perf_counter
from typing import Any

from bench.peers.contenders import Contender
from bench.peers.places import Absent, Place, Places
from bench.peers.processor import kill
from bench.peers.timed import POLL, Cast, Failed, absent, cast, plan, prepare

WORKS = 4
BOUND = 90.0
QUIET = 3.0
START = 60.0
"""Seconds in which the units have to be running at first."""


def _until(here: Cast, units: int, seconds: float) -> int:
    """Wait until so many units were started, and say how many were."""
    deadline = perf_counter() + seconds
    while (found := sum(here.board.started(page) > 0 for page in range(WORKS))) < units:
        if perf_counter() > deadline:
            break
        time.sleep(POLL)
    return found


def _killed(contender: Contender, place: Place) -> tuple[int, float]:
    """Let units run and kill their worker: how many were running, and when it was."""
    with cast(contender.name, place, [plan("hang", share=WORKS)]) as here:
        here.until_ready()
        here.begin()
        if not _until(here, 1, START):
            raise RuntimeError(f"no work was started within {START:g} s")
        running = _until(here, WORKS, 1.0)  # a worker that runs one at a time never gets to all
        kill(*here.board.processes())
        return running, perf_counter()


def killed(contender: Contender, place: Place, bound: float, turn: Lock) -> dict[str, Any]:
    """Units that ran when their worker was killed; units of all that began anew, and when the last of them did.

    One at a time is killed and started anew, with the machine for itself for some seconds; waiting needs no turn.
    """
    with ExitStack() as stack:
        with turn:
            running, ended = _killed(contender, place)
            here = stack.enter_context(cast(contender.name, place, [plan("time")]))
            here.until_ready()
            here.begin()
            _until(here, WORKS, QUIET)
        again = _until(here, WORKS, ended + bound - perf_counter())
        last = max(here.board.started(page) for page in range(WORKS))
        here.stop()
    return {"running": running, "again": again, "seconds": max(0.0, last - ended) if again else None}


def measure(places: Places, contenders: Sequence[Contender], *, quick: bool = False) -> list[dict[str, Any]]:
    """What became of the units of each."""
    bound = 10.0 if quick else BOUND
    turn = Lock()

    def one(contender: Contender, place: Place) -> dict[str, Any]:
        row = {
            "key": contender.key,
            "name": contender.label,
            "store": contender.store,
            "works": WORKS,
            "bound": bound,
        }
        try:
            return {**row, "error": "", **killed(contender, place, bound, turn)}
        except Failed as error:
            return {**row, "error": str(error)}

    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(len(contenders)))
        asked = []
        for contender in contenders:
            reason, place = absent(contender.name), Place("")
            if not reason:
                try:
                    place = stack.enter_context(places.fresh(contender.kind))
                    prepare(contender.name, place)
                except (Absent, Failed) as error:
                    reason = str(error)
            if reason:
                row = {"key": contender.key, "name": contender.label, "store": contender.store}
                rows.append({**row, "error": reason})
                continue
            asked.append(pool.submit(one, contender, place))
        rows += [found.result() for found in asked]
    return rows
