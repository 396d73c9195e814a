"""The store of a queue that several processes share: what a file and PostgreSQL have in common.

A turn runs in the store's own thread, from lock to commit, so the user's loop never holds the lock; on virtual time
it runs on the loop. Reads are answered beside the turns. Processes of one host find each other by the files of
presence/posix.py. A thread, the heart, checks every two seconds that the queue and the loop are still there.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

from runcue.core.model.events import EVERY_EVENT, EventFilter, Passage
from runcue.core.model.group import GroupCounts
from runcue.core.model.record import Record, WorkState
from runcue.core.model.schedule import Schedule
from runcue.core.model.state import Head, Worker
from runcue.core.schedule.plan import Changes, Plan, Post, TurnReader
from runcue.core.views.query import Query
from runcue.errors import ForkedConnection, StoreError, quoted
from runcue.host.loops import post_to_loop, within
from runcue.host.shortage import no_memory
from runcue.ports import Decide, Insertion, Outgoing, Received, Takeover
from runcue.stores.presence import presence
from runcue.stores.presence.peer_monitor import PeerMonitor
from runcue.stores.presence.wakeup_debounce import WakeupDebounce
from runcue.stores.presence.wakeups import Wakeups, sweep
from runcue.stores.sql import codec
from runcue.stores.sql.database import (
    CRASH_AT,
    Database,
    StoreOptions,
    Transaction,
    commit_exchange,
    crashpoint,
)
from runcue.stores.sql.housekeeping import Housekeeping
from runcue.stores.sql.pruning import Deleted, forget_files, prune
from runcue.stores.sql.store_thread import StoreThread, Ticket
from runcue.stores.sql.submission_watch import SubmissionWatch
from runcue.stores.sql.tables import Tables

logger = logging.getLogger("runcue")

T = TypeVar("T")
PULSE = 2.0
"""Seconds between two checks of the queue and the loop."""
CLOSING = 30.0
"""Seconds after which close() no longer waits for a turn that another process holds."""
Done = tuple[Plan | None, Received | None]
"""What this process decided, if it did; and what it read of what others decided."""


class TableTurn:
    """One turn: what `decide` may look at while the turn is held."""

    __slots__ = ("changes", "given", "has_more", "now", "posts", "read", "reader", "wall")

    def __init__(
        self,
        tables: Tables,
        now: float,
        wall: float,
        changes: Changes | None,
        posts: Sequence[Post] = (),
        given: frozenset[int] = frozenset(),
    ) -> None:
        self.reader: TurnReader | None = tables.reader
        self.read = tables.records.read
        self.now = now
        self.wall = wall
        self.changes = changes
        self.posts = posts
        self.has_more = tables.inbox.has_more
        self.given = given


class SqlStore:
    """A queue in tables: takes turns on its database, and finds the other processes."""

    is_inline = False

    def __init__(self, database: Database, options: StoreOptions) -> None:
        self._database = database
        self._tables = database.tables
        self._presence = database.presence
        self._trouble = database.trouble
        self._options = options
        self._place = database.place
        self._is_on_loop = is_on_loop = options.clock is not None
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._turns = StoreThread("runcue-store")
        self._debounce = WakeupDebounce(is_at_once=is_on_loop)
        self._housekeeping = Housekeeping(
            self._turns, self._trouble, options.lease, self._prune, self._renew_leases
        )
        self._wakeups = Wakeups(
            database.worker, self._turns, lambda: self._tables.workers.pids, self._poke, is_at_once=is_on_loop
        )
        self._peer_monitor = PeerMonitor(
            self._presence, database.peers, self._trouble, options.end_leftovers, is_on_loop=is_on_loop
        )
        self._submission_watch: SubmissionWatch | None = None
        self._is_closed = False
        self.local = database.local
        self.worker = database.worker
        self.clock = database.clock
        self.last_event_seq = database.last_event_seq
        """The number of the last event before this process opened the queue."""
        now = self.clock.now()
        self._myself = Worker(self.worker, presence.host_name(), database.boot, self._pid, now)
        self._heart: presence.Heart | None = None
        if not is_on_loop:
            try:
                self._heart = presence.Heart(self._pulse, min(options.lease / 3, PULSE), self._trouble)
            except BaseException:
                self.abandon()
                raise

    @property
    def insertion(self) -> Insertion:
        """How anybody submits to this queue from outside."""
        return self._database.insertion

    def me(self) -> Worker:
        """This process, as far as the store knows it."""
        return self._myself

    def _check(self) -> None:
        """Refuse to go on in a forked child, or with another queue."""
        if os.getpid() != self._pid:
            raise ForkedConnection(
                "A Cue cannot be used in a child that was forked since. Start a new process, or fork before.",
                self._place,
            )
        self._database.check()

    # turns ------------------------------------------------------------------------------------------------

    def _take_turn(
        self,
        decide: Decide,
        post: Outgoing | None = None,
        takeover: Takeover | None = None,
        claim: Ticket | None = None,
    ) -> Done:
        """Decide and commit in this thread, unless another process decides or the caller gave up waiting."""
        is_written = False
        self._debounce.turn_wanted()
        try:
            self._check()
            if claim is not None and claim.is_taken:  # the caller gave up before this thread came to it
                raise claim.late()
            with self._database.transaction.begin() as turn:
                if claim is not None and not claim.take():
                    raise claim.late()
                self._debounce.turn_began()
                plan, received = self._decided(turn, decide, post, takeover)
            self._tables.mailbox.letters_read()
            is_written = plan is not None and plan.writes
        except BaseException as error:
            self._tables.mailbox.letters_lost()
            self._tables.forget()
            if isinstance(error, MemoryError):  # another time there may be some
                raise no_memory(quoted(self._place), self._place) from error
            raise
        finally:
            self._debounce.turn_over(is_written=is_written)
        if plan is not None and is_written:
            crashpoint("turn.committed")
            self._housekeeping.may_run |= bool(plan.start)
            self._wake_others(plan)
        if received is not None:
            self._received(received, None if plan is not None else post)
        return plan, received

    def _decided(
        self, turn: Transaction, decide: Decide, post: Outgoing | None, takeover: Takeover | None
    ) -> Done:
        """Decide, write and commit if this process decides; leave the post for the deciding process otherwise."""
        tables = self._tables
        crashpoint("turn.begin")
        before, now, must_write = turn.opened()
        if not self._may_decide(before, takeover):
            return None, self._leave_post(turn, post)
        received = None
        if takeover is None:
            changes = tables.changes(before)
            given: frozenset[int] = frozenset()
        else:
            changes = tables.take_over(before)
            received = tables.mailbox.received(changes.head, tables.mailbox.claim())
            received.unread = tables.mailbox.unread()
            given = frozenset(record.token for record in received.plan.start)
            must_write |= before.decider != self.worker
        posts = tables.inbox.posts(anew=takeover is not None)
        plan = decide(TableTurn(tables, now, self.clock.wall(), changes, posts, given))
        if tables.inbox.has_more:  # the next turn follows at once
            plan.wake_at = min(plan.wake_at, now)
        crashpoint("turn.decided")
        if plan.writes or tables.must_write or must_write:
            turn.write(plan, before, now)
            tables.written(plan)
        else:
            turn.leave()
            tables.read_only(before)
        return plan, received

    def _may_decide(self, head: Head, takeover: Takeover | None) -> bool:
        """Whether this process may decide in a turn that begins with these counters."""
        if takeover is None:
            return self._tables.has_decided_last(head)
        return head.decider in {None, self.worker} or (
            head.decider == takeover.decider and takeover.revision in {None, head.revision}
        )

    def _leave_post(self, turn: Transaction, post: Outgoing | None) -> Received:
        """Leave a post for the deciding process, take the letters of this one, and commit."""
        tables = self._tables
        head, letters = tables.swap(post, self.clock.now())
        received = tables.mailbox.received(head, letters)
        received.unread = tables.mailbox.unread()
        commit_exchange(turn, tables, post, letters)
        return received

    def _received(self, received: Received, post: Outgoing | None) -> None:
        """After a commit: wake the deciding process if there is a post for it."""
        if post is not None:
            crashpoint("post.committed")
            if received.head.decider is not None:
                self._wakeups.wake([received.head.decider])
        self._housekeeping.may_run |= bool(received.plan.start)
        if not received.is_known:  # without its lock file this process would be deleted again at once
            received.is_known = not self._presence.is_in_place
        crashpoint("letters.read")

    def _wake_others(self, plan: Plan) -> None:
        """After a turn: wake the processes that have something to do at once, and the others now and then."""
        if plan.lost:
            sweep(self._presence, self._trouble, plan.lost)
        self._wakeups.of(plan)

    def _poke(self, workers: Iterable[str], urgent: Iterable[str]) -> None:
        self._database.poke(workers, urgent)

    async def turn(
        self, decide: Decide, post: Outgoing | None = None, takeover: Takeover | None = None
    ) -> Done:
        """Decide and commit in the store's thread, or leave `post` for the deciding process."""
        done = await self._in_store_thread(lambda claim: self._take_turn(decide, post, takeover, claim))
        if self._tables.writer.is_recounted:
            self._peer_monitor.notice()
        if CRASH_AT:
            self._loop.call_soon(crashpoint, "acted")
        return done

    async def exchange(self, post: Outgoing | None) -> Received:
        """Leave a post for the deciding process, and read what was decided for this one."""
        return await self._in_store_thread(lambda claim: self._exchange(post, claim), is_hearing=True)

    async def _in_store_thread(self, errand: Callable[[Ticket | None], T], *, is_hearing: bool = False) -> T:
        """Do an errand in the store's thread, which waits there for its turn. Unless `is_hearing`, wake-ups are
        ignored meanwhile: they would announce posts that this turn takes anyway."""
        if self._is_on_loop:
            done = errand(None)
        else:
            claim = self._database.ticket()
            with nullcontext() if is_hearing else self._peer_monitor.unheard():
                try:
                    done = await self._turns.do(lambda: errand(claim), claim)
                except asyncio.CancelledError:
                    # Nobody reads the letters that it took.
                    self._turns.put(self._tables.mailbox.letters_may_be_lost)
                    raise
        self._peer_monitor.meet()
        self._database.look_around()
        return done

    def _exchange(self, post: Outgoing | None, claim: Ticket | None = None) -> Received:
        try:
            self._check()
            if claim is not None and claim.is_taken:
                raise claim.late()
            crashpoint("post.begin")
            self._presence.drain()  # the exchange sees everything that wake-ups have announced so far
            received = self._database.exchange(post, claim)
            self._tables.mailbox.letters_read(is_all=received.is_whole)
        except BaseException as error:
            self._tables.mailbox.letters_lost()
            if isinstance(error, MemoryError):
                raise no_memory(quoted(self._place), self._place) from error
            raise
        self._received(received, post)
        return received

    async def glance(self, decide: Decide) -> None:
        """Run `decide` on everything as it stands at one moment; its plan is dropped."""

        def look(tables: Tables) -> None:
            head = tables.records.head()
            now = max(self.clock.now(), head.now)
            decide(TableTurn(tables, now, self.clock.wall(), tables.everything(head)))

        await self._read(look)

    async def _read(self, look: Callable[[Tables], T]) -> T:
        """What `look` finds in the tables, read beside the turns."""
        return await self._database.read(look, self._check)

    # looking ----------------------------------------------------------------------------------------------

    async def get(self, work_id: str) -> Record | None:
        """One record; raises when it is damaged, which lists leave out."""
        return await self._read(lambda tables: tables.units.one(work_id))

    async def get_many(self, ids: list[str]) -> dict[str, Record]:
        """These units, but for those that are unknown."""
        return await self._read(lambda tables: tables.units.some(ids))

    async def find(self, query: Query) -> list[Record]:
        """The records that are asked for, newest first."""
        return await self._read(lambda tables: tables.units.latest(query))

    async def count(self, query: Query) -> dict[WorkState, int]:
        """How many units that are kept a query finds in each state."""
        return await self._read(lambda tables: tables.units.numbers(query))

    async def groups(self, names: list[str]) -> dict[str, GroupCounts]:
        """The counts of these groups, but for those that are unknown."""
        return await self._read(lambda tables: tables.units.groups(names))

    async def group_names(self, limit: int) -> list[str]:
        """Some of the names of groups."""
        return await self._read(lambda tables: tables.records.group_names(limit))

    async def tally(self) -> dict[str, dict[str, int]]:
        """How many units of each task are pending and running."""
        return await self._read(lambda tables: tables.units.live_by_task())

    async def events(self, after: int, limit: int, wanted: EventFilter = EVERY_EVENT) -> Passage:
        """Events after that number, of all processes, as far as they are wanted."""
        return await self._read(lambda tables: tables.records.events(after, limit, wanted))

    async def events_before(self, at: float) -> int:
        """The number of the last event before that moment."""
        return await self._read(lambda tables: tables.records.events_before(at))

    async def counts(self) -> dict[WorkState, int]:
        """How many units there were in each state so far; one that was only accepted counts as pending."""
        head = await self._read(lambda tables: tables.units.counted())
        return {state: getattr(head, state.value) for state in WorkState}

    async def schedules(self) -> list[Schedule]:
        """All schedules, by name."""
        return await self._read(lambda tables: tables.schedules())

    async def config(self) -> dict[str, str]:
        """The application's own settings, stored with its queue."""
        return await self._read(lambda tables: tables.config())

    def stored_result(self, result: Any) -> Any:
        """A result as it is stored and read back; refuses what cannot be."""
        return codec.stored_result(result)

    # the other processes ----------------------------------------------------------------------------------

    def listen(self, changed: Callable[[bool], None], lost: Callable[[str], None]) -> None:
        """Call `changed` when another process has committed something, and `lost` when one has died."""
        self._debounce.listen(changed)
        self._peer_monitor.listen(self._debounce.hear, lost)
        if not self._is_on_loop:
            self._housekeeping.begin()
        self._database.listen(self._peer_monitor.notice, self._debounce.hear, lost)

    def watch(self, submitted: Callable[[], None]) -> None:
        """Call `submitted` when something was submitted from outside that no turn has taken. On virtual time nobody
        watches."""
        if not self._is_on_loop:
            self._submission_watch = SubmissionWatch(
                self._database.first_submission,
                self.worker,
                lambda: post_to_loop(self._loop, submitted),
                self._trouble,
            )

    def is_alive(self, worker: str) -> bool:
        """False when that process is known to be dead."""
        try:
            return self._database.is_elsewhere(worker) or self._presence.is_alive(worker)
        except StoreError as error:
            self._trouble("cannot find out which processes are alive", error)
            return True

    def _pulse(self) -> None:
        """Check that the loop and the queue are still there, and give a sign of life. In the heart's thread."""
        if self._loop.is_closed():
            if not self._is_closed and not self._options.is_at_work():
                self._turns.put(self._sign_off)
                self._is_closed = True
                return
        elif self._database.is_lost():
            # The next turn finds out what happened.
            post_to_loop(self._loop, self._peer_monitor.notice)
        self._presence.beat()
        self._housekeeping.pulse()

    def _renew_leases(self) -> bool:
        """Renew the leases of what runs here; False when nothing does."""
        with self._database.transaction.begin() as turn, turn.batch():
            renewed = self._tables.renew_leases(self.clock.now() + self._options.lease)
            turn.commit()
        return renewed > 0

    def prune(self) -> int:
        """Delete some of what is older than it has to be kept; the number of units deleted."""
        return len(self._prune()[0])

    def _prune(self) -> tuple[list[Deleted], bool]:
        now, tables, options = self.clock.now(), self._tables, self._options
        with self._database.transaction.begin() as turn:
            kept = None if options.retention is None else now - options.retention
            with turn.batch():
                latest = max(tables.records.head().now, now)  # the last turn may be long ago
                old, is_full = prune(tables.connection, latest, kept, now - options.log_retention)
                turn.commit()
        if old:
            forget_files(options.forget_files, old, self._trouble)
        return old, is_full

    # closing ----------------------------------------------------------------------------------------------

    async def close(self, still_running: bool = False) -> None:
        """Close the queue. With `still_running` the worker counts as alive until the process ends."""
        self._stop_background()
        leave = self._disconnect if still_running else self._sign_off
        if self._is_on_loop or not self._turns.is_started:
            leave()
            self._turns.close()
            return
        try:
            async with within(CLOSING):
                await self._turns.do(leave, is_last=True)
        except TimeoutError:
            logger.warning("%r is closed when its turn comes: another process holds the turn", self._place)

    def _stop_background(self) -> None:
        """Stop all timers and watching threads."""
        self._is_closed = True
        self._housekeeping.close()
        self._wakeups.close()
        self._peer_monitor.close()
        self._debounce.close()
        if self._heart is not None:
            self._heart.close()
        self._database.stop()
        if self._submission_watch is not None:
            self._submission_watch.close()

    def _sign_off(self) -> None:
        try:
            self._database.sign_off()
        except StoreError as error:  # then others notice that it is gone, and delete it
            logger.warning("could not sign off from %r: %s", self._place, error)
        else:
            self._wakeups.to_all(is_urgent=True)  # another process has to decide from now on
        self.abandon()

    def _disconnect(self) -> None:
        self._database.disconnect(self._turns)

    def abandon(self) -> None:
        """Close everything at once, without a word: to others it is as if this process had died."""
        self._stop_background()
        try:
            self._presence.close()
        finally:
            self._disconnect()
            self._turns.close()
