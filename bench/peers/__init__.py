"""Timed: the same units by runcue and by other queues and limiters, each in the store it is usually run with.

Throughput, latency, exactness of limits, and what becomes of units whose worker is killed. Each queue is a module in
`queues`, each limiter one in `limiters`; `part` is what they do in processes of their own, `places` are the stores,
and `contenders` says who is compared. All take turns, and the best round of each counts.

`python -m bench.peers --install` brings the others and a Redis into `.cache/peers`, and nothing anywhere else;
`python -m bench peers` measures (about a quarter of an hour), keeps the figures in `results.json` and prints them;
`python -m bench.peers.report` writes them into docs/peers.md and draws its pictures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.measure import Line


def measure(quick: bool) -> list[Line]:
    """All figures, as lines; a tiny run keeps none."""
    from bench.peers import lines, running  # children of the measures need little of it

    found = running.run(running.MEASURES, [], quick=quick)
    if not quick:
        running.kept(found)
    return lines.all_lines(found)
