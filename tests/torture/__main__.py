"""python -m tests.torture [--kills N] [--seed N] [--minutes M] [--report FILE]: kill and check, as long as wanted.

Rounds of random kills until there were enough or the time is up, after a sweep over the crash points. Any violation
makes the exit code 1; its round keeps its folder, and its seed is printed, with which it can be played again.

python -m tests.torture --soak M: instead one round of M minutes on one file, and what a start cost in each of them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.torture import soak
from tests.torture.checker import INVARIANTS
from tests.torture.history import now
from tests.torture.swarm import Plan, Result, herd, play, sweep

OTHER: Final = "actor"
"""What breaks no invariant and must not happen all the same: an actor that failed, an error that callers got."""


def quantile(values: list[float], share: float) -> float:
    """The value that a share of them does not exceed; 0 when there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def summary(results: list[Result], seconds: float, seed: int) -> dict[str, Any]:
    """Everything in figures."""
    broken = Counter(violation.invariant for result in results for violation in result.violations)
    recovered = [waited for result in results for waited in result.recovered]
    return {
        "seed": seed,
        "seconds": round(seconds, 1),
        "rounds": len(results),
        "kills": sum(result.kills for result in results),
        "works": sum(result.works for result in results),
        "starts": sum(result.starts for result in results),
        "grants": sum(result.grants for result in results),
        "events": sum(result.events for result in results),
        "violations": {name: broken.get(name, 0) for name in (*INVARIANTS, OTHER)},
        "recovery": {
            "count": len(recovered),
            "p50": round(quantile(recovered, 0.5), 4),
            "p99": round(quantile(recovered, 0.99), 4),
            "max": round(max(recovered, default=0.0), 4),
        },
        "errors": dict(sum((Counter(result.errors) for result in results), Counter())),
        "broken": [
            {"seed": result.seed, "folder": result.folder, "violations": result.violations}
            for result in results
            if result.violations
        ],
    }


def told(figures: dict[str, Any]) -> str:
    """The same for people."""
    recovery = figures["recovery"]
    counted = ", ".join(f"{figures[name]:,} {name}" for name in ("rounds", "kills", "works", "starts"))
    cut = ", ".join(f"{name} {recovery[name]:.3f} s" for name in ("p50", "p99", "max"))
    lines = [
        f"{counted} in {figures['seconds']:,.0f} s (seed {figures['seed']})",
        "violations: " + ", ".join(f"{name} {number}" for name, number in figures["violations"].items()),
        f"recovery of {recovery['count']:,} starts cut short: {cut}",
        f"looked at besides: {figures['grants']:,} stored grants, {figures['events']:,} stored events",
    ]
    for broken in figures["broken"][:10]:
        lines.append(f"broken: seed {broken['seed']}, kept in {broken['folder']}")
        lines += [f"    {name}: {text}" for name, text in broken["violations"][:5]]
    return "\n".join(lines)


def main() -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description="Kill processes and check.")
    parser.add_argument(
        "--kills", type=int, default=5000, help="go on until so many were killed (default 5000)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="the first round's; each round has the next (default 1)"
    )
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="stop after that time in any case (default 60)"
    )
    parser.add_argument(
        "--sweep", type=int, default=5, help="passes of each crash point to die at (default 5)"
    )
    parser.add_argument("--report", type=Path, help="write the figures to this file, as JSON")
    parser.add_argument(
        "--soak", type=int, metavar="MINUTES", help="one round of that length, and what a start cost in it"
    )
    arguments = parser.parse_args()
    if arguments.soak is not None:
        return soak.main(arguments.seed, arguments.soak)
    began = now()
    end = began + arguments.minutes * 60
    results: list[Result] = []
    folder = Path(tempfile.mkdtemp(prefix="runcue-torture-"))

    def show(result: Result) -> None:
        results.append(result)
        kills = sum(each.kills for each in results)
        verdict = (
            f"{len(result.violations)} VIOLATIONS, kept in {result.folder}" if result.violations else "clean"
        )
        sys.stdout.write(f"round {len(results)}: {kills:,} kills, {result.works} works, {verdict}\n")
        sys.stdout.flush()

    with herd() as processes:
        for plan in sweep(arguments.seed, arguments.sweep):
            if now() < end:
                show(play(processes, folder, plan))
        seed = arguments.seed
        while sum(result.kills for result in results) < arguments.kills and now() < end:
            show(play(processes, folder, Plan.drawn(seed)))
            seed += 1
    figures = summary(results, now() - began, arguments.seed)
    sys.stdout.write("\n" + told(figures) + "\n")
    if arguments.report is not None:
        arguments.report.write_bytes(msgspec.json.format(msgspec.json.encode(figures)) + b"\n")
    if not figures["broken"]:
        folder.rmdir()
    return 1 if figures["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
