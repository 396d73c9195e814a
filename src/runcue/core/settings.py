"""The options of a Cue that decide something, and what is known of each task."""

from __future__ import annotations

import msgspec

from runcue.core.retry import Retry

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


class Rule(msgspec.Struct, frozen=True):
    """What deciding needs to know of a task: its retries, what it uses, and what its executor takes up."""

    retry: Retry
    implicit: tuple[str, ...] = ()
    services: tuple[str, ...] | None = None
    """What its work uses, whatever was so when it was submitted; None when each work says it itself."""
