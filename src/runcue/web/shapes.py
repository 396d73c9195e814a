"""The types of all answers, queries and bodies. The OpenAPI document is made from them.

Times are seconds since the epoch by the host's clock, however the queue counts them. No value contains a secret:
rows.py and printed.py mask the texts.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

MOST_ROWS = 500
MOST_BULK = 10_000
LARGEST = 2**63 - 1

Number = int | float
State = Literal["pending", "running", "completed", "failed", "cancelled"]
Text = Annotated[str, Meta(min_length=1, max_length=200)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]


Label = Annotated[str, Meta(min_length=1, max_length=512)]
Tag = Annotated[str, Meta(min_length=3, max_length=700, pattern="^[^=]+=.")]
"""A name and a value, as `run=nightly`."""


class Shape(Struct, kw_only=True):
    """An answer."""


class Given(Struct, kw_only=True, forbid_unknown_fields=True):
    """A query or a body; other fields than these are refused."""


# units ----------------------------------------------------------------------------------------------------


class Why(Shape):
    """Why a unit waits, in few words (`text`) and in detail, and until when."""

    reason: str
    text: str
    details: str
    until: float | None
    seconds: float | None
    service: str | None
    ahead: int
    waits_for: list[str]


class Row(Shape):
    """A unit in a list."""

    id: str
    task: str
    target: str | None
    queue: str
    state: State
    attempt: int
    failures: int
    priority: Number
    created_at: float
    started_at: float | None
    completed_at: float | None
    next_retry_at: float | None
    run_at: float | None
    duration: float | None
    services: list[str]
    worker: str | None
    error: str | None
    skipped: bool
    title: str
    """What a person knows it by."""
    group: str | None
    tags: dict[str, str]
    why: Why | None


class Try(Shape):
    """An attempt that ended without success."""

    number: int
    at: float | None
    duration: float | None
    error: str
    worker: str | None


class HowFar(Shape):
    """How far the handler of a unit said that it is."""

    fraction: float | None
    text: str | None


class Detail(Row):
    """A unit with all its fields."""

    params: Any
    result: Any
    traceback: str | None
    history: list[Try]
    timeout: float | None
    retry: Any
    depends_on: list[str]
    dependency_timeout: float | None
    idempotency_key: str | None
    expires_at: float | None
    progress: HowFar | None


class Node(Shape):
    """A unit in a graph; task and state are null when it is not kept, or was never submitted."""

    id: str
    task: str | None
    state: State | None


class Graph(Shape):
    """The units around one unit; an edge is [dependency, unit]. `more` says that some were left out."""

    nodes: list[Node]
    edges: list[tuple[str, str]]
    more: bool


class Stream(Shape):
    """A stream that a command printed to."""

    attempt: int
    stream: str
    size: int


class WorkPage(Shape):
    """One unit with its graph and its output."""

    work: Detail
    graph: Graph
    output: list[Stream]


class GroupProgress(Shape):
    """How far a group of units is."""

    name: str
    text: str
    fraction: float
    counts: dict[State, int]


class Works(Shape):
    """A page of a list; `next` is the `before` of the next page, `group` the group that it is filtered by."""

    works: list[Row]
    next: str | None
    group: GroupProgress | None


class Output(Shape):
    """A piece of a stream: from byte `start` to byte `end` of `size`."""

    text: str
    start: int
    end: int
    size: int


# the queue ------------------------------------------------------------------------------------------------


class Rate(Shape):
    """A rate, and how much of its window is used."""

    rate: str
    used: Number
    limit: Number


class Quantity(Shape):
    """A quantity that is limited for each window, such as tokens."""

    name: str
    used: Number
    limit: Number
    per: Number | str | None


class Width(Shape):
    """The bounds of a limit that adapts."""

    min: int
    start: int
    max: int


class Service(Shape):
    """A service: its limits, how much of them is used, and what blocks it."""

    name: str
    running: int
    concurrent: Number | None
    adaptive: Width | None
    rates: list[Rate]
    quantities: list[Quantity]
    circuit: str | None
    circuit_threshold: int | None
    circuit_timeout: Number | None
    paused: bool
    blocked: str | None
    until: float | None
    declared: str | None = None
    each: str | None = None


class Services(Shape):
    """The services, and how many more there are."""

    services: list[Service]
    services_more: int


class Schedule(Shape):
    """A schedule: when its units come, how the last one stands, and what is wrong."""

    name: str
    task: str
    title: str
    """What its units do, in few words: a command, or their params."""
    when: str
    every: float | None
    cron: str | None
    tz: str
    start: float | None
    until: float | None
    jitter: float
    overlap: str
    missed: str
    queue: str
    priority: Number
    source: str | None
    next_at: float | None
    last_at: float | None
    last_id: str | None
    last_state: State | None
    """Null where the last unit is no longer kept."""
    runs: int
    skipped: int
    paused: bool
    problem: str | None


class Schedules(Shape):
    """The schedules by name, and how many more there are."""

    schedules: list[Schedule]
    schedules_more: int


class Queue(Shape):
    """The queue that the dashboard shows."""

    name: str
    path: str | None
    read_only: bool
    durable: bool


class Counts(Shape):
    """How many units there are in each state."""

    pending: int
    running: int
    completed: int
    failed: int
    cancelled: int


class Pace(Shape):
    """Units that ended per second, over the last ten seconds."""

    completed: float
    failed: float


class History(Shape):
    """The last minutes, as far as a client watched them: a point for each second up to `until`."""

    step: int
    until: float
    pending: list[int]
    running: list[int]
    completed: list[int]
    failed: list[int]


class Sample(Shape):
    """One more point for the history; `completed` and `failed` count since the sample before it."""

    at: float
    pending: int
    running: int
    completed: int
    failed: int


class Worker(Shape):
    """A process that has the queue open."""

    id: str
    state: str
    host: str
    pid: int
    started_at: float
    queues: list[str] | None
    serving: bool
    running: int
    silent_for: float | None


class Reason(Shape):
    """How many of the units that were examined wait for one reason, and the seconds until the first may run."""

    text: str
    count: int
    seconds: float | None


class Waiting(Shape):
    """The units that wait; `reasons` counts those of the latest `looked_at` units."""

    rows: list[Row]
    reasons: list[Reason]
    looked_at: int


class Group(Shape):
    """Dead letters of one task with the same error, numbers in it aside; `sample` is the id of one."""

    task: str
    error: str
    count: int
    first_at: float | None
    last_at: float | None
    sample: str


class Failures(Shape):
    """Dead letters by error; the groups are those of the latest `looked_at`."""

    groups: list[Group]
    looked_at: int


class Status(Shape):
    """The overview. The live stream has `sample` in place of `history`."""

    at: float
    queue: Queue
    counts: Counts
    pace: Pace
    services: list[Service]
    services_more: int
    paused: list[str]
    workers: list[Worker]
    running: list[Row]
    waiting: Waiting
    recent: list[Row]
    failures: Failures
    history: History | UnsetType = UNSET
    sample: Sample | UnsetType = UNSET


# queries and bodies ---------------------------------------------------------------------------------------


class Choice(Given):
    """Which units."""

    state: State | None = None
    task: Name | None = None
    queue: Name | None = None
    service: Name | None = None
    group: Label | None = None
    tag: Tag | None = None
    search: Text | None = None


class WorksQuery(Choice):
    """Which units a list shows."""

    before: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    limit: Annotated[int, Meta(ge=1, le=MOST_ROWS)] = 50


class OutputQuery(Given):
    """Which piece of a command's output; without `start` its end."""

    stream: Literal["stdout", "stderr"] = "stdout"
    attempt: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    start: Annotated[int, Meta(ge=0, le=LARGEST)] | None = None
    tail: Annotated[int, Meta(ge=1, le=1 << 20)] = 65_536


class EventsQuery(Given):
    """Which events: names separated by commas, and the number after which to begin (0: all that are kept)."""

    types: Annotated[str, Meta(max_length=1000)] | None = None
    since: Annotated[int, Meta(ge=-(2**63), le=LARGEST)] | None = None


class LinkQuery(Given):
    """The token or the code in a link to the page."""

    token: str | None = None
    code: str | None = None


class Filter(Choice):
    """Which units an action is about; `error_group` is the error of a group of dead letters."""

    error_group: Annotated[str, Meta(max_length=500)] | None = None


class Bulk(Given):
    """An action on all units that match; with `dry_run` they are only counted."""

    filter: Filter
    dry_run: bool = False


class One(Given):
    """An action on one unit; `cascade` extends it to all that depend on it."""

    cascade: bool = False


class Nothing(Given):
    """An empty object."""


class Limits(Given):
    """Limits to set by hand: a field that is left out stays, null removes the limit."""

    rate: (
        Annotated[str, Meta(max_length=100)] | Annotated[list[str], Meta(max_length=20)] | UnsetType | None
    ) = UNSET
    concurrent: Annotated[int, Meta(ge=1, le=1_000_000_000)] | UnsetType | None = UNSET
    circuit_threshold: Annotated[int, Meta(ge=1, le=1_000_000_000)] | UnsetType | None = UNSET
    circuit_timeout: Number | str | UnsetType = UNSET
    quantities: Annotated[dict[str, str | None], Meta(max_length=50)] | UnsetType = UNSET


# answers of actions ---------------------------------------------------------------------------------------


class Changed(Shape):
    """Whether the action changed anything."""

    changed: bool


class Outcome(Shape):
    """How many units an action changed, how many it could not change, and how many it left for the next action.

    `left` is null when there are more, and they were not counted. With `dry_run`: how many units match and some of
    their ids; `more` says that these are only the first.
    """

    changed: int | UnsetType = UNSET
    skipped: int | UnsetType = UNSET
    left: int | UnsetType | None = UNSET
    count: int | UnsetType = UNSET
    sample: list[str] | UnsetType = UNSET
    more: bool | UnsetType = UNSET


class Submitted(Shape):
    """The unit that was submitted."""

    id: str


class Paused(Shape):
    """Whether the service, queue or schedule is paused now."""

    paused: bool


class Error(Shape):
    """What went wrong, in one line."""

    error: str
