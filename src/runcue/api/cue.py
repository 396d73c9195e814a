"""Cue: what an application holds. Every method passes its call on to the part that carries it out."""

from __future__ import annotations

import asyncio
import builtins
import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, ParamSpec, Self, TypeVar, Unpack, overload

from runcue.api import changes, mapping
from runcue.api.functions import Submitter, attached
from runcue.api.group import Group
from runcue.api.handle import Handle, Handles
from runcue.api.schedules import Schedules
from runcue.api.signature import (
    OUTBOX,
    CueOptions,
    DeclaredSchedule,
    Duration,
    RateValue,
    ScheduleOptions,
    SubmitOptions,
    TaskOptions,
    Where,
    Which,
)
from runcue.api.submission import submit_many, submit_one
from runcue.api.sync import Sync
from runcue.api.wiring import System, file_of, opened
from runcue.core.model.events import Event
from runcue.core.model.parse import name as parse_name
from runcue.core.model.parse import optional_duration
from runcue.core.model.record import Work, WorkState
from runcue.core.model.state import Adaptive
from runcue.core.schedule.plan import (
    Adjust,
    Configure,
    Declare,
    Pause,
    Purge,
)
from runcue.core.views.explain import Explanation
from runcue.core.views.forecast import Forecast
from runcue.declare import arguments
from runcue.declare.edits import edit_of
from runcue.declare.options import Options, choice
from runcue.declare.registry import Registry
from runcue.declare.service_options import read_changes
from runcue.declare.task import Task
from runcue.declare.unit import Unit
from runcue.engine.handler import own_name
from runcue.errors import CueClosed
from runcue.ports import Observer

if TYPE_CHECKING:
    from runcue.api.functions import (
        AsyncTask,
        AsyncUnitTask,
        PlainTask,
        PlainUnitTask,
        Registering,
        TaskFunction,
        WithUnit,
    )

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")


class Cue:
    """Decides when work may run.

    `Cue()` keeps its queue in memory, `Cue("queue.db")` in a file that several processes may share,
    `Cue("postgresql://…")` in a PostgreSQL database that many machines may share. The options are in
    docs/reference.md; an unknown one is an error.
    """

    def __init__(self, store: str | os.PathLike[str] | None = None, **options: Unpack[CueOptions]) -> None:
        self._target = arguments.queue_place(store)
        checked = Options.of(**options)
        self._registry = Registry(checked, file_of(self._target), is_shared=self._target is not None)
        self._system: System | None = None
        self._is_closed = False
        self.sync = Sync(self)
        self._handles = Handles(self)
        self.schedules = Schedules(self, self._registry)

    # registration -----------------------------------------------------------------------------------------

    def service(
        self,
        name: str,
        *,
        rate: RateValue | None = None,
        concurrent: int | Adaptive | None = None,
        circuit_threshold: int | None = None,
        circuit_timeout: Duration = 300,
        per: str | Callable[[Any], str] | None = None,
        total: int | RateValue | Mapping[str, Any] | None = None,
        rate_limit: tuple[float, float] | int | None = None,
        rate_window: Duration | None = None,
        max_concurrent: int | None = None,
        **quantities: RateValue,
    ) -> None:
        """Declare a service and its limits; declaring it again changes them at once."""
        declared = self._registry.service(
            name, rate=rate, concurrent=concurrent, circuit_threshold=circuit_threshold,
            circuit_timeout=circuit_timeout, per=per, total=total, rate_limit=rate_limit, rate_window=rate_window,
            max_concurrent=max_concurrent, **quantities,
        )  # fmt: skip
        if self._system is not None:
            self._system.engine.inbox.put_threadsafe(Declare(declared))

    @overload
    def task(self, name: WithUnit[P, Coroutine[Any, Any, R]], /) -> AsyncUnitTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def task(self, name: WithUnit[P, R], /) -> PlainUnitTask[P, R]: ...
    @overload
    def task(self, name: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def task(self, name: Callable[P, R], /) -> PlainTask[P, R]: ...
    @overload
    def task(self, name: str | None = None, **options: Unpack[TaskOptions]) -> Registering: ...
    def task(self, name: Any = None, **options: Any) -> Any:
        """Register a handler: `@cue.task("extract", uses="openai", retry=3, timeout=60)`, or plain `@cue.task`."""
        made = self._registry.task(name, **options)
        if not isinstance(name, str) and callable(name):
            return attached(name, Submitter(self, own_name(name)))
        return lambda function: attached(made(function), Submitter(self, name or own_name(function)))

    def resource(self, function: F) -> F:
        """Register a function that makes what handlers share, such as a database's connections."""
        return self._registry.resource(function)

    def every(self, every: Duration, **options: Unpack[DeclaredSchedule]) -> Registering:
        """Submit a function every so often: `@cue.every("5m")`, above `@cue.task` or instead of it."""
        return self.schedules.declared({"every": every, **options})

    def cron(self, cron: str, **options: Unpack[DeclaredSchedule]) -> Registering:
        """Submit a function at times of the day: `@cue.cron("0 3 * * 1-5", tz="Europe/Zurich")`."""
        return self.schedules.declared({"cron": cron, **options})

    def get_task(self, name: str) -> Task:
        """The task that is registered under a name."""
        return self._registry.get_task(name)

    def is_ready(self, function: F) -> F:
        """Register the callback that says whether a unit's inputs are there."""
        return self._registry.callback("is_ready", function)

    def is_stale(self, function: F) -> F:
        """Register the callback that says whether a unit's output is missing or outdated."""
        return self._registry.callback("is_stale", function)

    def priority(self, function: F) -> F:
        """Register the callback that scores candidates from 0 to 1."""
        return self._registry.callback("priority", function)

    def dependency_satisfied(self, function: F) -> F:
        """Register the callback that says whether a dependency is there."""
        return self._registry.callback("dependency_satisfied", function)

    def on_start(self, function: F) -> F:
        """Call `function(work)` when a unit starts."""
        return self._registry.callback("on_start", function)

    def on_complete(self, function: F) -> F:
        """Call `function(work, result, duration)` when a unit completed."""
        return self._registry.callback("on_complete", function)

    def on_failure(self, function: F) -> F:
        """Call `function(work, error, will_retry)` for each failed attempt; with two arguments for final ones."""
        return self._registry.callback("on_failure", function)

    def on_skip(self, function: F) -> F:
        """Call `function(work)` when a unit was skipped because its output is valid."""
        return self._registry.callback("on_skip", function)

    def on_cancel(self, function: F) -> F:
        """Call `function(work)` when a unit was cancelled."""
        return self._registry.callback("on_cancel", function)

    def on_backpressure(self, function: F) -> F:
        """Call `function(depth, limit)` when the queue gets full."""
        return self._registry.callback("on_backpressure", function)

    def on_pending_warning(self, function: F) -> F:
        """Call `function(work, seconds)` when a unit has been pending for long."""
        return self._registry.callback("on_pending_warning", function)

    def on_stall_warning(self, function: F) -> F:
        """Call `function(seconds, pending)` when no unit has started or ended for long."""
        return self._registry.callback("on_stall_warning", function)

    def on_group_done(self, function: F) -> F:
        """Call `function(group, counts)` when all units of a group have ended; counts are by state."""
        return self._registry.callback("on_group_done", function)

    def around(self, function: F) -> F:
        """Enter the context manager that `function(work)` returns around each attempt, for traces and the like."""
        return self._registry.around(function)

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Report every event to an instrument from now on; the function that is returned ends that."""
        self._registry.observers.append(observer)
        return partial(self._registry.observers.remove, observer)

    # work -------------------------------------------------------------------------------------------------

    @overload
    async def submit(self, task: TaskFunction[..., R], **options: Unpack[SubmitOptions]) -> Handle[R]: ...
    @overload
    async def submit(self, task: Unit[R]) -> Handle[R]: ...
    @overload
    async def submit(
        self, task: Callable[..., Coroutine[Any, Any, R]], **options: Unpack[SubmitOptions]
    ) -> Handle[R]: ...
    @overload
    async def submit(self, task: Callable[..., R], **options: Unpack[SubmitOptions]) -> Handle[R]: ...
    @overload
    async def submit(self, task: str | None = None, **options: Unpack[SubmitOptions]) -> Handle[Any]: ...
    async def submit(self, task: Any = None, *misplaced: Never, **options: Any) -> Handle[Any]:
        """Submit one unit of work and return its id, which can also wait for it."""
        arguments.nothing_else(task, misplaced)
        return self._handles.of(*await submit_one(self._open("submit"), self._registry, task, options))[0]

    @overload
    async def submit_many(
        self, items: Iterable[Unit[R]], *, connection: Any = None
    ) -> builtins.list[Handle[R]]: ...
    @overload
    async def submit_many(
        self, items: Iterable[Mapping[str, Any] | Unit[Any]], *, connection: Any = None
    ) -> builtins.list[Handle[Any]]: ...
    async def submit_many(
        self, items: Iterable[Any], *, connection: Any = None
    ) -> builtins.list[Handle[Any]]:
        """Submit many units at once, all or none: dicts of `submit`'s arguments. Returns the ids in order."""
        return self._handles.of(*await submit_many(self._open("submit"), self._registry, items, connection))

    async def schedule(
        self, name: str, task: str | Callable[..., Any], **options: Unpack[ScheduleOptions]
    ) -> None:
        """Submit units of a task at moments: `every="5m"` or `cron="0 3 * * *"`, with `submit`'s options."""
        await self.schedules.add(name, task, options)

    async def unschedule(self, name: str) -> bool:
        """Delete a schedule; True when there was one. One that code declares comes back when its program starts."""
        return await self.schedules.remove(name)

    async def run_now(self, name: str) -> Handle[Any]:
        """Submit a unit of a schedule now, whatever its slots, and return its id."""
        return self._handles.known(await self.schedules.run_now(name))

    async def get(self, work_id: str) -> Work | None:
        """One unit as it stands, or None when the id is unknown or no longer kept."""
        record = await self._open("get").store.get(arguments.work_id(work_id))
        return None if record is None else self._registry.view(record)

    async def list(
        self,
        state: WorkState | str | None = None,
        task: str | None = None,
        limit: int = 100,
        *,
        before: str | None = None,
        **where: Unpack[Where],
    ) -> builtins.list[Work]:
        """The latest units of that state, task, queue, service, tags, group and so on, newest first.

        The next page is what comes `before` the last id of this one.
        """
        query = arguments.query(state, task, limit, **where)
        before = None if before is None else arguments.work_id(before)
        found = await self._open("list").queries.find(query, before)
        return [self._registry.view(record) for record in found]

    async def dead(self, task: str | None = None, limit: int = 100) -> builtins.list[Work]:
        """The dead letters: units that failed for good, newest first."""
        return await self.list(WorkState.FAILED, task, limit)

    async def count(self, **which: Unpack[Which]) -> dict[WorkState, int]:
        """How many units there are in each state, forgotten ones included; or of those chosen as in `list`."""
        if not which:
            return await self._open("count").engine.counts()
        found = await self._open("count").store.count(arguments.query(**which))
        return {state: found.get(state, 0) for state in WorkState}

    async def tally(self) -> dict[str, dict[str, int]]:
        """How many units of each task are `"pending"` and `"running"`."""
        return await self._open("tally").store.tally()

    def group(self, name: str) -> Group:
        """The units that were submitted with this group, together."""
        return Group(self, self._open("group").queries, arguments.group_name(name))

    @overload
    async def cancel(self, work_id: str, *, cascade: bool = False, connection: Any = None) -> bool: ...
    @overload
    async def cancel(self, *, cascade: bool = False, **which: Unpack[Which]) -> int: ...
    async def cancel(self, work_id: str | None = None, *, cascade: bool = False, **which: Any) -> int:
        """Cancel a unit (True when it had not ended), or all that are chosen as in `list` (how many had not).

        With a `connection` it is cancelled once the transaction of that is committed: True, whatever comes of it.
        """
        return await changes.cancel(self._open("cancel"), work_id, cascade, which)

    @overload
    async def retry(self, work_id: str, *, cascade: bool = False, connection: Any = None) -> bool: ...
    @overload
    async def retry(self, *, cascade: bool = False, **which: Unpack[Which]) -> int: ...
    async def retry(self, work_id: str | None = None, *, cascade: bool = False, **which: Any) -> int:
        """Retry a failed or cancelled unit (True when it was one), or all failed ones chosen as in `list`.

        With a `connection` it is retried once the transaction of that is committed: True, whatever comes of it.
        """
        return await changes.retry(self._open("retry"), work_id, cascade, which)

    async def edit(
        self, work_id: str, *, params: Mapping[str, Any] | None = None, priority: float | None = None
    ) -> None:
        """Give a pending or failed unit other params, another priority, or both. A failed one stays failed."""
        system, work_id = self._open("edit"), arguments.work_id(work_id)
        record = await system.queries.record(work_id)
        await system.engine.request(edit_of(self._registry, record.spec, params, priority))

    async def purge(self, work_id: str) -> bool:
        """Delete a failed unit without a trace; True when there was one."""
        return bool(await self._open("purge").engine.request(Purge([arguments.work_id(work_id)])))

    async def purge_dead(self, task: str | None = None) -> int:
        """Delete all dead letters and return how many there were."""
        return await changes.purge_dead(self._open("purge"), task)

    async def wait(self, work_id: str, timeout: Duration | None = None) -> Work:
        """Wait until a unit has ended, in whatever state, and return it."""
        seconds = optional_duration(timeout, "timeout")
        return await self._open("wait").queries.wait(arguments.work_id(work_id), seconds)

    async def result(self, work_id: str, timeout: Duration | None = None) -> Any:
        """Wait for the result of a unit; raise WorkFailed, WorkTimedOut or WorkCancelled if there is none."""
        work_id = arguments.work_id(work_id)
        return await self._open("result").queries.result(work_id, optional_duration(timeout, "timeout"))

    async def results(
        self, ids: Iterable[str], timeout: Duration | None = None, *, errors: str = "raise"
    ) -> builtins.list[Any]:
        """Wait for the results of many units, in the order of their ids.

        The first error is raised, or (`errors="return"`) each takes its place among the results.
        """
        wanted, seconds = arguments.work_ids(ids) or (), optional_duration(timeout, "timeout")
        should_raise = choice(errors, "errors", ("raise", "return")) == "raise"
        return await self._open("results").queries.results(wanted, seconds, should_raise=should_raise)

    async def join(self, ids: str | Iterable[str] | None = None, timeout: Duration | None = None) -> None:
        """Wait until nothing, or nothing of `ids`, is pending or running."""
        seconds = optional_duration(timeout, "timeout")
        await self._open("join").queries.join(arguments.work_ids(ids), seconds)

    def map(
        self,
        task: str | Callable[..., Any],
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        key: mapping.Key | None = None,
        params: mapping.Params | None = None,
        window: int = 1000,
    ) -> AsyncIterator[Work]:
        """Submit one unit for each item, at most `window` ahead of the loop, and yield each as it ends."""
        return mapping.works(self._open("map"), self._registry, task, items, key, params, window)

    def wake(self) -> None:
        """Have what was submitted from outside looked for now, not a moment later."""
        self._open("wake").look()

    async def relay(self, connect: Callable[[], Any], *, table: str = OUTBOX, every: Duration = 1) -> None:
        """Move what an Outbox gathers in the database that `connect()` opens, until cancelled or closed."""
        from runcue.api.relay import relay  # few need it

        await relay(self, connect, table, every)

    # running ----------------------------------------------------------------------------------------------

    def start(self, queues: str | Iterable[str] | None = None) -> None:
        """Start units from now on. Returns at once; needs a running event loop; a second call does nothing."""
        self._open("start").start(arguments.queue_names(queues))

    async def stop(self, timeout: Duration | None = None) -> None:
        """Start no more units and wait for running ones; after `timeout` cancel those."""
        if self._system is not None and not self._is_closed:
            await self._open("stop").stop(optional_duration(timeout, "timeout"))

    async def close(self) -> None:
        """Stop, and close the store: no more units are accepted."""
        if self._system is not None and not self._is_closed:
            await self.stop()
            await self._system.close()
        self._is_closed = True

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop(None if kind is None else self._registry.options.grace)
        if self._system is not None and self._target is None and not self._is_closed:
            self._system.warn_of_pending()

    # looking and operating --------------------------------------------------------------------------------

    def events(
        self,
        types: str | Iterable[str] | None = None,
        since: int | None = None,
        *,
        work: str | None = None,
        group: str | None = None,
    ) -> AsyncIterator[Event]:
        """Iterate over events until stop(): after number `since`, or from the first of this Cue, unit or group."""
        number = None if since is None else arguments.event_number(since)
        return self._open("read events").queries.events(arguments.events(types, work, group), number)

    async def last_event(self) -> int:
        """The number of the latest event: `events(since=…)` with it yields what happens from now on."""
        return await self._open("last_event").engine.last_event()

    async def explain(self, work_id: str) -> Explanation:
        """Explain why a unit is in its state, and until when."""
        return await self._open("explain").queries.explain(arguments.work_id(work_id))

    async def explain_many(self, ids: Iterable[str]) -> dict[str, Explanation]:
        """Explain each of these units that exists, as if nothing else were queued."""
        return await self._open("explain").queries.explain_many([arguments.work_id(given) for given in ids])

    async def dependents(self, work_id: str, limit: int = 100) -> builtins.list[Work]:
        """The units that depend on a unit, in the order of their submission."""
        found = self._open("dependents").queries.dependents(arguments.work_id(work_id), arguments.rows(limit))
        return [self._registry.view(record) for record in await found]

    async def now(self) -> float:
        """Queue time, which the `until` of an explanation is compared with."""
        return await self._open("now").queries.now()

    async def forecast(self) -> Forecast:
        """When the queue will be done if nothing more is submitted, and which limit is the bottleneck."""
        return await self._open("forecast").queries.forecast()

    async def debug_blocked(self) -> builtins.list[dict[str, Any]]:
        """The pending units that cannot start now: `{work, reason, details}`, best first."""
        return await self._open("debug_blocked").queries.debug_blocked()

    async def services(self) -> builtins.list[dict[str, Any]]:
        """Every service: its limits, how much of them is used, and what blocks it."""
        return await self._open("services").queries.services()

    async def set_limits(
        self, service: str, /, **limits: RateValue | int | Adaptive | Duration | None
    ) -> None:
        """Set limits by hand, for every process of the queue, until a program changes what it declares.

        `rate`, `concurrent`, `circuit_threshold`, `circuit_timeout`; other names are quantities, as in
        `tokens="200k/min"`. What is not given stays as it is, None takes a limit away.
        """
        changes, quantities = read_changes(**limits)
        adjust = Adjust(parse_name(service, "service"), changes, quantities)
        await self._open("set_limits").engine.request(adjust)

    async def paused(self) -> builtins.list[str]:
        """The queues that are paused."""
        return await self._open("paused").queries.paused()

    async def pause(self, name: str) -> None:
        """Start no more units of a service; a name that no service has is that of a queue."""
        name = parse_name(name, "service or queue")
        await self._open("pause").engine.request(Pause(name, True))

    async def resume(self, name: str) -> None:
        """Let a paused service go on; a name that no service has is that of a queue."""
        name = parse_name(name, "service or queue")
        await self._open("resume").engine.request(Pause(name, False))

    async def set_config(self, values: Mapping[str, str | None]) -> None:
        """Store texts with the queue, for every process that shares it; None deletes one. runcue itself uses none."""
        await self._open("set_config").engine.request(Configure(arguments.texts(values)))

    async def get_config(self) -> dict[str, str]:
        """The texts that `set_config` has stored."""
        return await self._open("get_config").store.config()

    @property
    def path(self) -> str | None:
        """The file or the address (with its password, if it has one) of the queue; None for one in memory."""
        return self._target

    @property
    def name(self) -> str:
        """The name of the Cue, which tells queues in one PostgreSQL database apart."""
        return self._registry.options.name

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop this Cue belongs to: that of its first await or start()."""
        return None if self._system is None else self._system.loop

    def _check_process(self) -> None:
        """Refuse a call in a forked child of the process that opened the queue."""
        if self._system is not None:
            self._system.check_process()

    def _open(self, action: str) -> System:
        """The parts behind this Cue, made at the first call."""
        if self._is_closed:
            raise CueClosed(action)
        self._check_process()
        self._system = opened(self._system, self._registry, self._target, action)
        return self._system
