"""Protocols for what the engine needs of a clock, a store and an executor.

A store keeps records and runs turns; it cannot express a scheduling decision. An executor calls a handler: to return
is success, to raise is failure, and when it is cancelled it has to stop the handler. Timeouts belong to the engine.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol, runtime_checkable

import msgspec

from runcue.core.model.events import EVERY_EVENT, EventFilter, Passage
from runcue.core.model.group import GroupCounts
from runcue.core.model.record import Record, WorkState
from runcue.core.model.retry import Retry
from runcue.core.model.schedule import Schedule
from runcue.core.model.state import Head, Worker
from runcue.core.schedule.plan import Changes, Item, Plan, Post, ReadRequest, ReadResult, TurnReader
from runcue.core.views.query import Query

unit_elsewhere: ContextVar[Any] = ContextVar("runcue unit elsewhere", default=None)
"""The unit that a function in another process works on: `runcue.current()` there."""


class Clock(Protocol):
    """Time, as data for turns."""

    def now(self) -> float:
        """Queue time: it looks like epoch seconds and never jumps."""
        ...

    def wall(self) -> float:
        """The time of day, as the host has it."""
        ...


class Turn(Protocol):
    """What `decide` may read while it holds the turn."""

    now: float
    wall: float
    changes: Changes | None
    """What changed since the last turn of this process; None when nothing did."""
    reader: TurnReader | None
    """Reads records that are not loaded; None for an inline store, where all are."""
    posts: Sequence[Post]
    """The posts that this turn takes, in the order they came."""
    has_more: bool
    """True when more posts are left for the next turn."""
    given: frozenset[int]
    """Tokens of the starts that this process reads from its letters with this turn: they are about to begin."""

    def read(self, request: ReadRequest) -> ReadResult:
        """The stored records a decision names."""
        ...


Decide = Callable[[Turn], Plan]


class Outgoing(msgspec.Struct, frozen=True):
    """A post: items for the deciding process, under a number that this process uses once."""

    number: int
    items: list[Item]


class Takeover(msgspec.Struct, frozen=True):
    """A process asks to decide in place of another. It has no state of the queue yet, and loads it anew."""

    decider: str | None = None
    """The process whose place it takes: it is dead, or decides nothing although posts wait."""
    revision: int | None = None
    """The last turn of that process, if it lives: if it has taken another one since, it goes on deciding."""


class Received(msgspec.Struct):
    """What a process reads of what other processes decided for it."""

    head: Head
    plan: Plan
    """The letters to this process: starts, stops, questions, replies, events. Each is read once."""
    unread: frozenset[int] | None = frozenset()
    """Its posts that no turn has taken yet; None when that is not known."""
    unbegun: list[tuple[str, int]] = []
    """Starts that were given up before this process read them, by id and token: they never begin."""
    given_up: list[tuple[str, int]] = []
    """Attempts of this process that were given up and have not ended, by id and token, if it may not know of that."""
    is_whole: bool = True
    """False when only the fate of the post could be read: another exchange is needed for the rest."""
    has_missed: bool = False
    """True when letters were lost. Starts and stops will come again; answers will not."""
    is_known: bool = True
    """False when the queue does not list this process: it has not introduced itself, or was taken for dead."""


class Insertion(msgspec.Struct, frozen=True):
    """How anybody submits to a queue from outside, on a connection of their own to its database."""

    database: str
    """"PostgreSQL" or "SQLite"."""
    where: str
    """The file or the address, as it may be shown."""
    statement: str
    """An INSERT with {} where values are bound. It inserts nothing into another queue than this."""
    values: Callable[[str], tuple[str | float, ...]]
    """The values to bind, given the rows as text."""


class Store(Protocol):
    """Keeps records. One turn at a time changes them."""

    is_inline: bool
    """True for an `InlineStore`, False for a `SharedStore`."""

    async def turn(
        self, decide: Decide, post: Outgoing | None = None, takeover: Takeover | None = None
    ) -> tuple[Plan | None, Received | None]:
        """Run `decide` where this store decides, and commit its plan.

        If another process decides, `post` is left for it instead, and there is no plan. Letters of other processes to
        this one come along in both cases.
        """
        ...

    async def get(self, work_id: str) -> Record | None:
        """The record of a unit; None when there is none."""
        ...

    async def find(self, query: Query) -> list[Record]:
        """The records that a query asks for, newest first."""
        ...

    async def count(self, query: Query) -> dict[WorkState, int]:
        """How many units that are kept a query finds in each state; states without any may be left out."""
        ...

    async def groups(self, names: list[str]) -> dict[str, GroupCounts]:
        """The counts of those of these groups that exist."""
        ...

    async def group_names(self, limit: int) -> list[str]:
        """Some of the names of groups, at most so many."""
        ...

    async def tally(self) -> dict[str, dict[str, int]]:
        """How many units of each task are `"pending"` and `"running"`."""
        ...

    async def get_many(self, ids: list[str]) -> dict[str, Record]:
        """Those of these units that exist."""
        ...

    async def config(self) -> dict[str, str]:
        """The texts that the application stores with its queue."""
        ...

    async def schedules(self) -> list[Schedule]:
        """All schedules, by name."""
        ...

    def stored_result(self, result: Any) -> Any:
        """A result as it will be read back; raises where it cannot be stored. Memory keeps any result as it is."""
        ...

    async def close(self, still_running: bool = False) -> None:
        """Release everything; with `still_running`, the locks stay that show other processes that this one lives."""
        ...


@runtime_checkable
class InlineStore(Store, Protocol):
    """A store of one process, where a turn is a plain function call: `submit` returns without suspending."""

    def take_turn(self, decide: Decide) -> Plan:
        """Run `decide` and commit its plan at once."""
        ...

    def read_after(self, take_in: Callable[[], None]) -> None:
        """Call `take_in` before every read: units may have been submitted that no turn has accepted yet."""
        ...


@runtime_checkable
class SharedStore(Store, Protocol):
    """A store that several processes may have open."""

    @property
    def insertion(self) -> Insertion:
        """How anybody submits to this queue from outside."""
        ...

    async def exchange(self, post: Outgoing | None) -> Received:
        """Leave a post for the deciding process, if there is one, and read the letters to this process."""
        ...

    async def glance(self, decide: Decide) -> None:
        """Run `decide` on a snapshot of the queue, and store nothing of its plan."""
        ...

    async def events(self, after: int, limit: int, wanted: EventFilter = EVERY_EVENT) -> Passage:
        """Events after that number, of all processes, as far as they are wanted: about `limit` of them, or none in a
        part that was looked through."""
        ...

    async def events_before(self, at: float) -> int:
        """The number of the last event before that moment."""
        ...

    async def counts(self) -> dict[WorkState, int]:
        """How many units there were in each state so far."""
        ...

    def listen(self, changed: Callable[[bool], None], lost: Callable[[str], None]) -> None:
        """Call `changed` when another process commits (True when it left something for this one), and `lost` with the
        id of a process that died."""
        ...

    def watch(self, submitted: Callable[[], None]) -> None:
        """Call `submitted` when something was submitted from outside that no turn has taken."""
        ...

    def is_alive(self, worker: str) -> bool:
        """False when that process is known to be dead."""
        ...

    def me(self) -> Worker:
        """This process, as the store lists it."""
        ...

    def abandon(self) -> None:
        """Release everything at once and without a word, as if this process had died."""
        ...


Handler = Callable[[Any], Any]
"""Called with a RunningWork, or with a plain Work where the handler runs in another process."""


class Command(msgspec.Struct, frozen=True):
    """A command for one unit, which a handler with executor="subprocess" may return in place of its arguments.

    `args` is a list, or a str with `shell=True`. Options that are None are taken from the task.
    """

    args: list[str] | str
    shell: bool | None = None
    check: bool | None = None
    cwd: str | os.PathLike[str] | None = None
    env: Mapping[str, str] | None = None


class CommandOptions(msgspec.Struct, frozen=True):
    """The options of a task for the commands that its handler returns."""

    shell: bool = False
    """True when a command may be one str for /bin/sh, instead of a list of arguments."""
    check: bool = True
    """False when an exit code other than 0 is no failure."""
    cwd: str | None = None
    env: Mapping[str, str] | None = None
    """Added to the environment of this process."""


class Returns(Protocol):
    """What the engine needs of the annotation of a result."""

    def encode(self, value: Any) -> Any:
        """The value in text, numbers, lists and dicts."""
        ...


class Registered(Protocol):
    """What the engine needs of a registered task."""

    @property
    def call(self) -> Handler:
        """What to call with a unit."""
        ...

    @property
    def returns(self) -> Returns | None:
        """How its results are stored; None where nothing but the store decides that."""
        ...

    @property
    def resources(self) -> Sequence[Any]:
        """The types of the resources that its handler is called with."""
        ...

    @property
    def executor(self) -> str:
        """Which executor calls it."""
        ...

    @property
    def retry(self) -> Retry:
        """Whether and when another attempt follows a failed one."""
        ...

    @property
    def retry_delay(self) -> Callable[[Any], Any] | None:
        """Chooses the seconds before the next attempt, in place of `retry`."""
        ...

    @property
    def command(self) -> CommandOptions:
        """How to run the command that the handler returns, for executors that run commands."""
        ...


class TooLate(Exception):
    """Raised where a call cannot begin in time for its grant: it must not begin, and is granted anew."""


class Entering(Protocol):
    """Checks that a handler may still be entered, and reports the entry."""

    def check(self) -> None:
        """Raise TooLate when the handler may no longer be entered. Called right before, from any thread."""
        ...

    def soon(self) -> None:
        """Report that the handler is entered in this step of the loop. Called on the loop."""
        ...

    def __call__(self, at: float | None) -> None:
        """Report that the handler was entered at that time, or (None) now. Called on the loop."""
        ...


class Observer(Protocol):
    """An instrument that counts, such as metrics. It is called on the loop, after each commit."""

    def heard(self, plan: Plan) -> None:
        """A turn with this plan was committed."""
        ...

    def called(self, callback: str, seconds: float) -> None:
        """A callback of the application took so long, whether or not it failed."""
        ...

    def complained(self, callback: str) -> None:
        """A callback of the application raised, overran or returned a wrong value."""
        ...


class Executor(Protocol):
    """Calls handlers."""

    can_stop: bool
    """False when cancelling cannot end the code: it is left running, and its slots stay taken."""
    grace: float
    """Seconds that code may take to end after it was told to stop, before it is ended by force."""

    def run(self, work: Any, task: Registered, entered: Entering | None) -> Awaitable[Any]:
        """Call the task's handler; `entered` is called when the handler is entered."""
        ...

    async def close(self) -> None:
        """Release what is idle; never wait for code that does not end."""
        ...
