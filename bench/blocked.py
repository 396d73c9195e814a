"""Measured: the process's CPU time over 10 s of wall time, once each was found blocked."""

from __future__ import annotations

import asyncio
from functools import partial
from time import perf_counter, process_time
from typing import Any

from bench.measure import Line, run
from runcue import Cue, Work, WorkState

LONGEST_SETTLING = 60


async def no_op(work: Any) -> None:
    """Is hardly ever reached."""


class Gate:
    """An is_ready that lets nothing pass, and tells once it was asked about everybody."""

    def __init__(self, count: int) -> None:
        self.asked = 0
        self.count = count
        self.all_asked = asyncio.Event()

    def __call__(self, work: Work) -> bool:
        self.asked += 1
        if self.asked == self.count:
            self.all_asked.set()
        return False


class Nowhere(Gate):
    """A declared input that is never there: asked for when work is submitted, and whenever it is looked for."""

    def __call__(self, work: Work) -> str:  # type: ignore[override]  # (it is asked for a path)
        super().__call__(work)
        return f"nowhere/{work.params['page']}.png"


def prepared(gate: Gate | None) -> Cue:
    """A Cue whose units wait for the gate or, without one, for a rate that the first of them used up."""
    cue = Cue()
    if gate is None:
        cue.service("outside", rate="1/day")
    else:
        cue.service("outside", concurrent=100)
    if isinstance(gate, Nowhere):
        cue.task("work", uses="outside", inputs=gate)(no_op)
        return cue
    if gate is not None:
        cue.is_ready(gate)
    cue.task("work", uses="outside")(no_op)
    return cue


async def share(gate: Gate | None, count: int, seconds: float) -> float:
    """The share of a core, in per cent, that blocked units take."""
    cue = prepared(gate)
    cue.start()
    await cue.submit_many({"task": "work", "params": {"page": page}} for page in range(count))
    if gate is not None:
        await asyncio.wait([asyncio.create_task(gate.all_asked.wait())], timeout=LONGEST_SETTLING)
    await asyncio.sleep(seconds / 5)
    began, used = perf_counter(), process_time()
    await asyncio.sleep(seconds)
    used = process_time() - used
    wall = perf_counter() - began
    pending = (await cue.count())[WorkState.PENDING]
    await cue.stop()
    if pending < count - 1 or (gate is not None and gate.asked < gate.count):
        asked = "" if gate is None else f", the gate was asked {gate.asked:,} times in {LONGEST_SETTLING} s"
        raise RuntimeError(f"nothing to measure: {pending:,} of {count:,} units are pending{asked}")
    return 100 * used / wall


def measure(quick: bool) -> list[Line]:
    """What units that cannot start cost while they wait."""
    count, seconds = (1_000, 0.3) if quick else (100_000, 10)
    gate = Gate(count)
    by_gate = run(partial(share, gate, count, seconds))
    by_input = run(partial(share, Nowhere(2 * count), count, seconds))
    by_rate = run(partial(share, None, count, seconds))
    return [
        Line(f"{count:,} blocked by is_ready", by_gate, "% of a core", below=5),
        Line(f"{count:,} blocked by a missing input", by_input, "% of a core", below=5),
        Line(f"{count:,} blocked by a rate", by_rate, "% of a core", below=5),
    ]
