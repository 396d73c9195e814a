"""Timed: submit, run and complete of no-ops in a file (full sync), against raw SQLite doing the same writes.

Raw SQLite inserts, claims (attempt, token, lease, grant) and finishes (result) rows of the same tables in batches of
100, a transaction for each; figures are the share of its speed that is left. Work that is submitted in chunks is
mostly started by the turn that accepts it, which saves a write and two commits; what is submitted at once is written
three times, and compared with raw SQLite that inserts everything before it starts the first. With all three in one
transaction, raw SQLite is shown for comparison. A rate makes runcue write grants as well. A slow disk flatters who
commits less: what writing 4 KiB and `fdatasync` take in the same directory is shown beside the latencies, which are
those of an idle queue.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from bench import raw
from bench.measure import Line, best_in_turns, run
from runcue import Cue
from runcue.stores.sqlite.file import open_file

CONCURRENT = 100
CHUNK = 100
RATE = "1000000000/s"
"""Never reached, but counted."""


async def no_op(work: Any) -> int:
    """Returns at once."""
    return raw.RESULT


def prepared(path: str, handler: Callable[[Any], Any], rate: str | None = None) -> Cue:
    """A Cue in a file, with one service and one task."""
    cue = Cue(path)
    cue.service("outside", concurrent=CONCURRENT, rate=rate)
    cue.task("work", uses="outside")(handler)
    return cue


async def by_cue(path: str, count: int, chunk: int, rate: str | None = None) -> float:
    """Seconds for so many lives, submitted in chunks while the queue runs."""
    cue = prepared(path, no_op, rate)
    async with cue:
        await cue.count()
        began = perf_counter()
        for first in range(0, count, chunk):
            pages = range(first, min(first + chunk, count))
            await cue.submit_many([{"task": "work", "params": {"page": page}} for page in pages])
        await cue.join()
        took = perf_counter() - began
    await cue.close()
    connection = open_file(path, read_only=True)
    raw.check(connection, count)
    connection.close()
    return took


class Disk:
    """How long a small write takes to reach the disk, in a directory."""

    def __init__(self, directory: str) -> None:
        self._file = os.open(Path(directory, "probe"), os.O_CREAT | os.O_WRONLY)
        self._place = 0
        os.ftruncate(self._file, 1 << 24)

    def write(self) -> float:
        """Seconds for 4 KiB and fdatasync."""
        began = perf_counter()
        os.pwrite(self._file, b"x" * 4096, self._place % (1 << 24))
        os.fdatasync(self._file)
        self._place += 4096
        return perf_counter() - began

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


async def latencies(directory: str, count: int) -> tuple[list[float], list[float], list[float]]:
    """Seconds of a submit that starts nothing, of one until its handler is entered, and of the disk."""
    entered = 0.0

    async def handler(work: Any) -> None:
        nonlocal entered
        entered = perf_counter()

    cue = prepared(str(Path(directory, "queue.db")), handler)
    disk = Disk(directory)
    by_submit, by_start, by_disk = [], [], []
    async with cue:
        for page in range(count):
            by_disk.append(disk.write())
            began = perf_counter()
            await cue.submit("work", params={"page": page}, delay=3600)
            by_submit.append(perf_counter() - began)
            await asyncio.sleep(0.002)  # let everything fall asleep
            began = perf_counter()
            await cue.wait(await cue.submit("work", params={"page": page}))
            by_start.append(entered - began)
            await asyncio.sleep(0.002)
    await cue.close()
    disk.close()
    return by_submit, by_start, by_disk


def seconds(way: Callable[[str], float]) -> float:
    """What a way takes with a file of its own."""
    with TemporaryDirectory() as directory:
        return way(str(Path(directory, "queue.db")))


def measure(quick: bool) -> list[Line]:
    """What durability costs above SQLite itself."""
    count, rounds, asked = (500, 1, 20) if quick else (10_000, 15, 500)

    def cue(chunk: int, rate: str | None = None) -> Callable[[], float]:
        def life(path: str) -> Coroutine[Any, Any, float]:
            return by_cue(path, count, chunk, rate)

        return lambda: seconds(lambda path: run(partial(life, path)))

    def sqlite(*, in_one: bool) -> Callable[[], float]:
        return lambda: seconds(lambda path: raw.lives(path, count, in_one=in_one))

    def in_line() -> float:
        return seconds(lambda path: raw.lives_in_line(path, count))

    contenders = (
        sqlite(in_one=False), cue(CHUNK), cue(CHUNK, RATE), cue(count), sqlite(in_one=True), in_line
    )  # fmt: skip
    base, chunks, rated, at_once, one, full = best_in_turns(rounds, *contenders)
    with TemporaryDirectory() as directory:
        by_submit, by_start, by_disk = run(partial(latencies, directory, asked))

    def line(name: str, time: float, at_least: float | None, base: float = base) -> Line:
        note = f"{1e6 * time / count:.1f} µs each, raw {1e6 * base / count:.1f}"
        return Line(name, base / time, "×", at_least=at_least, note=note, more=True)

    def p99(times: list[float]) -> float:
        return 1e3 * quantiles(times, n=100)[98]

    disk = f"disk {1e3 * median(by_disk):.2f}"
    return [
        line(f"{count:,} in chunks of {CHUNK}", chunks, 0.80),
        line(f"{count:,} in chunks, with a rate", rated, 0.80),
        line(f"{count:,} at once", at_once, 0.80, full),
        line("raw, one transaction for all three", one, None),
        Line("units a second in chunks", count / chunks, "/s", is_detail=True),
        Line("submit, p50", 1e3 * median(by_submit), "ms", note=disk),
        Line("submit, p99", p99(by_submit), "ms", note=f"disk {p99(by_disk):.2f}"),
        Line("submit to handler, p50", 1e3 * median(by_start), "ms", below=2, note=disk),
        Line("submit to handler, p99", p99(by_start), "ms", note=f"disk {p99(by_disk):.2f}"),
    ]
