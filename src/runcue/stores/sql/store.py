"""What the stores have in common that several processes share: a file's and PostgreSQL's.

A turn runs in the store's own thread, from lock to commit. The user's loop never holds the lock. On virtual time the
same happens on the loop itself. Who only asks is answered beside the turns. Processes of one host see each other by
the files of presence/posix.py. The heart's thread looks every two seconds whether everything is still there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from runcue.core.model.events import Event
from runcue.core.model.record import Record, WorkState
from runcue.core.model.state import Head, Worker
from runcue.core.schedule.plan import Changes, Plan, Post, TurnReader
from runcue.core.views.query import Query
from runcue.errors import ForkedConnection, StoreError, quoted
from runcue.host.loops import post_to_loop, within
from runcue.host.shortage import no_memory
from runcue.ports import Clock, Decide, Outgoing, Received, Takeover
from runcue.stores.presence import posix as presence
from runcue.stores.presence.peer_monitor import EndLeftovers, PeerMonitor, Trouble
from runcue.stores.presence.wakeup_debounce import WakeupDebounce
from runcue.stores.presence.wakeups import Wakeups, sweep
from runcue.stores.sql import codec
from runcue.stores.sql.housekeeping import Housekeeping
from runcue.stores.sql.mailbox import Letter
from runcue.stores.sql.pruning import Deleted, forget_files, prune
from runcue.stores.sql.store_thread import StoreThread, Ticket
from runcue.stores.sql.tables import Tables

logger = logging.getLogger("runcue")

T = TypeVar("T")
PULSE = 2.0
"""Seconds between two looks at the queue and the loop by a process that has nothing else to do."""
CLOSING = 30.0
"""Seconds after which close() no longer waits for a turn that somebody else holds."""
CRASH_AT = os.environ.get("RUNCUE_CRASH_AT", "")

_passed: Counter[str] = Counter()


def crashpoint(name: str) -> None:
    """Where a test may have this process die: RUNCUE_CRASH_AT="name:3" kills it at the third pass."""
    if CRASH_AT:
        wanted, _, number = CRASH_AT.partition(":")
        _passed[name] += 1
        if wanted == name and _passed[name] == int(number or 1):
            os.kill(os.getpid(), signal.SIGKILL)


Done = tuple[Plan | None, Received | None]
"""What was decided, if this process did, and what it found of what others had."""


class TableTurn:
    """One turn: what `decide` may look at while it holds it."""

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
        self.reader: TurnReader | None = tables
        self.read = tables.read
        self.now = now
        self.wall = wall
        self.changes = changes
        self.posts = posts
        self.has_more = tables.has_more
        self.given = given


class SqlStore:
    """A queue in tables. What is special to one kind of database is left to it."""

    is_inline = False

    clock: Clock
    told: int
    """The number of the last event before this process came."""
    _tables: Tables
    _presence: presence.Presence
    _peer_monitor: PeerMonitor
    _heart: presence.Heart | None

    def __init__(
        self,
        place: str,
        *,
        lease: float,
        retention: float | None,
        log_retention: float,
        is_on_loop: bool,
        end_leftovers: EndLeftovers | None,
        forget_files: Callable[[list[Deleted]], None] | None,
        is_at_work: Callable[[], bool],
    ) -> None:
        """The store's thread calls `forget_files` to delete the files of these units beside the queue. The heart's
        thread calls `is_at_work`: may a handler still run though the loop is closed? Then nobody may take its units.
        """
        self._place = place
        self._lease = lease
        self._retention = retention
        self._log_retention = log_retention
        self._is_on_loop = is_on_loop
        self._end_leftovers = end_leftovers
        self._forget_files = forget_files
        self._is_at_work = is_at_work
        self._pid = os.getpid()
        self._trouble = Trouble(place)
        self._loop = asyncio.get_running_loop()
        self._turns = StoreThread("runcue-store")
        self._debounce = WakeupDebounce(is_at_once=is_on_loop)
        self._housekeeping = Housekeeping(self._turns, self._trouble, lease, self._prune, self._renew_leases)
        self._is_closed = False
        self._wakeups = Wakeups(self._turns, lambda: self._tables.peers, self._poke, is_at_once=is_on_loop)
        self.worker = presence.new_worker_id()

    # for each kind of database ----------------------------------------------------------------------------

    @abstractmethod
    def _transact(self, job: Callable[[], T]) -> T:
        """Do a job with the turn; whatever it raises undoes it. The job commits, or rolls back, by itself."""

    @abstractmethod
    def _opened(self) -> tuple[Head, float, bool]:
        """The counters, queue time, and whether that alone has to be written, at the begin of `_transact`."""

    @abstractmethod
    def _write(self, plan: Plan, before: Head, now: float) -> None:
        """Write and commit what was decided, within `_transact`."""

    @abstractmethod
    def _commit(self, is_there: Callable[[], bool] | None = None) -> None:
        """Commit what was written, within `_transact`. `is_there` tells whether it is, if nobody else can."""

    @abstractmethod
    def _let_be(self) -> None:
        """End what wrote nothing, within `_transact`."""

    @abstractmethod
    def _exchanged(self, post: Outgoing | None, claim: Ticket | None = None) -> Received:
        """Leave a post and take the letters of this process, in the store's thread."""

    def _claim(self) -> Ticket | None:
        """How a turn is waited for, where the store's thread waits without an end."""
        return None

    def _batch(self) -> AbstractContextManager[None]:
        """Within this, many statements are sent one after the other."""
        return nullcontext()

    @abstractmethod
    async def _read(self, look: Callable[[Tables], T]) -> T:
        """What that finds in the tables, beside the turns."""

    @abstractmethod
    def _strike_off(self) -> None:
        """Take this worker out of the tables."""

    @abstractmethod
    def _leave(self) -> None:
        """Let go of the database, but not of what says that this process lives."""

    def _check(self) -> None:
        """Refuse to go on where that cannot be right."""
        if os.getpid() != self._pid:
            raise ForkedConnection(
                "A Cue cannot be used in a child that was forked since. Start a new process, or fork before.",
                self._place,
            )

    def _is_lost(self) -> bool:
        """Whether a turn would find that the database is not the one that was opened. In the heart's thread."""
        return False

    # opening ----------------------------------------------------------------------------------------------

    def _introduce(self, boot: str) -> None:
        self._myself = Worker(self.worker, presence.host_name(), boot, os.getpid(), self.clock.now())

    def me(self) -> Worker:
        """This process, as far as the store knows it."""
        return self._myself

    def _meet(self, directory: Path, peers: Callable[[], Mapping[str, int]]) -> None:
        """Clear away what the dead left here, and look after the living from now on."""
        known = {worker.id for worker in self._tables.workers()}
        sweep(self._presence, self._trouble, [one for one in presence.workers(directory) if one not in known])
        self._peer_monitor = PeerMonitor(
            self._presence, peers, self._trouble, self._end_leftovers, is_on_loop=self._is_on_loop
        )
        self._heart = None
        if not self._is_on_loop:
            self._heart = presence.Heart(self._pulse, min(self._lease / 3, PULSE), self._trouble)

    # turns ------------------------------------------------------------------------------------------------

    def take_turn(self, decide: Decide) -> Plan:
        """Only where a turn is a plain call."""
        raise AssertionError("a turn has to be waited for here")

    def _take_turn(
        self,
        decide: Decide,
        post: Outgoing | None = None,
        takeover: Takeover | None = None,
        claim: Ticket | None = None,
    ) -> Done:
        """Decide and commit, here and now; unless another process decides, or it was given up meanwhile."""
        is_written = False

        def job() -> Done:
            if claim is not None and not claim.take():
                raise claim.late()
            self._debounce.turn_began()
            return self._decided(decide, post, takeover)

        self._debounce.turn_wanted()
        try:
            self._check()
            if claim is not None and claim.is_taken:  # it was given up before this thread came to it
                raise claim.late()
            plan, received = self._transact(job)
            self._tables.letters_read()
            is_written = plan is not None and plan.writes
        except BaseException as error:
            self._tables.letters_lost()
            self._tables.forget()
            if isinstance(error, MemoryError):  # another time there may be some
                raise no_memory(quoted(self._place), self._place) from error
            raise
        finally:
            self._debounce.turn_over(is_written=is_written)
        if plan is not None and is_written:
            crashpoint("turn.committed")
            self._housekeeping.may_run |= bool(plan.start)
            self._tell(plan)
        if received is not None:
            self._came(received, None if plan is not None else post)
        return plan, received

    def _decided(self, decide: Decide, post: Outgoing | None, takeover: Takeover | None) -> Done:
        """Find who decides; read what there is, decide, write and commit, or leave it to who does. In `_transact`."""
        tables = self._tables
        crashpoint("turn.begin")
        before, now, must_write = self._opened()
        if not self._may_decide(before, takeover):
            return None, self._posted(post)
        received = None
        if takeover is None:
            changes = tables.changes(before)
            given: frozenset[int] = frozenset()
        else:
            changes = tables.take_over(before)
            received = tables.received(changes.head, tables.claim())
            received.unread = tables.unread()
            given = frozenset(record.token for record in received.plan.start)
            must_write |= before.decider != self.worker
        posts = tables.posts(anew=takeover is not None)
        plan = decide(TableTurn(tables, now, self.clock.wall(), changes, posts, given))
        if tables.has_more:  # the next turn follows at once
            plan.wake_at = min(plan.wake_at, now)
        crashpoint("turn.decided")
        if plan.writes or tables.must_write or must_write:
            self._write(plan, before, now)
            tables.written(plan)
        else:
            self._let_be()
            tables.read_only(before)
        return plan, received

    def _may_decide(self, head: Head, takeover: Takeover | None) -> bool:
        """Whether a turn that begins with these counters is for this process to take."""
        if takeover is None:
            return self._tables.goes_on(head)
        return head.decider in {None, self.worker} or (
            head.decider == takeover.decider and takeover.revision in {None, head.revision}
        )

    def _posted(self, post: Outgoing | None) -> Received:
        """Leave that to who decides, take what is there for this process, and commit. Within `_transact`."""
        tables = self._tables
        head, letters = tables.swap(post, self.clock.now())
        received = tables.received(head, letters)
        received.unread = tables.unread()
        self._keep_swap(post, letters)
        return received

    def _keep_swap(self, post: Outgoing | None, letters: list[Letter]) -> None:
        """Commit it, if there was anything to leave or to take."""
        crashpoint("post.written")
        if post is None and not letters:
            self._let_be()
        else:
            self._commit(lambda: self._tables.has_posted(post, bool(letters)))

    def _came(self, received: Received, post: Outgoing | None) -> None:
        """After a commit: wake who decides over a post. What came runs here from now on."""
        if post is not None:
            crashpoint("post.committed")
            if received.head.decider is not None:
                self._wakeups.wake([received.head.decider])
        self._housekeeping.may_run |= bool(received.plan.start)
        if not received.is_known:  # who cannot be seen to live would be struck off again at once
            received.is_known = not self._presence.is_in_place
        crashpoint("letters.read")

    def _tell(self, plan: Plan) -> None:
        """After a turn: wake those who have something to do at once, and the others now and then."""
        if plan.lost:
            sweep(self._presence, self._trouble, plan.lost)
        self._wakeups.of(plan)

    def _poke(self, workers: Iterable[str], urgent: Iterable[str]) -> None:
        try:
            self._presence.poke(workers, set(urgent))
        except (OSError, StoreError) as error:  # they look by themselves a little later
            self._trouble("cannot wake the other processes", error)

    async def turn(
        self, decide: Decide, post: Outgoing | None = None, takeover: Takeover | None = None
    ) -> Done:
        """Decide and commit, in the store's thread; or leave `post` to who decides."""
        done = await self._alone(lambda claim: self._take_turn(decide, post, takeover, claim))
        if self._tables.is_recounted:
            self._peer_monitor.notice()
        if CRASH_AT:
            self._loop.call_soon(crashpoint, "acted")
        return done

    async def exchange(self, post: Outgoing | None) -> Received:
        """Leave that for whoever decides, and find what was decided for this process."""
        return await self._alone(lambda claim: self._exchange(post, claim), is_hearing=True)

    async def _alone(self, errand: Callable[[Ticket | None], T], *, is_hearing: bool = False) -> T:
        """Have that done in the store's thread, which waits for its turn there. Unless `is_hearing`, nothing is heard
        of others meanwhile: who decides would hear of each post that it is about to take."""
        if self._is_on_loop:
            done = errand(None)
        else:
            claim = self._claim()
            with nullcontext() if is_hearing else self._peer_monitor.unheard():
                try:
                    done = await self._turns.do(lambda: errand(claim), claim)
                except asyncio.CancelledError:
                    self._turns.put(self._tables.letters_missed)  # nobody has heard what it took
                    raise
        self._look_around()
        return done

    def _exchange(self, post: Outgoing | None, claim: Ticket | None = None) -> Received:
        try:
            self._check()
            if claim is not None and claim.is_taken:
                raise claim.late()
            crashpoint("post.begin")
            self._presence.drain()  # whatever others told so far, this sees
            received = self._exchanged(post, claim)
            self._tables.letters_read(is_all=received.is_whole)
        except BaseException as error:
            self._tables.letters_lost()
            if isinstance(error, MemoryError):
                raise no_memory(quoted(self._place), self._place) from error
            raise
        self._came(received, post)
        return received

    def _look_around(self) -> None:
        """After each turn or exchange, on the loop."""
        self._peer_monitor.meet()

    async def glance(self, decide: Decide) -> None:
        """Run `decide` on everything as it stands at one moment; nothing of its plan is kept."""

        def look(tables: Tables) -> None:
            head = tables.head()
            now = max(self.clock.now(), head.now)
            decide(TableTurn(tables, now, self.clock.wall(), tables.everything(head)))

        await self._read(look)

    # looking ----------------------------------------------------------------------------------------------

    async def get(self, work_id: str) -> Record | None:
        """One record; raises when it is damaged, which lists leave out."""
        return await self._read(lambda tables: tables.one(work_id))

    async def get_many(self, ids: list[str]) -> dict[str, Record]:
        """Those of these works that there are."""
        return await self._read(lambda tables: tables.some(ids))

    async def find(self, query: Query) -> list[Record]:
        """The records that are asked for, newest first."""
        return await self._read(lambda tables: tables.latest(query))

    async def tally(self) -> dict[str, dict[str, int]]:
        """How many works of each task are pending and running."""
        return await self._read(lambda tables: tables.live_by_task())

    async def events(self, after: int, limit: int) -> list[Event]:
        """Events after that number, of all processes."""
        return await self._read(lambda tables: tables.events(after, limit))

    async def counts(self) -> dict[WorkState, int]:
        """How many works there were in each state so far; what nobody has decided over yet is pending."""
        head = await self._read(lambda tables: tables.counted())
        return {state: getattr(head, state.value) for state in WorkState}

    async def config(self) -> dict[str, str]:
        """What the application keeps with its queue."""
        return await self._read(lambda tables: tables.config())

    def stored_result(self, result: Any) -> Any:
        """A result as it is stored and read back; refuses what cannot be."""
        return codec.stored_result(result)

    # the other processes ----------------------------------------------------------------------------------

    def listen(self, changed: Callable[[bool], None], lost: Callable[[str], None]) -> None:
        """Say when another process committed something, and when one died."""
        self._debounce.listen(changed)
        self._peer_monitor.listen(self._debounce.hear, lost)
        if not self._is_on_loop:
            self._housekeeping.begin()

    def is_alive(self, worker: str) -> bool:
        """False when that process is known to be dead."""
        try:
            return self._presence.is_alive(worker)
        except StoreError as error:
            self._trouble("cannot tell who lives", error)
            return True

    def _pulse(self) -> None:
        """Every now and then, in the heart's thread: is everything still there?"""
        if self._loop.is_closed():
            if not self._is_closed and not self._is_at_work():
                self._turns.put(self._sign_off)
                self._is_closed = True
                return
        elif self._is_lost():
            # The turn that follows finds out what happened.
            post_to_loop(self._loop, self._peer_monitor.notice)
        self._presence.beat()
        self._housekeeping.pulse()

    def _renew_leases(self) -> bool:
        """Say until when what runs here is ours; whether there is anything."""

        def job() -> bool:
            with self._batch():
                renewed = self._tables.renew_leases(self.clock.now() + self._lease)
                self._commit()
            return renewed > 0

        return self._transact(job)

    def prune(self) -> int:
        """Let go of some of what is older than anybody wants it; how much work that was."""
        return len(self._prune()[0])

    def _prune(self) -> tuple[list[Deleted], bool]:
        now, tables = self.clock.now(), self._tables

        def job() -> tuple[list[Deleted], bool]:
            kept = None if self._retention is None else now - self._retention
            with self._batch():
                latest = max(tables.head().now, now)  # nobody may have taken a turn for long
                done = prune(tables.connection, latest, kept, now - self._log_retention)
                self._commit()
            return done

        old, is_full = self._transact(job)
        if old:
            forget_files(self._forget_files, old, self._trouble)
        return old, is_full

    # closing ----------------------------------------------------------------------------------------------

    async def close(self, still_running: bool = False) -> None:
        """Let go of the queue. With `still_running` the worker counts as alive until the process ends."""
        self._rest()
        leave = self._leave if still_running else self._sign_off
        if self._is_on_loop or not self._turns.is_started:
            leave()
            self._turns.close()
            return
        try:
            async with within(CLOSING):
                await self._turns.do(leave, is_last=True)
        except TimeoutError:
            logger.warning("%r is let go when its turn comes: others hold it", self._place)

    def _rest(self) -> None:
        """Do nothing more by ourselves."""
        self._is_closed = True
        self._housekeeping.close()
        self._wakeups.close()
        self._peer_monitor.close()
        self._debounce.close()
        if self._heart is not None:
            self._heart.close()

    def _sign_off(self) -> None:
        try:
            self._strike_off()
        except StoreError as error:  # then others find it gone, and strike it off
            logger.warning("could not sign off from %r: %s", self._place, error)
        else:
            self._wakeups.to_all(is_urgent=True)  # somebody else has to decide from now on
        self.abandon()

    def abandon(self) -> None:
        """Let go of everything, here and now, and say nothing: to others it is as if this process had died."""
        self._rest()
        try:
            self._presence.close()
        finally:
            self._leave()
            self._turns.close()
