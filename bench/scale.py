"""Measured: turns and units a second of one PostgreSQL with 1, 2, 4 and 8 processes, in one namespace and in four.

A namespace decides in one place: one turn at a time, whoever takes it. *One by one*: each process submits a unit,
waits for its result and submits the next, so turns are many and small. *In batches*: each submits its share in
batches of 100 while all run what is there, so turns are few and large. The processes are spread evenly over the
namespaces; a turn is one commit of the store. The server is started for this alone with its usual settings (fsync and
synchronous_commit on) on the same machine, each run has a fresh database, and the best of three runs counts.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple, Self

import psycopg

from bench.child import HEAD_START, LONGEST, Child, ready
from bench.measure import Line
from bench.peers.board import Board
from bench.peers.places import SETTINGS
from bench.peers.processor import used
from bench.peers.timed import POLL
from runcue import Cue
from tests.pg.server import Missing, Server

PROCESSES = (1, 2, 4, 8)
NAMESPACES = (1, 4)
KINDS = {"one by one": 1, "in batches": 100}
CONCURRENT = 400


class Round(NamedTuple):
    """One run: units and turns a second, and seconds of the processor for each unit, here and in the server."""

    units: float
    turns: float
    client: float
    server: float


# --- In processes of their own --------------------------------------------------------------------


def worker(dsn: str, name: str, path: str, place: int, share: int, batch: int) -> float:
    """Submit a share and run what is there until told to stop; the processor's time that took."""
    with Board(path, place) as board:
        asyncio.run(_work(Cue(dsn, name=name), board, share, batch))
        return board.used()


async def _work(cue: Cue, board: Board, share: int, batch: int) -> None:
    cue.service("outside", concurrent=CONCURRENT)

    @cue.task("work", uses="outside")
    async def no_op(work: Any) -> int:
        board.ran()
        return 1

    await cue.count()
    await asyncio.sleep(max(0.0, ready() - perf_counter()))
    board.begin()
    async with cue:
        for start in range(0, share, batch):
            pages = range(start, min(start + batch, share))
            ids = await cue.submit_many([{"task": "work", "params": {"page": page}} for page in pages])
            if batch == 1:
                await cue.result(ids[0])
        await board.until_stopped()
    await cue.close()


# --- The measure ----------------------------------------------------------------------------------


def names(namespaces: int) -> list[str]:
    """What the namespaces are called."""
    return [f"space_{number}" for number in range(namespaces)]


async def _prepare(dsn: str, spaces: list[str]) -> None:
    """Let each make its tables."""
    for name in spaces:
        cue = Cue(dsn, name=name)
        await cue.count()
        await cue.close()


class Heads:
    """The counters of several namespaces, by a connection that the queue knows nothing of."""

    def __init__(self, dsn: str, spaces: list[str]) -> None:
        parts = [f"SELECT revision, completed FROM runcue_{name}.head" for name in spaces]
        self._statement = f"SELECT sum(revision), sum(completed) FROM ({' UNION ALL '.join(parts)}) AS heads"
        self._connection = psycopg.connect(dsn, autocommit=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    def read(self) -> tuple[int, int]:
        """How many turns were committed so far, and how many units completed."""
        rows = self._connection.execute(self._statement.encode()).fetchall()
        turns, completed = rows[0]
        return int(turns), int(completed)


def one(server: Server, processes: int, namespaces: int, count: int, batch: int) -> Round:
    """One run in a fresh database."""
    dsn = server.database()
    with server.connection() as connection:
        connection.execute("CHECKPOINT")
    spaces = names(min(processes, namespaces))
    asyncio.run(_prepare(dsn, spaces))
    share = count // processes
    total = share * processes
    with TemporaryDirectory() as folder, ExitStack() as stack:
        board = str(Path(folder, "board"))
        watch = stack.enter_context(Board(board))
        heads = stack.enter_context(Heads(dsn, spaces))
        children = [
            stack.enter_context(
                Child(__name__, "worker", dsn, spaces[place % len(spaces)], board, place + 1, share, batch)
            )
            for place in range(processes)
        ]
        for child in children:
            child.until_ready()
        before, used_before = heads.read()[0], used(server.pid)
        began = perf_counter() + HEAD_START
        for child in children:
            child.begin(began)
        while watch.total() < total or heads.read()[1] < total:
            if perf_counter() > began + LONGEST:
                raise RuntimeError(f"{watch.total():,} of {total:,} units ran within {LONGEST:g} s")
            time.sleep(POLL)
        took = perf_counter() - began
        turns, server_time = heads.read()[0] - before, used(server.pid) - used_before
        watch.stop()
        client = sum(child.answer() for child in children)
    server.drop(dsn)
    return Round(total / took, turns / took, client / total, server_time / total)


def line(kind: str, processes: int, namespaces: int, found: Round) -> Line:
    """One row of the table."""
    return Line(
        f"{kind}, {processes} in {namespaces}",
        found.units,
        "units/s",
        note=f"{found.turns:,.0f} turns/s, {found.units / found.turns:.1f} units a turn; processor: "
        f"{found.client * 1e6:,.0f} µs, server {found.server * 1e6:,.0f} µs a unit",
    )


def measure(quick: bool) -> list[Line]:
    """What one turn lock can do, and how namespaces multiply it."""
    counts = {"one by one": 16, "in batches": 400} if quick else {"one by one": 1_200, "in batches": 8_000}
    asked = [
        (kind, processes, namespaces)
        for kind, namespaces, processes in product(KINDS, NAMESPACES, (2,) if quick else PROCESSES)
        if namespaces == 1 or processes >= namespaces
    ]
    best: dict[tuple[str, int, int], Round] = {}
    try:
        server = Server(fsync=True, settings=SETTINGS)
    except Missing as missing:
        raise RuntimeError(str(missing)) from missing
    with server:
        for _ in range(1 if quick else 3):
            for key in asked:
                kind, processes, namespaces = key
                found = one(server, processes, namespaces, counts[kind], KINDS[kind])
                best[key] = max(found, best.get(key, found))
    return [line(*key, found) for key, found in best.items()]
