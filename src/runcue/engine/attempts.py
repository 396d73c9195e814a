"""Runs the attempts of this process: starts them, times them out, gives them up, and reports their outcomes.

For the queue an attempt is over as soon as it is given up. Its code is told to stop, and it keeps its slots until the
code has really ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from runcue.core.limits.headers import asked
from runcue.core.model.failure import Failure, classify, clean, describe, is_kind
from runcue.core.model.outputs import filled
from runcue.core.model.parse import LARGEST_INT, SMALLEST_INT, decode_params
from runcue.core.model.record import Record, WorkState
from runcue.core.schedule.outcome import STOPPED
from runcue.core.schedule.plan import Cancel, Charge, Ended, Entered, Entry, Item, Outcome, Plan
from runcue.engine.judge import Judge
from runcue.engine.resources import Resources
from runcue.engine.running import Middleware, Reports, Run, RunningWork, current_run, within
from runcue.engine.short_tasks import ShortTasks
from runcue.errors import CommandFailed, InvalidParams, Permanent, StoreError
from runcue.ports import Clock, Executor, Registered, Store, TooLate

logger = logging.getLogger("runcue")

LAG_FORGIVEN = 0.1
"""Seconds by which a timer may ring late before its attempt gets that time back."""
SHOWN = 2048
"""Bytes of a result that cannot be stored that its error shows: it may have been paid for."""
TIMEOUT = Failure("timeout", "timeout")
FINAL_TIMEOUT = Failure("permanent", "timeout")
LATE = Failure("late", "the call could not begin in time for its grant")


class Attempts:
    """The attempts under way, by token; those given up stay until their code has ended."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        executors: Mapping[str, Executor],
        tasks: Mapping[str, Registered],
        middleware: Sequence[Middleware],
        put: Callable[[Item], None],
        reports: Reports,
        judge: Judge,
        resources: Resources,
        may_block: bool,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._store = store
        self.clock = clock
        self._executors = executors
        self._tasks = tasks
        self._middleware = middleware
        self._put = put
        self._reports = reports
        self._judge = judge
        self._resources = resources
        self._may_block = may_block
        self.runs: dict[int, Run] = {}
        self.short_tasks = ShortTasks(self._loop.time)
        self._entering: list[Entering] = []
        """Attempts that enter their handlers in this step of the loop."""
        self._entries: list[Entry] | None = None
        """The entries of the `Entered` item in the inbox; None when there is no such item."""

    def are_awaited(self) -> bool:
        """True while stop() has to wait for an attempt."""
        return any(not run.is_given_up and not run.is_left for run in self.runs.values())

    def run_of(self, task: asyncio.Task[Any] | None) -> Run | None:
        """The attempt that a task runs, if it runs one. May be called from any thread."""
        return next((run for run in list(self.runs.values()) if run.task is task), None) if task else None

    def current(self) -> Run | None:
        """The attempt that the calling code is part of: in its coroutine, in its thread, and where a submission may
        have to wait for room (`may_block`) also in tasks that its handler made."""
        run = current_run.get()
        if run is not None and self.runs.get(run.record.token) is run:  # of this Cue, and still under way
            reaches_tasks = self._may_block or self._tasks[run.record.spec.task].executor != "async"
            if reaches_tasks or run.task is asyncio.current_task():
                return run
        return self.run_of(asyncio.current_task())

    def is_own(self, record: Record) -> bool:
        """True when the calling code is the handler of that unit."""
        run = self.runs.get(record.token)
        return run is not None and self.current() is run

    def start(self, plan: Plan) -> None:
        """Begin the attempts that a plan starts."""
        tasks, executors, runs, reports = self._tasks, self._executors, self.runs, self._reports
        loop, create_task = self._loop, task_maker(self._loop)
        rated = plan.rated
        for record in plan.start:
            spec, token = record.spec, record.token
            task = tasks[spec.task]
            run = runs[token] = Run(record, executors[task.executor], reports)
            entering = None
            if spec.timeout is not None or token in rated:
                run.is_rated = token in rated
                latest = None if self._store.is_inline else rated.get(token)
                entering = Entering(self, run, latest)
            run.task = create_task(self._attempt(run, task, entering), loop=loop, name=record.id)
        if plan.start and not self._store.is_inline:  # called after the first step of every attempt
            loop.call_soon(self.short_tasks.observe, loop.time(), plan.start, runs.__contains__)

    def stop(self, token: int) -> None:
        """Give an attempt up, and tell its code to stop where that is possible."""
        run = self.runs.get(token)
        if run is None or run.is_given_up:
            return
        run.is_given_up = True
        if run.timer is not None:
            run.timer.cancel()
        if run.task is not None and not run.has_begun:
            run.task.cancel()  # before its first step, so none of its code will run: it has ended
            del self.runs[token]
            self._put(Ended(run.record.id, token))
        elif run.task is not None and run.executor.can_stop:
            run.task.cancel()

    async def stop_all(self, request: Callable[[Item], Awaitable[Any]], seconds: float) -> None:
        """Give up the attempts that still run, and wait for so many seconds until they end.

        With a shared store, code that cannot be stopped is left running, and its attempt goes on.
        """
        for run in list(self.runs.values()):
            if run.is_given_up or run.is_left:
                continue
            if not run.executor.can_stop and not self._store.is_inline:
                run.is_left = True
                continue
            try:
                await request(Cancel(run.record.id, reason=STOPPED))
            except StoreError as error:
                logger.warning("unit %s was not cancelled and runs on: %s", run.record.id, error)
                run.is_left = True
        stopped = [run.task for run in self.runs.values() if run.task and run.executor.can_stop]
        if stopped:
            await asyncio.wait(stopped, timeout=seconds)

    async def let_end(self, more: float) -> None:
        """Wait for code outside this process that was given up: its grace, and `more` seconds."""
        ending = [run for run in self.runs.values() if run.is_given_up and run.executor.grace]
        tasks = [run.task for run in ending if run.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=max(run.executor.grace for run in ending) + more)

    def abandon(self) -> None:
        """Cancel all attempts and report nothing more."""
        self._put = _discard
        runs, self.runs = list(self.runs.values()), {}
        for run in runs:
            run.is_given_up = True
            if run.timer is not None:
                run.timer.cancel()
            if run.task is not None:
                run.task.cancel()

    async def _attempt(self, run: Run, task: Registered, entering: Entering | None) -> None:
        record = run.record
        run.has_begun = True
        current_run.set(run)
        if record.spec.timeout is not None:
            self._set_timer(run)  # set again at the entry; an attempt that waits to enter has to end, too
        try:
            if record.spec.extras is not None or task.resources:
                await self._provide(run, task)
            if entering is not None:
                entering.check()
            work = RunningWork(run)
            if self._middleware:
                call = partial(run.executor.run, work, task, entering)
                result = await within(self._middleware, work, call)
            else:
                result = await run.executor.run(work, task, entering)
            if result is not None and (task.returns is not None or not self._store.is_inline):
                result = self._kept(result, task)
            outcome = Outcome(record.id, record.token, result)
            if self._judge.artifacts:
                outcome.makes = self._judge.makes(record)
        except TooLate:
            outcome = Outcome(record.id, record.token, None, LATE)
        except BaseException as error:  # noqa: BLE001 (whatever a handler raises is its outcome)
            result = asked(self._failed_result, error) if is_kind(error, CommandFailed) else None
            failure = self._with_delay(classify(error, task.retry.retry_on), task, record)
            outcome = Outcome(record.id, record.token, result, failure, error)
        if entering is not None and not run.has_entered and outcome.failure is not LATE:
            self.entered(run, self.clock.now(), entering.began)
        self.runs.pop(record.token, None)
        run.task = None  # breaks a reference cycle, which would wait for the garbage collector
        if run.timer is not None:
            run.timer.cancel()
        if run.charged is not None:  # charges that other threads made may not have arrived yet
            self._put(Charge(record.token, dict(run.charged)))
        if run.is_given_up:
            was_stopped = is_kind(outcome.error, asyncio.CancelledError)
            self._put(Ended(record.id, record.token, not was_stopped))
        else:
            self._put(outcome)

    async def _provide(self, run: Run, task: Registered) -> None:
        """Get what the handler is called with besides its own params."""
        extras = run.record.spec.extras
        if extras is not None and extras.outputs:
            run.params = filled(decode_params(run.record.spec.params), await self._outputs(extras.outputs))
        if task.resources:
            run.resources = await self._resources.given(task.resources)

    async def _outputs(self, ids: tuple[str, ...]) -> dict[str, Any]:
        """The results of these units; None for one that was skipped."""
        records = await self._store.get_many(list(ids))
        for id in ids:
            record = records.get(id)
            if record is None or record.state is not WorkState.COMPLETED:
                what = "is no longer stored" if record is None else f"is {record.state}"
                raise Permanent(f"the output of unit {id} cannot be handed on: it {what}")
        return {id: record.result for id, record in records.items()}

    def _kept(self, result: Any, task: Registered) -> Any:
        """A result as it is stored. Where it cannot be stored, the error keeps what can be shown of it."""
        kind = type(result)
        if kind is bool or (kind is int and SMALLEST_INT <= result <= LARGEST_INT):
            return result  # every store gives it back as it is, whatever the annotation says
        try:
            if task.returns is not None:
                result = task.returns.encode(result)
            return result if self._store.is_inline else self._store.stored_result(result)
        except Exception as error:
            text = str(error)
            if not is_kind(error, Permanent):
                text = f"its result cannot be kept: {text if isinstance(error, InvalidParams) else describe(error)}"
            shown = clean(asked(repr, result) or "", SHOWN)
            raise Permanent(f"{text.removesuffix('.')}. It was {shown}" if shown else text) from error

    def _with_delay(self, failure: Failure, task: Registered, record: Record) -> Failure:
        """The failure, with the delay that `retry_delay` chooses if the task has one and another attempt follows."""
        policy = record.spec.retry or task.retry
        has_no_delay = failure.after is None and failure.kind in {"error", "timeout"}
        if task.retry_delay is None or not has_no_delay or record.failures + 1 >= policy.max_attempts:
            return failure
        return replace(failure, after=self._judge.delay(task.retry_delay, record))

    def _failed_result(self, error: CommandFailed) -> Any:
        """The output of a command that failed, as it is stored."""
        return self._store.stored_result(error.result)

    def entered(self, run: Run, at: float, began: float | None) -> None:
        """The handler was entered: rates and the timeout count from now. Its call may have begun earlier."""
        if run.has_entered:
            return
        run.has_entered = True
        if run.timer is not None and not run.is_given_up:
            run.timer.cancel()
            self._set_timer(run)
        if run.is_rated:
            if self._entries is None:
                self._entries = []
                self._put(Entered(self._entries))
            self._entries.append((run.record.token, at, at if began is None else began))

    def take_entries(self) -> None:
        """The next turn takes the entries so far; later ones need an item of their own."""
        self._entries = None

    def enters(self, entering: Entering) -> None:
        """Report the entry after this step of the loop, together with others."""
        if not self._entering:
            self._loop.call_soon(self._have_entered)
        self._entering.append(entering)

    def _have_entered(self) -> None:
        these, self._entering = self._entering, []
        at = self.clock.now()
        for entering in these:
            if not entering.run.has_entered:
                self.entered(entering.run, at, entering.began)

    def _set_timer(self, run: Run) -> None:
        run.timer = self._loop.call_later(run.record.spec.timeout or 0.0, self._time_out, run)

    def _time_out(self, run: Run) -> None:
        """End the attempt with a timeout.

        A timer that rings late was held up by other code on the loop, perhaps together with the handler. So once the
        attempt gets that time back, up to the length of its timeout.
        """
        assert run.timer is not None
        record = run.record
        limit = record.spec.timeout or 0.0
        lag = self._loop.time() - run.timer.when()
        if lag > LAG_FORGIVEN and not run.was_forgiven:
            run.was_forgiven = True
            run.timer = self._loop.call_later(min(lag, limit), self._time_out, run)
            return
        timeout = TimeoutError(f"timeout after {limit:g} s")
        is_excluded = classify(timeout, self._tasks[record.spec.task].retry.retry_on).kind == "permanent"
        failure = (
            FINAL_TIMEOUT if is_excluded else self._with_delay(TIMEOUT, self._tasks[record.spec.task], record)
        )
        self._put(Outcome(record.id, record.token, None, failure, timeout, has_ended=False))


def _discard(item: Item) -> None:
    """Drop an item of an engine that was abandoned."""


class Entering(msgspec.Struct, eq=False):
    """Checks that a handler may still be entered, and reports the entry."""

    attempts: Attempts
    run: Run
    latest: float | None
    began: float | None = None
    """When `check` last found the entry in time."""

    def check(self) -> None:
        """Raise TooLate if the deciding process would count the call from an earlier moment. From any thread."""
        if self.latest is not None:
            self.began = self.attempts.clock.now()
            if self.began > self.latest:
                raise TooLate

    def soon(self) -> None:
        """Report that the handler is entered in this step of the loop."""
        self.attempts.enters(self)

    def __call__(self, at: float | None) -> None:
        """Report that the handler was entered at that time, or (None) now. On the loop only."""
        at = self.attempts.clock.now() if at is None else at
        self.attempts.entered(self.run, at, self.began)


def task_maker(loop: asyncio.AbstractEventLoop) -> Callable[..., asyncio.Task[Any]]:
    """The fastest way to make a task: `asyncio.Task` itself, unless the loop makes tasks in a way of its own."""
    is_plain = type(loop).create_task is asyncio.BaseEventLoop.create_task and loop.get_task_factory() is None
    return asyncio.Task if is_plain else _loop_task


def _loop_task(
    coroutine: Coroutine[Any, Any, Any], *, loop: asyncio.AbstractEventLoop, name: str
) -> asyncio.Task[Any]:
    return loop.create_task(coroutine, name=name)
