"""The options of a Cue that decide something, and what is known of each task."""

from __future__ import annotations

import msgspec

from runcue.core.model.retry import Retry

MOST_CRASHES = 3
"""How many processes a work may take with it before it is given up."""
PROBATION = 0.5
"""Seconds for which work whose process died twice runs before another such is started beside it."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a Cue that decide something."""

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
        """True when a callback can hold work back or skip it."""
        return self.ready or self.stale or self.dependencies or self.files

    def __bool__(self) -> bool:
        return self.gates or self.score

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of those that there are."""
        return tuple(name for name in self.__struct_fields__ if getattr(self, name))


NO_QUESTIONS = Questions()


class Rule(msgspec.Struct, frozen=True):
    """What deciding needs to know of a task: its retries, what it uses, and what its executor takes up.

    Where several processes share a queue, rules are stored with it: whoever decides needs no code of the application.
    """

    retry: Retry
    implicit: tuple[str, ...] = ()
    services: tuple[str, ...] | None = None
    """What its work uses, whatever was so when it was submitted; None when each work says it itself."""
    questions: Questions | None = None
    """Which callbacks are asked about its work; None where one program decides, for all its tasks alike."""
    settings: Settings | None = None
    """The options of the program that declared it; None for those of who decides."""

    @property
    def own(self) -> tuple[str, ...]:
        """What its attempts take up of the process they run in."""
        return tuple(name for name in self.implicit if name.startswith("#"))

    @property
    def shared(self) -> tuple[str, ...]:
        """The services that its executor uses, which all processes share."""
        return tuple(name for name in self.implicit if not name.startswith("#"))
