"""A queue in a SQLite file that several processes may share.

A turn runs in the store's own thread, from lock to commit: the turnstile (a fair lock among processes), then
BEGIN IMMEDIATE, what others changed, the decision, one commit. The user's loop never holds the lock. On virtual
time the same happens on the loop itself.

After a commit nothing is raised any more: it would look as if the turn had failed. After a commit that failed the
connection is exchanged before the next turn, because SQLite vouches for nothing then.

Who only asks is answered beside the turns (looking.py). The heart's thread looks every two seconds whether the file
and the loop are still there: without its loop this process runs nothing any more, and lets go.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar

import apsw

from runcue.core.events import Event
from runcue.core.model import Record, WorkState
from runcue.core.plan import Changes, Library, Plan
from runcue.core.query import Query
from runcue.core.state import Worker
from runcue.errors import ForkedConnection, StorageBusy, StorageReplaced, StoreError
from runcue.loops import tell
from runcue.ports import Clock, Decide
from runcue.stores import codec, file, presence
from runcue.stores.errands import Errands
from runcue.stores.file import check_same, identity, open_file, translate, undo
from runcue.stores.log import Log
from runcue.stores.looking import Looking
from runcue.stores.neighbours import EndLeftovers, Neighbours, Trouble
from runcue.stores.pruning import Deleted, prune
from runcue.stores.schema import shown
from runcue.stores.tables import Tables

logger = logging.getLogger("runcue")

T = TypeVar("T")
PATIENCE = 30.0
"""Seconds to wait for one's turn before that is an error."""
CHECK_EVERY = 0.5
"""Seconds after which a turn makes sure again that the file is still the same."""
PULSE = 2.0
"""Seconds between two looks at the file and the loop by a process that has nothing else to do."""
PRUNE_EVERY = 60.0
SHORTEST_PAUSE = 0.01
"""Seconds between two steps of pruning while there is more to let go of; at least as long as the step took."""
OLDEST_GRANT = 31 * 86400.0
"""Seconds for which starts are looked at when a queue is opened; more when a window is longer."""
CRASH_AT = os.environ.get("RUNCUE_CRASH_AT", "")


_passed: Counter[str] = Counter()


def crashpoint(name: str) -> None:
    """Where a test may have this process die: RUNCUE_CRASH_AT="name:3" kills it at the third pass."""
    if CRASH_AT:
        wanted, _, number = CRASH_AT.partition(":")
        _passed[name] += 1
        if wanted == name and _passed[name] == int(number or 1):
            os.kill(os.getpid(), signal.SIGKILL)


class FileClock:
    """Queue time: the host's boot-time clock, anchored in the file: it never jumps, and goes on after a reboot."""

    def __init__(self, connection: apsw.Connection) -> None:
        boot = presence.boot_id()
        anchor = _anchor(connection, boot)
        if anchor is None:
            file.be_patient(connection, file.OPENING)
            connection.execute("BEGIN IMMEDIATE")
            try:
                anchor = _anchor(connection, boot) or _drop_anchor(connection, boot)
                connection.execute("COMMIT")
            except BaseException:
                undo(connection)
                raise
            file.be_patient(connection, file.PATIENCE)
        epoch, boottime = anchor
        self._offset: float = epoch - boottime

    def now(self) -> float:
        """Queue time."""
        return self._offset + presence.boottime()

    def wall(self) -> float:
        """What the host believes the time of day is."""
        return time.time()


def _anchor(connection: apsw.Connection, boot: str) -> tuple[float, float] | None:
    """A moment of queue time and of this boot's clock that belong together, if somebody has set one."""
    row: Any = connection.execute("SELECT anchor_epoch, anchor_boottime, boot FROM head").fetchone()
    epoch, boottime, known = row
    return None if known != boot or epoch is None else (epoch, boottime)


def _drop_anchor(connection: apsw.Connection, boot: str) -> tuple[float, float]:
    row: Any = connection.execute("SELECT now FROM head").fetchone()
    epoch, boottime = row[0] or time.time(), presence.boottime()
    connection.execute(
        "UPDATE head SET anchor_epoch = ?, anchor_boottime = ?, boot = ?", (epoch, boottime, boot)
    )
    return epoch, boottime


class SqliteTurn:
    """One turn: what `decide` may look at while it holds it."""

    __slots__ = ("changes", "library", "now", "read", "wall")

    def __init__(self, tables: Tables, now: float, wall: float, changes: Changes | None) -> None:
        self.library: Library | None = tables
        self.read = tables.read
        self.now = now
        self.wall = wall
        self.changes = changes


class SqliteStore:
    """The store behind `Cue("queue.db")`."""

    is_inline = False

    def __init__(
        self,
        path: str,
        *,
        durability: str,
        lease: float,
        retention: float | None = None,
        log_retention: float = 86400.0,
        clock: Clock | None = None,
        end_leftovers: EndLeftovers | None = None,
        forget_files: Callable[[list[Deleted]], None] | None = None,
        is_at_work: Callable[[], bool] = lambda: True,
    ) -> None:
        """`forget_files` deletes what belongs to these works beside the file, in the store's thread.

        `is_at_work` says whether a handler may still run though the loop is closed: then nobody may take its work.
        It is asked in the heart's thread.
        """
        self._retention = retention
        self._log_retention = log_retention
        self._forget_files = forget_files
        self._is_at_work = is_at_work
        self._end_leftovers = end_leftovers
        self._path = path
        self._durability = durability
        self._lease = lease
        self._is_on_loop = clock is not None
        self._pid = os.getpid()
        self._trouble = Trouble(path)
        self._loop = asyncio.get_running_loop()
        self._turns = Errands("runcue-store")
        self._pruning: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.worker = presence.new_worker_id()
        with ExitStack() as made:
            connection = open_file(path, durability=durability)
            made.callback(connection.close)
            try:
                self._open(made, connection, clock)
            except (apsw.Error, OSError) as error:
                raise translate(error, path, connection) from error
            made.pop_all()
        if durability == "relaxed":
            logger.warning("durability is relaxed: what was accepted last may be lost when the machine stops")
        self._is_doubtful = False
        self._looked_at = 0.0

    def _open(self, made: ExitStack, connection: apsw.Connection, clock: Clock | None) -> None:
        """Open the rest, each with what closes it again if the next cannot be opened."""
        directory = presence.side_directory(self._path)
        self._identity = identity(self._path)
        self.clock: Clock = clock or FileClock(connection)
        self._turnstile = presence.Turnstile(directory)
        made.callback(self._turnstile.close)
        self._presence = presence.Presence(directory, self.worker)
        made.callback(self._presence.close)
        me = Worker(
            self.worker, presence.host_name(), presence.boot_id(), os.getpid(), started_at=self.clock.now()
        )
        self._tables = Tables(connection, me, lambda: self._presence.is_in_place)
        known = {worker.id for worker in self._tables.workers()}
        self._sweep([one for one in presence.workers(directory) if one not in known])
        self.told = self._tables.head().told
        """The number of the last event before this process came."""
        self._looking = Looking(self._path, self._identity, self._tables.beside)
        self._log = Log(self._path, self._identity, self._trouble)
        if not self._is_on_loop:  # where time is virtual, all is done by the loop's thread
            self._log.watch(connection)
        self._neighbours = Neighbours(
            self._presence,
            lambda: self._tables.peers,
            self._trouble,
            self._end_leftovers,
            is_on_loop=self._is_on_loop,
        )
        self._heart = None
        if not self._is_on_loop:
            self._heart = presence.Heart(self._pulse, min(self._lease / 3, PULSE))

    # turns ------------------------------------------------------------------------------------------------

    def take_turn(self, decide: Decide) -> Plan:
        """Decide and commit, here and now."""
        try:
            self._check()
            plan = self._transact(lambda: self._decided(decide))
        except BaseException:
            self._tables.forget()
            raise
        if plan.writes:
            crashpoint("turn.committed")
            self._tell(plan)
        return plan

    def _transact(self, job: Callable[[], T]) -> T:
        """Do a job with the turn and the file's lock; whatever it raises undoes it."""
        if self._is_doubtful:
            self._renew()
        if not self._turnstile.acquire(PATIENCE):
            raise StorageBusy(
                f"Others have held {shown(self._path)} for {PATIENCE:g} s. Look for a stopped or hanging process "
                "that has it open, and let it go on or end it.",
                self._path,
            )
        connection = self._tables.connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                return job()
            except BaseException:
                undo(self._tables.connection)  # it may be another one by now
                raise
        except (apsw.Error, OSError) as error:
            self._is_doubtful |= isinstance(error, apsw.IOError)
            raise translate(error, self._path, connection) from error
        finally:
            self._turnstile.release()

    def _decided(self, decide: Decide) -> Plan:
        tables, connection = self._tables, self._tables.connection
        crashpoint("turn.begin")
        before = tables.head()
        now = max(self.clock.now(), before.now)
        changes = tables.changes(before, now - OLDEST_GRANT)
        plan = decide(SqliteTurn(tables, now, self.clock.wall(), changes))
        crashpoint("turn.decided")
        if not plan.writes and not tables.must_write:
            connection.execute("ROLLBACK")
            tables.read_only(before)
            return plan
        tables.write(plan, before, now, self._lease)
        crashpoint("turn.written")
        if plan.purged:  # while nobody else can use their ids
            self._remove_files(tables.deleted)
        self._commit()
        tables.written(plan)
        return plan

    def _commit(self) -> None:
        connection = self._tables.connection
        try:
            connection.execute("COMMIT")
        except apsw.Error as error:
            problem = translate(error, self._path, connection)
            undo(connection)
            if not isinstance(error, apsw.IOError):
                raise problem from error
            self._is_doubtful = True
            if not self._is_committed():
                raise problem if type(problem) is not StoreError else self._unknown(error) from error

    def _is_committed(self) -> bool:
        """Whether a commit that came back with an error took place all the same, asked through new descriptors."""
        try:
            self._renew()
            row: Any = self._tables.connection.execute("SELECT turn FROM head").fetchone()
        except (apsw.Error, StoreError) as error:
            self._trouble("cannot ask whether a commit took place", error)
            return False
        return bool(row[0] == self._tables.turn)

    def _unknown(self, error: apsw.Error) -> StoreError:
        return StoreError(
            f"A commit to {shown(self._path)} failed ({error}): whether it lasts is unknown. Check the disk, and "
            "submit again with the same idempotency_key or id.",
            self._path,
        )

    def _renew(self) -> None:
        """Exchange a connection that had trouble with the disk for a new one."""
        check_same(self._path, self._identity)
        connection, old = open_file(self._path, durability=self._durability), self._tables.connection
        self._tables.use(connection)
        if not self._is_on_loop:
            self._log.watch(connection)
        self._is_doubtful = False
        try:
            old.close()
        except apsw.Error as error:
            self._trouble("a connection was not closed properly", error)

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

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedConnection(
                "A Cue cannot be used in a forked process. Make a new one there.", self._path
            )
        now = time.monotonic()
        if now - self._looked_at >= CHECK_EVERY:
            check_same(self._path, self._identity)
            self._looked_at = now  # not before: what is wrong stays wrong until it is seen to be right

    async def turn(self, decide: Decide) -> Plan:
        """Decide and commit, in the store's thread."""
        plan = (
            self.take_turn(decide)
            if self._is_on_loop
            else await self._turns.do(lambda: self.take_turn(decide))
        )
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
        return await self._read(Tables.tally)

    async def events(self, after: int, limit: int) -> list[Event]:
        """Events after that number, of all processes."""
        return await self._read(lambda tables: tables.events(after, limit))

    async def counts(self) -> dict[WorkState, int]:
        """How many works there were in each state so far."""
        head = await self._read(Tables.head)
        return {state: getattr(head, state.value) for state in WorkState}

    async def config(self) -> dict[str, str]:
        """What the application keeps with its queue."""
        return await self._read(Tables.config)

    async def _read(self, look: Callable[[Tables], T]) -> T:
        def checked(tables: Tables) -> T:
            self._check()
            return look(tables)

        try:
            return checked(self._tables) if self._is_on_loop else await self._looking.ask(checked)
        except StorageReplaced:
            self._looked_at = 0.0  # the next turn has to see it, too
            raise
        except apsw.Error as error:
            raise translate(error, self._path, self._tables.connection) from error

    def check_result(self, result: Any) -> None:
        """Refuse a result that cannot be kept."""
        codec.check_result(result)

    # the other processes ----------------------------------------------------------------------------------

    def listen(self, changed: Callable[[bool], None], lost: Callable[[str], None]) -> None:
        """Say when another process committed something, and when one died."""
        self._neighbours.listen(changed, lost)
        self._prune_in(PRUNE_EVERY)

    def serve(self, queues: frozenset[str] | None) -> None:
        """Tell the others with the next turn which queues this process serves; None for all of them."""
        self._tables.serve(queues)

    def _pulse(self) -> None:
        """Every now and then, in the heart's thread: is everything still there?"""
        if self._loop.is_closed():
            if not self._is_closed and not self._is_at_work():
                self._is_closed = True
                self._turns.put(self._sign_off)
                return
        elif self._is_replaced():
            self._looked_at = 0.0
            tell(self._loop, self._neighbours.notice)  # the turn that follows finds out what happened
        self._presence.beat()

    def _is_replaced(self) -> bool:
        try:
            check_same(self._path, self._identity)
        except StorageReplaced:
            return True
        return False

    def _prune_in(self, seconds: float) -> None:
        if not self._is_closed and not self._is_on_loop:
            self._pruning = self._loop.call_later(seconds, self._turns.put, self._prune_quietly)

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
            done = prune(tables.connection, tables.head().now, kept, now - self._log_retention)
            tables.connection.execute("COMMIT")
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

    async def close(self, still_running: bool = False) -> None:
        """Let go of the file. With `still_running` the worker counts as alive until the process ends."""
        self._is_closed = True
        if self._pruning is not None:
            self._pruning.cancel()
        self._neighbours.close()
        if self._heart is not None:
            self._heart.close()
        leave = self._leave if still_running else self._sign_off
        if self._is_on_loop:
            leave()
        else:
            await self._turns.do(leave)
        self._turns.close()

    def _sign_off(self) -> None:
        try:
            self._tables.sign_off()
        except apsw.Error as error:  # then others find it gone, and strike it off
            logger.warning("could not sign off from %r: %s", self._path, error)
        self.abandon()

    def abandon(self) -> None:
        """Let go of all descriptors, here and now, and say nothing: to others it is as if this process had died."""
        self._is_closed = True
        if self._pruning is not None:
            self._pruning.cancel()
        self._neighbours.close()
        if self._heart is not None:
            self._heart.close()
        self._turns.close()
        try:
            self._presence.close()
        finally:
            self._leave()

    def _leave(self) -> None:
        """Let go of the file, but not of the lock that says that this process lives."""
        self._turnstile.close()
        self._looking.close()  # before the other connection, which tidies up when it is the last
        self._log.close()
        self._tables.connection.close()
