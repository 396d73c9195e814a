"""What a handler is given: its work, and what only makes sense while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from runcue.core.model import Record, Work, face

if TYPE_CHECKING:
    import asyncio

    from runcue.ports import Executor


class Run:
    """One attempt under way, as the engine sees it."""

    __slots__ = ("executor", "is_cancelled", "is_given_up", "record", "report", "task", "timer", "told_at")

    def __init__(self, record: Record, executor: Executor, report: Callable[[Run, Any, Any], None]) -> None:
        self.record = record
        self.executor = executor
        self.report = report
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.is_given_up = False
        self.is_cancelled = False
        self.told_at = 0.0


class RunningWork(Work, frozen=True):
    """A `Work` in the hands of its handler."""

    run: Run | None = None

    @property
    def cancelled(self) -> bool:
        """True from the moment this attempt no longer counts: cancelled, timed out or stopped."""
        return self.run is not None and self.run.is_cancelled

    def progress(self, fraction: float | None = None, text: str | None = None) -> None:
        """Report how far this is; told at most once a second. May be called from any thread."""
        if self.run is not None:
            self.run.report(self.run, fraction, text)

    def __repr__(self) -> str:
        return f"RunningWork(id={self.id!r}, task={self.task!r}, attempt={self.attempt}, params={self.params!r})"


def running_work(run: Run) -> RunningWork:
    """The object to call a handler with."""
    return RunningWork(*face(run.record), run)
