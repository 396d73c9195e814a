"""Processes and all that they have started, as /proc tells it: what they used of the processor, and their end."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

PR_SET_PDEATHSIG = 1
TICKS = os.sysconf("SC_CLK_TCK")


def _stats() -> dict[int, list[int]]:
    """For each process here: its parent, and the ticks of itself and of children that have ended."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parts = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        found[int(entry.name)] = [int(parts[1]), *map(int, parts[11:15])]
    return found


def _family(stats: dict[int, list[int]], roots: Iterable[int]) -> list[int]:
    found = [pid for pid in dict.fromkeys(roots) if pid in stats]
    for pid in found:  # it grows meanwhile
        found += [child for child, stat in stats.items() if stat[0] == pid and child not in found]
    return found


def used(*roots: int) -> float:
    """Seconds of the processor that these processes have used, with all that they started, ended or not."""
    stats = _stats()
    return sum(sum(stats[pid][1:]) for pid in _family(stats, roots)) / TICKS


def with_parent() -> None:
    """In a new process: end at once when the one that started it does. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def kill(*roots: int) -> None:
    """End these processes and all that they started at once, as `kill -9` does; none has time to start another.

    Only descendants of this process are ended: an id may belong to somebody else by now.
    """
    for what in (signal.SIGSTOP, signal.SIGKILL):
        stats = _stats()
        ours = set(_family(stats, [os.getpid()])) - {os.getpid()}
        for pid in _family(stats, ours.intersection(roots)):
            try:
                os.kill(pid, what)
            except ProcessLookupError:  # it has ended meanwhile
                continue
