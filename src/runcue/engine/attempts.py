"""The attempts under way in this process: started, timed, given up, and what became of them.

An attempt is over for the queue as soon as it is given up; its code is told to stop, and its places stay taken
until it has really ended.
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
from runcue.core.model.failure import Failure, classify, is_kind
from runcue.core.model.record import Record
from runcue.core.schedule.outcome import STOPPED
from runcue.core.schedule.plan import Cancel, Charge, Ended, Entered, Entry, Item, Outcome, Plan
from runcue.engine.judge import Judge
from runcue.engine.running import Middleware, Run, RunningWork, Words, current_run, within
from runcue.engine.short_tasks import ShortTasks
from runcue.errors import CommandFailed, StoreError
from runcue.ports import Clock, Executor, Registered, Store, TooLate

logger = logging.getLogger("runcue")

LAG_FORGIVEN = 0.1
TIMEOUT = Failure("timeout", "timeout")
TIMEOUT_FOR_GOOD = Failure("permanent", "timeout")
LATE = Failure("late", "the call could not begin in time for its grant")


class Attempts:
    """What runs, by token; overdue code included."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        executors: Mapping[str, Executor],
        tasks: Mapping[str, Registered],
        middleware: Sequence[Middleware],
        put: Callable[[Item], None],
        words: Words,
        judge: Judge,
        may_block: bool,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._store = store
        self.clock = clock
        self._executors = executors
        self._tasks = tasks
        self._middleware = middleware
        self._put = put
        self._words = words
        self._judge = judge
        self._may_block = may_block
        self.runs: dict[int, Run] = {}
        self.short_tasks = ShortTasks(self._loop.time)
        self._entering: list[Entering] = []
        """Attempts whose handlers are entered in this step of the loop."""
        self._entries: list[Entry] | None = None
        """What the item in the inbox says that tells of entries; None when there is none."""

    def are_awaited(self) -> bool:
        """True while one is under way that counts and that stop() has not left alone."""
        return any(not run.is_given_up and not run.is_left for run in self.runs.values())

    def run_of(self, task: asyncio.Task[Any] | None) -> Run | None:
        """The attempt that this task is, if it is one. May be asked from any thread."""
        return next((run for run in list(self.runs.values()) if run.task is task), None) if task else None

    def current(self) -> Run | None:
        """The attempt that the code that asks is: a handler's coroutine, or what runs in its thread or, where a
        submission may have to wait for room, in tasks of its own."""
        run = current_run.get()
        if run is not None and self.runs.get(run.record.token) is run:  # not of another Cue, nor over
            return run
        return self.run_of(asyncio.current_task())

    def is_own(self, record: Record) -> bool:
        """True when the code that asks is the handler of that very work."""
        run = self.runs.get(record.token)
        return run is not None and (run.task is asyncio.current_task() or current_run.get() is run)

    def start(self, plan: Plan) -> None:
        """Begin the attempts that a turn decided."""
        tasks, executors, runs, words = self._tasks, self._executors, self.runs, self._words
        loop, create_task = self._loop, task_maker(self._loop)
        rated = plan.rated
        for record in plan.start:
            spec, token = record.spec, record.token
            task = tasks[spec.task]
            run = runs[token] = Run(record, executors[task.executor], words)
            entering = None
            if spec.timeout is not None or token in rated:
                run.is_rated = token in rated
                latest = None if self._store.is_inline else rated.get(token)
                entering = Entering(self, run, latest)
            run.task = create_task(self._attempt(run, task, entering), loop=loop, name=record.id)
        if plan.start and not self._store.is_inline:  # called after the first step of each of them
            loop.call_soon(self.short_tasks.observe, loop.time(), plan.start, runs.__contains__)

    def stop(self, token: int) -> None:
        """That attempt no longer counts: its code is told to stop, if it can be."""
        run = self.runs.get(token)
        if run is None or run.is_given_up:
            return
        run.is_given_up = True
        if run.timer is not None:
            run.timer.cancel()
        if run.task is not None and not run.has_begun:
            run.task.cancel()  # before its first step: nothing of it will ever run, so it is over here and now
            del self.runs[token]
            self._put(Ended(run.record.id, token))
        elif run.task is not None and run.executor.can_stop:
            run.task.cancel()

    async def stop_all(self, request: Callable[[Item], Awaitable[Any]], seconds: float) -> None:
        """Give up what still runs, and leave it so many seconds. In a file, what cannot be stopped is left to run on
        in this process's name."""
        for run in list(self.runs.values()):
            if run.is_given_up or run.is_left:
                continue
            if not run.executor.can_stop and not self._store.is_inline:
                run.is_left = True
                continue
            try:
                await request(Cancel(run.record.id, reason=STOPPED))
            except StoreError as error:
                logger.warning("%s runs on: %s", run.record.id, error)
                run.is_left = True
        stopped = [run.task for run in self.runs.values() if run.task and run.executor.can_stop]
        if stopped:
            await asyncio.wait(stopped, timeout=seconds)

    async def let_end(self, more: float) -> None:
        """What runs outside and was given up is given the time it needs to end, or to be ended, and a bit more."""
        ending = [run for run in self.runs.values() if run.is_given_up and run.executor.grace]
        tasks = [run.task for run in ending if run.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=max(run.executor.grace for run in ending) + more)

    def abandon(self) -> None:
        """Cancel everything; whatever becomes of it no longer matters to anybody."""
        self._put = _nobody
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
        if self._may_block or task.executor != "async":
            current_run.set(run)  # else a coroutine is known by its task, which costs nothing
        if record.spec.timeout is not None:
            self._set_timer(run)  # what never comes to its handler's call must end, too
        try:
            if entering is not None:
                entering.check()
            work = RunningWork(run)
            if self._middleware:
                call = partial(run.executor.run, work, task, entering)
                result = await within(self._middleware, work, call)
            else:
                result = await run.executor.run(work, task, entering)
            if result is not None and not self._store.is_inline:
                result = self._store.stored_result(result)
            outcome = Outcome(record.id, record.token, result)
            if self._judge.artifacts:
                outcome.makes = self._judge.makes(record)
        except TooLate:
            outcome = Outcome(record.id, record.token, None, LATE)
        except BaseException as error:  # noqa: BLE001 (whatever a handler raises is its outcome)
            said = asked(self._said, error) if is_kind(error, CommandFailed) else None
            failure = self._put_off(classify(error, task.retry.retry_on), task, record)
            outcome = Outcome(record.id, record.token, said, failure, error)
        if entering is not None and not run.has_entered and outcome.failure is not LATE:
            self.entered(run, self.clock.now(), entering.began)
        self.runs.pop(record.token, None)
        run.task = None  # a task, its coroutine and its run would otherwise wait for the collector
        if run.timer is not None:
            run.timer.cancel()
        if run.charged is not None:  # what other threads said of it may still be on its way
            self._put(Charge(record.token, dict(run.charged)))
        if run.is_given_up:
            was_stopped = is_kind(outcome.error, asyncio.CancelledError)
            self._put(Ended(record.id, record.token, not was_stopped))
        else:
            self._put(outcome)

    def _put_off(self, failure: Failure, task: Registered, record: Record) -> Failure:
        """The same, and when to go on, where that is for the application to say and there is another attempt."""
        policy = record.spec.retry or task.retry
        is_open = failure.after is None and failure.kind in {"error", "timeout"}
        if task.retry_delay is None or not is_open or record.failures + 1 >= policy.max_attempts:
            return failure
        return replace(failure, after=self._judge.delay(task.retry_delay, record))

    def _said(self, error: CommandFailed) -> Any:
        """What a command said before it failed, as it is stored."""
        return self._store.stored_result(error.result)

    def entered(self, run: Run, at: float, began: float | None) -> None:
        """The handler was entered: rates and the timeout count from here. Its call may have begun earlier."""
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
        """The next turn takes what was put so far: entries from now on are for another one."""
        self._entries = None

    def enters(self, entering: Entering) -> None:
        """The handler is entered in this step of the loop: told after that, together with others."""
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
        """The attempt is over; its code is told to stop and keeps its places until it has.

        When somebody held the loop, this rings late, perhaps through no fault of the handler: once it gets that
        time back, as far as it is no longer than the timeout itself.
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
            TIMEOUT_FOR_GOOD if is_excluded else self._put_off(TIMEOUT, self._tasks[record.spec.task], record)
        )
        self._put(Outcome(record.id, record.token, None, failure, timeout, has_ended=False))


def _nobody(item: Item) -> None:
    """Stands in where nobody listens any more."""


class Entering(msgspec.Struct, eq=False):
    """The moment a handler is entered: whether it still may be, and that it was."""

    attempts: Attempts
    run: Run
    latest: float | None
    began: float | None = None
    """When it was last found to be in time."""

    def check(self) -> None:
        """Raise TooLate where whoever decides next counts the call from an earlier moment on. From any thread."""
        if self.latest is not None:
            self.began = self.attempts.clock.now()
            if self.began > self.latest:
                raise TooLate

    def soon(self) -> None:
        """It is entered in this step of the loop."""
        self.attempts.enters(self)

    def __call__(self, at: float | None) -> None:
        """It was entered, then or now. On the loop only."""
        at = self.attempts.clock.now() if at is None else at
        self.attempts.entered(self.run, at, self.began)


def task_maker(loop: asyncio.AbstractEventLoop) -> Callable[..., asyncio.Task[Any]]:
    """What makes a task of a coroutine, given `loop` and `name`: the class itself, which is all that
    `loop.create_task` comes down to on a loop that does nothing of its own there."""
    is_plain = type(loop).create_task is asyncio.BaseEventLoop.create_task and loop.get_task_factory() is None
    return asyncio.Task if is_plain else _by_its_loop


def _by_its_loop(
    coroutine: Coroutine[Any, Any, Any], *, loop: asyncio.AbstractEventLoop, name: str
) -> asyncio.Task[Any]:
    return loop.create_task(coroutine, name=name)
