"""python -m bench --write: measure what pages show several times, keep every run, and fill the pages.

Rules:
- A pass is every measure once; passes follow each other, so that the runs of one measure lie far apart.
- After each pass the file and the pages are written: who stops early keeps the passes that were whole.
- A measure that fails keeps the figures that it had, and is told at the end. Time is bounded by the measures: each
  has a fixed number of units or seconds.
- Other queues are measured once, by `bench peers`: it has rounds of its own, and keeps the worst of them too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

from bench import figures
from bench.measure import Line, apart

BUSY = "fleet, busy"
ORDERS: dict[str, dict[str, Any]] = {
    "fleet": {"peers": True, "seconds": 5.0},
    BUSY: {"peers": True, "busy": True, "seconds": 5.0, "processes": (8, 16, 32), "parts": ("fleet",)},
}
"""What a measure is told for the pages, where that is not what it does by itself."""
ONCE = ("peers",)


def lines_of(name: str) -> list[Line]:
    """One measure, as pages want it."""
    more = {"said": ORDERS[name]} if name in ORDERS else {}
    return apart("fleet" if name == BUSY else name, quick=False, **more)[1]


def write(names: Sequence[str], runs: int) -> int:
    """Measure these, or all that pages show; exit code 1 if one of them failed."""
    shown = figures.wanted()
    chosen = list(names) or [*sorted(name for name in shown if name not in ONCE), *ONCE]
    kept: dict[str, dict[str, list[Line]]] = {name: {} for name in chosen}
    failed: dict[str, str] = {}
    for number in range(runs):
        for name in chosen:
            if number and name in ONCE:
                continue
            told = f"{number + 1} of {runs}: {name}, load {os.getloadavg()[0]:.1f} …"
            print(told, end=" ", file=sys.stderr, flush=True)
            began = perf_counter()
            try:
                for line in lines_of(name):
                    kept[name].setdefault(line.name, []).append(line)
            except RuntimeError as error:
                failed[name] = str(error)
            print(f"{perf_counter() - began:,.0f} s", file=sys.stderr, flush=True)
        finish(kept)
    for name, reason in failed.items():
        print(f"{name} failed: {reason}", file=sys.stderr)
    for key in left_over(kept, shown):
        print(f"no run gave {key!r}, which a page shows: it stays as it was", file=sys.stderr)
    return 1 if failed else 0


def finish(kept: dict[str, dict[str, list[Line]]]) -> None:
    """Put what was measured into the file, and fill the pages."""
    from bench.peers.running import machine  # who is only asked for help needs none of it

    found = figures.stored()
    date = datetime.now(UTC).date().isoformat()
    found["machine"] = {"date": date, **machine()}
    for name, lines in kept.items():
        for line, several in lines.items():
            found["figures"][f"{name}: {line}"] = figures.figure(several, date)
    figures.keep(found)
    for path, text in figures.pages(found).items():
        path.write_text(text, encoding="utf-8")


def left_over(kept: dict[str, dict[str, list[Line]]], shown: dict[str, set[str]]) -> Iterator[str]:
    """The figures that pages show and that no run gave, of the measures that were chosen."""
    for name, lines in kept.items():
        yield from (f"{name}: {line}" for line in sorted(shown.get(name, set()) - lines.keys()))
