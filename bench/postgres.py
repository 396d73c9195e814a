"""Timed: no-ops from submit to their durable end on one PostgreSQL, by runcue and by other queues on it.

1, 2 and 4 processes begin at one moment; each submits its share in batches of 100 while all of them run what is
there. The end is when the database says that every work has ended. All use the same server, started for this alone
with its usual settings (fsync, synchronous_commit and full_page_writes on), and a fresh database after a checkpoint;
they take turns, and the best round of each counts. Beside its speed is what the processor had to do for each work in
that round, in the processes that submit and run and in the server: a busy machine changes that less. *raw* is
PostgreSQL itself, with no queue around it. procrastinate gets fewer works, because it runs them one by one.

Only who is there is measured. `python -m bench.postgres --install` brings what requirements/peers.txt names into
`.cache/peers/python`, and nothing anywhere else; then `python -m bench postgres` prints the figures.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

from bench.child import HEAD_START, LONGEST, ROOT, Child
from bench.measure import Line
from bench.peers_pg.board import PEERS, Board, with_peers
from tests.pg.keeper import children
from tests.pg.server import Missing, Server

PROCESSES = (1, 2, 4)
POLL = 0.005
INSTALL = "python -m bench.postgres --install"
SETTINGS = {"synchronous_commit": "on", "max_connections": "200"}


class Round(NamedTuple):
    """Works a second, and seconds of the processor for each: in the processes of the queue, and in the server."""

    speed: float
    client: float
    server: float


def used(server: Server) -> float:
    """Seconds of the processor that a server has used: its main process, and all it started, ended or not."""
    ticks = 0
    for pid in (*children(server.pid), server.pid):
        try:
            parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (
            OSError
        ):  # it has ended meanwhile, and the main process, which is the last here, counts its time
            continue
        ticks += sum(map(int, parts[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


@dataclass
class Contender:
    """One way to do it, and how fast it was."""

    name: str
    module: str
    count: int
    best: dict[int, Round] = field(default_factory=dict)
    failed: str = ""

    @property
    def missing(self) -> list[str]:
        """The packages that it needs and that are not here."""
        return [name for name in import_module(self.module).NEEDS if find_spec(name) is None]

    @property
    def version(self) -> str:
        """Its version, where it has one."""
        try:
            return version(self.name)
        except PackageNotFoundError:
            return ""

    def run(self, dsn: str, board: str, processes: int) -> tuple[float, float]:
        """Seconds for all of its works, once, and what the processor did meanwhile in its processes."""
        module = import_module(self.module)
        module.prepare(dsn)
        share = self.count // processes
        with ExitStack() as stack:
            watch = stack.enter_context(Board(board))
            started = [
                stack.enter_context(Child(self.module, "worker", dsn, board, place + 1, place * share, share))
                for place in range(processes)
            ]
            for child in started:
                child.until_ready()
            began = perf_counter() + HEAD_START
            for child in started:
                child.begin(began)
            self._until_done(watch, dsn, share * processes)
            took = perf_counter() - began
            watch.stop()
            return took, sum(child.answer() for child in started)

    def _until_done(self, watch: Board, dsn: str, count: int) -> None:
        """Nobody asks the database before all have run: that would take time from those who are measured."""
        deadline = perf_counter() + LONGEST
        done = import_module(self.module).done
        while watch.total() < count or done(dsn) < count:
            if perf_counter() > deadline:
                raise RuntimeError(f"{watch.total():,} of {count:,} works ran within {LONGEST:g} s")
            time.sleep(POLL)


def contenders(quick: bool) -> list[Contender]:
    """Everybody who could be measured, runcue first."""
    many, few = (400, 40) if quick else (10_000, 1_000)
    return [
        Contender("runcue", "bench.peers_pg.cue", many),
        Contender("raw", "bench.peers_pg.raw", many),
        Contender("pgqueuer", "bench.peers_pg.queuer", many),
        Contender("procrastinate", "bench.peers_pg.crastinate", few),
    ]


def one(contender: Contender, server: Server, processes: int) -> None:
    """One round of one contender; who fails once is out, and the others go on."""
    dsn = server.database()
    with server.connection() as connection:
        connection.execute("CHECKPOINT")
    before = used(server)
    try:
        with TemporaryDirectory() as folder:
            took, client = contender.run(dsn, str(Path(folder, "board")), processes)
    except Exception as error:  # noqa: BLE001 (whatever it is: it is shown, and the others are measured)
        contender.failed = f"{type(error).__name__}: {error}".splitlines()[0]
        server.drop(dsn)
        return
    server.drop(dsn)  # which waits for the last connections to end
    count = contender.count
    found = Round(count / took, client / count, (used(server) - before) / count)
    contender.best[processes] = max(found, contender.best.get(processes, found))


def measure(quick: bool) -> list[Line]:
    """Works a second of each, and how many times as fast runcue is."""
    with_peers()
    everybody = contenders(quick)
    present = [contender for contender in everybody if not contender.missing]
    try:
        server = Server(fsync=True, settings=SETTINGS)
    except Missing as missing:
        raise RuntimeError(str(missing)) from missing
    with server:
        for processes in PROCESSES[1:2] if quick else PROCESSES:
            for _ in range(1 if quick else 3):
                for contender in present:
                    if not contender.failed:
                        one(contender, server, processes)
    return [*speeds(everybody), *ratios(everybody), *absent(everybody)]


def named(name: str, processes: int) -> str:
    """A figure's name."""
    return f"{name}, {processes} process{'es' * (processes > 1)}"


def speeds(everybody: list[Contender]) -> list[Line]:
    """What was measured."""
    return [
        Line(
            named(contender.name, processes),
            found.speed,
            "/s",
            note=f"processor: {found.client * 1e6:,.0f} µs, server {found.server * 1e6:,.0f} µs a work",
        )
        for contender in everybody
        for processes, found in contender.best.items()
    ]


def ratios(everybody: list[Contender]) -> list[Line]:
    """How many times as fast runcue is; the goal is to be ahead of other queues."""
    runcue, *others = everybody
    return [
        Line(
            named(f"runcue to {other.name}", processes),
            runcue.best[processes].speed / found.speed,
            "×",
            at_least=None if other.name == "raw" else 1.0,
            note=other.version,
        )
        for other in others
        for processes, found in other.best.items()
        if processes in runcue.best
    ]


def absent(everybody: list[Contender]) -> list[Line]:
    """Who was not measured, and why."""
    lines = []
    for contender in everybody:
        if contender.missing:
            note = f"not here: {', '.join(contender.missing)}; {INSTALL}"
            lines.append(Line(f"{contender.name} was not measured", 0, "", note=note))
        elif contender.failed:
            lines.append(Line(f"{contender.name} failed", 0, "", note=contender.failed))
    return lines


def install() -> None:
    """Bring the other queues into `.cache/peers/python`, with uv or pip."""
    uv = ROOT / ".cache" / "uv" / "bin" / "uv"
    tool = [str(uv), "pip", "install", "--python", sys.executable] if uv.exists() else [sys.executable, "-m", "pip",
                                                                                     "install"]  # fmt: skip
    wanted = ["--require-hashes", "--target", str(PEERS), "-r", str(ROOT / "requirements" / "peers.txt")]
    subprocess.run([*tool, *wanted], check=True)


def main() -> None:
    """Measure alone, and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.postgres", description=str(__doc__).splitlines()[0]
    )
    parser.add_argument(
        "--install", action="store_true", help="bring the other queues into .cache/peers first"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: only shows that everything runs")
    arguments = parser.parse_args()
    if arguments.install:
        install()
    for line in measure(arguments.quick):
        print(f"{line.name:36} {line.value:9,.2f} {line.unit:3} {line.note}".rstrip())


if __name__ == "__main__":
    main()
