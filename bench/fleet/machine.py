"""The machine during a run: what others took of it, and busy loops of our own."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter, process_time

from bench.child import HEAD_START, Child, ready
from bench.peers.processor import TICKS, used, with_parent

CORES = os.cpu_count() or 1
SHARE = 0.75
"""Of each core that busy loops take."""
SLICE = 0.002
DEBT = 0.1
"""Seconds of the processor that a busy loop makes up for at most, when it did not get its share."""
BUSY = (0, 1, 2, 5, 6, 7)
"""In a line of /proc/stat: user, nice, system, irq, softirq, and what the machine's host took."""


def _taken() -> float:
    """Seconds of the processor that anybody has used since the machine was started."""
    numbers = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]))
    return sum(numbers[place] for place in BUSY) / TICKS


class Watch:
    """How much of all cores others take from now on: who is neither this process nor anything it started."""

    def __init__(self, *ours: int) -> None:
        self._ours = ours
        self._before = self._now()

    def _now(self) -> tuple[float, float, float]:
        return perf_counter(), _taken(), used(os.getpid(), *self._ours)

    def others(self) -> float:
        """As a share of all cores; ticks are coarse, so never less than nothing."""
        began, taken, own = self._before
        now, taken_now, own_now = self._now()
        return max(0.0, (taken_now - taken - own_now + own) / ((now - began) * CORES))


def load() -> str:
    """How many wanted a core in the last minute, as the system counts it."""
    return f"{os.getloadavg()[0]:.1f}"


def written(pids: list[int]) -> int:
    """Bytes that these processes have written, to whatever it was."""
    found = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        except OSError:  # it has ended, or the system does not tell
            continue
        found += sum(int(line.split()[1]) for line in lines if line.startswith("wchar:"))
    return found


# --- Busy loops -----------------------------------------------------------------------------------


def loop(seconds: float) -> float:
    """In a process of its own: take a share of a core for so long, and say how much it was."""
    with_parent()
    ready()
    began, base = perf_counter(), process_time()
    while (elapsed := perf_counter() - began) < seconds:
        missing = elapsed * SHARE - (process_time() - base)
        if missing < 0:
            time.sleep(SLICE)
        elif missing > DEBT:
            base -= missing - DEBT
    return process_time()


@contextmanager
def busy(is_wanted: bool, seconds: float) -> Iterator[None]:
    """Beside a loop for each core, if that is wanted; they end by themselves after so many seconds."""
    with ExitStack() as stack:
        loops = [
            stack.enter_context(Child(__name__, "loop", seconds)) for _ in range(CORES if is_wanted else 0)
        ]
        for child in loops:
            child.until_ready()
        for child in loops:
            child.begin(perf_counter() + HEAD_START)
        yield
