"""What goes into a turn and what comes out of it, as values.

In: the items of the inbox. Out: a `Plan`, everything that the turn decided. No part of it takes effect before the
store has committed it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from runcue.core.limits.meter import Cost
from runcue.core.limits.service import Limits
from runcue.core.model.events import News
from runcue.core.model.failure import Failure
from runcue.core.model.group import GroupCounts
from runcue.core.model.record import Record, Spec, WorkState
from runcue.core.model.schedule import Schedule
from runcue.core.model.settings import Rule
from runcue.core.model.state import NO_HEAD, Grant, Head, Quantity, ServiceState, Worker
from runcue.core.schedule.gates import Verdict

# into the turn --------------------------------------------------------------------------------------------


Ref = tuple[int, int]
"""Where an item is in the posts of a process: the number of the post, and the place in it."""
NO_ANSWER: Final = object()
"""What taking in a request returns when its answer comes later, or when the request wants none."""


class Submit(msgspec.Struct, eq=False):
    """New units: all are accepted or none. Answered with their ids."""

    specs: list[Spec]
    is_plain: bool
    """True when no spec has an id of its own, a key or dependencies: nothing has to be looked up."""
    may_wait: bool = False
    """True when this may wait for room in a full queue (`reject_policy="block"`)."""
    services: frozenset[str] = frozenset()
    """Services that some units use and that their program did not declare: the queue has to know them."""
    has_cost: bool = False
    """True when some units use an amount of a quantity, which has to fit into its window."""
    is_answered: bool = True
    """False when no caller waits for the ids: nothing can be refused, and the units count as accepted already."""
    at: float | None = None
    """When they were submitted, if that is not this turn."""
    are_usual: bool = False
    """True when it is known that all are submitted with an id made for them, a task with its services and timeout,
    and params, and with nothing else."""


class Submission(msgspec.Struct, eq=False):
    """A unit that was submitted from outside. Nobody waits for an answer: what is refused becomes a failed unit."""

    submit: Submit
    is_settled: bool = True
    """False when its services are those of its task, and its timeout, too, if it has none: whoever submitted it
    knows only the name of the task."""
    problem: str | None = None
    """What was wrong with what was submitted, if anything was: it fails with that."""


class Withdraw(msgspec.Struct, eq=False):
    """A caller no longer waits for room for its submission. Answered with True when that was still waiting."""

    submit: Submit | None
    ref: Ref | None = None
    """Where the submission is in the posts of this process, if it left it in one."""


class Outcome(msgspec.Struct, eq=False):  # tracked by the garbage collector: errors may refer back to it
    """How an attempt went: its result, or its failure."""

    id: str
    token: int
    result: Any = None
    failure: Failure | None = None
    error: BaseException | None = None
    has_ended: bool = True
    """False when the attempt is over but its code still runs (a timeout): `Ended` follows."""
    makes: tuple[str, ...] = ()
    """The declared outputs of its task, if the attempt succeeded."""


class Ended(msgspec.Struct, eq=False, gc=False):
    """The code of an overdue attempt has ended."""

    id: str
    token: int
    has_answer: bool = False


Entry = tuple[int, float, float]
"""The token of a granted start, the moment from which rates count it, and when its call began."""


class Entered(msgspec.Struct, eq=False):
    """Granted starts have entered their handlers: rates count them from there."""

    entries: list[Entry]


class Charge(msgspec.Struct, eq=False):
    """What an attempt has really used of each quantity so far."""

    token: int
    amounts: dict[str, float]


class Observe(msgspec.Struct, eq=False):
    """What a remote service told an attempt that it will still accept: of which quantity ("" for calls), how much,
    and for how many seconds."""

    token: int
    service: str | None
    left: Sequence[tuple[str, float, float]]


class Verdicts(msgspec.Struct, eq=False):
    """What the application's callbacks answered."""

    verdicts: list[Verdict]


class Cancel(msgspec.Struct, eq=False):
    """Cancel a unit, with its dependents when `cascade`. Answered with True when it had not ended yet."""

    id: str
    cascade: bool = False
    reason: str = "cancelled"


class Revive(msgspec.Struct, eq=False):
    """Retry a failed or cancelled unit as if it were new. Answered with True when it was one of those."""

    id: str
    cascade: bool = False


class Edit(msgspec.Struct, eq=False):
    """Give a pending or failed unit other params, another priority, or both; None stays as it is. Answered with None,
    or with why it cannot be done."""

    id: str
    params: bytes | None = None
    services: tuple[str, ...] | None = None
    """The services that its task chooses for these params, and below their cost."""
    cost: Cost | None = None
    priority: float | None = None
    label: str | None = None
    """What its task makes of these params for people to know it by."""


class Purge(msgspec.Struct, eq=False):
    """Delete failed units without a trace. Answered with how many there were."""

    ids: list[str]


class Configure(msgspec.Struct, eq=False):
    """Store these texts with the queue, or (None) delete them."""

    values: dict[str, str | None]


class Declare(msgspec.Struct, eq=False):
    """A service is declared, or its limits change."""

    limits: Limits
    is_quiet: bool = False
    """True for services declared before the first turn: no event is emitted."""


class Adjust(msgspec.Struct, eq=False):
    """Set some limits of a service by hand; all others stay as they are."""

    service: str
    limits: dict[str, Any]
    """Values by the names of the fields of `Limits`."""
    quantities: dict[str, Quantity | None]
    """The quantities that change; None removes one."""


class Pause(msgspec.Struct, eq=False):
    """Pause or resume a service or a queue. A name that no service has is taken for a queue's."""

    name: str
    paused: bool


class PutSchedule(msgspec.Struct, eq=False):
    """Add a schedule, or change the one of that name. Answered with None, or with why the name is not to be had."""

    schedule: Schedule


class DeclareSchedules(msgspec.Struct, eq=False):
    """Schedules that a program declares in its code."""

    schedules: list[Schedule]
    modules: dict[str, tuple[str, ...]] = {}
    """Modules with the names of all schedules that each declares: others of theirs are deleted."""


class Unschedule(msgspec.Struct, eq=False):
    """Delete a schedule. Answered with True when there was one."""

    name: str


class PauseSchedule(msgspec.Struct, eq=False):
    """Pause or resume a schedule. Answered with None, or with an error where there is none."""

    name: str
    is_paused: bool


class RunSchedule(msgspec.Struct, eq=False):
    """Submit a unit of a schedule now, with that id. Answered with the id, or with an error where there is none."""

    name: str
    id: str


class Tell(msgspec.Struct, eq=False):
    """An event of the engine that is emitted in order with all others (progress, a failed callback)."""

    type: str
    id: str | None = None
    data: dict[str, Any] | None = None
    token: int | None = None
    """The attempt it is about, if it is about one: nothing is emitted about an attempt that is over."""


class Serve(msgspec.Struct, eq=False):
    """Start only units of these queues from now on (None: of all)."""

    queues: frozenset[str] | None


class Hello(msgspec.Struct, eq=False):
    """A process introduces itself: who it is, what it can run, by which rules. Sent first, and when that changes."""

    worker: Worker
    rules: dict[str, Rule]


class Lost(msgspec.Struct, eq=False):
    """A worker is dead: its units are taken over."""

    worker: str


class Look(msgspec.Struct, eq=False):
    """Something was submitted from outside: the turn that takes this takes that, too."""


class Missed(msgspec.Struct, eq=False):
    """A process may have lost its letters: callbacks that it was to call have to be asked for anew."""


Item = (
    Submit | Withdraw | Outcome | Ended | Entered | Verdicts | Cancel | Revive | Edit | Purge | Configure | Declare
    | Adjust | Pause | Tell | Serve | Lost | Charge | Observe | Hello | Missed | Submission | Look
    | PutSchedule | DeclareSchedules | Unschedule | PauseSchedule | RunSchedule
)  # fmt: skip


class Post(msgspec.Struct, frozen=True):
    """Items that a process left for the deciding process, all in one row of the inbox."""

    worker: str
    """The process; empty for items that came from outside, which nobody waits for the answer to."""
    number: int
    items: list[Item]


class ReadRequest(msgspec.Struct):
    """What a decision needs from the store: records by id and by idempotency key, failed dependents of ids, and the
    newest unit with each unique key."""

    ids: set[str] = msgspec.field(default_factory=set)
    keys: set[str] = msgspec.field(default_factory=set)
    dependents_of: set[str] = msgspec.field(default_factory=set)
    unique_keys: set[str] = msgspec.field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.ids or self.keys or self.unique_keys or self.dependents_of)


class ReadResult(msgspec.Struct):
    """What the store had of a `ReadRequest`."""

    records: dict[str, Record] = msgspec.field(default_factory=dict)
    keys: dict[str, Record] = msgspec.field(default_factory=dict)
    dependents: dict[str, list[Record]] = msgspec.field(default_factory=dict)
    forgotten: dict[str, WorkState] = msgspec.field(default_factory=dict)
    """The final states of units whose records are no longer kept."""
    unique_keys: dict[str, Record] = msgspec.field(default_factory=dict)


# read in the turn -----------------------------------------------------------------------------------------

Key = tuple[float, int]
"""A place in an order: rank or time, then number."""


class Spent(NamedTuple):
    """How much of a quantity, or how many calls, were counted for one start, and from which moment that counts."""

    amount: float
    at: float


class Changes(msgspec.Struct):
    """What the store has that this process does not know since its last turn."""

    head: Head
    is_first: bool = False
    """True when this is everything: another process decided meanwhile, or nothing was known before."""
    index_heads: dict[str, Key | None] = msgspec.field(default_factory=dict)
    """The place of the first record under each index key that changed; None where there is none."""
    services: list[ServiceState] = msgspec.field(default_factory=list)
    workers: list[Worker] = msgspec.field(default_factory=list)
    """All processes that have the queue open, and dead ones whose units were not taken over yet."""
    tasks: dict[str, Rule] = msgspec.field(default_factory=dict)
    paused: frozenset[str] = frozenset()
    """All paused queues."""
    schedules: list[Schedule] = msgspec.field(default_factory=list)
    """All schedules."""
    watch_at: float = math.inf
    """When a unit next reaches a time limit."""


class TurnReader(Protocol):
    """What a decision may read from a shared store during its turn."""

    def read(self, request: ReadRequest) -> ReadResult:
        """The stored records that a decision names."""
        ...

    def page(self, index_key: str, after: Key | None, limit: int) -> list[Record]:
        """The next records under an index key, after that place."""
        ...

    def dependents(self, work_id: str) -> list[str]:
        """The ids of all units that ever depended on that one, in the order they came."""
        ...

    def by_id(self, ids: list[str]) -> dict[str, Record]:
        """The records of these units, as far as they are stored."""
        ...

    def watched(self, until: float, limit: int, after: Key | None = None) -> list[Record]:
        """Records that reach a time limit until then, the first one first, after that (time, number)."""
        ...

    def next_watch(self, after: float) -> float:
        """When a unit reaches the first time limit after that moment; infinity when there is none."""
        ...

    def oldest(self, after: int, limit: int) -> list[Record]:
        """The pending records with the lowest numbers after that one."""
        ...

    def starts(self, since: Mapping[str, float]) -> list[Grant]:
        """The grants of each of these services after that moment, in order, less those that were given back."""
        ...

    def spent(self, work_id: str, service: str, since: float) -> dict[str, Spent]:
        """What was counted of each quantity of a service for the latest start of a unit from that moment on; "" are
        calls."""
        ...

    def unstarted(self, worker: str) -> list[int]:
        """The tokens of starts that are assigned to that process and that it has not read yet."""
        ...

    def take_back(self, worker: str) -> tuple[list[int], list[str]]:
        """Remove what that process has not read: returns the tokens of starts, which it never begins, and the ids of
        units that it was to call callbacks about."""
        ...

    def groups(self, names: Sequence[str]) -> dict[str, GroupCounts]:
        """How many units of each of these groups are in each state, but for groups that are unknown."""
        ...

    def accepted(self) -> list[Record]:
        """The units in the inbox that were accepted and not decided about yet, in order."""
        ...


# out of the turn ------------------------------------------------------------------------------------------


class Plan:
    """Everything that one turn decided."""

    __slots__ = ("again", "ask", "config", "dependent", "depth", "errors", "events", "finals", "foreign", "forget",
                 "grants", "groups", "has_moved_alarm", "head", "index_keys", "is_notable", "is_whole", "keyed",
                 "lost", "parts", "pressure", "purged", "queues", "rated", "records", "replies", "respecified",
                 "retagged", "revived", "rewritten", "schedules", "services", "start", "stop", "tagged", "tasks",
                 "usual", "waits_for_wall", "wake_at", "workers")  # fmt: skip

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.keyed: list[Record] = []
        """Those of `records` that their idempotency key and their unique key name from now on."""
        self.dependent: list[Record] = []
        """Those of `records` that are new and depend on others."""
        self.tagged: list[str] = []
        """Those of `records` with a group or tags that are new, have ended, or were final before: by these they are
        found. A unit may be in it more than once."""
        self.retagged: dict[str, Record] = {}
        """Those of `tagged` whose group or tags were others, as they were before."""
        self.groups: dict[str, GroupCounts | None] = {}
        """The counts of the groups that changed; None for those that are no longer kept."""
        self.forget: list[str] = []
        """Final units whose record is no longer kept; their state stays known."""
        self.purged: list[str] = []
        """Units that are deleted without a trace."""
        self.config: dict[str, str | None] = {}
        self.start: list[Record] = []
        self.rated: dict[int, float] = {}
        """The starts, by token, whose entry into the handler has to be reported (`Entered`), and the latest moment
        for that: a call that cannot begin by then is granted anew."""
        self.stop: list[int] = []
        self.ask: list[Record] = []
        self.again = 0
        """How many of `ask` were asked before."""
        self.events: list[News] = []
        self.errors: dict[int, BaseException] = {}
        """The exceptions behind some of `events`, by place: handed to callbacks, and not stored."""
        self.finals: dict[int, News] = {}
        """The final ones of `events`, by place."""
        self.is_notable = False
        """True when `events` has others than the everyday queued, started and completed."""
        self.index_keys: set[str] = set()
        """The index keys of pending units whose first record may have changed."""
        self.revived: set[str] = set()
        """Those of `records` that were final before."""
        self.usual: set[int] = set()
        """The numbers of new units that had nothing unusual when they were accepted: unless they are `rewritten`, a
        store need not look for anything but a start."""
        self.rewritten: set[str] = set()
        """Those of `records` in which other fields changed than a start or a completion changes."""
        self.respecified: set[str] = set()
        """Those of `rewritten` of which other fields changed than a turn changes by itself: what was submitted."""
        self.services: dict[str, ServiceState] = {}
        self.grants: list[Grant] = []
        self.queues: dict[str, bool] = {}
        """Queues that were paused (True) or resumed (False)."""
        self.schedules: dict[str, Schedule | None] = {}
        """The schedules that were added or have changed; None for those that were deleted."""
        self.lost: list[str] = []
        """Dead workers whose units were all taken over."""
        self.workers: dict[str, Worker] = {}
        """The workers whose row has to be written."""
        self.tasks: dict[str, Rule] = {}
        """The rules of tasks that were declared, or declared anew."""
        self.parts: dict[str, Plan] = {}
        """What other processes have to do or to know: starts, stops, callbacks to call, replies, events."""
        self.foreign: dict[int, str] = {}
        """The process of each of `events` that is not for this one, by place."""
        self.has_moved_alarm = False
        """True when other processes have to know that `wake_at` of an earlier turn has passed."""
        self.head = NO_HEAD
        self.replies: list[tuple[Any, Any]] = []
        """Answers, each with its item; in the part of another process with the `Ref` of the item."""
        self.is_whole = False
        """True when the turn planned everything; False when it only took the inbox in."""
        self.wake_at: float = float("inf")
        self.waits_for_wall = False
        """True when something waits for a moment of wall time: if that clock is set, the next turn is due at once."""
        self.depth = 0
        self.pressure: dict[str, float] = {}
        """How many units are pending and how loaded each service is: what a priority callback may look at."""

    @property
    def writes(self) -> bool:
        """True when there is anything in it that a store has to write."""
        return bool(
            self.records or self.events or self.grants or self.services or self.queues or self.lost or self.workers
            or self.tasks or self.parts or self.forget or self.purged or self.config or self.schedules
            or self.has_moved_alarm
        )  # fmt: skip

    def part(self, worker: str) -> Plan:
        """The part of another process, made if there is none yet."""
        part = self.parts.get(worker)
        if part is None:
            part = self.parts[worker] = Plan()
        return part

    def heard(self) -> Plan:
        """The events that are for this process: the plan itself if all are."""
        if not self.foreign:
            return self
        heard = Plan()
        for place, news in enumerate(self.events):
            if place not in self.foreign:
                if place in self.errors:
                    heard.errors[len(heard.events)] = self.errors[place]
                if place in self.finals:
                    heard.finals[len(heard.events)] = news
                heard.events.append(news)
        heard.is_notable = self.is_notable
        return heard

    def __repr__(self) -> str:
        parts = [
            f"{name}={len(value)}"
            for name in ("records", "forget", "start", "stop", "ask", "events", "replies")
            if (value := getattr(self, name))
        ]
        parts.append(f"wake_at={self.wake_at}")
        return f"<Plan {' '.join(parts)}>"
