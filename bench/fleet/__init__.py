"""Measured: fleets of 1 to 32 processes on one queue against what is possible, no-ops, fairness, and idle ones.

    python -m bench fleet --stores file,postgres --processes 1,4,16 --seconds 4 --parts fleet,noop,fair,idle

- `fleet` (`crowd`): P processes with ten places each, handlers that wait 100 ms, and one more that submits 1.2 × of
  what they could do; with `--peers` also pgqueuer and procrastinate on the same server, in turns.
- `noop` (`noops`): no-ops by eight processes against one, and by four that all want one service of 100.
- `fair`: six programs with a task each on one service.
- `idle`: what it costs to have nothing to do.

`--busy` runs all but `idle` beside loops that want 75 % of every core. Each store is fresh for each run: a file, or a
database of a PostgreSQL server that is started for this alone, with its usual settings (fsync and synchronous_commit
on). Beside every figure is the share of all cores that other programs took meanwhile: where that is not small, the
figure says little.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.fleet.machine import Watch
    from bench.measure import Line

PARTS = ("fleet", "noop", "fair", "idle")
STORES = ("file", "postgres")
USUAL = {"stores": STORES, "processes": (1, 4, 8, 16, 32), "seconds": 4.0, "parts": PARTS, "rounds": 1}
TINY = {"stores": ("file",), "processes": (1, 2), "seconds": 0.3, "parts": PARTS, "rounds": 1}
MOST = 60
"""Processes that there is room for on the board."""


def _words(choices: tuple[str, ...]) -> Any:
    def read(text: str) -> tuple[str, ...]:
        words = tuple(text.split(","))
        if wrong := [word for word in words if word not in choices]:
            raise argparse.ArgumentTypeError(f"{wrong[0]!r} is none of {', '.join(choices)}")
        return words

    return read


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(sorted({int(word) for word in text.split(",")}))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not as in 1,4,16") from None
    if not 1 <= numbers[0] <= numbers[-1] <= MOST:
        raise argparse.ArgumentTypeError(f"from 1 to {MOST} processes, not {text}")
    return numbers


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 30:
        raise argparse.ArgumentTypeError(f"from 0.1 to 30, not {text}")
    return seconds


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be said of a fleet; nothing has a default, so that it can be told whether it was said."""
    group = parser.add_argument_group("fleet alone")
    group.add_argument("--stores", type=_words(STORES), help="file,postgres")
    group.add_argument("--processes", type=_numbers, metavar="P,…", help="1,4,8,16,32")
    group.add_argument("--seconds", type=_seconds, help="that count in each run (4)")
    group.add_argument("--parts", type=_words(PARTS), help=",".join(PARTS))
    group.add_argument("--rounds", type=int, choices=range(1, 10), metavar="N", help="the best of N (1)")
    group.add_argument(
        "--peers", action="store_true", default=None, help="pgqueuer and procrastinate as well"
    )
    group.add_argument("--busy", action="store_true", default=None, help="beside busy loops")


def options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What was said of a fleet."""
    names = (*USUAL, "peers", "busy")
    return {name: value for name in names if (value := getattr(arguments, name)) is not None}


def columns(rows: list[list[str]]) -> str:
    """Rows under each other; the first column is text, a row with two cells is a reason."""
    whole = [row for row in rows if len(row) == len(rows[0])]
    widths = [max(len(row[place]) for row in whole) for place in range(len(rows[0]))]
    return "\n".join(
        f"{row[0]}: {row[1]}" if row not in whole else
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:],
                                                                                         strict=True))])
        for row in rows
    )  # fmt: skip


def measure(quick: bool, said: dict[str, Any] | None = None, *, is_shown: bool = False) -> list[Line]:
    """Do more processes get more done?"""
    from bench.fleet import crowd, fair, idle, machine, noops  # who only reads options needs none of it
    from bench.peers.places import Absent, Places

    asked = {"peers": False, "busy": False, **(TINY if quick else USUAL), **(said or {}), "quick": quick}
    lines: list[Line] = []

    def show(name: str, rows: list[list[str]], watch: Watch) -> None:
        if is_shown:
            beside = ", beside busy loops" if asked["busy"] and name != "idle" else ""
            print(
                f"{name}{beside}; load {machine.load()}, others took {100 * watch.others():.0f} % of the cores"
            )
            print(f"{columns(rows)}\n", flush=True)

    with Places() as places:
        for part in asked["parts"]:
            watch = machine.Watch()
            try:
                if part == "fleet":
                    crowds = crowd.run(places, asked)
                    show(part, crowd.table(crowds), watch)
                    lines += crowd.lines(crowds, asked["busy"])
                elif part == "noop":
                    several = noops.run(places, asked)
                    show(part, noops.table(several), watch)
                    lines += noops.lines(several)
                elif part == "fair":
                    waits = fair.run(places, asked)
                    show(part, fair.table(waits), watch)
                    lines += fair.lines(waits)
                else:
                    shares = idle.run(places, asked)
                    show(part, idle.table(shares), watch)
                    lines += idle.lines(shares)
            except Absent as missing:
                raise RuntimeError(str(missing)) from missing
    return lines
