"""Timed: from the call of submit to the first line of the handler, on a queue with nothing else in it.

One unit after the other, with a pause of 10 to 30 ms before each; a queue that looks now and then is met at any
moment between two looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles
from typing import Any

from bench.peers.contenders import Contender
from bench.peers.part import WARM
from bench.peers.places import Absent, Place, Places
from bench.peers.timed import Failed, absent, cast, plan, prepare

PROBES = 300
SECONDS = 6.0
"""After which no more is tried in a round."""
ROUNDS = 2


def probed(contender: Contender, place: Place, probes: int) -> list[float]:
    """Seconds from submit to start, one for each unit."""
    prepare(contender.name, place)
    asks = {**plan("time", share=probes, warm=WARM, runs=not contender.apart), "seconds": SECONDS}
    plans = [asks, plan("time", warm=WARM)] if contender.apart else [asks]
    with cast(contender.name, place, plans) as here:
        here.until_ready()
        here.begin()
        found: list[float] = here.children[0].answer()
        here.board.stop()
        for child in here.children[1:]:
            child.answer()
    return found


def measure(places: Places, contenders: Sequence[Contender], *, quick: bool = False) -> list[dict[str, Any]]:
    """The median and the 99th percentile of each in its best round, and the median of its slowest; all take turns."""
    rows: list[dict[str, Any]] = [
        {"key": one.key, "name": one.label, "store": one.store, "error": absent(one.name)}
        for one in contenders
    ]
    for _ in range(1 if quick else ROUNDS):
        for row, contender in zip(rows, contenders, strict=True):
            if row["error"]:
                continue
            try:
                with places.fresh(contender.kind) as place:
                    found = probed(contender, place, 5 if quick else PROBES)
            except (Failed, Absent) as error:
                row["error"] = str(error)
                continue
            middle = median(found)
            row["slowest"] = max(middle, row.get("slowest", middle))
            row["rounds"] = row.get("rounds", 0) + 1
            if middle <= row.get("p50", middle):
                p99 = quantiles(found, n=100, method="inclusive")[98]
                row.update(p50=middle, p99=p99, count=len(found))
    return rows
