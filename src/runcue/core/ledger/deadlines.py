"""When a pending unit is due by its own times, and when its time limits on waiting are reached.

Both follow from the record and the settings alone. The next limit is in the record (`watch_at`), so that a store can
find the units that have reached one. A start ends all limits; they begin anew when the unit becomes pending again,
but for the moment at which it expires (`expires_at`): that stays as it is until the unit is retried by hand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec.structs import replace

from runcue.core.model.record import Record, WorkState
from runcue.core.model.settings import Settings

DEPENDENCY, THROTTLE = "dependency_timeout", "throttle_timeout"
WARNING, TIMEOUT = "pending_warning", "pending_timeout"
EXPIRED = "expired"


def is_before_run_at(record: Record, wall: float) -> bool:
    """True while its `run_at` is to come. A unit that was started was due, even if the clock was set back."""
    return record.started_at is None and (record.spec.run_at or 0) > wall


def due_at(record: Record, now: float, wall: float) -> float:
    """When the retry, the delay and the `run_at` of a unit let it start, as queue time."""
    spec = record.spec
    at = max(record.created_at + (spec.delay or 0), record.next_retry_at or 0)
    return (
        max(at, now + (spec.run_at - wall)) if spec.run_at is not None and record.started_at is None else at
    )


def deadlines(record: Record, settings: Settings, now: float, wall: float) -> Iterator[tuple[float, str]]:
    """Every time limit of a pending unit: when it is reached, and which one it is."""
    spec = record.spec
    if spec.dependency_timeout is not None and spec.depends_on and record.started_at is None:
        yield record.since + spec.dependency_timeout, DEPENDENCY
    if record.expires_at is not None:
        yield record.expires_at, EXPIRED
    if record.throttled_since is not None:
        yield record.throttled_since + settings.throttle_timeout, THROTTLE
    if settings.pending_warn_after is not None or settings.pending_timeout is not None:
        since = max(record.since, due_at(record, now, wall))
        if settings.pending_warn_after is not None:
            yield since + settings.pending_warn_after, WARNING
        if settings.pending_timeout is not None:
            yield since + settings.pending_timeout, TIMEOUT


def armed(record: Record, settings: Settings, now: float, wall: float, after: float = -math.inf) -> Record:
    """The record of a unit with its next time limit after `after` as `watch_at`."""
    at = None
    if record.state is WorkState.PENDING:
        times = (at for at, _ in deadlines(record, settings, now, wall))
        at = min((at for at in times if at > after), default=None)
    return record if at == record.watch_at else replace(record, watch_at=at)
