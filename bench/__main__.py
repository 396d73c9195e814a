"""python -m bench [names …] [--quick] [--json | --write]: measure, and say whether the goals are reached.

`--write` measures several times, keeps every run in docs/figures.json, and fills the pages that show figures from it:
by default all that pages show, which takes hours and wants a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys

from bench import fleet, writing
from bench.measure import Line, apart

IN_MEMORY = (
    *("dispatch", "depth", "memory", "blocked", "priority", "latency", "limiter", "batches", "imports"),
    *("cost", "typed"),
)
IN_A_FILE = ("durable", "rows", "history", "finding", "schedules", "processes", "dashboard")
OUTSIDE = ("commands", "shell_queues", "postgres", "outside", "scale")
USUAL = IN_MEMORY + IN_A_FILE + OUTSIDE
NAMES = (*USUAL, "fleet", "peers")
"""The last two only when asked for: they take minutes, and peers keeps what it found."""
VERDICTS = {True: "pass", False: "MISS", None: ""}


def shown(value: float, unit: str) -> str:
    """A figure with as many digits as it deserves."""
    digits = 0 if value == int(value) or value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f} {unit}".rstrip()


def table(name: str, what: str, lines: list[Line], quick: bool) -> str:
    """One measure as text; a tiny run shows the goals and judges nothing."""
    told = [line for line in lines if not line.is_detail]
    width = max([34, *(len(line.name) for line in told)])
    rows = [
        f"{name if line is told[0] else '':9} {line.name:{width}} {shown(line.value, line.unit):>17}  "
        f"{line.goal:15} {VERDICTS[None if quick else line.passed]:5} {line.note}".rstrip()
        for line in told
    ]
    return "\n".join([*rows, f"{'':9} {what}", ""])


def as_json(name: str, what: str, lines: list[Line]) -> dict[str, object]:
    """One measure for machines."""
    keys = ("name", "value", "unit", "goal", "passed", "note")
    return {"measure": name, "what": what, "figures": [{k: getattr(x, k) for k in keys} for x in lines]}


def main() -> int:
    """Run the measures that were asked for, each in a process of its own, and print what they found."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure runcue, as ratios.")
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"any of: {', '.join(NAMES)} (default: all but the last two)"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: only shows that everything runs")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--write", action="store_true", help="measure what pages show, keep all runs, and fill the pages"
    )
    parser.add_argument(
        "--runs", type=int, choices=range(1, 10), metavar="N", default=3, help="of each, with --write (3)"
    )
    fleet.add_options(parser)
    arguments = parser.parse_args()
    said = fleet.options(arguments)
    unknown = [name for name in arguments.names if name not in NAMES]
    if unknown:
        parser.error(f"unknown measure {unknown[0]!r}; there are {', '.join(NAMES)}")
    if said and "fleet" not in arguments.names:
        parser.error(f"--{next(iter(said))} is for fleet alone")
    if arguments.write:
        if arguments.quick or arguments.json or said:
            parser.error(
                "--write measures whole sizes as pages show them: no --quick, no --json, nothing for fleet"
            )
        return writing.write(arguments.names, arguments.runs)

    def show(text: str) -> None:
        if not arguments.json:
            print(text, flush=True)

    found: list[dict[str, object]] = []
    broken = 0
    show(f"Python {platform.python_version()}, {os.cpu_count()} cores. {'Tiny sizes.' * arguments.quick}\n")
    for name in arguments.names or USUAL:
        more = {"said": said, "is_shown": not arguments.json} if name == "fleet" else {}
        try:
            what, lines = apart(name, arguments.quick, **more)
        except RuntimeError as error:  # a measure says so when what it measures did not happen
            broken += 1
            show(f"{name:9} {error}\n")
            found.append({"measure": name, "error": str(error)})
        else:
            show(table(name, what, lines, arguments.quick))
            found.append(as_json(name, what, lines))
    if arguments.json:
        print(json.dumps({"quick": arguments.quick, "measures": found}, indent=2))
    return 1 if broken else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
