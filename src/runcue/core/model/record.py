"""The values runcue is made of: what was asked for, how it stands, and what people are shown.

`Spec`    what was submitted. Made once at the edge, never changed, never copied.
`Record`  how that work stands now. Every move makes a new one; a store keeps the latest.
`Work`    what callbacks, handlers and `get()` see of both.

All are frozen. Times are seconds of queue time, which looks like epoch seconds and never jumps;
`run_at` alone is wall time.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from runcue.core.limits.meter import Cost
from runcue.core.model.parse import decode_params
from runcue.core.model.retry import Retry
from runcue.core.model.state import is_pattern

HISTORY_KEPT = 100
"""How many failed attempts of a work are remembered."""


class WorkState(StrEnum):
    """Where a piece of work stands in its life (the moves are in lifecycle.py)."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    QUEUED = PENDING

    __hash__ = str.__hash__  # Enum hashes by a Python function; states are looked up for every move

    @classmethod
    def _missing_(cls, value: object) -> WorkState | None:
        return cls.PENDING if value == "queued" else None

    @property
    def is_final(self) -> bool:
        """True when nothing more happens to the work unless somebody retries it."""
        return self not in (WorkState.PENDING, WorkState.RUNNING)


class Attempt(msgspec.Struct, frozen=True):
    """One line of a work's history: a start that ended without success."""

    number: int
    at: float | None
    duration: float | None
    error: str
    worker: str | None = None


class Spec(msgspec.Struct, frozen=True, gc=False):
    """What was asked for: everything `submit` was given, checked and made exact."""

    id: str
    task: str
    params: bytes
    services: tuple[str, ...]
    queue: str = "default"
    target: str | None = None
    depends_on: tuple[str, ...] = ()
    priority: float = 0
    run_at: float | None = None
    delay: float | None = None
    timeout: float | None = None
    dependency_timeout: float | None = None
    idempotency_key: str | None = None
    on_failed: str = "resubmit"
    is_named: bool = False
    """True when the id was given by the user: only such work can be waited for before it comes."""
    retry: Retry | None = None
    """Its own policy for failed attempts, in place of its task's."""
    cost: Cost = ()
    """How much of each quantity of its services a start is expected to use."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """How one piece of work stands. The unit that stores keep."""

    id: str
    spec: Spec
    seq: int
    rank: float
    created_at: float
    state: WorkState = WorkState.PENDING
    attempt: int = 1
    spent: int = 0
    """Starts that count: a throttled, snoozed or stopped start reuses its number."""
    failures: int = 0
    """Failed attempts since the last explicit retry: what `max_attempts` bounds."""
    token: int = 0
    """Fences the running attempt: an answer with another token is dropped."""
    started_at: float | None = None
    completed_at: float | None = None
    next_retry_at: float | None = None
    throttled_since: float | None = None
    skipped: bool = False
    result: Any = None
    error: str | None = None
    traceback: str | None = None
    history: tuple[Attempt, ...] = ()
    crashes: int = 0
    """How often the process that ran it died."""
    worker: str | None = None
    """Who runs it; of work that does not run, with whom the code of an attempt that was given up may still run."""
    missing: int = 0
    """How many of its dependencies have not completed yet."""
    since: float = 0.0
    """When it became pending."""
    shelf: str | None = None
    """Where it waits or runs: stores find it by that, in the order of `place` and `seq`, and know no more of it."""
    place: float = 0.0
    watch_at: float | None = None
    """When somebody has to look at it, wherever it is."""
    chosen: str | None = None
    """The service it was last started on, where it may use any of several."""

    @property
    def services(self) -> tuple[str, ...]:
        """What it uses: the chosen service in place of a pattern."""
        services = self.spec.services
        if self.chosen is None:
            return services
        return tuple(self.chosen if is_pattern(name) else name for name in services)


class Work(msgspec.Struct, frozen=True):
    """One request to do something, as callbacks, handlers and `get()` see it.

    Build one by hand to test a callback or a handler: `Work(id="a", task="extract", params={"page": 1})`.
    """

    id: str
    task: str
    params: dict[str, Any] = msgspec.field(default_factory=dict)
    target: str | None = None
    queue: str = "default"
    state: WorkState = WorkState.PENDING
    attempt: int = 1
    created_at: float = 0.0
    started_at: float | None = None
    completed_at: float | None = None
    next_retry_at: float | None = None
    result: Any = None
    error: str | None = None
    depends_on: tuple[str, ...] = ()
    timeout: float | None = None
    dependency_timeout: float | None = None
    idempotency_key: str | None = None
    priority: float = 0
    run_at: float | None = None
    skipped: bool = False
    services: tuple[str, ...] = ()
    traceback: str | None = None
    history: tuple[Attempt, ...] = ()
    failures: int = 0
    """Failed attempts since it was submitted or last retried by hand."""
    retry: Retry | None = None
    """Its own policy for failed attempts, if it was submitted with one."""
    worker: str | None = None
    """The process that runs it, where several share a queue."""

    @property
    def task_type(self) -> str:
        """The older name of `task`."""
        return self.task

    @property
    def attempt_count(self) -> int:
        """The older name of `attempt`."""
        return self.attempt

    @property
    def last_error(self) -> str | None:
        """The older name of `error`."""
        return self.error

    @property
    def service(self) -> str | None:
        """The first service this work uses, or None."""
        return self.services[0] if self.services else None

    @property
    def cancelled(self) -> bool:
        """True once somebody cancelled it (a running handler sees this live)."""
        return self.state is WorkState.CANCELLED

    def progress(self, fraction: float | None = None, text: str | None = None) -> None:
        """Nothing: here so that a handler that reports its progress can be tested with a Work made by hand."""

    def charge(self, **amounts: float) -> None:
        """Nothing, as above: what a running handler says that it really used."""

    def observe(self, headers: Mapping[str, Any], service: str | None = None) -> None:
        """Nothing, as above: what a running handler was told of the limits of the far side."""


def view(record: Record) -> Work:
    """The frozen `Work` people are shown for a record."""
    spec = record.spec
    return Work(
        record.id,
        spec.task,
        decode_params(spec.params),
        spec.target,
        spec.queue,
        record.state,
        record.attempt,
        record.created_at,
        record.started_at,
        record.completed_at,
        record.next_retry_at,
        record.result,
        record.error,
        spec.depends_on,
        spec.timeout,
        spec.dependency_timeout,
        spec.idempotency_key,
        spec.priority,
        spec.run_at,
        record.skipped,
        record.services,
        record.traceback,
        record.history,
        record.failures,
        spec.retry,
        record.worker if record.token else None,
    )


class PriorityContext(msgspec.Struct, frozen=True):
    """What a priority callback may look at when it scores a candidate."""

    work: Work
    wait_time: float
    queue_depth: int
    service_pressure: dict[str, float] = msgspec.field(default_factory=dict)

    @property
    def work_unit(self) -> Work:
        """The older name of `work`."""
        return self.work
