"""A soak: one long round on one file, and what a start cost in each minute of it, in processor time.

Whatever grows with what is in the file, or with how often a process came and went, shows as starts that cost more and
more. Processor time is what the actors themselves had, so that a busy machine does not count.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from bisect import bisect
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from tests.torture import history
from tests.torture.history import Line
from tests.torture.swarm import Herd, Plan, Result, Round

PACE: Final = 0.5
"""Seconds between two acts of the nemesis, in the mean."""
MOST_KILLS: Final = 1_000_000
CALM: Final = 0.2
"""Seconds between two calls of a strand, at most: so little that nothing piles up, which would cost by itself."""
WORKS: Final = 100
"""How many units there are at least, on however slow a machine."""
MOST_GROWTH: Final = 1.5
"""How much more a start may cost in the second half than in the first."""


class Stretch(msgspec.Struct, frozen=True):
    """A part of a soak."""

    seconds: float
    starts: int
    spent: float
    """Seconds of processor time that the actors had."""

    @property
    def cost(self) -> float:
        """Seconds of processor time for each start."""
        return self.spent / max(1, self.starts)


def stretches(lines: list[Line], number: int) -> list[Stretch]:
    """That many equal parts, from the first look at the actors until one of them drains the queue."""
    looks = [(line.t, float(line.data["spent"])) for line in lines if line.op == "share"]
    starts = [line.t for line in lines if line.op == "start"]
    begin = looks[0][0]
    end = next(line.t for line in lines if line.op == "up" and line.actor.startswith("drain"))
    borders = [begin + part * (end - begin) / number for part in range(number + 1)]

    def spent(t: float) -> float:
        return looks[bisect(looks, t, key=lambda look: look[0]) - 1][1]

    return [
        Stretch(until - since, bisect(starts, until) - bisect(starts, since), spent(until) - spent(since))
        for since, until in pairwise(borders)
    ]


def growth(parts: list[Stretch]) -> float:
    """What a start cost in the second half against the first."""

    def cost(some: list[Stretch]) -> float:
        return sum(part.spent for part in some) / max(1, sum(part.starts for part in some))

    half = len(parts) // 2
    return cost(parts[half:]) / cost(parts[:half])


def soaked(herd: Herd, parent: Path, seed: int, seconds: float, parts: int) -> tuple[Result, list[Stretch]]:
    """Kill for so long, drain and check; the folder goes unless the round broke a promise."""
    folder = parent / f"soak-{seed}"
    folder.mkdir(mode=0o700)
    plan = Plan(
        seed,
        workers=4,
        kills=MOST_KILLS,
        seconds=MOST_KILLS * PACE,
        at_most=seconds,
        works=WORKS,
        longest_break=CALM,
    )
    one = Round(herd, folder, plan)
    result = one.run()
    found = stretches(history.read(one.histories), parts)
    if not result.violations:
        shutil.rmtree(folder)
    return result, found


def told(result: Result, parts: list[Stretch]) -> str:
    """What came of it, for people."""
    lines = [
        f"{sum(part.seconds for part in parts[:number]) / 60:4.1f} min: {part.starts / part.seconds:5.1f} starts/s, "
        f"{1e3 * part.cost:5.2f} ms of processor time each"
        for number, part in enumerate(parts, 1)
    ]
    lines.append(f"second half against the first: {growth(parts):.2f} × for each start")
    lines.append(f"{result.kills:,} kills, {result.works:,} works, {result.starts:,} starts")
    lines += [f"{name}: {text}" for name, text in result.violations[:10]]
    return "\n".join(lines)


def main(seed: int, minutes: int) -> int:
    """Run it, and say what came of it; 1 when a promise was broken, or when starts cost more and more."""
    parent = Path(tempfile.mkdtemp(prefix="runcue-soak-"))
    with Herd() as herd:
        result, parts = soaked(herd, parent, seed, minutes * 60.0, max(2, minutes))
    sys.stdout.write(told(result, parts) + "\n")
    if result.violations:
        sys.stdout.write(f"kept in {result.folder}\n")
        return 1
    parent.rmdir()
    return 1 if growth(parts) > MOST_GROWTH else 0
