"""The options of a Cue that affect decisions, and the rules of each task."""

from __future__ import annotations

import msgspec

from runcue.core.model.retry import Retry

MOST_CRASHES = 3
"""A unit fails when so many workers died while they ran it."""
PROBATION = 0.5
"""Seconds for which a unit that may kill its worker runs before another such unit is started."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a Cue that affect decisions."""

    max_queued: int | None = None
    reject_policy: str = "reject"
    keep_finished: int | None = 100_000
    age_step: float | None = 60.0
    pending_timeout: float | None = None
    pending_warn_after: float | None = None
    stall_timeout: float | None = None
    stall_warn_after: float | None = None
    throttle_timeout: float = 3600.0
    status_interval: float = 1.0


class Questions(msgspec.Struct, frozen=True):
    """Which callbacks the application registered."""

    ready: bool = False
    stale: bool = False
    score: bool = False
    dependencies: bool = False
    files: bool = False
    """True when some task declares its inputs or outputs."""

    @property
    def gates(self) -> bool:
        """True when a callback can hold a unit back or skip it."""
        return self.ready or self.stale or self.dependencies or self.files

    def __bool__(self) -> bool:
        return self.gates or self.score

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of the callbacks that are registered."""
        return tuple(name for name in self.__struct_fields__ if getattr(self, name))


NO_QUESTIONS = Questions()


class Rule(msgspec.Struct, frozen=True):
    """What deciding needs to know of a task: its retries, its services, and what its executor takes up.

    Where several processes share a queue, rules are stored with it: the deciding process needs no application code.
    """

    retry: Retry
    implicit: tuple[str, ...] = ()
    services: tuple[str, ...] | None = None
    """The services of its units, whatever they were when a unit was submitted; None when each unit names its own."""
    questions: Questions | None = None
    """Which callbacks are called about its units; None where a single program decides for all its tasks alike."""
    settings: Settings | None = None
    """The options of the program that declared it; None for those of the deciding process."""
    timeout: float | None = None
    """The timeout of a unit that was submitted from outside without one."""

    @property
    def own(self) -> tuple[str, ...]:
        """What its attempts take up in the process that runs them: the needs of a worker."""
        return tuple(name for name in self.implicit if name.startswith("#"))

    @property
    def shared(self) -> tuple[str, ...]:
        """The services that its executor uses, which all processes share."""
        return tuple(name for name in self.implicit if not name.startswith("#"))
