"""Compare, and keep the figures; `--install` brings those that runcue is compared with, and measures nothing.

python -m bench.peers --install
python -m bench.peers [--only name …] [--measure name …] [--quick]
"""

from __future__ import annotations

import argparse

from bench.__main__ import shown
from bench.peers import homes, lines, running


def main() -> None:
    """Install, or measure what is asked for and print it."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description="Compare runcue with its peers."
    )
    parser.add_argument(
        "--install",
        action="store_true",
        help="bring the peers and a Redis into .cache/peers, and measure nothing",
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="name", help="these queues alone; keeps no figures"
    )
    parser.add_argument(
        "--measure", nargs="+", default=[], choices=running.MEASURES, help="these measures alone"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: only shows that everything runs")
    arguments = parser.parse_args()
    if arguments.install:
        homes.install()
        return
    measures = tuple(arguments.measure) or running.MEASURES
    found = running.run(measures, arguments.only, quick=arguments.quick)
    if not arguments.only and not arguments.quick:
        running.kept(found)
    for line in lines.all_lines(found):
        print(f"{line.name:52} {shown(line.value, line.unit):>17}  {line.note}".rstrip())


if __name__ == "__main__":
    main()
