"""Looks at a queue from outside: synchronous, without an event loop, for command lines and dashboards.

Rules:
- Nothing is ever created or changed, neither in a file nor in PostgreSQL (stores/sql/snapshot_reader.py and
  stores/postgres/snapshot_reader.py).
- Every answer is one moment of the queue, and no snapshot is held between two calls: a reader left open keeps no
  writer from tidying up.
- A Reader knows no program: it cannot tell what callbacks would say about a unit.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Self, TypeVar

from msgspec.structs import replace

from runcue.core.model import parse
from runcue.core.model.record import Record, Work, WorkState, view
from runcue.core.model.retry import Retry
from runcue.core.model.settings import Rule, Settings
from runcue.core.model.state import Limits, Worker, is_pattern
from runcue.core.schedule.line import shelf_parts
from runcue.core.views.query import Query
from runcue.declare import arguments
from runcue.declare.options import choice, flag, span, whole
from runcue.errors import ConfigError, ForkedConnection, StoreError, WorkNotFound, quoted
from runcue.host.address import advice, is_address, is_postgres, plain
from runcue.stores.postgres.address import DEFAULT, Address, address_of
from runcue.stores.sql import jobs_view
from runcue.stores.sql.snapshot_reader import FileSnapshotReader, Life, SnapshotReader
from runcue.stores.sql.tables import Tables

if TYPE_CHECKING:
    import builtins
    from types import TracebackType

    from runcue.api.signature import Duration
    from runcue.core.ledger.ledger import Ledger
    from runcue.core.model.events import Event
    from runcue.core.schedule.plan import Changes, Key, TurnReader
    from runcue.core.views.explain import Explanation
    from runcue.executors.command.printed import Output

T = TypeVar("T")
SOME_EVENTS = 256
LARGEST = 2**63 - 1
"""The last byte that a file can have."""
MOST_AHEAD = 10_000
"""How many units one explanation reads at most."""


class Reader:
    """Shows a queue in a file or in PostgreSQL, whether or not anybody works on it.

    `with runcue.Reader("queue.db") as reader`, or `runcue.Reader("postgresql://user@host/database", name="default")`.
    A worker that has given no sign of life for `lease` seconds is shown as unresponsive, on another host as gone.
    A file that belongs to another user or that others may write to is refused, unless `insecure`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        name: str = DEFAULT,
        lease: Duration = 30.0,
        insecure: bool = False,
    ) -> None:
        self._lease = span(lease, "lease")
        self._pid = os.getpid()
        self._one_at_a_time = threading.Lock()
        self._is_closed = False
        self._looks = _looks(path, parse.name(name, "queue"), flag(insecure, "insecure"))
        self._where = self._looks.where

    def __repr__(self) -> str:
        return f"<Reader {quoted(self._where)}{' closed' if self._is_closed else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the queue."""
        with self._one_at_a_time:
            self._is_closed = True
            if self._pid == os.getpid():
                self._looks.close()

    # work -------------------------------------------------------------------------------------------------

    def get(self, work_id: str) -> Work | None:
        """One unit as it stands, or None when the id is unknown or no longer kept."""
        work_id = arguments.work_id(work_id)
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
        """The latest units of that state, task, queue and service in which a text occurs, newest first.

        The next page is what comes `before` the last id of this one. A text is searched among the newest 200,000.
        """
        query = arguments.query(state, task, limit, queue, service, search)
        last = None if before is None else arguments.work_id(before)

        def look(tables: Tables) -> builtins.list[Record]:
            if last is None:
                return tables.latest(query)
            return tables.latest(replace(query, before=_there(tables, last).seq))

        return [view(record) for record in self._read(look)]

    def dependents(self, work_id: str, limit: int = 100) -> builtins.list[Work]:
        """Work that runs after that one, in the order it came."""
        work_id, most = arguments.work_id(work_id), arguments.rows(limit)

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
        before: str | None = None,
    ) -> builtins.list[dict[str, Any]]:
        """Rows of the view `jobs`: the latest of that state (in its words), queue and these ids, newest first.

        The next page is what comes `before` the last id of this one.
        """
        most, last = arguments.rows(limit), None if before is None else arguments.work_id(before)
        wanted = None if ids is None else [*ids]

        def look(tables: Tables) -> builtins.list[dict[str, Any]]:
            end = None if last is None else _there(tables, last).seq
            found = self._looks.jobs(tables, state, queue, wanted, most, end)
            if state not in {None, "pending"}:
                return found
            query = Query(queue=queue, before=end)
            new = [one for one in reversed(tables.accepted()) if query.finds(one)]
            chosen = [jobs_view.row_for(one) for one in new if wanted is None or one.id in wanted]
            return [*chosen, *found][:most]

        return self._read(look)

    def job_counts(self) -> dict[str, int]:
        """How many units there are in each of the states of the view `jobs`, forgotten ones included."""
        return self._read(lambda tables: jobs_view.counts(tables.connection, tables.counted()))

    def count(self) -> dict[WorkState, int]:
        """How many units there are in each state, forgotten ones included."""
        head = self._read(lambda tables: tables.counted())
        return {state: getattr(head, state.value) for state in WorkState}

    def tally(self) -> dict[str, dict[str, int]]:
        """How many units of each task are `"pending"` and `"running"`."""
        return self._read(lambda tables: tables.live_by_task())

    def explain(self, work_id: str) -> Explanation:
        """Explain why a unit is in its state, and until when, as far as no callback decides.

        At most 10,000 units ahead of it are counted.
        """
        work_id = arguments.work_id(work_id)
        return self._read(lambda tables: self._explained(tables, work_id))

    def explain_many(self, ids: Iterable[str]) -> dict[str, Explanation]:
        """Explain each of these units that exists, as if nothing else were queued."""
        wanted = [arguments.work_id(one) for one in ids]
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
        """What a command printed in that attempt (None: the latest), from byte `start` on; empty at the end.

        Of a queue in PostgreSQL that lies on the host that ran the command, and is empty everywhere else.
        """
        from runcue.executors.command.printed import ENDINGS, files_folder, read

        work_id, stream = arguments.work_id(work_id), choice(stream, "stream", tuple(ENDINGS))
        if attempt is None:
            work = self.get(work_id)
            attempt = 1 if work is None else work.attempt
        folder = files_folder(self._looks.beside)
        number, first = whole(1)(attempt, "attempt"), whole(0, LARGEST)(start, "start")
        return read(folder, work_id, number, stream, first, arguments.rows(limit))

    # what happens -----------------------------------------------------------------------------------------

    def events(self, types: str | Iterable[str] | None = None, since: int = 0) -> Iterator[Event]:
        """What happened after event number `since`, in order, up to now; a `gap` for what is no longer kept."""
        return self._events(arguments.event_types(types), arguments.event_number(since))

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
        return self._read(lambda tables: tables.head()).told

    def services(self) -> builtins.list[dict[str, Any]]:
        """Every service: its limits, how much of them is used, and what blocks it."""
        from runcue.core.limits.services import Services
        from runcue.core.views.explain import snapshot  # it brings all that decides, which few questions need

        def look(tables: Tables) -> builtins.list[dict[str, Any]]:
            now, _, changes = self._everything(tables)
            found = Services(lambda service: None)
            for state in changes.services:
                found.declare(state.limits)
                found[state.limits.name].load(state)
            for name, amount in _places(tables, changes, changes.workers, found.with_parts).items():
                service = found.find(name)
                if service is not None:
                    service.active += amount
            for name in tables.started():
                found.find(name)  # a key that has nothing to remember but its starts
            since = {one.name: now - one.reach for one in found.values() if one.reach}
            for start in tables.starts(since):
                found[start.service].recall([start])
                now = max(now, start.at)  # a start may be counted from a moment that is yet to come
            shown = [snapshot(found[name], now) for name in sorted(found)]
            for rate in (rate for service in shown for rate in service["rates"]):
                # others count a start from the latest moment at which it may begin, so they may see one too many
                rate["used"] = min(rate["used"], rate["limit"])
            return shown

        return self._read(look)

    def paused(self) -> builtins.list[str]:
        """The queues that are held back."""
        return self._read(lambda tables: tables.paused())

    def config(self) -> dict[str, str]:
        """The texts that are kept with the queue."""
        return self._read(lambda tables: tables.config())

    def now(self) -> float:
        """Queue time: what the `until` of an explanation is to be compared with."""
        return self._read(lambda tables: self._looks.times(tables, tables.head())[0])

    def health(self) -> dict[str, Any]:
        """How the queue is kept: versions, sizes, and in `problems` what is wrong with it. Reads all of a file."""
        return self._read(lambda tables: self._looks.health(tables, tables.head()))

    def workers(self) -> builtins.list[dict[str, Any]]:
        """Every process that opened the queue and was not forgotten yet: who, where, whether it lives, what it runs.

        `state` is `"alive"`, `"unresponsive"` (it lives, but does not move), `"gone"`, or `"unknown"` where
        this user may not look.
        """

        def look(tables: Tables) -> builtins.list[dict[str, Any]]:
            _, _, changes = self._everything(tables)
            lives = self._looks.lives(tables, changes.workers, self._lease)
            return [
                _shown(worker, life, _running(tables, worker), _places(tables, changes, [worker]))
                for worker, life in zip(changes.workers, lives, strict=True)
            ]

        return self._read(look)

    # looking at everything --------------------------------------------------------------------------------

    def _explained(self, tables: Tables, work_id: str) -> Explanation:
        from runcue.core.views.explain import explain

        record = _there(tables, work_id)
        ledger, is_started = self._ledger(tables, [record], _Ahead(tables, record))
        return _put(explain(ledger, record, ledger.turn.now, ledger.turn.wall, is_started), ledger, record)

    def _each_explained(self, tables: Tables, ids: builtins.list[str]) -> dict[str, Explanation]:
        from runcue.core.views.explain import explain_alone

        records = tables.some(ids)
        ledger, is_started = self._ledger(tables, records.values(), tables)
        answers = explain_alone(ledger, records.values(), ledger.turn.now, ledger.turn.wall, is_started)
        return {why.work_id: _put(why, ledger, records[why.work_id]) for why in answers}

    def _ledger(self, tables: Tables, records: Iterable[Record], reader: TurnReader) -> tuple[Ledger, bool]:
        """A ledger with everything stored that decides about these units, and whether any process starts work."""
        from runcue.core.ledger.ledger import Ledger
        from runcue.core.schedule.takeover import catch_up

        now, wall, changes = self._everything(tables)
        ledger = Ledger(Settings(), _rules(tables, changes, records), "", is_shared=True)
        ledger.begin(now, wall, reader)
        for record in records:
            for name in record.spec.services:  # its program may not have declared them here yet
                ledger.ready.services.declare(Limits(name))
        lives = self._looks.lives(tables, changes.workers, self._lease)
        changes.workers = [
            replace(worker, is_serving=worker.is_serving and state != "gone")
            for worker, (state, _) in zip(changes.workers, lives, strict=True)
        ]
        catch_up(ledger, changes)
        ledger.grants.recall_starts()
        return ledger, any(worker.is_serving for worker in changes.workers)

    def _everything(self, tables: Tables) -> tuple[float, float, Changes]:
        """Queue time, the time of day, and all that is stored except units."""
        head = tables.head()
        now, wall = self._looks.times(tables, head)
        return now, wall, tables.everything(head)

    def _read(self, look: Callable[[Tables], T]) -> T:
        """Read from one snapshot of the queue."""
        with self._one_at_a_time:
            if self._is_closed:
                raise StoreError(
                    f"This Reader of {quoted(self._where)} is closed. Make a new one.", self._where
                )
            if self._pid != os.getpid():
                raise ForkedConnection(
                    f"{quoted(self._where)} was opened before a fork. Open it after, or start a new process.",
                    self._where,
                )
            return self._looks.read(look)


class _Ahead:
    """The part of a queue that could start before one unit."""

    def __init__(self, tables: Tables, record: Record) -> None:
        self._tables = tables
        self._end = (record.rank, record.seq)
        self._left = MOST_AHEAD
        self.read, self.by_id, self.dependents = tables.read, tables.by_id, tables.dependents
        self.watched, self.next_watch, self.oldest = tables.watched, tables.next_watch, tables.oldest
        self.starts, self.spent = tables.starts, tables.spent
        self.unstarted, self.take_back, self.accepted = tables.unstarted, tables.take_back, tables.accepted

    def page(self, shelf: str, after: Key | None, limit: int) -> list[Record]:
        """The next records of a shelf, without those behind the unit, and at most `MOST_AHEAD` in all."""
        if shelf.startswith(("running/", "held/")):
            return self._tables.page(shelf, after, limit)
        if self._left <= 0 or shelf_parts(shelf) is None:
            return []
        found = self._tables.page(shelf, after, min(limit, self._left))
        found = [record for record in found if (record.place, record.seq) < self._end]
        self._left -= len(found)
        return found


def _looks(path: object, name: str, insecure: bool) -> SnapshotReader:
    """The queue at that path or address; the name is that of one among several in a database."""
    where = os.fspath(path) if isinstance(path, os.PathLike) else path
    if isinstance(where, str) and is_postgres(where):
        return _in_postgres(address_of(where, name))
    if not isinstance(where, str) or where == ":memory:" or is_address(where):
        shown = plain(where) if isinstance(where, str) else where
        raise ConfigError(
            f"Cannot read {quoted(shown)}: a Reader reads a queue in a file or in PostgreSQL. "
            + (advice(path) or "Give its path, or an address such as 'postgresql://user@host/database'.")
        )
    return FileSnapshotReader(where, insecure=insecure)


def _in_postgres(address: Address) -> SnapshotReader:
    try:
        from runcue.stores.postgres.snapshot_reader import PostgresSnapshotReader
    except ImportError as error:
        raise ConfigError('A queue in PostgreSQL needs psycopg: pip install "runcue[postgres]"') from error
    return PostgresSnapshotReader(address)


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


def _places(
    tables: Tables,
    changes: Changes,
    workers: Iterable[Worker],
    with_parts: Callable[[Iterable[str]], Iterable[str]] = tuple,
) -> dict[str, int]:
    """How many places of each service these workers take up: by what they run, and what was given up and runs on."""
    found: Counter[str] = Counter()
    for worker in workers:
        running = tables.records("shelf = ?", (f"running/{worker.id}",))
        attempts = [(one.spec.task, one.spec.services, one.chosen) for one in running]
        attempts += [(one.task, one.services, one.chosen) for one in worker.overdue]
        for task, services, chosen in attempts:
            rule = changes.tasks.get(task)
            names = services if rule is None or rule.services is None else rule.services
            names += () if rule is None else rule.shared
            used = (chosen if chosen is not None and is_pattern(name) else name for name in names)
            found.update({*with_parts(used)})
    return dict(found)


def _shown(worker: Worker, life: Life, running: int, places: dict[str, int]) -> dict[str, Any]:
    state, silent_for = life
    return {
        "id": worker.id,
        "state": state,
        "host": worker.host,
        "pid": worker.pid,
        "started_at": worker.started_at,
        "queues": None if worker.queues is None else [*worker.queues],
        "serving": worker.is_serving,
        "running": running,
        "services": places,
        "silent_for": silent_for,
    }


def _put(why: Explanation, ledger: Ledger, record: Record) -> Explanation:
    """Reword an explanation for a process that only looks at the queue."""
    queue = record.spec.queue
    if why.reason == "not_started":
        return replace(why, details="nobody has the queue open")
    if why.reason == "paused" and why.service is None and queue not in ledger.ready.paused:
        return replace(why, reason="not_started", details=f"nobody runs work of queue {queue!r}")
    return why


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
        if services:  # then each unit of that task says what it uses
            rules[task] = Rule(Retry())
    return rules
