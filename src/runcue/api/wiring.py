"""Assembles the parts of a Cue: its store, clock, executors, callbacks and listeners."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from runcue.api.places import store_at
from runcue.core.ledger.fleet import HERE
from runcue.core.limits.headers import asked
from runcue.core.limits.service import Limits
from runcue.core.model.failure import describe
from runcue.core.schedule.plan import Declare, DeclareSchedules, Hello, Look, Lost, Plan, Tell, Verdicts
from runcue.core.schedule.scheduler import Scheduler
from runcue.core.views.explain import OWN_POOL, POOL, THREADS
from runcue.declare.registry import Registry
from runcue.engine.bus import Bus
from runcue.engine.callback_errors import CallbackErrors, guarded
from runcue.engine.engine import Engine
from runcue.engine.hooks import Hooks
from runcue.engine.judge import Judge
from runcue.engine.queries import Queries
from runcue.engine.resources import Resources
from runcue.engine.watchdog import Watchdog, watched
from runcue.errors import CueClosed, ForkedConnection, RuncueError, WrongThread, quoted
from runcue.executors.coroutine import CoroutineExecutor
from runcue.executors.system import processes
from runcue.executors.thread import ThreadExecutor
from runcue.host.address import is_server
from runcue.host.calendar import SystemCalendar
from runcue.host.clock import SystemClock
from runcue.instrument.logging import log_events
from runcue.ports import Clock, Entering, Executor, InlineStore, Observer, Registered, SharedStore
from runcue.stores.memory import MemoryStore

if TYPE_CHECKING:
    from runcue.declare.options import Options
    from runcue.stores.sql.store import SqlStore

logger = logging.getLogger("runcue")

CALENDAR: Final = SystemCalendar()
LAST_DIGITS = [f"{number:02x}" for number in range(256)]
"""Formatted once: to format a number costs more than the rest of an id."""


def opened(system: System | None, registry: Registry, target: str | None, action: str) -> System:
    """The parts of a Cue for a call on the running loop; made at the first call, refused on any other loop."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise WrongThread(
            f"Cannot {action}: no event loop is running in this thread. "
            "Call it inside `asyncio.run(...)`, or use cue.sync from other threads."
        ) from None
    if system is None:
        return System(registry, target)
    if system.loop is loop:
        return system
    where = "another event loop. Use cue.sync from other threads, and one Cue for each loop"
    if system.loop.is_closed():
        where = (
            "an event loop that is closed (that of an earlier asyncio.run(), say). "
            "Do everything in one asyncio.run(), or make a new Cue for each"
        )
    raise WrongThread(f"Cannot {action}: this Cue belongs to {where}.")


def file_of(target: str | None) -> str | None:
    """The absolute path of the file that a queue is in; None when it is in no file."""
    return None if target is None or is_server(target) else str(Path(target).absolute())


def _stored(target: str, options: Options, clock: Clock | None, is_at_work: Callable[[], bool]) -> SqlStore:
    """The store in a file or at an address, as the options of a Cue want it."""
    store: SqlStore = store_at(
        target,
        options.name,
        insecure=options.insecure,
        durability=options.durability,
        lease=options.lease,
        retention=options.retention,
        log_retention=options.service_log_retention,
        clock=clock,
        end_leftovers=lambda worker: end_leftovers(store.local, worker),
        is_at_work=is_at_work,
        forget_files=lambda units: forget_output(store.local, units),
    )
    return store


def _scheduler(registry: Registry, worker: str, *, is_shared: bool) -> Scheduler:
    """A scheduler with the options and limits of this process; with a shared store it loads no final records."""
    options = registry.options
    settings = options.settings()
    if is_shared:
        settings = replace(settings, keep_finished=None)
        # The store has the rules of all programs.
        return Scheduler(settings, {}, worker, is_shared=True, calendar=CALENDAR)
    scheduler = Scheduler(settings, registry.rules, worker, calendar=CALENDAR)
    for name, most in _own_limits(registry).items():
        scheduler.declare(Limits(name, most))
    return scheduler


def _own_limits(registry: Registry) -> dict[str, int | None]:
    """How many attempts this process may run at once: in threads, in its pool, in total."""
    options = registry.options
    return {THREADS: options.max_threads, OWN_POOL: pool_size(registry), HERE: options.max_running}


def _room(registry: Registry) -> dict[str, int]:
    return {name: most for name, most in _own_limits(registry).items() if most is not None}


def pool_size(registry: Registry) -> int:
    """The size of the process pool: `pool_size`, or what the pool's service allows, or one for each core."""
    declared = registry.services.get(POOL)
    return registry.options.pool_size or (declared and declared.concurrent) or os.cpu_count() or 1


class Deferred:
    """An executor that is made when it first runs a unit: most processes use one or two of six."""

    def __init__(self, make: Callable[[], Executor], grace: float, *, can_stop: bool = True) -> None:
        self.can_stop = can_stop
        self.grace = grace
        self._make = make
        self._made: Executor | None = None

    def run(self, work: Any, task: Registered, entered: Entering | None) -> Awaitable[Any]:
        """Call the task's handler."""
        made = self._made = self._made or self._make()
        return made.run(work, task, entered)

    async def close(self) -> None:
        """Close the executor, if it was made."""
        if self._made is not None:
            await self._made.close()


class Executors:
    """The executors of one process, by name, and the locks that those with other processes share."""

    def __init__(self, clock: Clock, registry: Registry, target: str | None, worker: str) -> None:
        self._clock = clock
        self._registry = registry
        self._target = target
        self._jobs_folder = None if target is None else jobs_folder(target, worker)
        self._jobs: processes.Jobs | None = None
        self.threads = ThreadExecutor(clock)
        grace = registry.options.grace
        self.by_name: dict[str, Executor] = {
            "async": CoroutineExecutor(),
            "thread": self.threads,
            "process_pool": Deferred(self._process_pool, grace),
            "subprocess": Deferred(self._subprocess, grace),
            "ssh": Deferred(self._ssh, grace),
            "dask": Deferred(self._dask, 0.0, can_stop=False),
        }

    def _process_pool(self) -> Executor:
        from runcue.executors.process.executor import ProcessExecutor

        size, grace = pool_size(self._registry), self._registry.options.grace
        return ProcessExecutor(self._clock, size, grace, processes.make_keeper(self._locks()))

    def _subprocess(self) -> Executor:
        from runcue.executors.command.printed import files_folder

        options = self._registry.options
        folder = None if self._target is None else files_folder(self._target)
        return processes.command_executor(
            self._clock, options.grace, folder, self._locks(), options.output_limit
        )

    def _ssh(self) -> Executor:
        from runcue.executors.ssh.executor import SshExecutor

        return SshExecutor(self._clock, self._registry.options.grace)

    def _dask(self) -> Executor:
        from runcue.executors.dask.executor import DaskExecutor

        cluster = self._registry.options.dask
        jobs: Any = self._locks()  # on Windows every task for Dask is refused when it is declared
        return DaskExecutor(self._clock, cluster, pool_size(self._registry), jobs)

    def _locks(self) -> processes.Jobs:
        self._jobs = self._jobs or processes.make_jobs(self._jobs_folder)
        return self._jobs

    async def close(self) -> None:
        """Close all executors and their locks."""
        for executor in self.by_name.values():
            await executor.close()
        if self._jobs is not None:
            self._jobs.close()


def jobs_folder(target: str, worker: str) -> Path:
    """The folder with the locks of the processes that a worker started."""
    from runcue.stores.presence.presence import side_directory

    return side_directory(target) / f"{worker}.jobs"


def end_leftovers(target: str, worker: str) -> bool:
    """End the processes that a dead worker left running; True when none is left."""
    return processes.end_leftovers(jobs_folder(target, worker))


def forget_output(target: str, units: list[tuple[str, int]]) -> None:
    """Delete the output of the commands of units that are no longer stored."""
    from runcue.executors.command import printed

    printed.forget(target, units)


def _observed(observers: Sequence[Observer], plan: Plan) -> None:
    for observer in observers:
        guarded(observer.heard, plan)


class System:
    """The parts of one Cue, made once it has a loop."""

    def __init__(self, registry: Registry, target: str | None) -> None:
        self._introduced: object = None
        """How this process last introduced itself to the others."""
        options = registry.options
        if "runcue.executors.process.worker" in sys.modules:  # this may be a process of a pool
            sys.modules["runcue.executors.process.worker"].refuse_while_importing()
        self.pid = os.getpid()
        self.loop = loop = asyncio.get_running_loop()
        self.clock: Clock
        timer: Callable[[], float]
        if hasattr(loop, "now") and hasattr(loop, "wall"):  # a loop with a time of its own (runcue.testing)
            self.clock, timer = loop, loop.time
        else:
            self.clock, timer = SystemClock(), perf_counter
        self._registry = registry
        self._target = target
        self.tag = secrets.token_hex(4)
        self.store: InlineStore | SharedStore
        self._shared: SharedStore | None = None
        if target is None:
            worker, last_seq = self.tag, 0
            self.store = MemoryStore(self.clock)
        else:
            clock = None if isinstance(self.clock, SystemClock) else self.clock
            store = _stored(target, options, clock, self._is_at_work)
            target = store.local
            self.store, self._shared, self.clock, worker = store, store, store.clock, store.worker
            last_seq = store.last_event_seq
        self.bus = Bus(options.keep_finished, None if self._shared is None else self._shared.events, last_seq)
        self.callback_errors = CallbackErrors(self._callback_failed, registry.observers)
        self.hooks = Hooks(
            registry.callbacks, self.callback_errors, lambda: registry.failure_wants_retry, registry.view
        )
        self.bus.listeners += [log_events, self.hooks, partial(_observed, registry.observers)]
        self.judge = Judge(
            self.clock,
            timer,
            options.callback_timeout,
            registry.callbacks,
            self.callback_errors,
            self._deliver,
            self._task_of,
            registry.artifacts,
        )
        self.executors = Executors(self.clock, registry, target, worker)
        self.resources = Resources(registry.resources)
        self.engine = Engine(
            store=self.store,
            clock=self.clock,
            make_scheduler=lambda is_onlooker: _scheduler(
                registry, "" if is_onlooker else worker, is_shared=target is not None
            ),
            hello=self._hello,
            judge=self.judge,
            bus=self.bus,
            executors=self.executors.by_name,
            tasks=registry.tasks,
            middleware=registry.middleware,
            resources=self.resources,
            questions=registry.questions,
            drain=self.hooks.drain,
            progress_interval=options.progress_interval,
            may_block=options.max_queued is not None and options.reject_policy == "block",
            may_refuse=options.max_queued is not None,
        )
        for limits in registry.services.values():
            self.engine.inbox.put(Declare(limits, is_quiet=True))
        if registry.schedules:
            self.engine.inbox.put(DeclareSchedules(registry.schedules.read(self.clock.wall())))
        if self._shared is not None:
            try:
                self._shared.listen(
                    self.engine.store_changed, lambda worker: self.engine.inbox.put(Lost(worker))
                )
                self._shared.watch(self.look)
            except BaseException:
                self._shared.abandon()
                raise
            self.engine.take_turns()
        self.queries = Queries(self.engine, self.store, self.bus, registry.view, registry.result)
        self._watchdog: Watchdog | None = None
        self._number = 0

    def look(self) -> None:
        """Have the next turn take what was submitted from outside."""
        self.engine.inbox.put(Look())

    def id_maker(self) -> Callable[[], str]:
        """Makes ids that sort by time; `Ledger.state_of` recognizes generated ids by their form."""
        prefix = f"{int(self.clock.wall() * 1000):011x}{self.tag}"
        head = f"{prefix}{self._number >> 8:06x}"

        def make_id() -> str:
            nonlocal head
            number = self._number = self._number + 1
            if not number & 0xFF:
                head = f"{prefix}{number >> 8:06x}"
            return head + LAST_DIGITS[number & 0xFF]

        return make_id

    def _hello(self, is_serving: bool, queues: frozenset[str] | None, is_new: bool) -> Hello | None:
        """The introduction of this process to the others; None when it has not changed, unless `is_new`."""
        registry = self._registry
        hears = bool(registry.observers) or logging.getLogger("runcue").isEnabledFor(logging.DEBUG)
        introduced = registry.version, is_serving, queues, hears
        if introduced == self._introduced and not is_new:
            return None
        self._introduced = introduced
        names = None if queues is None else tuple(sorted(queues))
        assert self._shared is not None
        worker = replace(self._shared.me(), queues=names, is_serving=is_serving, tasks=tuple(registry.tasks),
                         room=_room(registry), hears=hears or registry.has_hooks,
                         callbacks=registry.questions().kinds)  # fmt: skip
        return Hello(worker, registry.shared_rules())

    def start(self, queues: frozenset[str] | None) -> None:
        """Start units from now on, and watch the loop (not on virtual time)."""
        if self._shared is not None and not self.engine.was_started and self._registry.tasks:
            self.engine.inbox.put(DeclareSchedules([], self._registry.schedules.by_module()))
        self.engine.start(queues)
        if self._watchdog is None and not hasattr(self.loop, "hold"):
            self._watchdog = watched(self.loop, self._running_code)

    def warn_of_pending(self) -> None:
        """Log that units of a queue in memory are lost, if some are left."""
        if self.engine.pending:
            logger.warning(
                "left with %d pending: a queue in memory is lost with its process (await cue.join() before leaving)",
                self.engine.pending,
            )

    async def stop(self, timeout: float | None) -> None:
        """Stop gracefully."""
        if self.is_inside_handler():
            raise RuncueError(
                "stop() inside a handler would wait for itself. Call it from outside, or end the handler."
            )
        if self.hooks.is_calling():
            raise RuncueError("stop() inside a callback would wait for itself. Call it from outside.")
        await self.engine.stop(timeout)
        await self.resources.close(self._registry.options.grace)
        if self._watchdog is not None:
            self._watchdog.stop()
            self._watchdog = None

    async def close(self) -> None:
        """Release everything, and fail the callers that still wait."""
        await self.engine.close(lambda: CueClosed("wait"))
        await self.executors.close()
        self.judge.close()
        self.bus.end()
        await self.store.close(bool(self.engine.attempts.runs))

    def check_process(self) -> None:
        """Refuse a forked child: connections of its parent do not work there."""
        if self._shared is not None and self.pid != os.getpid():
            raise ForkedConnection(
                "A Cue cannot be used in a child that was forked since. Start a new process, or fork before.",
                self._target,
            )

    def abandon(self) -> None:
        """Drop everything, as if this process had died."""
        self.engine.abandon()
        self.judge.close()
        self.bus.end()
        if self._watchdog is not None:
            self._watchdog.stop()
        if self._shared is not None:
            self._shared.abandon()

    def _is_at_work(self) -> bool:
        """True while a handler runs in a thread, which goes on when the loop is closed."""
        return self.executors.threads.is_busy()

    def may_wait(self) -> bool:
        """False where waiting for room might never end: in a handler, in an `on_*` callback."""
        return not self.is_inside_handler() and not self.hooks.is_calling()

    def is_inside_handler(self) -> bool:
        """True when the calling code is part of a handler of this Cue."""
        return self.engine.attempts.current() is not None

    def _running_code(self) -> str | None:
        """The handler or callback that has the loop right now; None when nothing of this Cue is under way."""
        callback = self.judge.asking or self.hooks.calling
        if callback is not None:
            return f"the callback {callback}"
        task = asyncio.current_task(self.loop)
        run = self.engine.attempts.run_of(task)
        if run is not None:
            return f"task {run.record.spec.task!r} (unit {run.record.id})"
        if task is not None and task.get_name() == "runcue callback":
            return "an async callback"
        return "something" if self.engine.attempts.runs else None

    async def _task_of(self, work_id: str) -> str | None:
        record = await self.store.get(work_id)
        return None if record is None else record.spec.task

    def _deliver(self, verdicts: list[Any]) -> None:
        self.engine.inbox.put(Verdicts(verdicts))

    def _callback_failed(self, kind: str, error: BaseException) -> None:
        function = self._registry.callbacks.get(kind, kind)  # declared files have no function
        data = {
            "callback": kind,
            "function": asked(getattr, function, "__qualname__") or quoted(function),
            "error": describe(error),
            "exception": error,
        }
        self.engine.inbox.put(Tell("callback_failed", None, data))
