"""The only protocols: what the engine needs of a clock, a store and an executor.

A store keeps records and runs turns; it cannot express a scheduling decision. An executor calls a handler:
returning is success, raising is failure, being cancelled means it must stop. Timeouts belong to the engine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from runcue.core.events import Event
from runcue.core.model import Record, WorkState
from runcue.core.plan import Changes, Found, Lacks, Library, Plan
from runcue.core.retry import Retry


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
    """What others changed since the last turn of this process; None when nobody did."""
    library: Library | None
    """Where to read more, when not all live work is in mind; None for a store that nobody shares."""

    def read(self, lacks: Lacks) -> Found:
        """The stored records a decision names."""
        ...


Decide = Callable[[Turn], Plan]


class Store(Protocol):
    """Keeps records. One turn at a time changes them."""

    is_inline: bool
    """True when a turn is a plain function call on the loop: `submit` then returns without suspending."""

    def take_turn(self, decide: Decide) -> Plan:
        """Run `decide` and commit its plan, at once and here (inline stores only)."""
        ...

    async def turn(self, decide: Decide) -> Plan:
        """Run `decide` where this store decides, and commit its plan."""
        ...

    async def get(self, work_id: str) -> Record | None:
        """One record."""
        ...

    async def find(self, state: WorkState | None, task: str | None, limit: int) -> list[Record]:
        """The latest records of that state and task, newest first."""
        ...

    async def get_many(self, ids: list[str]) -> dict[str, Record]:
        """Those of these works that there are."""
        ...

    async def events(self, after: int, limit: int) -> list[Event]:
        """Events after that number, of all processes (stores that are not inline only)."""
        ...

    def check_result(self, result: Any) -> None:
        """Refuse a result that cannot be kept (not inline only: memory keeps anything)."""
        ...

    def listen(self, changed: Callable[[], None], lost: Callable[[str], None]) -> None:
        """Say when another process committed something, and when one died (not inline only)."""
        ...

    async def close(self) -> None:
        """Let go of everything."""
        ...


Handler = Callable[[Any], Any]
"""Called with a RunningWork, or with a plain Work where the handler runs in another process."""


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


class Executor(Protocol):
    """Calls handlers."""

    can_stop: bool
    """False when cancelling cannot end the code: it is left to run, and its place stays taken."""

    def run(
        self, work: Any, handler: Handler, entered: Callable[[float | None], None] | None
    ) -> Awaitable[Any]:
        """Call the handler; `entered` is called at the moment it is entered (with the time, off the loop)."""
        ...

    async def close(self) -> None:
        """Free what is idle; never wait for code that does not end."""
        ...
