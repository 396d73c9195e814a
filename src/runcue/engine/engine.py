"""The shell around the scheduler: inbox, turn, act, alarm, graceful stop.

A turn is the only way anything changes. Everything that wants to change something puts an item into the inbox;
a turn takes the inbox in, decides, commits, and then acts: answers, tells, stops, starts, asks, sets the alarm.
Between turns the engine sleeps until the inbox is filled or until the exact moment the plan named.

With an inline store (memory) an item that needs no start is taken in at once, in a turn of its own that starts
nothing: so `submit` returns without suspending, and work submitted in a row is chosen among, best first.

Where several processes share a queue, one of them decides for all (peer.py). The others leave their inboxes for it
and do what it decided for them: to `act` that looks like a plan of their own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from typing import Any, TypeVar

from runcue.core.model.record import WorkState
from runcue.core.model.state import NO_HEAD
from runcue.core.schedule.gates import Allowance, Questions
from runcue.core.schedule.plan import (
    Hello,
    Item,
    Plan,
    Serve,
)
from runcue.core.schedule.scheduler import Scheduler
from runcue.engine.alarm import NEVER, Alarm
from runcue.engine.attempts import Attempts
from runcue.engine.bus import Bus
from runcue.engine.decision import MUST_BE_KEPT, Ask, Decider
from runcue.engine.judge import Judge
from runcue.engine.peer import Peer
from runcue.engine.replies import Replies
from runcue.engine.running import Middleware, Words
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
CLEANUP = 1.0
"""Seconds that stop() leaves to coroutines it has cancelled."""
LAST_LOOK = 0.05
"""Seconds that a turn under way is given at least, when everything is to stop at once."""
TROUBLE_EVERY = 60.0
FOR_GOOD = (StorageReplaced, ForkedConnection, SchemaTooNew)
"""What no later turn can mend: the file is another one, or this process is."""
STORE_PAUSE = 0.5
"""Seconds before a turn that the store could not keep is tried again."""
TRIES = 5
SHORT_PAUSE = 0.01
"""How often a turn is tried again that only happened to be in somebody's way, and seconds to begin with."""
GIVE_UP = 4
"""After so many turns in a row that could not be kept, stop() no longer waits for what they would keep."""


class Engine:
    """Runs turns and does what they decided."""

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
        questions: Callable[[], Questions],
        drain: Callable[[], Any],
        progress_interval: float,
        may_block: bool,
        may_refuse: bool,
    ) -> None:
        """`make_scheduler` makes one for this process, or (True) one for nobody, to look at everything with.
        `hello` says what the other processes have to know of this one; nothing if that is what it said last, unless
        it is to say it all the same."""
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._store: Store = store
        self._inline_store = store if isinstance(store, InlineStore) else None
        self._clock = clock
        self._scheduler = make_scheduler(False) if store.is_inline else None
        """Of a store that nobody shares; else it is the peer's."""
        self._head = NO_HEAD
        self._judge = judge
        self._bus = bus
        self._questions = questions
        self._drain = drain
        self._inbox: list[Item] = []
        self.replies = Replies(self._loop)
        self.waiters = Waiters(self._loop, store)
        self._idle_waiters: list[asyncio.Future[None]] = []
        self.attempts = Attempts(
            store=store,
            clock=clock,
            executors=executors,
            tasks=tasks,
            middleware=middleware,
            put=self.put,
            words=Words(clock, progress_interval, self.put_from_anywhere),
            judge=judge,
            may_block=may_block,
        )
        self._loop_task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._alarm = Alarm(clock, self._wake.set)
        self._may_start = False
        self._quiet: asyncio.Future[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._troubled_at = -TROUBLE_EVERY
        self._failures = 0
        """How many turns in a row the store could not keep."""
        self._queues: frozenset[str] | None = None
        self._serve: Serve | None = None
        self._broken: Exception | None = None
        self._peer: Peer | None = None
        """How this process takes part, where several share the queue."""
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

    # coming and going -------------------------------------------------------------------------------------

    @property
    def is_started(self) -> bool:
        """True between start and stop."""
        return self._may_start

    @property
    def was_started(self) -> bool:
        """True once start was called, whatever came after it."""
        return self._serve is not None

    @property
    def pending(self) -> int:
        """How much is pending."""
        return self._head.pending

    async def counts(self) -> dict[WorkState, int]:
        """How many works there were in each state so far."""
        self._check()
        if self._peer is not None:
            await self._settled(self._peer)
            return await self._peer.counts()
        await self.look(lambda scheduler, turn: None)
        return {state: getattr(self._head, state.value) for state in WorkState}

    async def last_event(self) -> int:
        """The number of the latest event, whoever told it."""
        await self.look(lambda scheduler, turn: None)
        return self._bus.next_seq - 1 if self._store.is_inline else self._head.told

    def start(self, queues: frozenset[str] | None) -> None:
        """Begin to take turns by itself."""
        if self._may_start:
            return
        self._may_start = True
        self._queues = queues
        self._bus.begin()
        self._serve = Serve(queues)
        if self._store.is_inline:
            self.put(self._serve)
        self._wake.set()
        self.take_turns()

    def take_turns(self) -> None:
        """Take turns whenever there is something to decide; nothing is started before `start`."""
        if self._loop_task is None or self._loop_task.done():
            self._loop_task = self._loop.create_task(self._run(), name="runcue")
            self._wake.set()
            self._loop_task.add_done_callback(self._over)

    async def stop(self, timeout: float | None) -> None:
        """Start nothing new, wait for what runs; after `timeout` cancel it."""
        if self._loop_task is None:
            await self._drain()
            return
        self._may_start = False
        self._wake.set()
        if not await self._until_quiet(timeout):
            await self.attempts.stop_all(self.request, CLEANUP)
        await self.attempts.let_end(CLEANUP)
        await self._drain()
        # Callbacks may have had something to tell, or a turn was under way that started more.
        while self._is_stopping():
            if not await self._until_quiet(None if timeout is None else max(timeout, LAST_LOOK)):
                await self.attempts.stop_all(self.request, CLEANUP)
                await self.attempts.let_end(CLEANUP)
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
            self.set_alarm(NEVER)
            self._bus.end()

    async def _until_quiet(self, timeout: float | None) -> bool:
        """True once no attempt that still counts is under way, or nobody wants to stop any more."""
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
        is_left = bool(self._inbox) or self._one_at_a_time.locked() or self._has_unread
        return (self._failures < GIVE_UP and is_left) or self.attempts.are_awaited()

    def _signal_quiet(self) -> None:
        quiet, self._quiet = self._quiet, None
        if quiet is not None and not quiet.done():
            quiet.set_result(None)

    def _over(self, task: asyncio.Task[None]) -> None:
        """The turns have ended: because of stop(), with the loop, or by a mistake of ours, which must be heard."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._may_start = False
            if isinstance(error, StoreError):
                logger.error("no more turns: %s", error)
                self._broken = error
            elif isinstance(error, KeyboardInterrupt):  # the user's, at the terminal: the loop ends with it
                self._broken = RuncueError("runcue takes no more turns: it was interrupted")
            else:
                self._loop.call_exception_handler(
                    {"message": "runcue takes no more turns: this is a mistake in runcue", "exception": error}
                )
                self._broken = RuncueError(f"runcue takes no more turns, by its own mistake: {error!r}")
            self.fail_waiters(lambda: self._broken or CueClosed("wait"))
        self._signal_quiet()

    async def close(self, error: Callable[[], Exception]) -> None:
        """Take no more turns."""
        task, self._loop_task = self._loop_task, None
        if task is not None:
            async with self._one_at_a_time:
                task.cancel()
            await asyncio.wait([task])
        self.set_alarm(NEVER)
        self.fail_waiters(error)

    def abandon(self) -> None:
        """Nothing of it runs any more, here and now, and nobody is told: as if its process had died."""
        task, self._loop_task = self._loop_task, None
        if task is not None:
            task.cancel()
        self._may_start = False
        self.set_alarm(NEVER)
        self.attempts.abandon()

    def fail_waiters(self, error: Callable[[], Exception]) -> None:
        """Nothing will happen any more: whoever waits for something gets the error."""
        settling = () if self._peer is None else self._peer.waiting()
        for future in (*self.replies.all(), *self.waiters.all(), *self._idle_waiters, *settling):
            if not future.done():
                future.set_exception(error())
                future.exception()  # who waits gets it; nobody has to

    # asking the engine ------------------------------------------------------------------------------------

    def news(self, is_urgent: bool = True) -> None:
        """Another process did something: look who waited for that; if something was left for this one, take part."""
        if is_urgent or self._idle_waiters or (self._peer is not None and self._peer.is_awaited):
            self._wake.set()
        self.hear()

    def wake(self) -> None:
        """Take a turn, or part in one."""
        self._wake.set()

    def hear(self) -> None:
        """Others did something: those who wait here for what they did look whether it was that."""
        self._bus.heard()
        self.waiters.recheck()

    def put(self, item: Item) -> None:
        """Leave an item for the next turn."""
        self._inbox.append(item)
        self._wake.set()

    def put_first(self, item: Item) -> None:
        """The same, before all others, and in place of what there is of its kind."""
        self._inbox = [item, *(one for one in self._inbox if type(one) is not type(item))]

    def put_from_anywhere(self, item: Item) -> None:
        """The same, from any thread."""
        if get_ident() == self._thread:
            self.put(item)
        else:
            self._loop.call_soon_threadsafe(self.put, item)

    async def request(self, item: Item) -> Any:
        """Put an item into a turn and wait for its answer, which may be an exception to raise."""
        self._check()
        self._inbox.append(item)
        self._wake.set()
        if self._store.is_inline:
            plan = self._inline(is_whole=False)
            self.act(plan)
            for asked, answer in plan.replies:
                if asked is item:
                    if isinstance(answer, Exception):
                        raise answer
                    return answer
        return await self.replies.to(item)

    async def look(self, question: Callable[[Scheduler, Turn], T]) -> T:
        """Ask the scheduler something, in a turn that takes the inbox in and starts nothing."""
        answer: list[T] = []
        problem: list[Exception] = []

        def ask(scheduler: Scheduler, turn: Turn) -> None:
            try:
                answer.append(question(scheduler, turn))
            except Exception as error:  # noqa: BLE001 (raised below: what was taken in must be committed)
                problem.append(error)

        self._check()
        if self._store.is_inline:
            self.act(self._inline(ask))
            self._wake.set()
        else:  # who asks may give up; what the turn decided must be done all the same
            asked = self._loop.create_task(self._ask(ask), name="runcue look")
            try:
                await asyncio.shield(asked)
            finally:
                asked.add_done_callback(self._asked)
        if problem:
            raise problem[-1]
        return answer[-1]

    async def _ask(self, question: Ask) -> None:
        """In a turn, if this process decides; else by a look at everything as it stands, once it has taken part."""
        assert self._peer is not None
        if not await self._take_part(self._peer, question):
            await self._settled(self._peer)
            head = await self._peer.look(question)
            if head.revision >= self._head.revision:  # else more was heard meanwhile
                self._head = head

    async def _settled(self, peer: Peer) -> None:
        """Wait until everything that this process left so far was taken: then it sees what it did itself."""
        self._check()
        await peer.settled(has_more=bool(self._inbox) and not peer.decides)

    def _asked(self, task: asyncio.Task[None]) -> None:
        """A turn for a question started nothing, but has seen what others did: nobody tells of that any more."""
        if not task.cancelled():
            task.exception()  # somebody was told of it already, or gave up waiting for it
        self._wake.set()

    def _check(self) -> None:
        """Whoever asks for something when no more turns are taken gets the reason."""
        if self._broken is not None:
            raise self._broken.with_traceback(None)  # whose frames are those of everybody who asked before

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
                if future in self._idle_waiters:  # who gives up must not be kept until everything is done
                    self._idle_waiters.remove(future)

    # the turn ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._peer is None:
                self.act(self._inline())
            else:
                await self._peer.rest()
                self._wake.clear()  # what came meanwhile is taken along
                await self._take_part(self._peer)

    async def _take_part(self, peer: Peer, question: Ask | None = None) -> bool:
        """Decide, or leave the inbox for whoever does. True when this process decided.

        What the store could not keep stays in the inbox, or is answered with the reason.
        """
        while True:
            async with self._one_at_a_time:
                is_decided, items, error = await peer.take_part(question)
                if error is None:
                    self._failures = 0
                    return is_decided
                is_passing = isinstance(error, StorageBusy) and error.is_passing
                is_again = is_passing and self._failures < TRIES
                self._not_kept(peer, items, error, is_again)
                if not is_again and (question is not None or isinstance(error, FOR_GOOD)):
                    raise error
            await asyncio.sleep(SHORT_PAUSE * self._failures if is_again else STORE_PAUSE)

    def take_inbox(self) -> list[Item]:
        """Everything that was put so far."""
        items, self._inbox = self._inbox, []
        self.attempts.take_entries()
        return items

    def decider(
        self, scheduler: Scheduler, items: list[Item], question: Ask | None, *, is_whole: bool = True
    ) -> Decider:
        """Everything a decision needs, as it is now."""
        questions = self._questions()
        is_whole = is_whole and question is None
        is_asking = is_whole and (questions or not self._store.is_inline)
        allowance = self._judge.allowance() if is_asking else NOTHING_ASKED
        short = frozenset[str]() if self._store.is_inline else self.attempts.short_tasks.names()
        return Decider(scheduler, items, questions, allowance, self._may_start, is_whole, question, short)

    def _inline(self, question: Ask | None = None, *, is_whole: bool = True) -> Plan:
        """A turn, here and now."""
        assert self._scheduler is not None
        assert self._inline_store is not None
        return self._inline_store.take_turn(
            self.decider(self._scheduler, self.take_inbox(), question, is_whole=is_whole)
        )

    def _not_kept(self, peer: Peer, items: list[Item], error: StoreError, is_again: bool) -> None:
        """The store did not keep a turn: forget what it decided, keep what happened, refuse what was asked for.

        With `is_again` it is tried again at once, and nobody need know.
        """
        lost = peer.failed(None if is_again else error)
        self._failures += 1
        kept = [item for item in items if is_again or isinstance(item, MUST_BE_KEPT)]
        others = {id(item) for item in (*items, *self._inbox)}
        waiting = [item for item in lost if id(item) not in others]
        self._inbox = [*kept, *waiting, *self._inbox]
        if is_again:
            return
        for item in items:
            self.replies.answer(item, error)
        if self._quiet is not None:
            self._signal_quiet()
        is_for_good = isinstance(error, FOR_GOOD)  # then `_over` says so
        if not is_for_good and self._loop.time() - self._troubled_at >= TROUBLE_EVERY:
            self._troubled_at = self._loop.time()
            logger.error("nothing can be kept, trying again every %g s: %s", STORE_PAUSE, error)

    def act(self, plan: Plan) -> None:
        """Do what was decided."""
        self._head = plan.head
        for item, answer in plan.replies:
            self.replies.answer(item, answer)
        for token in plan.stop:
            self.attempts.stop(token)
        if plan.events:
            self._bus.publish(plan.heard())
            plan.errors.clear()  # they hold the frames of handlers, and the ledger holds the last plan
            if self.waiters and plan.finals:
                self.waiters.tell(plan)
        if plan.start:
            self.attempts.start(plan)
        if plan.ask:
            self._judge.ask(plan)
        if self._idle_waiters and not self._is_busy():
            waiters, self._idle_waiters = self._idle_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        if self._quiet is not None and not self._has_unread:
            self._signal_quiet()
        if plan.is_whole and self._loop_task is not None:
            self.set_alarm(plan.wake_at)

    def set_alarm(self, at: float) -> None:
        """Take a turn, or part in one, at that time and no other."""
        self._alarm.set(at)

    def _is_busy(self) -> bool:
        return self._head.pending + self._head.running > 0 or self._has_unread
