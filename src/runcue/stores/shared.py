"""What the stores have in common that several processes share: a file's and PostgreSQL's.

A turn runs in the store's own thread, from lock to commit. The user's loop never holds the lock. On virtual time the
same happens on the loop itself. Who only asks is answered beside the turns. Processes of one host see each other by
the files of presence.py. The heart's thread looks every two seconds whether everything is still there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from runcue.core.events import Event
from runcue.core.model import Record, WorkState
from runcue.core.plan import Changes, Library, Plan
from runcue.core.query import Query
from runcue.core.state import Worker
from runcue.errors import ForkedConnection, StoreError, quoted
from runcue.loops import tell, within
from runcue.ports import Clock, Decide
from runcue.stores import codec, presence
from runcue.stores.errands import Claim, Errands
from runcue.stores.hearing import Hearing
from runcue.stores.lack import no_memory
from runcue.stores.neighbours import EndLeftovers, Neighbours, Trouble
from runcue.stores.pruning import Deleted, prune
from runcue.stores.tables import Tables

logger = logging.getLogger("runcue")

T = TypeVar("T")
PULSE = 2.0
"""Seconds between two looks at the queue and the loop by a process that has nothing else to do."""
PRUNE_EVERY = 60.0
SHORTEST_PAUSE = 0.01
"""Seconds between two steps of pruning while there is more to let go of; at least as long as the step took."""
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


class TableTurn:
    """One turn: what `decide` may look at while it holds it."""

    __slots__ = ("changes", "library", "now", "read", "wall")

    def __init__(self, tables: Tables, now: float, wall: float, changes: Changes | None) -> None:
        self.library: Library | None = tables
        self.read = tables.read
        self.now = now
        self.wall = wall
        self.changes = changes


class SharedStore:
    """A queue in tables. What is special to one kind of database is left to it."""

    is_inline = False

    clock: Clock
    told: int
    """The number of the last event before this process came."""
    _tables: Tables
    _presence: presence.Presence
    _neighbours: Neighbours
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
        """`forget_files` deletes what belongs to these works beside the queue, in the store's thread.

        `is_at_work` says whether a handler may still run though the loop is closed: then nobody may take its work.
        It is asked in the heart's thread.
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
        self._turns = Errands("runcue-store")
        self._hearing = Hearing(is_at_once=is_on_loop)
        self._pruning: asyncio.TimerHandle | None = None
        self._may_run = False
        """True when attempts of this process may be under way, whose leases are renewed."""
        self._renewed_at = time.monotonic()
        self._is_closed = False
        self.worker = presence.new_worker_id()

    # for each kind of database ----------------------------------------------------------------------------

    @abstractmethod
    def _transact(self, job: Callable[[], T]) -> T:
        """Do a job with the turn; whatever it raises undoes it. The job commits, or rolls back, by itself."""

    @abstractmethod
    def _decided(self, decide: Decide) -> Plan:
        """Catch up, decide, write and commit, within `_transact`."""

    @abstractmethod
    def _commit(self) -> None:
        """Commit what was written, within `_transact`."""

    def _claim(self) -> Claim | None:
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

    def _me(self, boot: str) -> Worker:
        return Worker(self.worker, presence.host_name(), boot, os.getpid(), started_at=self.clock.now())

    def _meet(self, directory: Path, peers: Callable[[], Mapping[str, int]]) -> None:
        """Clear away what the dead left here, and look after the living from now on."""
        known = {worker.id for worker in self._tables.workers()}
        self._sweep([one for one in presence.workers(directory) if one not in known])
        self._neighbours = Neighbours(
            self._presence, peers, self._trouble, self._end_leftovers, is_on_loop=self._is_on_loop
        )
        self._heart = None
        if not self._is_on_loop:
            self._heart = presence.Heart(self._pulse, min(self._lease / 3, PULSE), self._trouble)

    # turns ------------------------------------------------------------------------------------------------

    def take_turn(self, decide: Decide, claim: Claim | None = None) -> Plan:
        """Decide and commit, here and now; unless it was given up meanwhile."""
        is_written = False

        def job() -> Plan:
            if claim is not None and not claim.take():
                raise claim.late()
            self._hearing.turn_began()
            return self._decided(decide)

        self._hearing.turn_wanted()
        try:
            self._check()
            if claim is not None and claim.is_taken:  # it was given up before this thread came to it
                raise claim.late()
            plan = self._transact(job)
            is_written = plan.writes
        except BaseException as error:
            self._tables.forget()
            if isinstance(error, MemoryError):  # another time there may be some
                raise no_memory(quoted(self._place), self._place) from error
            raise
        finally:
            self._hearing.turn_over(is_written=is_written)
        if is_written:
            crashpoint("turn.committed")
            self._may_run |= bool(plan.start)
            self._tell(plan)
        return plan

    def _seen_all(self) -> None:
        """Within a turn that caught up: whatever others told so far, it has seen, for nobody commits meanwhile."""
        self._presence.drain()

    def _tell(self, plan: Plan) -> None:
        """After a commit: wake the others, and clear away what the dead left."""
        if plan.lost:
            self._sweep(plan.lost)
        try:
            self._presence.poke(self._tables.peers, {worker for worker, _ in plan.mail})
        except (OSError, StoreError) as error:  # they look by themselves a little later
            self._trouble("cannot wake the other processes", error)

    def _sweep(self, dead: list[str]) -> None:
        try:
            self._presence.sweep(dead)
        except (OSError, StoreError) as error:  # the next who opens the queue does it
            self._trouble("cannot clear away the files of dead processes", error)

    async def turn(self, decide: Decide) -> Plan:
        """Decide and commit, in the store's thread."""
        if self._is_on_loop:
            plan = self.take_turn(decide)
        else:
            claim = self._claim()
            self._neighbours.hear_nothing()
            try:
                plan = await self._turns.do(lambda: self.take_turn(decide, claim), claim)
            finally:
                self._neighbours.hear_again()
        self._neighbours.meet()
        if self._tables.is_recounted:
            self._neighbours.notice()
        if CRASH_AT:
            self._loop.call_soon(crashpoint, "acted")
        return plan

    # looking ----------------------------------------------------------------------------------------------

    async def get(self, work_id: str) -> Record | None:
        """One record; raises when it is damaged, which lists leave out."""
        return await self._read(lambda tables: tables.one(work_id))

    async def get_many(self, ids: list[str]) -> dict[str, Record]:
        """Those of these works that there are."""
        return await self._read(lambda tables: tables.by_id(ids))

    async def find(self, query: Query) -> list[Record]:
        """The records that are asked for, newest first."""
        return await self._read(lambda tables: tables.find(query))

    async def tally(self) -> dict[str, dict[str, int]]:
        """How many works of each task are pending and running."""
        return await self._read(lambda tables: tables.tally())

    async def events(self, after: int, limit: int) -> list[Event]:
        """Events after that number, of all processes."""
        return await self._read(lambda tables: tables.events(after, limit))

    async def counts(self) -> dict[WorkState, int]:
        """How many works there were in each state so far."""
        head = await self._read(lambda tables: tables.head())
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
        self._hearing.listen(changed)
        self._neighbours.listen(self._hearing.hear, lost)
        self._prune_in(PRUNE_EVERY)

    def serve(self, queues: frozenset[str] | None) -> None:
        """Tell the others with the next turn which queues this process serves; None for all of them."""
        self._tables.serve(queues)

    def _pulse(self) -> None:
        """Every now and then, in the heart's thread: is everything still there?"""
        if self._loop.is_closed():
            if not self._is_closed and not self._is_at_work():
                self._turns.put(self._sign_off)
                self._is_closed = True
                return
        elif self._is_lost():
            tell(self._loop, self._neighbours.notice)  # the turn that follows finds out what happened
        self._presence.beat()
        if self._may_run and time.monotonic() - self._renewed_at >= self._lease / 3:
            self._renewed_at = time.monotonic()
            self._turns.put(self._renew_leases)

    def _renew_leases(self) -> None:
        """Say until when what runs here is ours. In the store's thread; a busy loop does not keep it from that."""

        def job() -> int:
            with self._batch():
                renewed = self._tables.renew_leases(self.clock.now() + self._lease)
                self._commit()
            return renewed

        if not self._is_closed:
            try:
                self._may_run = self._transact(job) > 0
            except StoreError as error:  # there is another time
                self._trouble("could not renew leases", error)

    # letting go of what is old ----------------------------------------------------------------------------

    def _prune_in(self, seconds: float) -> None:
        if not self._is_closed and not self._is_on_loop:
            self._pruning = self._loop.call_later(seconds, self._prune_soon)

    def _prune_soon(self) -> None:
        try:
            self._turns.put(self._prune_quietly)
        except StoreError as error:  # there is another time
            self._trouble("could not let go of old work", error)
            self._prune_in(PRUNE_EVERY)

    def _prune_quietly(self) -> None:
        began, is_full = time.monotonic(), False
        try:
            is_full = self._prune()[1]
        except StoreError as error:  # there is another time
            self._trouble("could not let go of old work", error)
        pause = max(SHORTEST_PAUSE, time.monotonic() - began) if is_full else PRUNE_EVERY
        tell(self._loop, self._prune_in, pause)

    def prune(self) -> int:
        """Let go of some of what is older than anybody wants it; how much work that was."""
        return len(self._prune()[0])

    def _prune(self) -> tuple[list[Deleted], bool]:
        now = self.clock.now()

        def job() -> tuple[list[Deleted], bool]:
            kept = None if self._retention is None else now - self._retention
            tables = self._tables
            with self._batch():
                latest = max(tables.head().now, now)  # nobody may have taken a turn for long
                done = prune(tables.connection, latest, kept, now - self._log_retention)
                self._commit()
            return done

        old, is_full = self._transact(job)
        if old:
            self._remove_files(old)
        return old, is_full

    def _remove_files(self, deleted: list[Deleted]) -> None:
        if self._forget_files is not None:
            try:
                self._forget_files(deleted)
            except Exception as error:  # noqa: BLE001 (whatever it is, the work itself is gone)
                self._trouble("cannot delete the files of old work", error)

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
        if self._pruning is not None:
            self._pruning.cancel()
        self._neighbours.close()
        self._hearing.close()
        if self._heart is not None:
            self._heart.close()

    def _sign_off(self) -> None:
        try:
            self._strike_off()
        except StoreError as error:  # then others find it gone, and strike it off
            logger.warning("could not sign off from %r: %s", self._place, error)
        self.abandon()

    def abandon(self) -> None:
        """Let go of everything, here and now, and say nothing: to others it is as if this process had died."""
        self._rest()
        try:
            self._presence.close()
        finally:
            self._leave()
            self._turns.close()
