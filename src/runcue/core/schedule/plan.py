"""What goes into a turn and what comes out of it. All of it is data.

In: the items of the inbox. Out: a `Plan`, everything one turn decided; nothing in it has happened until the
store has committed it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from runcue.core.limits.service import Limits
from runcue.core.model.events import News
from runcue.core.model.failure import Failure
from runcue.core.model.record import Record, Spec, WorkState
from runcue.core.model.settings import Rule
from runcue.core.model.state import NO_HEAD, Grant, Head, Quantity, ServiceState, Worker
from runcue.core.schedule.gates import Verdict

# into the turn --------------------------------------------------------------------------------------------


Ref = tuple[int, int]
"""An item that a process left for whoever decides: which of its posts, and the place in it."""


class Submit(msgspec.Struct, eq=False):
    """New work: all of it is accepted or none. Answered with the ids."""

    specs: list[Spec]
    is_plain: bool
    """True when no spec has an id of its own, a key or dependencies: nothing has to be looked up."""
    may_wait: bool = False
    """True when a full queue may keep this waiting (`reject_policy="block"`)."""
    services: frozenset[str] = frozenset()
    """Services that some of it uses and that its program did not declare: the queue has to know them."""
    has_cost: bool = False
    """True when some of it costs an amount of something, which has to fit into a window."""
    is_answered: bool = True
    """False when nobody waits for the ids: nothing of it can be refused, and it counts as accepted already."""


class Withdraw(msgspec.Struct, eq=False):
    """A submission that waits for room gave up. Answered with True when it was still waiting."""

    submit: Submit | None
    ref: Ref | None = None
    """The same submission, where this process left it for whoever decides."""


class Outcome(msgspec.Struct, eq=False):  # the collector must see through it: errors lead back to it
    """What became of a started attempt: a result, or a failure."""

    id: str
    token: int
    result: Any = None
    failure: Failure | None = None
    error: BaseException | None = None
    has_ended: bool = True
    """False when the attempt is over but its code still runs (a timeout): `Ended` follows."""
    makes: tuple[str, ...] = ()
    """The outputs that its task declares, of an attempt that succeeded."""


class Ended(msgspec.Struct, eq=False, gc=False):
    """The code of an attempt that was given up has really come to its end."""

    id: str
    token: int
    has_answer: bool = False


Entry = tuple[int, float, float]
"""The token of a granted start, from when on rates count it, and when its call began."""


class Entered(msgspec.Struct, eq=False):
    """Granted starts have entered their handlers: rates count from there."""

    entries: list[Entry]


class Charge(msgspec.Struct, eq=False):
    """What an attempt has really used of each quantity so far."""

    token: int
    amounts: dict[str, float]


class Observe(msgspec.Struct, eq=False):
    """What the far side of an attempt's service said that it will still take: of which quantity ("" for calls), how
    much, and for how many seconds."""

    token: int
    service: str | None
    left: Sequence[tuple[str, float, float]]


class Verdicts(msgspec.Struct, eq=False):
    """Answers of the application's callbacks."""

    verdicts: list[Verdict]


class Cancel(msgspec.Struct, eq=False):
    """Cancel work, with its dependents when `cascade`. Answered with True when it was not over yet."""

    id: str
    cascade: bool = False
    reason: str = "cancelled"


class Revive(msgspec.Struct, eq=False):
    """Give failed or cancelled work a fresh budget. Answered with True when it was one of those."""

    id: str
    cascade: bool = False


class Purge(msgspec.Struct, eq=False):
    """Delete failed work without a trace. Answered with the number of those that were there and had failed."""

    ids: list[str]


class Configure(msgspec.Struct, eq=False):
    """Keep these texts with the queue, or (None) keep them no longer."""

    values: dict[str, str | None]


class Declare(msgspec.Struct, eq=False):
    """A service is declared, or its limits change."""

    limits: Limits
    is_quiet: bool = False
    """True for what was declared before the first turn: nobody is told of it."""


class Adjust(msgspec.Struct, eq=False):
    """Set some limits of a service by hand; what is not among them stays as it is."""

    service: str
    limits: dict[str, Any]
    """By the names of the fields of Limits."""
    quantities: dict[str, Quantity | None]
    """Those that change; None takes one away."""


class Pause(msgspec.Struct, eq=False):
    """Hold back a service or a queue, or let it go on. A name that is no service's is taken for a queue's."""

    name: str
    paused: bool


class Tell(msgspec.Struct, eq=False):
    """Something the shell wants told in order with everything else (progress, a failed callback)."""

    type: str
    id: str | None = None
    data: dict[str, Any] | None = None
    token: int | None = None
    """The attempt it is about, if it is about one: nothing is told of one that is over."""


class Serve(msgspec.Struct, eq=False):
    """Start only work of these queues from now on (None: of all)."""

    queues: frozenset[str] | None


class Hello(msgspec.Struct, eq=False):
    """A process tells who it is, what it can run and by which rules: first of all, and when that changes."""

    worker: Worker
    rules: dict[str, Rule]


class Lost(msgspec.Struct, eq=False):
    """That worker is dead: what it ran goes on without it."""

    worker: str


class Missed(msgspec.Struct, eq=False):
    """A process may have lost what it was left to read: what it was asked has to be asked anew."""


Item = (
    Submit | Withdraw | Outcome | Ended | Entered | Verdicts | Cancel | Revive | Purge | Configure | Declare | Adjust
    | Pause | Tell | Serve | Lost | Charge | Observe | Hello | Missed
)  # fmt: skip


class Post(msgspec.Struct, frozen=True):
    """Items that a process left for whoever decides, all in one row of the inbox."""

    worker: str
    number: int
    items: list[Item]


class ReadRequest(msgspec.Struct):
    """What a decision needs from the store: records by id, by key, and failed dependents of ids."""

    ids: set[str] = msgspec.field(default_factory=set)
    keys: set[str] = msgspec.field(default_factory=set)
    dependents_of: set[str] = msgspec.field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.ids or self.keys or self.dependents_of)


class ReadResult(msgspec.Struct):
    """What the store had of that."""

    records: dict[str, Record] = msgspec.field(default_factory=dict)
    keys: dict[str, Record] = msgspec.field(default_factory=dict)
    dependents: dict[str, list[Record]] = msgspec.field(default_factory=dict)
    forgotten: dict[str, WorkState] = msgspec.field(default_factory=dict)
    """Final states of records that are no longer kept."""


# read in the turn -----------------------------------------------------------------------------------------

Key = tuple[float, int]
"""A place in an order: rank or time, then number."""


class Changes(msgspec.Struct):
    """What a turn finds that the last one of this process did not know."""

    head: Head
    is_first: bool = False
    """True when this is everything: another process decided meanwhile, or nothing was known before."""
    shelves: dict[str, Key | None] = msgspec.field(default_factory=dict)
    """The first of each shelf that changed; None for one that is empty now."""
    services: list[ServiceState] = msgspec.field(default_factory=list)
    workers: list[Worker] = msgspec.field(default_factory=list)
    """Everybody who has the queue open, the dead included until their work was taken over."""
    tasks: dict[str, Rule] = msgspec.field(default_factory=dict)
    paused: frozenset[str] = frozenset()
    """All queues that are held back."""
    watch_at: float = math.inf
    """When somebody has to look at a record."""


class TurnReader(Protocol):
    """What a decision may read while it holds the turn, when not all work is in mind."""

    def read(self, lacks: ReadRequest) -> ReadResult:
        """The stored records a decision names."""
        ...

    def page(self, shelf: str, after: Key | None, limit: int) -> list[Record]:
        """The next records of a shelf."""
        ...

    def dependents(self, work_id: str) -> list[str]:
        """The ids of everybody who ever depended on that work, in the order they came."""
        ...

    def by_id(self, ids: list[str]) -> dict[str, Record]:
        """Those of these works that there are."""
        ...

    def watched(self, until: float, limit: int, after: Key | None = None) -> list[Record]:
        """Records that somebody has to look at by then, most urgent first; the next after (time, number)."""
        ...

    def next_watch(self, after: float) -> float:
        """When somebody has to look at a record after that moment; infinity when there is none."""
        ...

    def oldest(self, after: int, limit: int) -> list[Record]:
        """The pending records that came first, after that number."""
        ...

    def starts(self, since: Mapping[str, float]) -> list[Grant]:
        """What was granted of each of these services after that moment, in order, less what was given back."""
        ...

    def spent(self, work_id: str, service: str, since: float) -> dict[str, float]:
        """How much of each quantity of a service was counted for a work from that moment on."""
        ...

    def unstarted(self, worker: str) -> list[int]:
        """The tokens of the starts that this process was given and has not read."""
        ...

    def take_back(self, worker: str) -> tuple[list[int], list[str]]:
        """Take what that process was given and has not read: the tokens of those starts, which are never begun, and
        the works that it was to be asked about."""
        ...

    def accepted(self) -> list[Record]:
        """The works that were accepted and that nobody had decided over before, in order."""
        ...


# out of the turn ------------------------------------------------------------------------------------------


class Plan:
    """Everything one turn decided."""

    __slots__ = ("again", "ask", "config", "dependent", "depth", "errors", "events", "finals", "foreign", "forget",
                 "grants", "has_moved_alarm", "head", "is_notable", "is_whole", "keyed", "lost", "parts", "pressure",
                 "purged", "queues", "rated", "records", "replies", "revived", "rewritten", "services", "shelves",
                 "start", "stop", "tasks", "wake_at", "workers")  # fmt: skip

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.keyed: list[Record] = []
        """Those of `records` that took over their idempotency key."""
        self.dependent: list[Record] = []
        """Those of `records` that are new and depend on others."""
        self.forget: list[str] = []
        """Ended work that is no longer kept; how it ended stays known."""
        self.purged: list[str] = []
        """Work that is deleted as if it had never been."""
        self.config: dict[str, str | None] = {}
        self.start: list[Record] = []
        self.rated: dict[int, float] = {}
        """Tokens of those starts whose entry into the handler has to be reported (`Entered`), and by when that has to
        happen where whoever decides next counts it: a call that cannot begin in time is granted anew."""
        self.stop: list[int] = []
        self.ask: list[Record] = []
        self.again = 0
        """How many of `ask` were asked before."""
        self.events: list[News] = []
        self.errors: dict[int, BaseException] = {}
        """The exceptions behind some of `events`, by place: for callbacks, and not to be kept."""
        self.finals: dict[int, News] = {}
        """Those of `events` that are final for their work, with their places among them."""
        self.is_notable = False
        """True when `events` has more than the everyday queued, started and completed."""
        self.shelves: set[str] = set()
        """Shelves of pending work that something came to or left: their first record may be another one now."""
        self.revived: set[str] = set()
        """Those of `records` that had ended and live again."""
        self.rewritten: set[str] = set()
        """Those of `records` in which more changed than a start or a good end changes."""
        self.services: dict[str, ServiceState] = {}
        self.grants: list[Grant] = []
        self.queues: dict[str, bool] = {}
        """Queues that were held back (True) or let go on (False)."""
        self.lost: list[str] = []
        """Workers that are dead and have nothing left to be taken over."""
        self.workers: dict[str, Worker] = {}
        """Those of whom something is to be written."""
        self.tasks: dict[str, Rule] = {}
        """Those that were declared, or declared anew."""
        self.parts: dict[str, Plan] = {}
        """What other processes have to do or to know of it: starts, stops, questions, replies, events."""
        self.foreign: dict[int, str] = {}
        """Those of `events` that are not for this process to hear of, by place: whose they are."""
        self.has_moved_alarm = False
        """True when others must know that the moment they may be waiting for has passed."""
        self.head = NO_HEAD
        self.replies: list[tuple[Any, Any]] = []
        """Answers, each with its item; in the part of another process with the `Ref` of it."""
        self.is_whole = False
        """True when the turn looked at everything; False when it only took the inbox in."""
        self.wake_at: float = float("inf")
        self.depth = 0
        self.pressure: dict[str, float] = {}
        """How deep the queue is and how loaded each service: what a priority callback may look at."""

    @property
    def writes(self) -> bool:
        """True when there is anything in it that a store has to keep."""
        return bool(
            self.records or self.events or self.grants or self.services or self.queues or self.lost or self.workers
            or self.tasks or self.parts or self.forget or self.purged or self.config or self.has_moved_alarm
        )  # fmt: skip

    def part(self, worker: str) -> Plan:
        """What that other process has to do or to know of it."""
        part = self.parts.get(worker)
        if part is None:
            part = self.parts[worker] = Plan()
        return part

    def heard(self) -> Plan:
        """What is for this process to hear of: the plan itself, where nothing in it is another's."""
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
