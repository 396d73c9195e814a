"""A unit as three values: as it was submitted, as it is stored, and as users see it.

`Spec`    what was submitted. Made once at the edge, never changed, never copied.
`Record`  the unit at present. Every move makes a new one; a store keeps the latest.
`Work`    what callbacks, handlers and `get()` see of both.

All are frozen. Times are seconds of queue time, which looks like epoch seconds and never jumps;
`run_at` alone is wall time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from itertools import islice
from typing import Any

import msgspec

from runcue.core.limits.meter import Cost
from runcue.core.model.parse import decode_params
from runcue.core.model.retry import Retry
from runcue.core.model.state import is_pattern

UNSETTLED = ("#unsettled",)
"""The services of a unit from outside whose task nobody had declared. They are replaced by those of the task; where
each unit of the task has its own, this one has none that exists, and does not start."""
HISTORY_KEPT = 100
"""How many failed attempts of a unit are remembered."""


TITLE_PARAMS = 3
"""How many params a title shows of a unit that has neither label nor key nor tags."""
TITLE_VALUE = 40
"""How much of each it shows."""


class WorkState(StrEnum):
    """The state of a unit (the moves between states are in lifecycle.py)."""

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
        """True when nothing more happens to the unit unless it is retried by hand."""
        return self not in (WorkState.PENDING, WorkState.RUNNING)


class Attempt(msgspec.Struct, frozen=True):
    """One line in the history of a unit: an attempt that ended without success."""

    number: int
    at: float | None
    duration: float | None
    error: str
    worker: str | None = None


class Uniqueness(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Which units with its key a new unit is a duplicate of, and what then becomes of both."""

    within: float | None = None
    """Those that came less than so many seconds ago; None: those that are pending or running."""
    on_conflict: str = "return"
    at_most: float | None = None
    """How many seconds after it came a unit is postponed at most, by however many duplicates."""


class Progress(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """How far the handler of a unit said that it is. Called, as handlers do, it takes the next report."""

    fraction: float | None = None
    text: str | None = None

    def __call__(self, fraction: float | None = None, text: str | None = None) -> None:
        """Does nothing: so that a handler that reports its progress can be tested with a Work made by hand."""


NO_PROGRESS = Progress()


class ProgressReport:
    """What a handler has as `work.progress`: called, it reports; `fraction` and `text` are what it reported last."""

    __slots__ = ("_report", "fraction", "text")

    def __init__(self, report: Callable[[float | None, str | None], None]) -> None:
        self._report = report
        self.fraction: float | None = None
        self.text: str | None = None

    def __call__(self, fraction: float | None = None, text: str | None = None) -> None:
        """Report how far this is; emitted at most once a second. May be called from any thread."""
        self.fraction, self.text = fraction, text
        self._report(fraction, text)

    def __reduce__(self) -> tuple[Any, ...]:
        return Progress, (self.fraction, self.text)


class Extras(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What few units are submitted with."""

    tags: tuple[tuple[str, str], ...] = ()
    """Names and values by which people find it again."""
    expires: float | None = None
    """Seconds after which it fails if it has not started before."""
    outputs: tuple[str, ...] = ()
    """The units whose results are put into its params when it starts."""
    unique: Uniqueness | None = None
    """Which units with its `unique_key` it is a duplicate of."""


NO_EXTRAS = Extras()


class Spec(msgspec.Struct, frozen=True, gc=False):
    """What was submitted: everything that `submit` was given, checked and made exact."""

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
    """True when the user chose the id: only on such a unit others can depend before it is submitted."""
    retry: Retry | None = None
    """Its own policy for failed attempts, instead of that of its task."""
    cost: Cost = ()
    """How much of each quantity of its services a start is expected to use."""
    group: str | None = None
    """The group of units that it belongs to."""
    unique_key: str | None = None
    """What it has in common with the units that count as its duplicates."""
    extras: Extras | None = None
    label: str | None = None
    """What people know it by, where its task computes that."""

    @property
    def tags(self) -> tuple[tuple[str, str], ...]:
        """The names and values by which people find it again."""
        return () if self.extras is None else self.extras.tags


class Record(msgspec.Struct, frozen=True, gc=False):
    """A unit as it is stored."""

    id: str
    spec: Spec
    seq: int
    rank: float
    created_at: float
    state: WorkState = WorkState.PENDING
    attempt: int = 1
    spent: int = 0
    """The number of the last attempt that counts: a throttled, snoozed or stopped one is not counted."""
    failures: int = 0
    """Failed attempts since it was last retried by hand: limited by `max_attempts`."""
    token: int = 0
    """The token of the running attempt, else 0: an answer with another token is dropped."""
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
    """How often the worker that ran it died."""
    worker: str | None = None
    """The worker that runs it; if it is not running, the worker of its overdue attempt."""
    missing: int = 0
    """How many of its dependencies have not completed yet."""
    since: float = 0.0
    """When it became pending."""
    index_key: str | None = None
    """Where it waits or runs. Stores find the records under an index key in the order of `sort_key` and `seq`."""
    sort_key: float = 0.0
    watch_at: float | None = None
    """When it reaches its next time limit."""
    chosen: str | None = None
    """The service of a group that it was last started on."""
    expires_at: float | None = None
    """When it fails if it has not started before."""
    progress: Progress | None = None
    """What its running or last attempt said of how far it is."""

    @property
    def services(self) -> tuple[str, ...]:
        """The services it uses, as far as they are known, with the chosen one instead of a pattern."""
        services = self.spec.services
        if self.chosen is None:
            return services if services != UNSETTLED else ()
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
    """The worker that runs it, where several processes share a queue."""
    group: str | None = None
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    label: str | None = None
    """What people know it by, where its task computes that."""
    expires_at: float | None = None
    """When it fails if it has not started before."""
    progress: Progress = NO_PROGRESS
    """How far its handler last said that it is: `progress.fraction` and `progress.text`."""

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
    def title(self) -> str:
        """What a person knows it by: its label, else its key, its tags, or the first of its params."""
        if self.label is not None or self.idempotency_key is not None:
            return self.label or self.idempotency_key or ""
        known: Iterable[tuple[str, Any]] = self.tags.items() or islice(self.params.items(), TITLE_PARAMS)
        return " ".join(f"{name}={_cut(value)}" for name, value in known)

    @property
    def service(self) -> str | None:
        """The first service it uses, or None."""
        return self.services[0] if self.services else None

    @property
    def cancelled(self) -> bool:
        """True once it was cancelled (a running handler sees this at once)."""
        return self.state is WorkState.CANCELLED

    def charge(self, **amounts: float) -> None:
        """Does nothing: so that a handler that reports what it used can be tested with a Work made by hand."""

    def observe(self, headers: Mapping[str, Any], service: str | None = None) -> None:
        """Does nothing: so that a handler that passes on response headers can be tested with a Work made by hand."""


def _cut(value: Any) -> str:
    """A value as text, cut where it is long."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= TITLE_VALUE else f"{text[: TITLE_VALUE - 1]}…"


def view(record: Record) -> Work:
    """The `Work` that users see of a record."""
    spec = record.spec
    worker = record.worker if record.token else None
    extras = NO_EXTRAS if spec.extras is None else spec.extras
    return Work(record.id, spec.task, decode_params(spec.params), spec.target, spec.queue, record.state,
                record.attempt, record.created_at, record.started_at, record.completed_at, record.next_retry_at,
                record.result, record.error, spec.depends_on, spec.timeout, spec.dependency_timeout,
                spec.idempotency_key, spec.priority, spec.run_at, record.skipped, record.services, record.traceback,
                record.history, record.failures, spec.retry, worker, spec.group, dict(extras.tags), spec.label,
                record.expires_at, record.progress or NO_PROGRESS)  # fmt: skip


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
