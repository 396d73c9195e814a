"""The object that a handler gets: the fields of its unit, and what it can do while it runs."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from runcue.core.limits.headers import asked
from runcue.core.limits.headers import read as read_headers
from runcue.core.limits.meter import checked
from runcue.core.model.failure import clean
from runcue.core.model.record import ProgressReport, Record, Work, view
from runcue.core.schedule.plan import Charge, Item, Observe, Tell
from runcue.engine.callback_errors import log_trouble
from runcue.errors import RuncueError, quoted
from runcue.ports import unit_elsewhere

if TYPE_CHECKING:
    import asyncio

    from runcue.ports import Clock, Executor

LONGEST_TEXT = 1024
"""Bytes of a progress text that are kept."""


class Run(msgspec.Struct, eq=False):  # a Struct is made in half the time of a plain object
    """One attempt under way, as the engine sees it."""

    record: Record
    executor: Executor
    reports: Reports
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    has_begun: bool = False
    is_rated: bool = False
    """True when a rate counts from the entry into the handler, which therefore has to be reported."""
    has_entered: bool = False
    was_forgiven: bool = False
    is_given_up: bool = False
    is_left: bool = False
    """True when stop() leaves it running: the attempt goes on, and stop() does not wait for it."""
    progress_at: float = 0.0
    """When its progress was last reported."""
    charged: dict[str, float] | None = None
    """The amounts that its handler has charged so far."""
    params: dict[str, Any] | None = None
    """Its params, where results of other units were put into them."""
    resources: Mapping[Any, Any] | None = None
    """The resources for its handler, by type."""


_charging = threading.Lock()
"""Held while a sum is made and sent: several threads of one handler may charge at a time."""
current_run: ContextVar[Run | None] = ContextVar("runcue_run", default=None)
"""The attempt that the code in this context belongs to, where its task does not tell."""


if TYPE_CHECKING:
    Fields = Work
else:
    Fields = object


class RunningWork(Fields):  # type: ignore[misc] # frozen in effect: nothing in it can be set
    """The unit that a handler works on: the fields of `Work`, a live `cancelled`, and ways to report.

    Fields are filled in on first use, because most handlers want only one or two. (So at run time this only looks
    like a Work; to a type checker it is one.)
    """

    __slots__ = ("_progress", "_run", "_work")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._progress: ProgressReport | None = None
        self._work: Work | None = None

    @property
    def cancelled(self) -> bool:
        """True from the moment this attempt no longer counts: cancelled, timed out or stopped."""
        return self._run.is_given_up

    if not TYPE_CHECKING:  # a type checker takes it for the field of Work

        @property
        def progress(self) -> ProgressReport:
            """Called, reports how far this is; read, what was reported last."""
            progress = self._progress
            if progress is None:
                progress = self._progress = ProgressReport(partial(self._run.reports.progress, self._run))
            return progress

    def charge(self, **amounts: float) -> None:
        """Charge what was really used of each quantity; several charges add up. May be called from any thread.

        The sum takes the place of what `cost=` expected, at the time of the start.
        """
        more = checked(amounts)
        with _charging:
            charged = dict(self._run.charged or {})
            for name, size in more.items():
                charged[name] = charged.get(name, 0) + size
            self._run.charged = charged
            self._run.reports.charged(self._run)

    def observe(self, headers: Mapping[str, Any], service: str | None = None) -> None:
        """Read from the headers of a response how much the service will still take, and until when.

        `service` names one of several; the first by default. May be called from any thread.
        """
        self._run.reports.observed(self._run, headers, service)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copy and pickle look for special methods before the fields are set
            raise AttributeError(name)
        work = self._work
        if work is None:
            work = view(self._run.record)
            if self._run.params is not None:
                work = replace(work, params=self._run.params)
            self._work = work
        return getattr(work, name)

    def __repr__(self) -> str:
        return (
            f"RunningWork(id={self.id!r}, task={self.task!r}, attempt={self.attempt}, params={self.params!r})"
        )


def resources_of(work: Any) -> Mapping[Any, Any]:
    """The resources for the handler of a unit, by type; a handler in another process has none."""
    return work._run.resources or {} if isinstance(work, RunningWork) else {}


def current() -> RunningWork:
    """The unit that the calling code works on, wherever it is below a handler."""
    run = current_run.get()
    if run is not None:
        return RunningWork(run)
    elsewhere: RunningWork | None = unit_elsewhere.get()
    if elsewhere is None:
        raise RuncueError("runcue.current() was called outside a handler: there is no unit that it works on.")
    return elsewhere


Middleware = Callable[[Any], AbstractContextManager[Any]]
"""Makes the context manager that an application puts around an attempt, from its work."""


async def within(
    middleware: Sequence[Middleware], work: RunningWork, call: Callable[[], Awaitable[Any]]
) -> Any:
    """Make the call inside the context managers of the application; their own errors are only logged."""
    result: Any = None
    raised: BaseException | None = None
    try:
        with ExitStack() as stack:
            for around in middleware:
                try:
                    stack.enter_context(around(work))
                except BaseException as error:  # noqa: BLE001 (the application's code may raise anything)
                    log_trouble(f"{quoted(around)} raised before unit {work.id} and is left out", error)
            try:
                result = await call()
            except BaseException as error:
                raised = error
                raise
    except BaseException as error:  # noqa: BLE001 (the application's code may raise anything; the handler's is raised)
        if error is not raised:
            log_trouble(f"a context manager around unit {work.id} raised at its end", error)
    if raised is not None:
        raise raised
    return result


class Reports:
    """Takes the reports of handlers, from any thread; progress at most once per `interval`."""

    def __init__(self, clock: Clock, interval: float, put: Callable[[Item], None]) -> None:
        self._clock = clock
        self._interval = interval
        self._put = put

    def charged(self, run: Run) -> None:
        """Report the sum of what a handler has charged."""
        self._put(Charge(run.record.token, dict(run.charged or {})))

    def observed(self, run: Run, headers: Mapping[str, Any], service: str | None) -> None:
        """Report the limits that the headers of a response tell of."""
        left = read_headers(headers, self._clock.wall())
        if left:
            amounts = [(limit.quantity, limit.remaining, limit.resets_in) for limit in left]
            name = None if service is None else str.__str__(str(service))
            self._put(Observe(run.record.token, name, amounts))

    def progress(self, run: Run, fraction: float | None, text: str | None) -> None:
        """Report how far a handler is."""
        now = self._clock.now()
        if run.is_given_up or now - run.progress_at < self._interval:
            return
        run.progress_at = now
        record = run.record
        shown = None if text is None else clean(str.__str__(str(text)), LONGEST_TEXT)
        share = asked(float, fraction) if isinstance(fraction, (int, float)) else None
        data = {"fraction": share, "text": shown}
        self._put(Tell("progress", record.id, data, record.token))
