"""Timed: lists by tag, group and time, and counts, among 1,100,000 units, of which 100,000 have tags.

1,000,000 units have ended, and 100,000 came among them with the same tag and in the same group: some of these failed,
and some wait. Each question is asked through a Reader, in turns with a queue of a thousandth of that size; the best
round of each counts. The goals are in milliseconds, because a person waits for the answer; the ratios say whether
the size matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Final

from msgspec.structs import replace

from bench.history import AT_ONCE
from bench.measure import Line, run
from bench.peers.places import Places
from runcue import Reader
from runcue.core.model.group import GroupCounts
from runcue.core.model.record import Extras, Record, WorkState
from runcue.core.schedule.plan import Plan
from runcue.stores.postgres.address import address_of
from runcue.stores.postgres.store import postgres_store
from runcue.stores.sqlite.store import sqlite_store
from runcue.testing.manual_turns import NOW, Hand, pending

TAGS: Final = {"run": "nightly"}
GOAL: Final = 50.0
"""Milliseconds."""
HOUR: Final = 3600.0

QUESTIONS: Final[dict[str, Callable[[Reader], Any]]] = {
    "tag, failed, newest 50": lambda reader: reader.list("failed", limit=50, tags=TAGS),
    "tag, newest 50": lambda reader: reader.list(limit=50, tags=TAGS),
    "group, pending, newest 50": lambda reader: reader.list("pending", limit=50, group="import"),
    "one unit by its key": lambda reader: reader.list(key="key"),
    "the last hour, newest 50": lambda reader: reader.list(limit=50, since=NOW - HOUR),
    "counts of a group": lambda reader: reader.group("import"),
    "counts of a tag": lambda reader: reader.count(tags=TAGS),
}


def records(finished: int, tagged: int) -> Iterator[Record]:
    """Units that have ended, with tagged ones among them, the last an hour ago."""
    extras = Extras((("run", "nightly"),))
    amount = finished + tagged
    few = max(1, tagged // 2000)
    for seq in range(1, amount + 1):
        at = NOW - HOUR - (amount - seq) * 0.1
        record = replace(pending(seq), created_at=at, rank=at, since=at, sort_key=at)
        if seq % 11 == 0:
            number = seq // 11
            is_failed, is_pending = number <= few, few < number <= 2 * few
            record = replace(record, spec=replace(record.spec, group="import", extras=extras))
        else:
            is_failed = is_pending = False
        if seq == amount // 2:
            record = replace(record, spec=replace(record.spec, idempotency_key="key"))
        if not is_pending:
            state = WorkState.FAILED if is_failed else WorkState.COMPLETED
            record = replace(record, state=state, completed_at=at + 1, index_key=None, sort_key=0.0)
        yield record


async def fill(target: str, finished: int, tagged: int) -> None:
    """Write so many units into a queue."""
    store: Any
    if "://" in target:
        store = postgres_store(address_of(target, "default"), durability="full", lease=30.0)
    else:
        store = sqlite_store(target, durability="full", lease=30.0)
    hand = Hand(store, {})
    numbers = dict.fromkeys(WorkState, 0)
    some: list[Record] = []

    async def write() -> None:
        def change(plan: Plan, turn: Any) -> None:
            for record in some:
                hand.put(plan, record)
            plan.groups["import"] = GroupCounts().moved(numbers, NOW)

        await hand.turn(change)
        hand.kept.clear()
        some.clear()

    for record in records(finished, tagged):
        some.append(record)
        if record.spec.group is not None:
            numbers[record.state] += 1
        if len(some) == AT_ONCE:
            await write()
    await write()
    await store.close()


def asked(where: str, small: str, large: str, few: int, many: int, rounds: int) -> list[Line]:
    """Each question, of a small queue and of a large one."""
    run(partial(fill, small, 10 * few, few))
    run(partial(fill, large, 10 * many, many))
    lines = []
    with Reader(small) as short, Reader(large) as long:
        for name, ask in QUESTIONS.items():
            times: dict[Reader, list[float]] = {short: [], long: []}
            for _ in range(rounds):
                for reader, found in times.items():
                    began = perf_counter()
                    ask(reader)
                    found.append(perf_counter() - began)
            best, least = min(times[long]), min(times[short])
            lines.append(Line(f"{where}: {name}", 1e3 * best, "ms", at_most=GOAL,
                              note=f"{best / least:.1f} × of {11 * few:,} units"))  # fmt: skip
    return lines


def measure(quick: bool) -> list[Line]:
    """Does it matter among how many units one is found?"""
    few, many, rounds = (10, 100, 1) if quick else (100, 100_000, 15)
    with TemporaryDirectory() as directory:
        paths = [str(Path(directory, name)) for name in ("small.db", "large.db")]
        lines = asked("file", paths[0], paths[1], few, many, rounds)
    if not quick:
        with Places() as places, places.fresh("postgres") as small, places.fresh("postgres") as large:
            lines += asked("PostgreSQL", small.where, large.where, few, many, rounds)
    return lines
