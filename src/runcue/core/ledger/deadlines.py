"""The moments at which somebody has to look at pending work, whatever else happens to it.

They follow from the record and the settings alone; the next of them is in the record (`watch_at`), so that a
store can find what is due. A start ends them all, and becoming pending again begins them anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec.structs import replace

from runcue.core.model.record import Record, WorkState
from runcue.core.model.settings import Settings

DEPENDENCY, THROTTLE = "dependency_timeout", "throttle_timeout"
WARNING, TIMEOUT = "pending_warning", "pending_timeout"


def deadlines(record: Record, settings: Settings, now: float, wall: float) -> Iterator[tuple[float, str]]:
    """Every moment that matters to that pending work, with what it is."""
    spec = record.spec
    if spec.dependency_timeout is not None and spec.depends_on and record.started_at is None:
        yield record.since + spec.dependency_timeout, DEPENDENCY
    if record.throttled_since is not None:
        yield record.throttled_since + settings.throttle_timeout, THROTTLE
    if settings.pending_warn_after is not None or settings.pending_timeout is not None:
        base = max(record.since, record.created_at + (spec.delay or 0), record.next_retry_at or 0)
        if spec.run_at is not None and record.started_at is None:
            base = max(base, now + spec.run_at - wall)
        if settings.pending_warn_after is not None:
            yield base + settings.pending_warn_after, WARNING
        if settings.pending_timeout is not None:
            yield base + settings.pending_timeout, TIMEOUT


def armed(record: Record, settings: Settings, now: float, wall: float, after: float = -math.inf) -> Record:
    """The same work with its next moment after `after`, if it has one."""
    at = None
    if record.state is WorkState.PENDING:
        times = (at for at, _ in deadlines(record, settings, now, wall))
        at = min((at for at in times if at > after), default=None)
    return record if at == record.watch_at else replace(record, watch_at=at)
