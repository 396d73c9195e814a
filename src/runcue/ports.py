"""The only protocols: what the engine needs of a clock, a store and an executor.

A store keeps records and runs turns; it cannot express a scheduling decision. An executor calls a handler:
returning is success, raising is failure, being cancelled means it must stop. Timeouts belong to the engine.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from runcue.core.model.events import Event
from runcue.core.model.record import Record, WorkState
from runcue.core.model.retry import Retry
from runcue.core.model.state import Head, Worker
from runcue.core.schedule.plan import Changes, Item, Plan, Post, ReadRequest, ReadResult, TurnReader
from runcue.core.views.query import Query


class Clock(Protocol):
    """Time, as data for turns."""

    def now(self) -> float:
        """Queue time: looks like epoch seconds, never jumps."""
        ...

    def wall(self) -> float:
        """What the host believes the time of day is."""
        ...


class Turn(Protocol):
    """What `decide` may look at while it holds the turn."""

    now: float
    wall: float
    changes: Changes | None
    """What this process does not know yet; None when it knows everything."""
    reader: TurnReader | None
    """Where to read more, when not all live work is in mind; None for a store that nobody shares."""
    posts: Sequence[Post]
    """What other processes left for whoever decides, in the order they came; taken with this turn."""
    has_more: bool
    """True when they left more than that, for the next turn."""
    given: frozenset[int]
    """Tokens of starts that this process was given and has read with this turn: they are about to begin."""

    def read(self, lacks: ReadRequest) -> ReadResult:
        """The stored records a decision names."""
        ...


Decide = Callable[[Turn], Plan]


class Outgoing(msgspec.Struct, frozen=True):
    """Items on their way to whoever decides, under a number that this process uses once."""

    number: int
    items: list[Item]


class Takeover(msgspec.Struct, frozen=True):
    """A process wants to decide that has not decided last: it knows nothing, and reads everything anew."""

    decider: str | None = None
    """Whose place it takes: who is dead, or has decided nothing though there was something to decide."""
    revision: int | None = None
    """The last turn of that one, if it is not dead: should it have taken another by now, it goes on deciding."""


class Received(msgspec.Struct):
    """What a process finds of what others decided."""

    head: Head
    plan: Plan
    """What it has to do and to know: starts, stops, questions, replies, events. Each is found once."""
    unread: frozenset[int] | None = frozenset()
    """Those of its posts that nobody has taken yet; None when that is not known."""
    unbegun: list[tuple[str, int]] = []
    """Starts that were given up before it has read them, by id and token: nothing of them ever runs."""
    given_up: list[tuple[str, int]] = []
    """Attempts of it that no longer count and have not ended, by id and token, where it may not have been told so."""
    is_whole: bool = True
    """False when there may be more, which is to be asked for: that its post is there was all that could be read."""
    has_missed: bool = False
    """True when something that it had to do or to know was lost. What it has to do comes again; answers do not."""
    is_known: bool = True
    """False when it is not among those who have the queue open: it has yet to say who it is, or passed for dead."""


class Store(Protocol):
    """Keeps records. One turn at a time changes them."""

    is_inline: bool
    """True for an `InlineStore`, False for a `SharedStore`."""

    async def turn(
        self, decide: Decide, post: Outgoing | None = None, takeover: Takeover | None = None
    ) -> tuple[Plan | None, Received | None]:
        """Run `decide` where this store decides, and commit its plan.

        If another process decides, `post` is left for it instead, and there is no plan. What others decided for this
        process comes along, whoever decides now.
        """
        ...

    async def get(self, work_id: str) -> Record | None:
        """One record."""
        ...

    async def find(self, query: Query) -> list[Record]:
        """The records that are asked for, newest first."""
        ...

    async def tally(self) -> dict[str, dict[str, int]]:
        """How many units of each task are `"pending"` and `"running"`."""
        ...

    async def get_many(self, ids: list[str]) -> dict[str, Record]:
        """Those of these units that there are."""
        ...

    async def config(self) -> dict[str, str]:
        """What the application keeps with its queue."""
        ...

    def stored_result(self, result: Any) -> Any:
        """A result as it is stored and read back; refuses what cannot be (memory keeps anything as it is)."""
        ...

    async def close(self, still_running: bool = False) -> None:
        """Let go of everything; but for what tells others that this process lives, while code of it still runs."""
        ...


@runtime_checkable
class InlineStore(Store, Protocol):
    """A store of one process, in which a turn is a plain function call on the loop: `submit` returns without
    suspending."""

    def take_turn(self, decide: Decide) -> Plan:
        """Run `decide` and commit its plan, at once and here."""
        ...


@runtime_checkable
class SharedStore(Store, Protocol):
    """A store that several processes may have open."""

    async def exchange(self, post: Outgoing | None) -> Received:
        """Leave that for the process that decides, and find what was decided for this one."""
        ...

    async def glance(self, decide: Decide) -> None:
        """Run `decide` on everything as it stands at one moment; nothing of its plan is kept."""
        ...

    async def events(self, after: int, limit: int) -> list[Event]:
        """Events after that number, of all processes."""
        ...

    async def counts(self) -> dict[WorkState, int]:
        """How many units there were in each state so far."""
        ...

    def listen(self, changed: Callable[[bool], None], lost: Callable[[str], None]) -> None:
        """Say when another process committed something (True when something was left for this one), and when one
        died."""
        ...

    def is_alive(self, worker: str) -> bool:
        """False when that process is known to be dead."""
        ...

    def me(self) -> Worker:
        """This process, as far as the store knows it."""
        ...

    def abandon(self) -> None:
        """Let go of everything here and now, and say nothing: as if this process had died."""
        ...


Handler = Callable[[Any], Any]
"""Called with a RunningWork, or with a plain Work where the handler runs in another process."""


class Command(msgspec.Struct, frozen=True):
    """A command for one work, which a handler with executor="subprocess" may return in place of its arguments.

    `args` is a list, or a str with `shell=True`. What is None is as the task says.
    """

    args: list[str] | str
    shell: bool | None = None
    check: bool | None = None
    cwd: str | os.PathLike[str] | None = None
    env: Mapping[str, str] | None = None


class CommandOptions(msgspec.Struct, frozen=True):
    """What a task says about the commands that its handler returns."""

    shell: bool = False
    """True when a command may be one str for /bin/sh, instead of a list of arguments."""
    check: bool = True
    """False when an exit code other than 0 is no failure."""
    cwd: str | None = None
    env: Mapping[str, str] | None = None
    """Added to the environment of this process."""


class Registered(Protocol):
    """What the engine needs of a registered task."""

    @property
    def handler(self) -> Handler:
        """What to call."""
        ...

    @property
    def executor(self) -> str:
        """Which executor calls it."""
        ...

    @property
    def retry(self) -> Retry:
        """When a failed attempt is followed by another."""
        ...

    @property
    def retry_delay(self) -> Callable[[Any], Any] | None:
        """Says after how many seconds, if that is not for `retry` to say."""
        ...

    @property
    def command(self) -> CommandOptions:
        """How to run the command that the handler returns, for executors that run commands."""
        ...


class TooLate(Exception):
    """A call could not begin in time for its grant: it must not begin at all, and is granted anew."""


class Entering(Protocol):
    """The moment a handler is entered."""

    def check(self) -> None:
        """Raise TooLate when it may no longer be entered. To be called right before, from any thread."""
        ...

    def soon(self) -> None:
        """It is entered in this step of the loop: the moment after that counts. To be called on the loop."""
        ...

    def __call__(self, at: float | None) -> None:
        """It was entered, then or (None) now. To be called on the loop."""
        ...


class Observer(Protocol):
    """An instrument that counts, such as metrics. It is told everything on the loop, after it happened."""

    def heard(self, plan: Plan) -> None:
        """A turn was committed that tells this."""
        ...

    def called(self, callback: str, seconds: float) -> None:
        """A callback of the application answered, or failed, after so long."""
        ...

    def complained(self, callback: str) -> None:
        """A callback of the application raised, overran or answered nonsense."""
        ...


class Executor(Protocol):
    """Calls handlers."""

    can_stop: bool
    """False when cancelling cannot end the code: it is left to run, and its place stays taken."""
    grace: float
    """Seconds that code which was told to stop may take to end before it is ended by force."""

    def run(self, work: Any, task: Registered, entered: Entering | None) -> Awaitable[Any]:
        """Call the task's handler; `entered` is told when it is entered."""
        ...

    async def close(self) -> None:
        """Free what is idle; never wait for code that does not end."""
        ...
