"""Takes the part of one process in a queue that several share: it decides for all, or posts its inbox.

A process that decides takes a turn; any other process makes an exchange: it leaves its inbox as a post for the
deciding process and reads the letters left for it. The letters form a plan, which the engine carries out like one of
its own. Each item is taken by exactly one turn: one of this process, or the one that takes its post.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Protocol

from runcue.core.model.events import draft_of
from runcue.core.model.failure import Failure
from runcue.core.model.record import WorkState
from runcue.core.model.state import Head
from runcue.core.schedule.plan import Ended, Hello, Item, Missed, Outcome, Plan
from runcue.core.schedule.scheduler import Scheduler
from runcue.engine.attempts import Attempts
from runcue.engine.decision import Ask, Decider
from runcue.engine.inbox import Inbox
from runcue.engine.leadership import Leadership
from runcue.engine.outbox import Outbox
from runcue.engine.pace import Pace
from runcue.engine.replies import Replies
from runcue.errors import StoreError
from runcue.ports import Clock, Received, SharedStore, Takeover, Turn

UNANSWERED = (
    "Whether what was submitted is accepted is unknown: submit again with the same idempotency_key or id."
)
MISSED = "Answers to this process were lost with a connection."
UNBEGUN = Failure("unbegun", "this process begins nothing more")

SayHello = Callable[[bool], Hello | None]
"""Introduces this process; None when the others know all of it already, unless (True) it is new to them."""


class Shell(Protocol):
    """What a Peer needs of the engine; see there."""

    attempts: Attempts
    inbox: Inbox

    @property
    def is_started(self) -> bool:
        """True while this process starts units."""
        ...

    def take_inbox(self) -> list[Item]:
        """Empty the inbox and return its items."""
        ...

    def decider(self, scheduler: Scheduler, items: list[Item], question: Ask | None) -> Decider:
        """The decision function for one turn, with all its inputs."""
        ...

    def act(self, plan: Plan) -> None:
        """Carry out a committed plan."""
        ...

    def recheck(self) -> None:
        """Have event readers and waiting callers look for what other processes committed."""
        ...

    def wake(self) -> None:
        """Have the next turn or exchange taken now."""
        ...

    def set_alarm(self, at: float) -> None:
        """Have the next turn or exchange taken at that time."""
        ...


class Peer:
    """One of the processes that share a queue."""

    def __init__(
        self,
        shell: Shell,
        *,
        store: SharedStore,
        clock: Clock,
        replies: Replies,
        make_scheduler: Callable[[bool], Scheduler],
        hello: SayHello,
        may_refuse: bool,
    ) -> None:
        """`make_scheduler(True)` makes a scheduler that only answers questions and decides for no process."""
        self._shell = shell
        self._store = store
        self._clock = clock
        self._make_scheduler = make_scheduler
        self._hello = hello
        self._loop = asyncio.get_running_loop()
        self._scheduler: Scheduler | None = None
        """None while another process decides, as far as this one knows."""
        self._replies = replies
        self._outbox = Outbox(replies, is_refusing=may_refuse)
        self._leadership = Leadership(store.me().id, store.is_alive, self._loop.time)
        self._pace = Pace(self._loop.time)
        self._revision = 0
        self._raised: dict[int, dict[str, BaseException]] = {}
        """Exceptions of attempts whose outcomes were posted, by post and unit. The letters that answer the post tell
        of the failures, and `on_failure` is called with these."""
        self._post_waiters: list[tuple[int, asyncio.Future[None]]] = []
        """Callers that wait until the posts up to a number are taken."""

    @property
    def decides(self) -> bool:
        """True while this process is the deciding process, as far as it knows."""
        return self._scheduler is not None

    @property
    def has_unread(self) -> bool:
        """True while a post of this process is not known to be taken."""
        return self._outbox.has_unread

    @property
    def has_post_waiters(self) -> bool:
        """True while a caller waits until posts of this process are taken."""
        return bool(self._post_waiters)

    def post_waiters(self) -> list[asyncio.Future[None]]:
        """The futures of the callers that wait until posts are taken."""
        return [future for _, future in self._post_waiters]

    async def rest(self) -> None:
        """Wait until it is time for the next turn or exchange."""
        await self._pace.rest()

    # one turn or exchange -----------------------------------------------------------------------------------

    async def take_part(self, question: Ask | None) -> tuple[bool, list[Item], StoreError | None]:
        """Take one turn or make one exchange.

        Returns whether this process decided; if the store failed, also the items of the inbox and the error.
        """
        items: list[Item] | None = None
        plan: Plan | None = None
        decide: Decider | None = None
        received: Received | None
        self._pace.begins()
        try:
            takeover, has_looked = await self._find_takeover()
            self._introduce(is_new=takeover is not None)
            scheduler, items = self._scheduler, self._shell.take_inbox()
            if has_looked and takeover is None and not items:
                self._pace.ended(0, is_alone=False)
                return False, [], None
            post = self._outbox.post(items)
            if scheduler is None and takeover is None:
                received = await self._store.exchange(post)
            else:
                scheduler = scheduler or self._new_scheduler(items)
                decide = self._shell.decider(scheduler, items, question)
                plan, received = await self._store.turn(decide, post, takeover)
        except StoreError as error:
            return False, self._shell.take_inbox() if items is None else items, error
        if plan is None and self._scheduler is not None:  # submissions waited for room in this scheduler
            for item in self._scheduler.waiting_here():
                self._shell.inbox.put(item)
        is_going_on = plan is not None and plan.head.decider == self._leadership.me
        self._scheduler = scheduler if is_going_on else None
        if plan is None and post is not None:
            self._posted(post.number, items, received)
        if received is not None:
            self._receive(received, is_deciding=plan is not None)
        if plan is not None and decide is not None:
            self._decided(plan, decide)
        is_alone = self._scheduler is not None and self._scheduler.is_alone
        self._pace.ended(len(items) if plan is None else len(plan.records), is_alone=is_alone)
        return plan is not None, [], None

    async def _find_takeover(self) -> tuple[Takeover | None, bool]:
        """The takeover that is due, if one is; True when an exchange was made to find out.

        Before it takes over from a live process, this process looks for turns that it was not notified of.
        """
        takeover = None if self._scheduler else self._leadership.due(self._clock.now())
        if takeover is None or takeover.revision is None:
            return takeover, False
        self._receive(await self._store.exchange(None), is_deciding=False)
        return self._leadership.due(self._clock.now()), True

    def turn_failed(self, error: StoreError | None) -> list[Item]:
        """Drop the scheduler after a turn that the store did not commit.

        With an error, fail the callers whose answers may be lost and those that wait for posts. Returns the
        submissions that waited for room in the dropped scheduler.
        """
        was_deciding, self._scheduler = self._scheduler is not None, None
        if error is not None:
            if not was_deciding:
                self._outbox.fail(StoreError(f"{error} {UNANSWERED}", error.store))
            self._release_post_waiters(error)
        posted = {id(item) for item in self._outbox.unread()}
        return [item for item in self._replies.items() if id(item) not in posted] if was_deciding else []

    def _new_scheduler(self, items: list[Item]) -> Scheduler:
        """A scheduler that knows only the attempts of this process; its first turn reads the rest."""
        scheduler = self._make_scheduler(False)
        attempts = [run.record for run in self._shell.attempts.runs.values()]
        scheduler.adopt(attempts, [*items, *self._outbox.unread()])
        return scheduler

    def _introduce(self, *, is_new: bool) -> None:
        """Put an introduction of this process first in the inbox, if the others lack something of it."""
        hello = self._hello(is_new)
        if hello is not None:
            self._shell.inbox.put_first(hello)

    def _posted(self, number: int, items: list[Item], received: Received | None) -> None:
        """Note a post that is stored, and the exceptions of the outcomes in it."""
        self._outbox.posted(number, items, None if received is None else received.head.decider)
        raised = {item.id: item.error for item in items if type(item) is Outcome and item.error is not None}
        if raised:
            self._raised[number] = raised

    def _decided(self, plan: Plan, decide: Decider) -> None:
        """Carry out this process's part of a plan that it made for all processes."""
        me = self._leadership.me
        self._revision = plan.head.revision
        self._leadership.observe(plan.head, has_unread=False)
        own = {post.number for post in decide.taken if post.worker == me}
        self._outbox.mark_taken(me, own if decide.has_more else None)
        self._attach_errors(plan, self._raised.keys() - own if decide.has_more else ())
        self._outbox.answer(plan)
        self._shell.act(plan)
        self._resubmit(me)
        self._release_post_waiters()
        if self._scheduler is None:  # the plan passed deciding on to another process
            self._watch_decider()

    def _receive(self, received: Received, *, is_deciding: bool) -> None:
        """Carry out what other processes decided for this one, and note which process decides."""
        plan, shell, head = received.plan, self._shell, received.head
        if head.revision != self._revision:  # a process can die before it notifies others of its commit
            self._revision = head.revision
            shell.recheck()
        self._outbox.receive(received)
        if received.has_missed:
            self._outbox.fail(StoreError(f"{MISSED} {UNANSWERED}"), is_all=False)
            shell.inbox.put(Missed())
        if not received.is_whole:
            shell.wake()
        self._leadership.observe(head, self._outbox.has_unread)
        self._attach_errors(plan, self._raised if received.unread is None else received.unread)
        plan.head = head
        plan.start = [record for record in plan.start if record.token not in shell.attempts.runs]
        for work_id, token in received.unbegun:
            shell.inbox.put(Ended(work_id, token))
        for work_id, token in received.given_up:
            if token in shell.attempts.runs:
                plan.stop.append(token)
            else:  # it never began here, or has reported its end before
                shell.inbox.put(Ended(work_id, token))
        if not shell.is_started:
            for record in plan.start:
                shell.inbox.put(Outcome(record.id, record.token, None, UNBEGUN))
            plan.start = []
        shell.act(plan)
        if not is_deciding:  # else `_decided` follows with the answers of this turn
            self._resubmit(head.decider)
            self._release_post_waiters()
            if not received.is_known and not self._outbox.has_unread:
                self._introduce(is_new=True)
                shell.wake()
            self._watch_decider()

    def _attach_errors(self, plan: Plan, unread: Collection[int]) -> None:
        """Put the exceptions of this process's attempts beside the `failed` events of a plan.

        A post that was taken has all its events in this plan, so its exceptions are dropped.
        """
        raised: dict[str, BaseException] = {}
        for number in [number for number in self._raised if number not in unread]:
            raised |= self._raised.pop(number)
        if not raised:
            return
        for place, event in enumerate(plan.events):
            draft = draft_of(event)
            if draft.type == "failed" and draft.record is not None and draft.record.id in raised:
                plan.errors[place] = raised[draft.record.id]

    def _resubmit(self, decider: str | None) -> None:
        """Put submissions into the inbox again that waited for room in a process that no longer decides."""
        for item in self._outbox.resubmissions(decider):
            self._shell.inbox.put(item)

    def _watch_decider(self) -> None:
        """Have the next exchange take over when that is due, as long as posts of this process are not taken."""
        now = self._clock.now()
        if self._leadership.due(now) is not None:
            self._shell.wake()
        self._shell.set_alarm(now + self._leadership.patience if self._outbox.has_unread else float("inf"))

    # looking ------------------------------------------------------------------------------------------------

    async def look(self, question: Ask) -> Head:
        """Put a question to a scheduler that has read one snapshot of the queue; returns the head of that."""
        heads: list[Head] = []

        def decide(turn: Turn) -> Plan:
            scheduler = self._make_scheduler(True)
            scheduler.begin(turn.now, turn.wall, turn.reader)
            assert turn.changes is not None
            heads.append(turn.changes.head)
            scheduler.catch_up(turn.changes)
            scheduler.take_in([])
            question(scheduler, turn)
            return scheduler.finish()

        await self._store.glance(decide)
        return heads[-1]

    async def counts(self) -> dict[WorkState, int]:
        """How many units there were in each state so far."""
        return await self._store.counts()

    async def is_idle(self) -> bool:
        """True when no unit is pending or running, accepted ones in posts included.

        The caller has checked the head of the last turn; a process that does not decide asks the store as well.
        """
        if self.decides:
            return True
        counts = await self._store.counts()
        return not counts[WorkState.PENDING] + counts[WorkState.RUNNING]

    async def until_taken(self, has_more: bool) -> None:
        """Wait until a turn has taken all posts of this process, with `has_more` the next one, too."""
        number = self._outbox.number + has_more
        if self._outbox.was_taken(number):
            return
        future: asyncio.Future[None] = self._loop.create_future()
        self._post_waiters.append((number, future))
        self._shell.wake()
        await future

    def _release_post_waiters(self, error: StoreError | None = None) -> None:
        """Let callers go on whose posts were taken; with an error, fail them all."""
        waiters, self._post_waiters = self._post_waiters, []
        for number, future in waiters:
            if future.done():
                continue
            if error is not None:
                future.set_exception(error)
            elif self._outbox.was_taken(number):
                future.set_result(None)
            else:
                self._post_waiters.append((number, future))
