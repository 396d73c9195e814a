"""Plays many small worlds with many faults: in each, several Cues share a file on one virtual loop.

One seed is one world and one trace: trial.py draws the world, fleet.py plays it until every unit has ended, and the
checker gets every event and every call.

    report = run(range(2000), jobs=2)
    assert not report.failures

Rules:
- A fault counts when it fired: a commit failed, a node died, a handler hung. `Report.faults` counts them by kind.
- Everything is judged from outside (check.py).
- Worlds are small and short (about 55 units, six seconds), because many worlds find more mistakes than long ones.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import multiprocessing
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Final

import apsw
import click
import msgspec

import runcue
from runcue.sim.fleet import World
from runcue.sim.promise import Violation
from runcue.sim.trial import FAULTS, draw
from runcue.testing import Deadlock
from runcue.testing import run as run_virtual

FAILING: Final = "failing-seeds.txt"
CHUNK: Final = 25
"""How many seeds a process takes at a time."""
LIMIT: Final = 600.0
GARBAGE: Final = 20_000
"""How many new objects may pile up in a process of the swarm before it looks for garbage."""
NEW_FILES: Final = 10
"""In one world of so many the nodes make the file themselves; the others get a copy of an empty one."""
MEMORY: Final = Path("/dev/shm")
NO_COLUMNS: Final = "PYTHONNODEBUGRANGES"


class Trace(msgspec.Struct, frozen=True):
    """The outcome of one seed; `digest` is a hash of all its events and calls."""

    seed: int
    nodes: int
    works: int
    events: int
    digest: str
    faults: dict[str, int]
    violations: list[Violation]


class Report(msgspec.Struct):
    """The outcome of many seeds."""

    seeds: int = 0
    works: int = 0
    events: int = 0
    fewest_works: int | None = None
    fewest_nodes: int | None = None
    calm: list[int] = []
    """Seeds in which no fault fired."""
    faults: dict[str, int] = {}
    failures: list[Trace] = []

    def add(self, trace: Trace) -> None:
        """Count one seed in."""
        self.seeds += 1
        self.works += trace.works
        self.events += trace.events
        self.fewest_works = min(trace.works, self.fewest_works or trace.works)
        self.fewest_nodes = min(trace.nodes, self.fewest_nodes or trace.nodes)
        for kind in FAULTS:
            self.faults[kind] = self.faults.get(kind, 0) + trace.faults.get(kind, 0)
        if not sum(trace.faults.values()):
            self.calm.append(trace.seed)
        if trace.violations:
            self.failures.append(trace)


@contextmanager
def _names_in_order() -> Iterator[None]:
    """Number the names of processes: with random names, chance would decide which process wakes first."""
    lot, numbers = secrets.token_hex, count(1)
    secrets.token_hex = lambda nbytes=None: f"{next(numbers):0{2 * (nbytes or 16)}x}"
    try:
        yield
    finally:
        secrets.token_hex = lot


@contextmanager
def _short_tracebacks() -> Iterator[None]:
    """Start processes without columns in tracebacks, which cost a twentieth of a world's time."""
    before = os.environ.get(NO_COLUMNS)
    os.environ[NO_COLUMNS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[NO_COLUMNS]
        else:
            os.environ[NO_COLUMNS] = before


@cache
def _empty_file() -> bytes:
    """The bytes of an empty queue's file."""
    with tempfile.TemporaryDirectory(prefix="runcue-swarm-") as folder:
        path = Path(folder) / "queue.db"

        async def make() -> None:
            async with runcue.Cue(path, durability="relaxed") as cue:
                await cue.close()  # what is open cannot be removed everywhere

        run_virtual(make())
        return path.read_bytes()


def play(seed: int) -> Trace:
    """Play one seed from beginning to end."""
    parent = MEMORY if MEMORY.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="runcue-swarm-", dir=parent))
    path = folder / "queue.db"
    logger = logging.getLogger("runcue")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with _names_in_order():
            if seed % NEW_FILES:
                path.write_bytes(_empty_file())
            return _played(seed, path)
    finally:
        logger.setLevel(level)
        shutil.rmtree(folder)


def _played(seed: int, path: Path) -> Trace:
    plan = draw(seed)
    world = World(plan, path)
    events: list[runcue.Event] = []
    try:
        events = run_virtual(world.run(), limit=LIMIT)
    except Deadlock as stuck:
        world.mistakes.append(Violation("rest", stuck.at, str(stuck)))
    except runcue.RuncueError as error:  # a Cue takes no more turns, and the error says why
        world.mistakes.append(Violation("mistake", 0.0, repr(error)))
    text = msgspec.json.encode([events, world.calls], enc_hook=repr)
    return Trace(
        seed,
        plan.nodes,
        world.works,
        len(events),
        hashlib.blake2b(text, digest_size=16).hexdigest(),
        dict(world.faults),
        world.mistakes,
    )


def _prepare() -> None:
    """Prepare a process of the swarm: turn off what costs time and is not needed here."""
    gc.freeze()  # what exists already stays to the end, and need not be searched again
    gc.set_threshold(GARBAGE)
    apsw.shutdown()
    apsw.config(apsw.SQLITE_CONFIG_MEMSTATUS, False)  # counting every byte takes a fortieth of a world's time
    apsw.initialize()


def _play_some(seeds: Sequence[int]) -> list[Trace]:
    return [play(seed) for seed in seeds]


def traces(seeds: Sequence[int], jobs: int | None = None) -> Iterator[Trace]:
    """Play all seeds, in so many processes (None: in this one), and yield the outcome of each."""
    if jobs is None:
        yield from map(play, seeds)
        return
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_prepare) as pool:
        with _short_tracebacks():
            played = pool.map(_play_some, chunks)
        for some in played:
            yield from some


def run(
    seeds: Iterable[int],
    jobs: int | None = None,
    *,
    keep: Path | None = None,
    tell: Callable[[str], None] = click.echo,
) -> Report:
    """Play all seeds, in so many processes (None: in this one); failed ones are reported, and appended to `keep`."""
    report = Report()
    for trace in traces(list(seeds), jobs):
        report.add(trace)
        if trace.violations:
            line = f"{trace.seed}  # {trace.violations[0]}"
            tell(f"seed {line}")
            with (Path(FAILING) if keep is None else keep).open("a", encoding="utf-8") as file:
                file.write(line + "\n")
    return report
