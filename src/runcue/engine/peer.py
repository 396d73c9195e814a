"""How one process takes part in a queue that several share: it decides for all, or leaves its inbox for whoever does.

What was decided for it elsewhere comes back as a plan, and is acted on like one of its own. Whatever happens, an item
is taken by one turn: this process's own, or that of whoever takes the post that it is in.
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
from runcue.engine.leadership import Leadership
from runcue.engine.outbox import Outbox
from runcue.engine.pace import Pace
from runcue.engine.replies import Replies
from runcue.errors import StoreError
from runcue.ports import Clock, Received, SharedStore, Takeover, Turn

UNANSWERED = (
    "Whether what was submitted is accepted is unknown: submit again with the same idempotency_key or id."
)
MISSED = "What was answered to this process was lost with a connection."
UNBEGUN = Failure("unbegun", "this process begins nothing more")

SayHello = Callable[[bool], Hello | None]
"""What the others have to know of this process; None if it said that last, unless (True) it is new to them."""


class Shell(Protocol):
    """What is needed of the engine here."""

    attempts: Attempts

    @property
    def is_started(self) -> bool:
        """True while this process runs work."""
        ...

    def put(self, item: Item) -> None:
        """Leave an item for the next turn."""
        ...

    def put_first(self, item: Item) -> None:
        """The same, before all others, and in place of what there is of its kind."""
        ...

    def take_inbox(self) -> list[Item]:
        """Everything that was put so far."""
        ...

    def decider(self, scheduler: Scheduler, items: list[Item], question: Ask | None) -> Decider:
        """Everything a decision needs, as it is now."""
        ...

    def act(self, plan: Plan) -> None:
        """Do what was decided."""
        ...

    def hear(self) -> None:
        """Others did something."""
        ...

    def wake(self) -> None:
        """Take part once more."""
        ...

    def set_alarm(self, at: float) -> None:
        """Take part once more at that time."""
        ...


class Peer:
    """One of those who share a queue."""

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
        """`make_scheduler` makes one for this process, or (True) one for nobody, to look at everything with."""
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
        """What attempts raised whose outcome another process decides on, by post and work: callbacks here are given
        it with what is decided by the turn that takes the post."""
        self._settling: list[tuple[int, asyncio.Future[None]]] = []
        """Who waits until the posts up to a number were taken."""

    @property
    def decides(self) -> bool:
        """True when this process goes on deciding, as far as it knows."""
        return self._scheduler is not None

    @property
    def has_unread(self) -> bool:
        """True while something that it left is not known to have been taken."""
        return self._outbox.has_unread

    @property
    def is_awaited(self) -> bool:
        """True while somebody waits until what this process left was taken."""
        return bool(self._settling)

    def waiting(self) -> list[asyncio.Future[None]]:
        """The futures of those who do."""
        return [future for _, future in self._settling]

    async def rest(self) -> None:
        """Wait until it is time for the next turn or exchange."""
        await self._pace.rest()

    # one turn or exchange -----------------------------------------------------------------------------------

    async def take_part(self, question: Ask | None) -> tuple[bool, list[Item], StoreError | None]:
        """Decide, or leave the inbox for whoever does. True when this process decided; and what the store could not
        keep of the inbox, with the reason."""
        items: list[Item] | None = None
        plan: Plan | None = None
        decide: Decider | None = None
        received: Received | None
        self._pace.begins()
        try:
            takeover, has_looked = await self._due()
            self._greet(is_new=takeover is not None)
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
        if plan is None and self._scheduler is not None:  # what waits for room did so in its mind
            for item in self._scheduler.waiting_here():
                self._shell.put(item)
        is_going_on = plan is not None and plan.head.decider == self._leadership.me
        self._scheduler = scheduler if is_going_on else None
        if plan is None and post is not None:
            self._left(post.number, items, received)
        if received is not None:
            self._receive(received, is_deciding=plan is not None)
        if plan is not None and decide is not None:
            self._decided(plan, decide)
        is_alone = self._scheduler is not None and self._scheduler.is_alone
        self._pace.ended(len(items) if plan is None else len(plan.records), is_alone=is_alone)
        return plan is not None, [], None

    async def _due(self) -> tuple[Takeover | None, bool]:
        """Whose place this process takes now, if it does. True when it had to look for that: who seemed to decide
        nothing may have done so, and nobody told."""
        takeover = None if self._scheduler else self._leadership.due(self._clock.now())
        if takeover is None or takeover.revision is None:
            return takeover, False
        self._receive(await self._store.exchange(None), is_deciding=False)
        return self._leadership.due(self._clock.now()), True

    def failed(self, error: StoreError | None) -> list[Item]:
        """The store could not keep that. Whoever waits for an answer that may be lost, or until it was kept, gets
        the error, if there is one.

        What waited for room is returned if this process was deciding: it did so in the mind that is lost now.
        """
        was_deciding, self._scheduler = self._scheduler is not None, None
        if error is not None and not was_deciding:
            self._outbox.fail(StoreError(f"{error} {UNANSWERED}", error.store))
        if error is not None:
            self._settle(error)
        left = {id(item) for item in self._outbox.unread()}
        return [item for item in self._replies.items() if id(item) not in left] if was_deciding else []

    def _new_scheduler(self, items: list[Item]) -> Scheduler:
        """One that knows nothing yet but what runs here."""
        scheduler = self._make_scheduler(False)
        attempts = [run.record for run in self._shell.attempts.runs.values()]
        scheduler.adopt(attempts, [*items, *self._outbox.unread()])
        return scheduler

    def _greet(self, *, is_new: bool) -> None:
        """Have whoever decides know of this process what it does not know yet; if it is new to it, everything."""
        hello = self._hello(is_new)
        if hello is not None:
            self._shell.put_first(hello)

    def _left(self, number: int, items: list[Item], received: Received | None) -> None:
        """The inbox was left for whoever decides."""
        self._outbox.left(number, items, None if received is None else received.head.decider)
        raised = {item.id: item.error for item in items if type(item) is Outcome and item.error is not None}
        if raised:
            self._raised[number] = raised

    def _decided(self, plan: Plan, decide: Decider) -> None:
        """This process decided, for all of them."""
        me = self._leadership.me
        self._revision = plan.head.revision
        self._leadership.saw(plan.head, has_unread=False)
        own = {post.number for post in decide.taken if post.worker == me}
        self._outbox.taken(me, own if decide.has_more else None)
        self._give_errors(plan, self._raised.keys() - own if decide.has_more else ())
        self.answer(plan)
        self._shell.act(plan)
        self._repeat(me)
        self._settle()
        if self._scheduler is None:  # another one goes on
            self._look_again()

    def _receive(self, received: Received, *, is_deciding: bool) -> None:
        """Do what others decided for this process; see who decides, and whether it does."""
        plan, shell, head = received.plan, self._shell, received.head
        if head.revision != self._revision:  # nobody else may tell: who did it can have died
            self._revision = head.revision
            shell.hear()
        self._outbox.heard(received)
        if received.has_missed:
            self._outbox.fail(StoreError(f"{MISSED} {UNANSWERED}"), is_all=False)
            shell.put(Missed())
        if not received.is_whole:
            shell.wake()
        self._leadership.saw(head, self._outbox.has_unread)
        self._give_errors(plan, self._raised if received.unread is None else received.unread)
        plan.head = head
        plan.start = [record for record in plan.start if record.token not in shell.attempts.runs]
        for work_id, token in received.unbegun:
            shell.put(Ended(work_id, token))
        for work_id, token in received.given_up:
            if token in shell.attempts.runs:
                plan.stop.append(token)
            else:  # it was never begun, or its end was told already
                shell.put(Ended(work_id, token))
        if not shell.is_started:
            for record in plan.start:
                shell.put(Outcome(record.id, record.token, None, UNBEGUN))
            plan.start = []
        shell.act(plan)
        if not is_deciding:  # else its own turn has answers to come
            self._repeat(head.decider)
            self._settle()
            if not received.is_known and not self._outbox.has_unread:
                self._greet(is_new=True)
                shell.wake()
            self._look_again()

    def _give_errors(self, plan: Plan, unread: Collection[int]) -> None:
        """What attempts of this process raised comes along with what is told of them: by the turn that took their
        post, which is all that was ever to come of it."""
        raised: dict[str, BaseException] = {}
        for number in [number for number in self._raised if number not in unread]:
            raised |= self._raised.pop(number)
        if not raised:
            return
        for place, news in enumerate(plan.events):
            words = draft_of(news)
            if words.type == "failed" and words.record is not None and words.record.id in raised:
                plan.errors[place] = raised[words.record.id]

    def answer(self, plan: Plan) -> None:
        """Answer those who waited here for what that plan answers."""
        self._outbox.answer(plan)

    def _repeat(self, decider: str | None) -> None:
        for item in self._outbox.again(decider):
            self._shell.put(item)

    def _look_again(self) -> None:
        """While another process decides: look whether it still does, as long as something waits for that."""
        now = self._clock.now()
        if self._leadership.due(now) is not None:
            self._shell.wake()
        self._shell.set_alarm(now + self._leadership.patience if self._outbox.has_unread else float("inf"))

    # looking ------------------------------------------------------------------------------------------------

    async def look(self, question: Ask) -> Head:
        """Put a question to a scheduler for nobody, which knows everything as it stands. How the queue stands."""
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
        """True when nothing is pending or running, also of what was accepted and nobody has decided over.

        Asked by who knows that nothing is of what was decided.
        """
        if self.decides:  # its last turn has seen that
            return True
        counts = await self._store.counts()
        return not counts[WorkState.PENDING] + counts[WorkState.RUNNING]

    async def settled(self, has_more: bool) -> None:
        """Wait until what this process has left so far was taken, and with `has_more` what it is about to leave: then
        it sees what it did itself."""
        number = self._outbox.number + has_more
        if self._outbox.was_taken(number):
            return
        future: asyncio.Future[None] = self._loop.create_future()
        self._settling.append((number, future))
        self._shell.wake()
        await future

    def _settle(self, error: StoreError | None = None) -> None:
        """Some of what this process left was taken, or cannot be kept: those who waited for that go on."""
        settling, self._settling = self._settling, []
        for number, future in settling:
            if future.done():
                continue
            if error is not None:
                future.set_exception(error)
            elif self._outbox.was_taken(number):
                future.set_result(None)
            else:
                self._settling.append((number, future))
