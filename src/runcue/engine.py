"""The shell around the scheduler: inbox, turn, act, alarm, graceful stop.

A turn is the only way anything changes. Everything that wants to change something puts an item into the inbox;
a turn takes the inbox in, decides, commits, and then acts: answers, tells, stops, starts, asks, sets the alarm.
Between turns the engine sleeps until the inbox is filled or until the exact moment the plan named.

With an inline store (memory) an item that needs no start is taken in at once, in a turn of its own that starts
nothing: so `submit` returns without suspending, and work submitted in a row is chosen among, best first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from threading import get_ident
from typing import Any, TypeVar

from runcue.bus import Bus
from runcue.core.asking import Allowance, Questions, Verdict
from runcue.core.failure import Failure, classify
from runcue.core.model import Record, WorkState
from runcue.core.outcome import STOPPED
from runcue.core.plan import (
    Cancel,
    Ended,
    Entered,
    Item,
    Outcome,
    Plan,
    Serve,
    Verdicts,
)
from runcue.core.scheduler import Scheduler
from runcue.core.state import NO_HEAD
from runcue.decision import MUST_BE_KEPT, Ask, Decider
from runcue.errors import RuncueError, StoreError
from runcue.judge import Judge
from runcue.ports import Clock, Executor, Registered, Store, Turn
from runcue.running import Progress, Run, RunningWork, current_run
from runcue.waiters import Waiters

logger = logging.getLogger("runcue")

T = TypeVar("T")
Entering = Callable[[float | None], None]
LAG_FORGIVEN = 0.1
NOTHING_ASKED = Allowance(0, 0)
TIMEOUT = Failure("timeout", "timeout")
LATE = Failure("late", "the call could not begin in time for its grant")
TIMEOUT_FOR_GOOD = Failure("permanent", "timeout")
CLEANUP = 1.0
"""Seconds that stop() leaves to coroutines it has cancelled."""


TROUBLE_EVERY = 60.0
STORE_PAUSE = 0.5
"""Seconds before a turn that the store could not keep is tried again."""


class Engine:
    """Runs turns and does what they decided."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        make_scheduler: Callable[[], Scheduler],
        judge: Judge,
        bus: Bus,
        executors: Mapping[str, Executor],
        tasks: Mapping[str, Registered],
        questions: Callable[[], Questions],
        drain: Callable[[], Any],
        progress_interval: float,
        may_block: bool,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._store = store
        self._clock = clock
        self._make_scheduler = make_scheduler
        self._scheduler = make_scheduler()
        self._head = NO_HEAD
        self._judge = judge
        self._bus = bus
        self._executors = executors
        self._tasks = tasks
        self._questions = questions
        self._drain = drain
        self._report_progress = Progress(clock, progress_interval, self.put_from_anywhere)
        self._may_block = may_block
        self._inbox: list[Item] = []
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._late: dict[int, Any] = {}
        self.waiters = Waiters(self._loop, store)
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._runs: dict[int, Run] = {}
        self._loop_task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = float("inf")
        self._may_start = False
        self._quiet: asyncio.Future[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._troubled_at = -TROUBLE_EVERY

    # coming and going -------------------------------------------------------------------------------------

    @property
    def is_started(self) -> bool:
        """True between start and stop."""
        return self._may_start

    @property
    def runs(self) -> Mapping[int, Run]:
        """What is under way in this process, by token; overdue code included."""
        return self._runs

    @property
    def pending(self) -> int:
        """How much is pending."""
        return self._head.pending

    async def counts(self) -> dict[WorkState, int]:
        """How many works there were in each state so far."""
        await self.look(lambda scheduler, turn: None)
        return {state: getattr(self._head, state.value) for state in WorkState}

    def start(self, queues: frozenset[str] | None) -> None:
        """Begin to take turns by itself."""
        if self._may_start:
            return
        self._may_start = True
        self._bus.begin()
        self.put(Serve(queues))
        self.take_turns()

    def take_turns(self) -> None:
        """Take turns whenever there is something to decide; nothing is started before `start`."""
        if self._loop_task is None or self._loop_task.done():
            self._loop_task = self._loop.create_task(self._run(), name="runcue")
            self._loop_task.add_done_callback(self._over)

    async def stop(self, timeout: float | None) -> None:
        """Start nothing new, wait for what runs; after `timeout` cancel it."""
        if self._loop_task is None:
            await self._drain()
            return
        self._may_start = False
        self._wake.set()
        if not await self._until_quiet(timeout):
            for run in list(self._runs.values()):
                if not run.is_given_up:
                    await self.request(Cancel(run.record.id, reason=STOPPED))
            cancelled = [run.task for run in self._runs.values() if run.task and run.executor.can_stop]
            if cancelled:
                await asyncio.wait(cancelled, timeout=CLEANUP)
        await self._drain()
        while self._is_stopping():  # callbacks may have had something to tell
            await self._until_quiet(None)
            await self._drain()
        if self._may_start:  # somebody called start() meanwhile
            return
        if not self._store.is_inline:  # it goes on to accept, and to hear of others
            await asyncio.sleep(0)  # what was cancelled has its say
            self._bus.end()
            return
        task, self._loop_task = self._loop_task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if self._loop_task is None:  # else somebody called start() meanwhile
            self._set_alarm(float("inf"))
            self._bus.end()

    async def _until_quiet(self, timeout: float | None) -> bool:
        """True once no attempt that still counts is under way, or nobody wants to stop any more."""
        try:
            async with asyncio.timeout(timeout):
                while self._is_stopping():
                    if self._quiet is None:
                        self._quiet = self._loop.create_future()
                    await asyncio.shield(self._quiet)
        except TimeoutError:
            return False
        return True

    def _is_stopping(self) -> bool:
        if self._may_start or self._loop_task is None or self._loop_task.done():
            return False
        is_deciding = bool(self._inbox) or self._one_at_a_time.locked()
        return is_deciding or any(not run.is_given_up for run in self._runs.values())

    def _let_go(self) -> None:
        quiet, self._quiet = self._quiet, None
        if quiet is not None and not quiet.done():
            quiet.set_result(None)

    def _over(self, task: asyncio.Task[None]) -> None:
        """The turns have ended: because of stop(), with the loop, or by a mistake of ours, which must be heard."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._may_start = False
            self._loop.call_exception_handler(
                {"message": "runcue takes no more turns: this is a mistake in runcue", "exception": error}
            )
            self.disappoint(lambda: RuncueError(f"runcue takes no more turns, by its own mistake: {error!r}"))
        self._let_go()

    async def close(self, error: Callable[[], Exception]) -> None:
        """Take no more turns."""
        task, self._loop_task = self._loop_task, None
        if task is not None:
            async with self._one_at_a_time:
                task.cancel()
            await asyncio.wait([task])
        self._set_alarm(float("inf"))
        self.disappoint(error)

    def disappoint(self, error: Callable[[], Exception]) -> None:
        """Nothing will happen any more: whoever waits for something gets the error."""
        for future in (*self._replies.values(), *self.waiters.all(), *self._idle_waiters):
            if not future.done():
                future.set_exception(error())

    # asking the engine ------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Another process did something: take a turn, and look who waited for that."""
        self._wake.set()
        self._bus.heard()
        self.waiters.recheck()

    def put(self, item: Item) -> None:
        """Leave an item for the next turn."""
        self._inbox.append(item)
        self._wake.set()

    def put_from_anywhere(self, item: Item) -> None:
        """The same, from any thread."""
        if get_ident() == self._thread:
            self.put(item)
        else:
            self._loop.call_soon_threadsafe(self.put, item)

    async def request(self, item: Item) -> Any:
        """Put an item into a turn and wait for its answer, which may be an exception to raise."""
        self._inbox.append(item)
        self._wake.set()
        if self._store.is_inline:
            plan = self._store.take_turn(self._decider(may_start=False))
            self._act(plan)
            for asked, answer in plan.replies:
                if asked is item:
                    if isinstance(answer, Exception):
                        raise answer
                    return answer
        future: asyncio.Future[Any] = self._loop.create_future()
        self._replies[id(item)] = future
        try:
            return await future
        except asyncio.CancelledError:
            if not future.cancelled():
                self._late[id(item)] = future.exception() or future.result()
            raise
        finally:
            self._replies.pop(id(item), None)

    def late_answer(self, item: Item) -> Any:
        """The answer that came at the very moment its caller gave up waiting, if one did."""
        return self._late.pop(id(item), None)

    async def look(self, question: Callable[[Scheduler, Turn], T]) -> T:
        """Ask the scheduler something, in a turn that takes the inbox in and starts nothing."""
        answer: list[T] = []
        problem: list[Exception] = []

        def ask(scheduler: Scheduler, turn: Turn) -> None:
            try:
                answer.append(question(scheduler, turn))
            except Exception as error:  # noqa: BLE001 (raised below: what was taken in must be committed)
                problem.append(error)

        self._act(await self._turn(ask))
        self._wake.set()
        if problem:
            raise problem[0]
        return answer[0]

    async def until_idle(self) -> None:
        """Wait until nothing is pending or running."""
        await self.look(lambda scheduler, turn: None)
        while self._is_busy():
            future: asyncio.Future[None] = self._loop.create_future()
            self._idle_waiters.append(future)
            try:
                await future
            finally:
                if future in self._idle_waiters:  # who gives up must not be kept until everything is done
                    self._idle_waiters.remove(future)

    def run_of(self, task: asyncio.Task[Any] | None) -> Run | None:
        """The attempt that this task is, if it is one. May be asked from any thread."""
        return next((run for run in list(self._runs.values()) if run.task is task), None) if task else None

    def current_run(self) -> Run | None:
        """The attempt that the code that asks is: a handler's coroutine, or what runs in its thread or, where a
        submission may have to wait for room, in tasks of its own."""
        run = current_run.get()
        if run is not None and self._runs.get(run.record.token) is run:  # not of another Cue, nor over
            return run
        return self.run_of(asyncio.current_task())

    def is_own(self, record: Record) -> bool:
        """True when the code that asks is the handler of that very work."""
        run = self._runs.get(record.token)
        return run is not None and (run.task is asyncio.current_task() or current_run.get() is run)

    def deliver(self, verdicts: list[Verdict]) -> None:
        """The judge has answers."""
        self.put(Verdicts(verdicts))

    # the turn ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._act(await self._turn())

    async def _turn(self, question: Ask | None = None) -> Plan:
        """Take the next turn. What the store could not keep stays in the inbox, or is answered with the reason."""
        if self._store.is_inline:
            return self._store.take_turn(self._decider(question))
        async with self._one_at_a_time:
            while True:
                decide = self._decider(question)
                try:
                    return await self._store.turn(decide)
                except StoreError as error:
                    self._not_kept(decide, error)
                    if question is not None:
                        raise
                    await asyncio.sleep(STORE_PAUSE)

    def _decider(self, question: Ask | None = None, may_start: bool | None = None) -> Decider:
        """Everything a decision needs, as it is now."""
        items, self._inbox = self._inbox, []
        questions = self._questions()
        is_whole = question is None and may_start is None
        allowance = self._judge.allowance() if questions and is_whole else NOTHING_ASKED
        return Decider(self._scheduler, items, questions, allowance, self._may_start, is_whole, question)

    def _not_kept(self, decider: Decider, error: StoreError) -> None:
        """The store did not keep a turn: forget what it decided, keep what happened, refuse what was asked for."""
        self._scheduler = self._make_scheduler()
        self._scheduler.adopt([run.record for run in self._runs.values() if run.is_given_up])
        kept = [item for item in decider.items if isinstance(item, MUST_BE_KEPT)]
        self._inbox = kept + self._inbox
        for item in decider.items:
            self._answer(item, error)
        if self._loop.time() - self._troubled_at >= TROUBLE_EVERY:
            self._troubled_at = self._loop.time()
            logger.error("nothing can be kept, trying again every %g s: %s", STORE_PAUSE, error)

    def _act(self, plan: Plan) -> None:
        self._head = plan.head
        for item, answer in plan.replies:
            self._answer(item, answer)
        for token in plan.stop:
            self._stop_run(token)
        if plan.events:
            self._bus.publish(plan)
            plan.errors.clear()  # they hold the frames of handlers, and the ledger holds the last plan
            if self.waiters and plan.finals:
                self.waiters.tell(plan)
        if plan.start:
            self._start_runs(plan)
        if plan.ask:
            self._judge.ask(plan)
        if self._idle_waiters and not self._is_busy():
            waiters, self._idle_waiters = self._idle_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        if self._quiet is not None:
            self._let_go()
        if plan.is_whole and plan.wake_at != self._alarm_at:
            self._set_alarm(plan.wake_at)

    def _is_busy(self) -> bool:
        return self._head.pending + self._head.running > 0

    def _answer(self, item: Item, answer: Any) -> None:
        future = self._replies.pop(id(item), None)
        if future is None:
            return
        if future.done():
            self._late[id(item)] = answer
        elif isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def _set_alarm(self, at: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._alarm_at = at
        if at != float("inf") and self._loop_task is not None:
            delay = max(0.0, at - self._clock.now())
            self._alarm = self._loop.call_later(delay, self._ring)

    def _ring(self) -> None:
        self._alarm_at = float("inf")
        self._wake.set()

    # attempts ---------------------------------------------------------------------------------------------

    def _start_runs(self, plan: Plan) -> None:
        tasks, executors, runs, report = self._tasks, self._executors, self._runs, self._report_progress
        create_task = task_maker(self._loop)
        rated = plan.rated
        for record in plan.start:
            spec, token = record.spec, record.token
            task = tasks[spec.task]
            run = runs[token] = Run(record, executors[task.executor], report)
            is_watched = spec.timeout is not None or token in rated
            entered = partial(self._entered, run) if is_watched else None
            if not self._store.is_inline and token in rated:
                run.latest = rated[token]
            run.task = create_task(self._attempt(run, task, entered), name=record.id)

    async def _attempt(self, run: Run, task: Registered, entered: Entering | None) -> None:
        record = run.record
        run.has_begun = True
        if self._may_block or task.executor != "async":
            current_run.set(run)  # else a coroutine is known by its task, which costs nothing
        if run.latest is not None and self._clock.now() > run.latest:
            del self._runs[record.token]
            run.task = None
            self.put(Outcome(record.id, record.token, None, LATE))
            return
        try:
            result = await run.executor.run(RunningWork(run), task.handler, entered)
            if result is not None and not self._store.is_inline:
                self._store.check_result(result)
        except BaseException as error:  # noqa: BLE001 (whatever a handler raises is its outcome)
            outcome = Outcome(record.id, record.token, None, classify(error, task.retry.retry_on), error)
        else:
            outcome = Outcome(record.id, record.token, result)
        if entered is not None and not run.has_entered:
            entered(None)
        del self._runs[record.token]
        run.task = None  # a task, its coroutine and its run would otherwise wait for the collector
        if run.timer is not None:
            run.timer.cancel()
        if run.is_given_up:
            was_stopped = isinstance(outcome.error, asyncio.CancelledError)
            self._inbox.append(Ended(record.id, record.token, not was_stopped))
        else:
            self._inbox.append(outcome)
        if not self._wake.is_set():
            self._wake.set()

    def _entered(self, run: Run, at: float | None) -> None:
        """The handler was entered: rates and the timeout count from here."""
        if run.has_entered:
            return
        run.has_entered = True
        timeout = run.record.spec.timeout
        if timeout is not None and not run.is_given_up:
            run.timer = self._loop.call_later(timeout, self._time_out, run)
        self.put(Entered(run.record.token, self._clock.now() if at is None else at))

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
        failure = TIMEOUT_FOR_GOOD if is_excluded else TIMEOUT
        self.put(Outcome(record.id, record.token, None, failure, timeout, has_ended=False))

    def _stop_run(self, token: int) -> None:
        run = self._runs.get(token)
        if run is None or run.is_given_up:
            return
        run.is_given_up = True
        if run.timer is not None:
            run.timer.cancel()
        if run.task is not None and not run.has_begun:
            run.task.cancel()  # before its first step: nothing of it will ever run, so it is over here and now
            del self._runs[token]
            self.put(Ended(run.record.id, token))
        elif run.task is not None and run.executor.can_stop:
            run.task.cancel()


def task_maker(loop: asyncio.AbstractEventLoop) -> Callable[..., asyncio.Task[Any]]:
    """What `loop.create_task` comes down to on a loop that does nothing of its own there, without the detour."""
    is_plain = type(loop).create_task is asyncio.BaseEventLoop.create_task and loop.get_task_factory() is None
    return partial(asyncio.Task, loop=loop) if is_plain else loop.create_task
