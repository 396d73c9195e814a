"""Runs the turns of one process: collects items in the inbox, takes a turn, carries out its plan.

A turn is the only way anything changes. Whatever wants a change puts an item into the inbox. A turn takes the inbox,
decides and commits; then the engine acts on the plan: answer callers, stop and start handlers, emit events, call
callbacks, set the alarm. Between turns the engine sleeps until an item arrives or the alarm rings.

With an inline store (memory) `request` takes a turn at once that accepts units and starts none. A unit that no rule
can refuse waits for the next turn, if turns are taken (inbox.py). So `submit` returns without suspending, and the
next turn chooses the best among all units submitted in a row.

Where several processes share a queue, `peer.py` decides whether this process plans for all of them or posts its
inbox to the process that does. `act` carries out the plan in both cases.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from runcue.core.model.record import Spec, WorkState
from runcue.core.model.state import NO_HEAD
from runcue.core.schedule.gates import Allowance, Questions
from runcue.core.schedule.plan import Hello, Item, Plan, Serve
from runcue.core.schedule.scheduler import Scheduler
from runcue.engine.alarm import NEVER, Alarm
from runcue.engine.attempts import Attempts
from runcue.engine.bus import Bus
from runcue.engine.decision import MUST_BE_KEPT, Ask, Decider
from runcue.engine.inbox import Inbox
from runcue.engine.judge import Judge
from runcue.engine.peer import Peer
from runcue.engine.replies import Replies
from runcue.engine.resources import Resources
from runcue.engine.running import Middleware, Reports
from runcue.engine.waiters import Waiters
from runcue.errors import (
    CueClosed,
    ForkedConnection,
    RuncueError,
    SchemaTooNew,
    StorageBusy,
    StorageReplaced,
    StoreError,
)
from runcue.host.loops import within
from runcue.ports import Clock, Executor, InlineStore, Registered, SharedStore, Store, Turn

logger = logging.getLogger("runcue")

T = TypeVar("T")
NOTHING_ASKED = Allowance(0, 0)
CANCEL_GRACE = 1.0
"""Seconds that stop() leaves to coroutines it has cancelled."""
STEPS = 2
"""Steps of the loop between two turns of a shared store. In them, handlers that return at once do so, and callers
that the last turn answered ask for more: one turn takes all of that."""
LAST_TURN = 0.05
"""Seconds that a turn under way gets at least, even with stop(0)."""
LOG_EVERY = 60.0
"""Seconds between two log lines about a store that cannot be written."""
PERMANENT_ERRORS = (StorageReplaced, ForkedConnection, SchemaTooNew)
"""Errors that no later turn can overcome: the file, or this process, is no longer the one that opened the queue."""
STORE_PAUSE = 0.5
"""Seconds before a turn that the store could not commit is tried again."""
PASSING_RETRIES = 5
PASSING_PAUSE = 0.01
"""A turn that only met a passing conflict is retried at once: how often, and the first pause in seconds."""
MAX_FAILURES = 4
"""After so many failed turns in a row, stop() no longer waits for the items in the inbox."""


class Engine:
    """Takes turns for one Cue and carries out their plans."""

    def __init__(
        self,
        *,
        store: InlineStore | SharedStore,
        clock: Clock,
        make_scheduler: Callable[[bool], Scheduler],
        hello: Callable[[bool, frozenset[str] | None, bool], Hello | None],
        judge: Judge,
        bus: Bus,
        executors: Mapping[str, Executor],
        tasks: Mapping[str, Registered],
        middleware: Sequence[Middleware],
        resources: Resources,
        questions: Callable[[], Questions],
        drain: Callable[[], Any],
        progress_interval: float,
        may_block: bool,
        may_refuse: bool,
    ) -> None:
        """`make_scheduler(True)` makes a scheduler that only answers questions and decides for no process.

        `hello(is_serving, queues, is_new)` introduces this process to the others; None when they know all of it
        already and `is_new` is False.
        """
        self._loop = asyncio.get_running_loop()
        self._store: Store = store
        self._inline_store = store if isinstance(store, InlineStore) else None
        self._clock = clock
        self._scheduler = make_scheduler(False) if store.is_inline else None
        """Set for an inline store only; for a shared store the peer has the scheduler."""
        self._head = NO_HEAD
        self._judge = judge
        self._bus = bus
        self._questions = questions
        self._drain = drain
        self._steps = 0 if hasattr(self._loop, "hold") else STEPS  # on virtual time turns cost nothing
        self._wake = asyncio.Event()
        self.inbox = Inbox(self._wake.set, self._loop)
        self.replies = Replies(self._loop)
        self.waiters = Waiters(self._loop, store)
        self._idle_waiters: list[asyncio.Future[None]] = []
        self.attempts = Attempts(
            store=store,
            clock=clock,
            executors=executors,
            tasks=tasks,
            middleware=middleware,
            put=self.inbox.put,
            reports=Reports(clock, progress_interval, self.inbox.put_threadsafe),
            judge=judge,
            resources=resources,
            may_block=may_block,
        )
        self._loop_task: asyncio.Task[None] | None = None
        self._alarm = Alarm(clock, self._wake.set)
        self._may_start = False
        self._quiet: asyncio.Future[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._logged_at = -LOG_EVERY
        self._failures = 0
        """How many turns in a row the store could not commit."""
        self._queues: frozenset[str] | None = None
        self._serve: Serve | None = None
        self._broken: Exception | None = None
        self._peer: Peer | None = None
        """Set for a shared store: decides for all processes, or posts the inbox to the process that does."""
        if self._inline_store is not None:
            self._inline_store.read_after(self._accept_gathered)
        if isinstance(store, SharedStore):
            self._peer = Peer(
                self,
                store=store,
                clock=clock,
                replies=self.replies,
                make_scheduler=make_scheduler,
                hello=lambda is_new: hello(self._may_start, self._queues, is_new),
                may_refuse=may_refuse,
            )

    # starting and stopping --------------------------------------------------------------------------------

    @property
    def is_started(self) -> bool:
        """True between start and stop."""
        return self._may_start

    @property
    def was_started(self) -> bool:
        """True once start() was called, also after stop()."""
        return self._serve is not None

    @property
    def pending(self) -> int:
        """How many units were pending after the last turn, with those that the next one accepts."""
        return self._head.pending + self.inbox.gathered

    async def counts(self) -> dict[WorkState, int]:
        """How many units there were in each state so far."""
        self._raise_if_broken()
        if self._peer is not None:
            await self._until_taken(self._peer)
            return await self._peer.counts()
        await self.look(lambda scheduler, turn: None)
        return {state: getattr(self._head, state.value) for state in WorkState}

    async def last_event(self) -> int:
        """The number of the latest event of any process."""
        await self.look(lambda scheduler, turn: None)
        return self._bus.next_seq - 1 if self._store.is_inline else self._head.last_event_seq

    def start(self, queues: frozenset[str] | None) -> None:
        """Start units from now on."""
        if self._may_start:
            return
        self._may_start = True
        self._queues = queues
        self._bus.begin()
        self._serve = Serve(queues)
        if self._store.is_inline:
            self.inbox.put(self._serve)
        self._wake.set()
        self.take_turns()

    def take_turns(self) -> None:
        """Take turns from now on; they start no unit before `start`."""
        if self._loop_task is None or self._loop_task.done():
            self._loop_task = self._loop.create_task(self._run(), name="runcue")
            self._wake.set()
            self._loop_task.add_done_callback(self._turns_ended)

    async def stop(self, timeout: float | None) -> None:
        """Start no more units and wait for running ones; after `timeout` cancel those."""
        if self._loop_task is None:
            await self._drain()
            return
        self._may_start = False
        self._wake.set()
        if not await self._until_quiet(timeout):
            await self.attempts.stop_all(self.request, CANCEL_GRACE)
        await self.attempts.let_end(CANCEL_GRACE)
        await self._drain()
        # Callbacks may have submitted more, or a turn that was under way may have started more.
        while self._is_stopping():
            if not await self._until_quiet(None if timeout is None else max(timeout, LAST_TURN)):
                await self.attempts.stop_all(self.request, CANCEL_GRACE)
                await self.attempts.let_end(CANCEL_GRACE)
            await self._drain()
        if self._may_start:  # start() was called meanwhile
            return
        if not self._store.is_inline:  # turns go on: this process still submits, and sees what others do
            await asyncio.sleep(0)  # let cancelled tasks run their last step
            self._bus.end()
            return
        task, self._loop_task = self._loop_task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if self._loop_task is None:  # else start() was called meanwhile
            self.set_alarm(NEVER)
            self._bus.end()

    async def _until_quiet(self, timeout: float | None) -> bool:
        """True once every attempt that stop() waits for has ended, or start() was called again."""
        try:
            async with within(timeout):
                while self._is_stopping():
                    self._quiet = self._quiet or self._loop.create_future()
                    await asyncio.shield(self._quiet)
        except TimeoutError:
            return False
        return True

    @property
    def _has_unread(self) -> bool:
        return self._peer is not None and self._peer.has_unread

    def _is_stopping(self) -> bool:
        if self._may_start or self._loop_task is None or self._loop_task.done():
            return False
        has_items = bool(self.inbox) or self._one_at_a_time.locked() or self._has_unread
        return (self._failures < MAX_FAILURES and has_items) or self.attempts.are_awaited()

    def _signal_quiet(self) -> None:
        quiet, self._quiet = self._quiet, None
        if quiet is not None and not quiet.done():
            quiet.set_result(None)

    def _turns_ended(self, task: asyncio.Task[None]) -> None:
        """Report why no more turns are taken, unless stop() or the end of the loop is the reason."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._may_start = False
            if isinstance(error, StoreError):
                logger.error("runcue takes no more turns: %s", error)
                self._broken = error
            elif isinstance(error, KeyboardInterrupt):  # Ctrl-C, which ends the loop, too
                self._broken = RuncueError("runcue takes no more turns: it was interrupted")
            else:
                self._loop.call_exception_handler(
                    {"message": "runcue takes no more turns: this is a bug in runcue", "exception": error}
                )
                self._broken = RuncueError(
                    f"runcue takes no more turns because of a bug in runcue: {error!r}"
                )
            self.fail_waiters(lambda: self._broken or CueClosed("wait"))
        self._signal_quiet()

    async def close(self, error: Callable[[], Exception]) -> None:
        """Take no more turns, and fail every caller that still waits."""
        task, self._loop_task = self._loop_task, None
        if task is not None:
            async with self._one_at_a_time:
                task.cancel()
            await asyncio.wait([task])
        self.set_alarm(NEVER)
        self.fail_waiters(error)

    def abandon(self) -> None:
        """End at once and without a word, as if this process had died."""
        task, self._loop_task = self._loop_task, None
        if task is not None:
            task.cancel()
        self._may_start = False
        self.set_alarm(NEVER)
        self.attempts.abandon()

    def fail_waiters(self, error: Callable[[], Exception]) -> None:
        """Fail every caller that waits: no turn will answer it."""
        post_waiters = () if self._peer is None else self._peer.post_waiters()
        for future in (*self.replies.all(), *self.waiters.all(), *self._idle_waiters, *post_waiters):
            if not future.done():
                future.set_exception(error())
                future.exception()  # mark it as retrieved: its caller may have given up

    # asking the engine ------------------------------------------------------------------------------------

    def store_changed(self, is_urgent: bool = True) -> None:
        """Another process committed something; `is_urgent` when it left a letter or a post for this process."""
        if is_urgent or self._idle_waiters or (self._peer is not None and self._peer.has_post_waiters):
            self._wake.set()
        self.recheck()

    def wake(self) -> None:
        """Have the next turn or exchange taken now."""
        self._wake.set()

    def recheck(self) -> None:
        """Have event readers and waiting callers look for what other processes committed."""
        self._bus.wake()
        self.waiters.recheck()

    async def request(self, item: Item) -> Any:
        """Put an item into a turn; return its answer, or raise the exception that is its answer."""
        self._raise_if_broken()
        self.inbox.put(item)
        if self._store.is_inline:
            plan = self._inline_turn(is_whole=False)
            self.act(plan)
            for asked, answer in plan.replies:
                if asked is item:
                    if isinstance(answer, Exception):
                        raise answer
                    return answer
        return await self.replies.to(item)

    def accept(self, spec: Spec) -> None:
        """Have the next turn accept a unit that no rule can refuse. Only for an inline store."""
        self._raise_if_broken()
        self.inbox.gather(spec)
        if self._loop_task is None:  # before start() and after stop() no turn follows by itself
            self._accept_gathered()

    def _accept_gathered(self) -> None:
        """Take a turn before records are read, if units were submitted that none has accepted yet."""
        if self.inbox.gathered:
            self.act(self._inline_turn(is_whole=False))

    async def look(self, question: Callable[[Scheduler, Turn], T]) -> T:
        """Ask the scheduler a question, in a turn that takes the inbox and starts no unit."""
        answer: list[T] = []
        problem: list[Exception] = []

        def ask(scheduler: Scheduler, turn: Turn) -> None:
            try:
                answer.append(question(scheduler, turn))
            except Exception as error:  # noqa: BLE001 (raised below: the turn has to be committed all the same)
                problem.append(error)

        self._raise_if_broken()
        if self._store.is_inline:
            self.act(self._inline_turn(ask))
            self._wake.set()
        else:  # a task of its own: the plan has to be carried out even if the caller gives up
            looking = self._loop.create_task(self._look_shared(ask), name="runcue look")
            try:
                await asyncio.shield(looking)
            finally:
                looking.add_done_callback(self._looked)
        if problem:
            raise problem[-1]
        return answer[-1]

    async def _look_shared(self, question: Ask) -> None:
        """Ask in a turn of this process if it decides; else read a snapshot that includes what it has posted."""
        assert self._peer is not None
        if not await self._take_part(self._peer, question):
            await self._until_taken(self._peer)
            head = await self._peer.look(question)
            if head.revision >= self._head.revision:  # else a newer head arrived meanwhile
                self._head = head

    async def _until_taken(self, peer: Peer) -> None:
        """Wait until a turn has taken everything this process posted, so that it sees its own changes."""
        self._raise_if_broken()
        await peer.until_taken(has_more=bool(self.inbox) and not peer.decides)

    def _looked(self, task: asyncio.Task[None]) -> None:
        """Take a full turn after a look: its turn has seen what other processes did, and started nothing."""
        if not task.cancelled():
            task.exception()  # mark it as retrieved: the caller has it, or gave up
        self._wake.set()

    def _raise_if_broken(self) -> None:
        """Raise the error that ended the turns, if one did."""
        if self._broken is not None:
            raise self._broken.with_traceback(None)  # drops the frames of earlier callers

    async def until_idle(self) -> None:
        """Wait until nothing is pending or running."""
        await self.look(lambda scheduler, turn: None)
        while True:
            future: asyncio.Future[None] = self._loop.create_future()
            self._idle_waiters.append(future)
            try:
                if not self._is_busy() and (self._peer is None or await self._peer.is_idle()):
                    return
                await future
            finally:
                self._idle_waiters.remove(future)

    # the turn ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._peer is None:
                self.act(self._inline_turn())
            else:
                await self._peer.rest()
                for _ in range(self._steps):
                    await asyncio.sleep(0)
                self._wake.clear()  # the turn takes what came meanwhile, too
                await self._take_part(self._peer)

    async def _take_part(self, peer: Peer, question: Ask | None = None) -> bool:
        """Take a turn, or post the inbox to the deciding process. True when this process decided."""
        while True:
            async with self._one_at_a_time:
                is_decided, items, error = await peer.take_part(question)
                if error is None:
                    self._failures = 0
                    return is_decided
                is_passing = isinstance(error, StorageBusy) and error.is_passing
                is_again = is_passing and self._failures < PASSING_RETRIES
                self._turn_failed(peer, items, error, is_again)
                if not is_again and (question is not None or isinstance(error, PERMANENT_ERRORS)):
                    raise error
            await asyncio.sleep(PASSING_PAUSE * self._failures if is_again else STORE_PAUSE)

    def take_inbox(self) -> list[Item]:
        """Empty the inbox and return its items."""
        items = self.inbox.take()
        self.attempts.take_entries()
        return items

    def decider(
        self, scheduler: Scheduler, items: list[Item], question: Ask | None, *, is_whole: bool = True
    ) -> Decider:
        """The decision function for one turn, with all its inputs."""
        questions = self._questions()
        is_whole = is_whole and question is None
        is_asking = is_whole and (questions or not self._store.is_inline)
        allowance = self._judge.allowance() if is_asking else NOTHING_ASKED
        short = frozenset[str]() if self._store.is_inline else self.attempts.short_tasks.names()
        return Decider(scheduler, items, questions, allowance, self._may_start, is_whole, question, short)

    def _inline_turn(self, question: Ask | None = None, *, is_whole: bool = True) -> Plan:
        """Take a turn at once, without suspending."""
        assert self._scheduler is not None
        assert self._inline_store is not None
        return self._inline_store.take_turn(
            self.decider(self._scheduler, self.take_inbox(), question, is_whole=is_whole)
        )

    def _turn_failed(self, peer: Peer, items: list[Item], error: StoreError, is_again: bool) -> None:
        """Put items of a turn that was not committed back into the inbox: facts, or with `is_again` all of them.

        The callers of the other items get the error.
        """
        waiting = peer.turn_failed(None if is_again else error)
        self._failures += 1
        kept = [item for item in items if is_again or isinstance(item, MUST_BE_KEPT)]
        known = {id(item) for item in items}
        self.inbox.put_back([*kept, *(item for item in waiting if id(item) not in known)])
        if is_again:
            return
        for item in items:
            self.replies.answer(item, error)
        if self._quiet is not None:
            self._signal_quiet()
        is_permanent = isinstance(error, PERMANENT_ERRORS)  # `_turns_ended` logs those
        if not is_permanent and self._loop.time() - self._logged_at >= LOG_EVERY:
            self._logged_at = self._loop.time()
            logger.error("the store cannot be written, trying again every %g s: %s", STORE_PAUSE, error)

    def act(self, plan: Plan) -> None:
        """Carry out a committed plan."""
        self._head = plan.head
        for item, answer in plan.replies:
            self.replies.answer(item, answer)
        for token in plan.stop:
            self.attempts.stop(token)
        if plan.events:
            self._bus.publish(plan.heard())
            plan.errors.clear()  # the ledger keeps the last plan, and these errors keep the frames of handlers
            if self.waiters and plan.finals:
                self.waiters.resolve(plan)
        if plan.start:
            self.attempts.start(plan)
        if plan.ask:
            self._judge.ask(plan)
        if self._idle_waiters and not self._is_busy():
            for waiter in self._idle_waiters:  # each leaves the list itself, in `until_idle`
                if not waiter.done():
                    waiter.set_result(None)
        if self._quiet is not None and not self._has_unread:
            self._signal_quiet()
        if plan.is_whole and self._loop_task is not None:
            self.set_alarm(plan.wake_at, plan.waits_for_wall)

    def set_alarm(self, at: float, waits_for_wall: bool = False) -> None:
        """Take the next turn or exchange at that time, in place of the time set before; with `waits_for_wall` also
        when the wall clock is set."""
        self._alarm.set(at, waits_for_wall)

    def _is_busy(self) -> bool:
        return self.pending + self._head.running > 0 or self._has_unread
