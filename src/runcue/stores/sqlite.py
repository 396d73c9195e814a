"""A queue in a SQLite file that several processes may share.

A turn runs in the store's own thread, from lock to commit: the turnstile (a fair lock among processes), then
BEGIN IMMEDIATE, what others changed, the decision, one commit. The user's loop never holds the lock. On virtual
time the same happens on the loop itself.

While a turn is in flight, a busy loop lends the interpreter to that thread now and then: a thread that wants the
interpreter beside a loop that never rests can otherwise wait for seconds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

import apsw
import msgspec

from runcue.core.events import Event
from runcue.core.model import Record, WorkState
from runcue.core.plan import Changes, Library, Plan
from runcue.core.state import Worker
from runcue.errors import ForkedConnection, Permanent, StorageBusy, StorageReplaced, StoreError
from runcue.ports import Clock, Decide
from runcue.stores import presence
from runcue.stores.file import identity, open_file, translate
from runcue.stores.tables import Tables

logger = logging.getLogger("runcue")

T = TypeVar("T")
PATIENCE = 30.0
"""Seconds to wait for one's turn before that is an error."""
LEND_AFTER = 0.003
LENT = 0.0003
LOOK_AROUND = 0.5
"""Seconds between two looks at the other processes, besides being told."""
LARGEST_RESULT = 1024 * 1024
PRUNE_EVERY = 60.0
OLDEST_GRANT = 31 * 86400.0
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

    def __init__(self, tables: Tables) -> None:
        connection = tables.connection
        boot = presence.boot_id()
        connection.execute("BEGIN IMMEDIATE")
        try:
            row: Any = connection.execute(
                "SELECT anchor_epoch, anchor_boottime, boot, now FROM head"
            ).fetchone()
            epoch, boottime, known, last = row
            if known != boot or epoch is None:
                epoch, boottime = (last or time.time()), presence.boottime()
                connection.execute(
                    "UPDATE head SET anchor_epoch = ?, anchor_boottime = ?, boot = ?", (epoch, boottime, boot)
                )
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        self._offset: float = epoch - boottime

    def now(self) -> float:
        """Queue time."""
        return self._offset + presence.boottime()

    def wall(self) -> float:
        """What the host believes the time of day is."""
        return time.time()


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
    ) -> None:
        self._retention = retention
        self._log_retention = log_retention
        self._path = path
        self._lease = lease
        self._is_on_loop = clock is not None
        self._pid = os.getpid()
        connection = open_file(path, durability=durability)
        self._directory = presence.side_directory(path)
        self.worker = presence.new_worker_id()
        self._turnstile = presence.Turnstile(self._directory)
        self._presence = presence.Presence(self._directory, self.worker)
        if durability == "relaxed":
            logger.warning("durability is relaxed: what was accepted last may be lost when the machine stops")
        self._heart = None if self._is_on_loop else presence.Heart(self._presence.beat, lease / 3)
        me = Worker(self.worker, presence.host_name(), presence.boot_id(), os.getpid(), 0.0)
        self._tables = Tables(connection, me)
        self.clock: Clock = clock or FileClock(self._tables)
        self._identity = identity(path)
        self._looked_at = 0.0
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._pruning: asyncio.TimerHandle | None = None

    # turns ------------------------------------------------------------------------------------------------

    def take_turn(self, decide: Decide) -> Plan:
        """Decide and commit, here and now."""
        self._check()
        tables, connection = self._tables, self._tables.connection
        try:
            if not self._turnstile.acquire(PATIENCE):
                raise StorageBusy(f"Others have held {self._path!r} for {PATIENCE:g} s.", self._path)
            try:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    plan = self._decided(decide)
                except BaseException:
                    connection.execute("ROLLBACK")
                    raise
            finally:
                self._turnstile.release()
        except (apsw.Error, OSError) as error:
            tables.forget()
            raise translate(error, self._path, connection) from error
        except BaseException:
            tables.forget()
            raise
        if plan.writes:
            crashpoint("turn.committed")
            self._presence.poke(tables.peers)
        return plan

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
        try:
            connection.execute("COMMIT")
        except apsw.Error:
            if not self._is_committed():
                raise
        tables.written(plan)
        return plan

    def _is_committed(self) -> bool:
        """Whether a commit that came back with an error took place all the same."""
        if self._tables.connection.in_transaction:
            return False
        connection = open_file(self._path, read_only=True)
        try:
            row: Any = connection.execute("SELECT turn FROM head").fetchone()
            return bool(row[0] == self._tables.turn)
        finally:
            connection.close()

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedConnection(
                "A Cue cannot be used in a forked process. Make a new one there.", self._path
            )
        now = time.monotonic()
        if now - self._looked_at >= LOOK_AROUND:
            self._looked_at = now
            if identity(self._path) != self._identity:
                raise StorageReplaced(f"{self._path!r} is another file now. Open it anew.", self._path)

    async def turn(self, decide: Decide) -> Plan:
        """Decide and commit, in the store's thread."""
        plan = await self._in_thread(lambda: self.take_turn(decide))
        if self._timer is None and self._others():
            self._look_around()
        if CRASH_AT:
            self._loop.call_soon(crashpoint, "acted")
        return plan

    async def _in_thread(self, job: Callable[[], T]) -> T:
        if self._is_on_loop:
            return job()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="runcue-store", daemon=True)
            self._thread.start()
        loop = self._loop
        future: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                result = job()
            except BaseException as error:  # noqa: BLE001 (it belongs to whoever waits)
                loop.call_soon_threadsafe(_fail, future, error)
            else:
                loop.call_soon_threadsafe(_answer, future, result)

        self._jobs.put(run)
        lending = loop.call_later(LEND_AFTER, self._lend, future)
        try:
            return await asyncio.shield(future)
        finally:
            lending.cancel()

    def _lend(self, future: asyncio.Future[Any]) -> None:
        if not future.done():
            time.sleep(LENT)  # gives the interpreter to the thread that works for this loop
            self._loop.call_later(LEND_AFTER, self._lend, future)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    # looking ----------------------------------------------------------------------------------------------

    async def get(self, work_id: str) -> Record | None:
        """One record."""
        return (await self._read(lambda: self._tables.by_id([work_id]))).get(work_id)

    async def get_many(self, ids: list[str]) -> dict[str, Record]:
        """Those of these works that there are."""
        return await self._read(lambda: self._tables.by_id(ids))

    async def find(self, state: WorkState | None, task: str | None, limit: int) -> list[Record]:
        """The latest records of that state and task, newest first."""
        return await self._read(lambda: self._tables.find(state, task, limit))

    async def events(self, after: int, limit: int) -> list[Event]:
        """Events after that number, of all processes."""
        return await self._read(lambda: self._tables.events(after, limit))

    async def _read(self, job: Callable[[], T]) -> T:
        def read() -> T:
            self._check()
            try:
                return job()
            except apsw.Error as error:
                raise translate(error, self._path, self._tables.connection) from error

        return await self._in_thread(read)

    def check_result(self, result: Any) -> None:
        """Refuse a result that cannot be kept."""
        try:
            size = len(msgspec.json.encode(result))
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise Permanent(
                f"its result is no JSON ({error}): return plain values, or a file's path"
            ) from error
        if size > LARGEST_RESULT:
            raise Permanent(
                f"its result takes {size:,} bytes, more than {LARGEST_RESULT:,}: return a file's path"
            )

    # the other processes ----------------------------------------------------------------------------------

    def listen(self, changed: Callable[[], None], lost: Callable[[str], None]) -> None:
        """Say when another process committed something, and when one died."""
        self._changed, self._lost = changed, lost
        self._loop.add_reader(self._presence.fileno(), self._poked)
        if not self._is_on_loop:
            self._pruning = self._loop.call_later(PRUNE_EVERY, self._prune_now_and_then)

    def _poked(self) -> None:
        self._presence.drain()
        self._changed()

    def _look_around(self) -> None:
        """While there are others: look now and then who died, in case nobody noticed or told."""
        self._timer = None
        others = self._others()
        if others:
            self._timer = self._loop.call_later(LOOK_AROUND, self._look_around)
            self._changed()
        for worker in others:
            if not self._presence.is_alive(worker):
                self._lost(worker)

    def _prune_now_and_then(self) -> None:
        self._pruning = self._loop.call_later(PRUNE_EVERY, self._prune_now_and_then)
        self._jobs.put(self._prune_quietly)

    def _prune_quietly(self) -> None:
        try:
            self.prune()
        except (apsw.Error, StoreError) as error:  # there is another time
            logger.warning("could not let go of old work in %r: %s", self._path, error)

    def prune(self) -> int:
        """Let go of some of what is older than anybody wants it; how much that was."""
        connection, now = self._tables.connection, self.clock.now()
        if not self._turnstile.acquire(PATIENCE):
            return 0
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                kept = None if self._retention is None else now - self._retention
                amount = self._tables.prune(kept, now - self._log_retention)
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            return amount
        finally:
            self._turnstile.release()

    def _others(self) -> frozenset[str]:
        return self._tables.peers - {self.worker}

    async def close(self) -> None:
        """Let go of the file."""
        for timer in (self._timer, self._pruning):
            if timer is not None:
                timer.cancel()
        self._loop.remove_reader(self._presence.fileno())
        if self._heart is not None:
            self._heart.close()
        await self._in_thread(self._let_go)
        if self._thread is not None:
            self._jobs.put(None)

    def _let_go(self) -> None:
        try:
            self._tables.sign_off()
        except apsw.Error as error:  # then others find it gone, and strike it off
            logger.warning("could not sign off from %r: %s", self._path, error)
        self.abandon()

    def abandon(self) -> None:
        """Let go of all descriptors, here and now, and say nothing: to others it is as if this process had died."""
        self._turnstile.close()
        self._presence.close()
        self._tables.connection.close()


def _answer(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
