"""The keyword arguments of the public calls, for type checkers and editors.

What they mean is in declare/registry.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, Protocol, TypedDict

import msgspec

from runcue.core.model.record import WorkState
from runcue.core.model.retry import Retry
from runcue.declare.unique import Unique

Duration = float | timedelta | str
Artifact = (
    str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    | Callable[[Any], str | os.PathLike[str] | Iterable[str | os.PathLike[str]]]
)  # fmt: skip
RateValue = str | tuple[float, float] | Sequence[str | tuple[float, float]]
OUTBOX: Final = "runcue_outbox"
"""The table of an Outbox, unless it is told another."""


class AnyDataclass(Protocol):
    """A dataclass, as params that become a dict."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


class AnyModel(Protocol):
    """A pydantic model, as params that become a dict."""

    def model_dump(self) -> dict[str, Any]:
        """The fields of the model."""
        ...


class CueOptions(TypedDict, total=False):
    """What `Cue()` takes besides the store."""

    name: str
    max_queued: int | None
    reject_policy: str
    block_timeout: Duration | None
    default_timeout: Duration | None
    max_threads: int
    max_running: int | None
    output_limit: int
    callback_timeout: Duration
    grace: Duration
    keep_finished: int | None
    status_interval: Duration
    progress_interval: Duration
    pending_timeout: Duration | None
    pending_warn_after: Duration | None
    stall_timeout: Duration | None
    stall_warn_after: Duration | None
    max_params: int
    age_step: Duration | None
    throttle_timeout: Duration
    pool_size: int | None
    lease: Duration
    retention: Duration | None
    service_log_retention: Duration
    durability: str
    insecure: bool
    dask: str | None


class TaskOptions(TypedDict, total=False):
    """What `task()` takes besides the name."""

    uses: str | Sequence[str] | Callable[[Any], str | Sequence[str]] | None
    services: Sequence[str] | None
    executor: str | None
    retry: int | Retry | dict[str, Any] | None
    retry_delay: Callable[[Any], Duration | None] | None
    timeout: Duration | None
    cost: Mapping[str, float] | Callable[[Any], Mapping[str, float]] | None
    inputs: Artifact | None
    outputs: Artifact | None
    max_age: Duration | None
    label: str | None
    shell: bool | None
    check: bool | None
    cwd: str | os.PathLike[str] | None
    env: Mapping[str, str] | None


class MapOptions(TypedDict, total=False):
    """What `runcue.map()` takes besides the function, the items and `errors`."""

    rate: RateValue | None
    concurrent: int | None
    retry: int | Retry | dict[str, Any] | None
    timeout: Duration | None
    progress: bool
    store: str | os.PathLike[str] | None
    key: str | Callable[[Any], str | int] | None


class PlainOptions(TypedDict, total=False):
    """What `options()` of a task takes: everything that `submit()` takes but the task and its params."""

    target: str | os.PathLike[str] | None
    queue: str
    depends_on: Iterable[str] | None
    timeout: Duration | None
    dependency_timeout: Duration | None
    idempotency_key: str | None
    on_failed: str
    id: str | None
    priority: float
    run_at: float | datetime | None
    delay: Duration | None
    retry: int | Retry | dict[str, Any] | None
    unique: Unique | None
    expires: Duration | None
    tags: Mapping[str, str] | None
    group: str | None
    connection: Any


class SubmitOptions(PlainOptions, total=False):
    """What `submit()` takes besides the task."""

    params: dict[str, Any] | AnyDataclass | AnyModel | msgspec.Struct | None
    task_type: str | None


class PlainSchedule(PlainOptions, total=False):
    """What a schedule is declared with besides its interval or cron expression."""

    tz: str | None
    start: float | datetime | str | None
    until: float | datetime | str | None
    jitter: Duration | None
    overlap: str
    missed: str
    params: dict[str, Any] | AnyDataclass | AnyModel | msgspec.Struct | None


class DeclaredSchedule(PlainSchedule, total=False):
    """What `@cue.every` and `@cue.cron` take besides the interval or the cron expression."""

    name: str


class ScheduleOptions(PlainSchedule, total=False):
    """What `schedule()` takes besides its name and the task."""

    every: Duration | None
    cron: str | None


class Where(TypedDict, total=False):
    """Which units are meant, besides their state and task."""

    queue: str | None
    service: str | None
    search: str | None
    tags: Mapping[str, str] | None
    group: str | None
    key: str | None
    since: float | datetime | None
    until: float | datetime | None


class Which(TypedDict, total=False):
    """Which units are meant."""

    state: WorkState | str | None
    task: str | None
    queue: str | None
    service: str | None
    search: str | None
    tags: Mapping[str, str] | None
    group: str | None
    key: str | None
    since: float | datetime | None
    until: float | datetime | None
