"""Measured: microseconds of the processor, and instructions, for each no-op from submission to its stored end.

Both are of whole processes with all their threads, so that it matters little who else uses the machine; what a
process costs before the first unit is left out, as the difference between many units and a few. Instructions are
counted by `valgrind --tool=callgrind` where it is installed, which takes fifty times as long: a few hundred units are
enough, for counts hardly differ from run to run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

from bench import dispatch, durable
from bench.child import ROOT, answers, ready
from bench.measure import Line, run

FEW, MANY = 200, 600
"""Units of the two runs between which instructions are counted."""
LONGEST = 300.0
"""Seconds that one process under valgrind may take."""
COLLECTED = re.compile(r"Collected : (\d+)")


async def in_a_file(count: int) -> float:
    """No-ops in a file, submitted in chunks."""
    with TemporaryDirectory() as directory:
        return await durable.by_cue(str(Path(directory, "queue.db")), count, durable.CHUNK)


WAYS: dict[str, Callable[[int], Coroutine[Any, Any, Any]]] = {
    "memory, submit_many": partial(dispatch.by_submit_many, handler=dispatch.no_op),
    "memory, submit, one by one": partial(dispatch.by_submit, handler=dispatch.no_op),
    "gather under a semaphore": partial(dispatch.by_gather, handler=dispatch.no_op),
    "a file, chunks of 100": in_a_file,
}


def processor(way: str, few: int, many: int) -> float:
    """In a process of its own: seconds of the processor for each unit between few and many."""
    ready()
    run(partial(WAYS[way], few))  # everything is imported before anything counts
    used = []
    for count in (few, many):
        began = process_time()
        run(partial(WAYS[way], count))
        used.append(process_time() - began)
    return max(0.0, used[1] - used[0]) / (many - few)


def instructions(way: str, valgrind: str) -> float:
    """Instructions for each unit."""
    few, many = (_collected(way, count, valgrind) for count in (FEW, MANY))
    return (many - few) / (MANY - FEW)


def _collected(way: str, count: int, valgrind: str) -> int:
    call = [
        valgrind,
        "--tool=callgrind",
        "--callgrind-out-file=/dev/null",
        sys.executable,
        "-m",
        __name__,
        way,
    ]
    done = subprocess.run(
        [*call, str(count)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST,
    )
    found = COLLECTED.search(done.stderr)
    if done.returncode or found is None:
        raise RuntimeError(f"valgrind ended with {done.returncode}: {done.stderr.strip()[-200:]}")
    return int(found[1])


def measure(quick: bool) -> list[Line]:
    """What a unit costs the machine."""
    few, many, rounds = (100, 400, 1) if quick else (2_000, 22_000, 5)
    lines = []
    for way in WAYS:
        each = min(answers((__name__, "processor", way, few, many))[0] for _ in range(rounds))
        lines.append(Line(f"{way}, processor", 1e6 * each, "µs"))
    valgrind = shutil.which("valgrind")
    if valgrind is None or quick:
        why = "not in a tiny run" if quick else "there is no valgrind here"
        return [*lines, Line("instructions were not counted", 0, "", note=why)]
    counts = {way: instructions(way, valgrind) for way in WAYS}
    lines += [Line(f"{way}, instructions", count, "") for way, count in counts.items()]
    single, many_each = (counts[f"memory, {way}"] for way in ("submit, one by one", "submit_many"))
    return [*lines, Line("submit to submit_many, instructions", single / many_each, "×", more=False)]


if __name__ == "__main__":
    run(partial(WAYS[sys.argv[1]], int(sys.argv[2])))
