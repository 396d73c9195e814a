"""Executors with processes on Linux and macOS, each imported where it is first used."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runcue.ports import Clock, Executor

if TYPE_CHECKING:
    from runcue.executors.process.executor import MakeKeeper
    from runcue.executors.process_locks import Jobs as Jobs  # noqa: PLC0414 (named by those who have it made here)

MODULES: Final = {
    "dask": "runcue.executors.dask.executor",
    "process_pool": "runcue.executors.process.executor",
    "ssh": "runcue.executors.ssh.executor",
    "subprocess": "runcue.executors.command.executor",
}
"""The modules of those executors that few programs need."""


def make_jobs(folder: Path | None) -> Jobs:
    """What shows, and notes, which processes a worker started."""
    from runcue.executors.process_locks import Jobs

    return Jobs(folder)


def end_leftovers(folder: Path) -> bool:
    """End the processes that a dead worker left running; True when none is left."""
    from runcue.executors import process_locks

    return process_locks.end_leftovers(folder)


def command_executor(clock: Clock, grace: float, folder: Path | None, jobs: Jobs, limit: int) -> Executor:
    """Runs commands; their output is kept in that folder."""
    from runcue.executors.command.executor import CommandExecutor
    from runcue.executors.command.reaper import Reaper

    return CommandExecutor(clock, grace, folder, jobs, Reaper(jobs), limit=limit)


def make_keeper(jobs: Jobs) -> MakeKeeper:
    """What starts the workers of a pool of processes."""
    from runcue.executors.process.keeper_link import KeeperLink

    return partial(KeeperLink, jobs)
