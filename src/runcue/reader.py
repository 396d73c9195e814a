"""Looks at a queue in a file from outside: synchronous, without asyncio, for command lines and dashboards.

Rules:
- Nothing is ever created or changed. While nobody has the queue open its file is read as it stands, because SQLite
  would leave a log beside it otherwise; what changed under our eyes is read again.
- Every answer is one moment of the queue, and no snapshot is held between two calls: a reader left open keeps no
  writer from tidying up.
- A Reader knows no program: what callbacks would say of a work it cannot tell.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote

import apsw
from msgspec.structs import replace

from runcue import given
from runcue.core.limits import Service
from runcue.core.line import shelf_parts
from runcue.core.model import Record, Work, WorkState, view
from runcue.core.retry import Retry
from runcue.core.settings import Rule, Settings
from runcue.core.state import Head, Limits, Worker
from runcue.errors import (
    ConfigError,
    ForkedConnection,
    StorageBusy,
    StorageReplaced,
    StoreError,
    WorkNotFound,
    quoted,
)
from runcue.options import choice, span, whole
from runcue.stores import jobs, presence, states
from runcue.stores.file import identity, open_file, translate
from runcue.stores.schema import VERSION, check_tables, version_of
from runcue.stores.tables import Tables

if TYPE_CHECKING:
    import builtins
    from types import TracebackType

    from runcue.core.events import Event
    from runcue.core.explain import Explanation
    from runcue.core.ledger import Ledger
    from runcue.core.plan import Changes, Key, Library
    from runcue.executors.printed import Output
    from runcue.signature import Duration

T = TypeVar("T")
SOME_EVENTS = 256
TRIES = 100
"""How often a file that changes under our eyes is read again before that is an error."""

LARGEST = 2**63 - 1
"""The last byte that a file can have."""
MOST_AHEAD = 10_000
"""How many works one explanation reads at most."""

Stamp = tuple[int, int, int, int]


class Reader:
    """Shows a queue in a file, whether or not anybody works on it: `with runcue.Reader("queue.db") as reader`.

    A worker that has given no sign of life for `lease` seconds is shown as unresponsive.
    """

    def __init__(self, path: str | os.PathLike[str], *, lease: Duration = 30.0) -> None:
        self._path = _file(path)
        self._lease = span(lease, "lease")
        self._pid = os.getpid()
        self._one_at_a_time = threading.Lock()
        self._connection: apsw.Connection | None = None
        self._still: Stamp | None = None
        """How the file looked when it was opened as it stands; None when it is read through its log."""
        self._is_closed = False
        self._connect()
        self._identity = identity(self._path)

    def __repr__(self) -> str:
        return f"<Reader {quoted(self._path)}{' closed' if self._is_closed else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        with self._one_at_a_time:
            self._is_closed = True
            self._disconnect()

    # work -------------------------------------------------------------------------------------------------

    def get(self, work_id: str) -> Work | None:
        """One work as it stands, or None when the id is unknown or no longer kept."""
        work_id = given.work_id(work_id)
        record = self._read(lambda tables: tables.one(work_id))
        return None if record is None else view(record)

    def list(
        self,
        state: WorkState | str | None = None,
        task: str | None = None,
        limit: int = 100,
        *,
        queue: str | None = None,
        service: str | None = None,
        search: str | None = None,
        before: str | None = None,
    ) -> builtins.list[Work]:
        """The latest works of that state, task, queue and service in which a text occurs, newest first.

        The next page is what comes `before` the last id of this one. A text is searched among the newest 200,000.
        """
        query = given.query(state, task, limit, queue, service, search)
        last = None if before is None else given.work_id(before)

        def look(tables: Tables) -> builtins.list[Record]:
            if last is None:
                return tables.find(query)
            return tables.find(replace(query, before=_there(tables, last).seq))

        return [view(record) for record in self._read(look)]

    def dependents(self, work_id: str, limit: int = 100) -> builtins.list[Work]:
        """Work that runs after that one, in the order it came."""
        work_id, most = given.work_id(work_id), given.rows(limit)

        def look(tables: Tables) -> builtins.list[Record]:
            ids = tables.dependents(work_id)[:most]
            found = tables.by_id(ids)
            return [found[one] for one in ids if one in found]

        return [view(record) for record in self._read(look)]

    def dead(self, task: str | None = None, limit: int = 100) -> builtins.list[Work]:
        """The dead letters: work that failed for good, newest first."""
        return self.list(WorkState.FAILED, task, limit)

    def jobs(
        self,
        state: str | None = None,
        *,
        queue: str | None = None,
        ids: Iterable[str] | None = None,
        limit: int = 100,
    ) -> builtins.list[dict[str, Any]]:
        """Rows of the view `jobs`: the latest of that state (in its words), queue and these ids, newest first."""
        most = given.rows(limit)
        return self._read(lambda tables: jobs.find(tables.connection, state, queue, ids, most))

    def job_counts(self) -> dict[str, int]:
        """How many works there are in each of the states of the view `jobs`, forgotten ones included."""
        return self._read(lambda tables: jobs.counts(tables.connection, tables.head()))

    def count(self) -> dict[WorkState, int]:
        """How many works there are in each state, forgotten ones included."""
        head = self._read(Tables.head)
        return {state: getattr(head, state.value) for state in WorkState}

    def tally(self) -> dict[str, dict[str, int]]:
        """How many works of each task are `"pending"` and `"running"`."""
        return self._read(Tables.tally)

    def explain(self, work_id: str) -> Explanation:
        """Why that work stands where it stands, and until when, as far as it hangs on no callback.

        Of what is ahead of it the first 10,000 are counted.
        """
        work_id = given.work_id(work_id)
        return self._read(lambda tables: self._explained(tables, work_id))

    def explain_many(self, ids: Iterable[str]) -> dict[str, Explanation]:
        """The same for those of these works that there are, as if there were no others."""
        wanted = [given.work_id(one) for one in ids]
        return self._read(lambda tables: self._each_explained(tables, wanted))

    def output(
        self,
        work_id: str,
        stream: str = "stdout",
        *,
        attempt: int | None = None,
        start: int = 0,
        limit: int = 1 << 20,
    ) -> Output:
        """What a command printed in that attempt (None: the latest), from byte `start` on; empty at the end."""
        from runcue.executors.printed import ENDINGS, files_folder, read

        work_id, stream = given.work_id(work_id), choice(stream, "stream", tuple(ENDINGS))
        if attempt is None:
            work = self.get(work_id)
            attempt = 1 if work is None else work.attempt
        folder = files_folder(str(Path(self._path).absolute()))
        number, first = whole(1)(attempt, "attempt"), whole(0, LARGEST)(start, "start")
        return read(folder, work_id, number, stream, first, given.rows(limit))

    # what happens -----------------------------------------------------------------------------------------

    def events(self, types: str | Iterable[str] | None = None, since: int = 0) -> Iterator[Event]:
        """What happened after event number `since`, in order, up to now; a `gap` for what is no longer kept."""
        return self._events(given.event_types(types), given.event_number(since))

    def _events(self, types: frozenset[str] | None, since: int) -> Iterator[Event]:
        while True:
            batch = self._read(lambda tables, after=since: tables.events(after, SOME_EVENTS))  # type: ignore[misc]
            if not batch:
                return
            since = batch[-1].seq
            yield from (
                event for event in batch if types is None or event.type in types or event.type == "gap"
            )

    def last_event(self) -> int:
        """The number of the latest event: who reads on from there is told what happens from now on."""
        return self._read(Tables.head).told

    def services(self) -> builtins.list[dict[str, Any]]:
        """Every service: its limits, how much of them is used, and what blocks it."""
        from runcue.core.explain import snapshot  # it brings all that decides, which few questions need
        from runcue.core.services import Services

        def look(tables: Tables) -> builtins.list[dict[str, Any]]:
            now, changes = self._everything(tables)
            found = Services(lambda service: None)
            for state in changes.services:
                found.declare(state.limits)
                found[state.limits.name].load(state)
            for grant in changes.grants:
                service = found.find(grant.service)
                if service is not None:
                    service.started_elsewhere(grant.at, grant.amount, grant.quantity)
                    now = max(now, grant.at)  # a start may be counted from a moment that is yet to come
            for worker in changes.workers or ():
                for name, amount in worker.active.items():
                    service = found.find(name)
                    if service is not None:
                        service.active += amount
            return [snapshot(found[name], now) for name in sorted(found)]

        return self._read(look)

    def paused(self) -> builtins.list[str]:
        """The queues that are held back."""
        return self._read(Tables.paused)

    def config(self) -> dict[str, str]:
        """The texts that are kept with the queue."""
        return self._read(Tables.config)

    def now(self) -> float:
        """Queue time: what the `until` of an explanation is to be compared with."""
        return self._read(lambda tables: _now(tables, tables.head()))

    def health(self) -> dict[str, Any]:
        """How the file is: versions, sizes, and in `problems` what is wrong with it. Reads all of it."""
        from runcue.stores.health import examine

        return self._read(lambda tables: examine(tables.connection, tables.head(), self._path))

    def workers(self) -> builtins.list[dict[str, Any]]:
        """Every process that opened the queue and was not forgotten yet: who, where, whether it lives, what it runs.

        `state` is `"alive"`, `"unresponsive"` (it lives, but does not move), `"gone"`, or `"unknown"` where
        this user may not look.
        """

        def look(tables: Tables) -> builtins.list[tuple[Worker, int]]:
            return [(worker, _running(tables, worker)) for worker in tables.workers()]

        directory = presence.side_directory(self._path)
        return [self._shown(directory, worker, running) for worker, running in self._read(look)]

    def _shown(self, directory: Path, worker: Worker, running: int) -> dict[str, Any]:
        state, silent_for = self._life(directory, worker)
        return {
            "id": worker.id,
            "state": state,
            "host": worker.host,
            "pid": worker.pid,
            "started_at": worker.started_at,
            "queues": None if worker.queues is None else [*worker.queues],
            "serving": worker.is_serving,
            "running": running,
            "services": dict(worker.active),
            "silent_for": silent_for,
        }

    def _life(self, directory: Path, worker: Worker) -> tuple[str, float | None]:
        if worker.boot != presence.boot_id():
            return "gone", None
        try:
            is_alive = presence.is_alive(directory, worker.id)
            beat = presence.last_beat(directory, worker.id)
        except StoreError:  # the directory is its owner's alone
            return "unknown", None
        if not is_alive or beat is None:
            return "gone", None
        silent_for = max(0.0, presence.boottime() - beat)
        return ("alive" if silent_for < self._lease else "unresponsive"), silent_for

    # looking at everything --------------------------------------------------------------------------------

    def _explained(self, tables: Tables, work_id: str) -> Explanation:
        from runcue.core.explain import explain

        record = _there(tables, work_id)
        ledger, is_started = self._ledger(tables, [record], _Ahead(tables, record))
        return _put(explain(ledger, record, ledger.now, ledger.wall, is_started))

    def _each_explained(self, tables: Tables, ids: builtins.list[str]) -> dict[str, Explanation]:
        from runcue.core.explain import explain_alone

        records = tables.by_id(ids)
        ledger, is_started = self._ledger(tables, records.values(), tables)
        answers = explain_alone(ledger, records.values(), ledger.now, ledger.wall, is_started)
        return {why.work_id: _put(why) for why in answers}

    def _ledger(self, tables: Tables, records: Iterable[Record], library: Library) -> tuple[Ledger, bool]:
        """All that decides over these works, as far as it is stored, and whether anybody starts work."""
        from runcue.core.ledger import Ledger
        from runcue.core.shared import catch_up

        now, changes = self._everything(tables)
        ledger = Ledger(Settings(), _rules(tables, changes, records), "", is_whole=False)
        ledger.begin(now, time.time(), library)
        for record in records:
            for name in record.spec.services:  # its program may not have declared them here yet
                ledger.ready.services[name] = Service(Limits(name))
        catch_up(ledger, changes)
        directory = presence.side_directory(self._path)
        serving = [worker for worker in changes.workers or () if worker.is_serving]
        return ledger, any(self._life(directory, worker)[0] != "gone" for worker in serving)

    @staticmethod
    def _everything(tables: Tables) -> tuple[float, Changes]:
        """Queue time, and how everything stands but for the works."""
        head = tables.head()
        now = _now(tables, head)
        rows = tables.connection.execute(states.SERVICE_SELECT)
        longest = max((states.read_service(row).limits.longest for row in rows), default=0.0)
        changes = tables.changes(head, now - longest)
        assert changes is not None, "nothing was seen before"
        return now, changes

    # the file ---------------------------------------------------------------------------------------------

    def _read(self, look: Callable[[Tables], T]) -> T:
        """An answer that was true at one moment."""
        with self._one_at_a_time:
            self._check()
            for _ in range(TRIES):
                try:
                    answer = self._looked(look)
                except (apsw.Error, StoreError) as error:
                    if not self._has_moved():
                        raise translate(error, self._path, self._connection) from error
                else:
                    if not self._has_moved():
                        return answer
                self._connect()
        raise StorageBusy(f"{quoted(self._path)} changes faster than it can be read. Try again.", self._path)

    def _looked(self, look: Callable[[Tables], T]) -> T:
        if self._connection is None:
            self._connect()
        connection = self._connection
        assert connection is not None
        connection.execute("BEGIN")
        try:
            return look(Tables(connection))
        finally:
            connection.execute("ROLLBACK")

    def _check(self) -> None:
        if self._is_closed:
            raise StoreError(f"This Reader of {quoted(self._path)} is closed. Make a new one.", self._path)
        if self._pid != os.getpid():
            raise ForkedConnection(
                f"{quoted(self._path)} was opened before a fork. Make a new Reader here.", self._path
            )
        if identity(self._path) != self._identity:
            raise StorageReplaced(
                f"{quoted(self._path)} was exchanged for another file. Make a new Reader.", self._path
            )

    def _connect(self) -> None:
        self._disconnect()
        self._still = stamp = _stillness(self._path)
        self._connection = None if stamp is None else _as_it_stands(self._path)
        if self._connection is None:
            self._still = None
            self._connection = open_file(self._path, read_only=True)

    def _disconnect(self) -> None:
        if self._connection is not None and self._pid == os.getpid():
            self._connection.close()
        self._connection = None

    def _has_moved(self) -> bool:
        """True when a file that is read as it stands is no longer what it was."""
        return self._still is not None and _stillness(self._path) != self._still


class _Ahead:
    """The library of a queue, as far as it matters to one work: what could start before it."""

    def __init__(self, tables: Tables, record: Record) -> None:
        self._tables = tables
        self._end = (record.rank, record.seq)
        self._left = MOST_AHEAD
        self.read, self.by_id, self.dependents = tables.read, tables.by_id, tables.dependents
        self.watched, self.next_watch, self.oldest = tables.watched, tables.next_watch, tables.oldest

    def page(self, shelf: str, after: Key | None, limit: int) -> list[Record]:
        """The next records of a shelf, none that come after that work, and not too many in all."""
        if self._left <= 0 or shelf_parts(shelf) is None:
            return []
        found = self._tables.page(shelf, after, min(limit, self._left))
        found = [record for record in found if (record.place, record.seq) < self._end]
        self._left -= len(found)
        return found


def _file(path: object) -> str:
    name = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(name, str) or name == ":memory:" or "://" in name:
        raise ConfigError(f"Cannot read {quoted(name)}: a Reader reads a queue in a file. Give its path.")
    return name


def _stillness(path: str) -> Stamp | None:
    """What a file looks like that nobody has open; None when somebody has, or when it is no plain file."""
    try:
        real = Path(os.path.realpath(path))
        if any(real.with_name(real.name + suffix).exists() for suffix in ("-wal", "-journal")):
            return None
        found = real.stat()
        if not real.is_file() or not found.st_size:
            return None
    except (OSError, ValueError):  # whoever opens it says what is wrong
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _as_it_stands(path: str) -> apsw.Connection | None:
    """A connection that takes no lock and leaves no log; None when the file needs a closer look."""
    name = f"file:{quote(os.path.realpath(path))}?immutable=1"
    connection = None
    try:
        connection = apsw.Connection(name, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        if version_of(connection) == VERSION:
            check_tables(connection)
            return connection
    except (apsw.Error, StoreError):
        if connection is not None:
            connection.close()
        return None
    connection.close()
    return None


def _now(tables: Tables, head: Head) -> float:
    """Queue time: it goes on with the host's clock since the last boot that somebody worked in."""
    row: Any = tables.connection.execute("SELECT anchor_epoch, anchor_boottime, boot FROM head").fetchone()
    epoch, boottime, boot = row
    if epoch is None or boot != presence.boot_id():
        return head.now
    return max(head.now, float(epoch) - float(boottime) + presence.boottime())


def _there(tables: Tables, work_id: str) -> Record:
    record = tables.one(work_id)
    if record is None:
        raise WorkNotFound(work_id, forgotten=bool(tables.forgotten([work_id])))
    return record


def _running(tables: Tables, worker: Worker) -> int:
    row: Any = tables.connection.execute(
        "SELECT count(*) FROM work_units WHERE shelf = ?", (f"running/{worker.id}",)
    ).fetchone()
    return int(row[0])


def _put(why: Explanation) -> Explanation:
    """The same in the words of somebody who looks from outside."""
    return replace(why, details="nobody has the queue open") if why.reason == "not_started" else why


def _rules(tables: Tables, changes: Changes, records: Iterable[Record]) -> dict[str, Rule]:
    """What can be told of the tasks without their program: what the first work of each uses."""
    rules: dict[str, Rule] = {}
    for record in records:
        task, uses = record.spec.task, record.spec.services
        is_alike = task not in rules or rules[task].services == uses
        rules[task] = Rule(Retry(), services=uses if is_alike else None)
    shelves = [
        (name, *parts) for name, first in changes.shelves.items() if first and (parts := shelf_parts(name))
    ]
    for name, _, task, services in shelves:
        if not services and (found := tables.page(name, None, 1)):
            rules[task] = Rule(Retry(), services=found[0].spec.services)
    for _, _, task, services in shelves:
        if services:  # then each work of that task says what it uses
            rules[task] = Rule(Retry())
    return rules
