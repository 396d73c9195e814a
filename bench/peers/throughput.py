"""Timed: no-ops from submit to their end in the store.

A first run with few units says how fast a queue is here; then each gets as many as it does in about two seconds, and
more if it turns out to be faster. All take turns, and the best round of each counts, because noise only ever adds;
the slowest is kept beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from bench.peers.contenders import Contender
from bench.peers.places import Absent, Places
from bench.peers.timed import Failed, Round, absent, timed

FIRST = 200
MOST = 40_000
SECONDS = 2.0
ROUNDS = 3
LONGEST = 420.0
"""Seconds after which no further round begins; each has had one by then."""


def tried(places: Places, contender: Contender, count: int) -> Round:
    """One round in a fresh place."""
    with places.fresh(contender.kind) as place:
        return timed(contender.name, place, count, apart=contender.apart)


def measure(places: Places, contenders: Sequence[Contender], *, quick: bool = False) -> list[dict[str, Any]]:
    """What each did; who failed once is a line with the reason, and the others go on."""
    rows = [
        {"key": one.key, "name": one.label, "store": one.store, "error": absent(one.name)}
        for one in contenders
    ]
    counts = [40 if quick else FIRST] * len(rows)
    deadline = perf_counter() + LONGEST
    for number in range(1 if quick else 1 + ROUNDS):
        if number > 1 and perf_counter() > deadline:
            break
        for place, contender in enumerate(contenders):
            row: dict[str, Any] = rows[place]
            if row["error"]:
                continue
            try:
                found = tried(places, contender, counts[place])
            except (Failed, Absent) as error:
                row["error"] = str(error)
                continue
            if number or quick:
                row["slowest"] = min(found.speed, row.get("slowest", found.speed))
                row["rounds"] = row.get("rounds", 0) + 1
                if found.speed > row.get("speed", 0.0):
                    row.update(
                        speed=found.speed, client=found.client, server=found.server, count=counts[place]
                    )
            if not quick:
                counts[place] = max(counts[place], min(MOST, int(found.speed * SECONDS) // 100 * 100))
    return rows
