"""One run of one queue: its processes are started, begin at one moment, and are watched until all have ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

from bench.child import HEAD_START, Child
from bench.peers import homes
from bench.peers.board import Board
from bench.peers.part import WARM, queue
from bench.peers.places import Place
from bench.peers.processor import kill, used

POLL = 0.005
PATIENCE = 60.0
"""Seconds that one run may take before it has failed."""


class Round(NamedTuple):
    """Units a second, and seconds of the processor for each: in the processes of the queue, and in the server."""

    speed: float
    client: float
    server: float


class Failed(RuntimeError):
    """A run did not come to its end; the message says why, in one line."""


def absent(name: str) -> str:
    """Why a queue cannot be measured here, or nothing."""
    module = queue(name)
    if gone := homes.missing(module.HOME, module.NEEDS):
        return f"not here: {', '.join(gone)}; {homes.INSTALL}"
    return ""


class Cast:
    """The processes of one run, and their board."""

    def __init__(self, name: str, place: Place, folder: str, plans: list[dict[str, Any]]) -> None:
        self.path = str(Path(folder, "board"))
        self._stack = ExitStack()
        self.board = self._stack.enter_context(Board(self.path))
        self.children = [
            self._stack.enter_context(
                Child("bench.peers.part", "work", name, place.where, self.path, {"place": number, **plan})
            )
            for number, plan in enumerate(plans, start=1)
        ]

    def until_ready(self) -> None:
        """Wait until all are."""
        for child in self.children:
            child.until_ready()

    def begin(self) -> float:
        """Tell all when to begin."""
        at = perf_counter() + HEAD_START
        for child in self.children:
            child.begin(at)
        return at

    def used(self) -> float:
        """Seconds of the processor that they have used."""
        return used(*self.board.processes())

    def stop(self) -> None:
        """Tell all to stop, and wait until they have ended."""
        self.board.stop()
        for child in self.children:
            child.answer()

    def close(self) -> None:
        """End whoever is there, with all that they started."""
        kill(*self.board.processes())
        self._stack.close()

    def reason(self, error: Exception) -> str:
        """Why it failed, in one line: what a process or its worker said, or else the error."""
        for ending in ("error", "said"):
            path = Path(f"{self.path}.{ending}")
            said = path.read_text(errors="replace").strip() if path.exists() else ""
            if said and (ending == "error" or "Error" in said):
                return said.splitlines()[-1][:200]
        return f"{type(error).__name__}: {error}".splitlines()[0]


@contextmanager
def cast(name: str, place: Place, plans: list[dict[str, Any]]) -> Iterator[Cast]:
    """The processes of one run, started; whatever goes wrong becomes a `Failed` with one line."""
    with TemporaryDirectory(prefix="runcue-peers-") as folder:
        started = Cast(name, place, folder, plans)
        try:
            yield started
        except Exception as error:
            raise Failed(started.reason(error)) from error
        finally:
            started.close()


def prepare(name: str, place: Place) -> None:
    """Let a queue make its tables; whatever goes wrong becomes a `Failed` with one line."""
    try:
        queue(name).prepare(place.where)
    except Exception as error:
        raise Failed(f"{type(error).__name__}: {error}".splitlines()[0]) from error


def plan(mode: str, *, runs: bool = True, first: int = 0, share: int = 0, warm: int = 0) -> dict[str, Any]:
    """What one process does."""
    return {"mode": mode, "runs": runs, "first": first, "share": share, "warm": warm, "seconds": 0.0}


def shares(count: int, processes: int, apart: bool) -> list[dict[str, Any]]:
    """What each of several processes does: all submit and run; apart, one submits, and the others run."""
    if apart:
        runner = plan("count", warm=WARM)
        return [plan("count", runs=False, share=count, warm=WARM), *[runner] * processes]
    share, warm = count // processes, WARM * processes
    return [plan("count", first=place * share, share=share, warm=warm) for place in range(processes)]


def timed(name: str, place: Place, count: int, processes: int = 1, *, apart: bool = False) -> Round:
    """One run, from the first submit to the moment at which the store says that every unit has ended."""
    prepare(name, place)
    plans = shares(count, processes, apart)
    total = sum(one["share"] for one in plans)
    with cast(name, place, plans) as here:
        here.until_ready()
        client, server = here.used(), place.used()
        began = here.begin()
        _until_done(here.board, name, place, total + WARM * sum(one["share"] > 0 for one in plans))
        took = perf_counter() - began
        client, server = here.used() - client, place.used() - server
        here.stop()
    return Round(total / took, client / total, server / total)


def _until_done(board: Board, name: str, place: Place, count: int) -> None:
    """Nobody asks the store before all have run: that would take time from those who are measured."""
    deadline = perf_counter() + PATIENCE
    module = queue(name)
    while board.total() < count or module.left(place.where, count) > 0:
        if perf_counter() > deadline:
            raise RuntimeError(f"{board.total():,} of {count:,} units ran within {PATIENCE:g} s")
        time.sleep(POLL)
