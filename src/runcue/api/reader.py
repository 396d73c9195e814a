"""Reads a queue from outside, without an event loop, for command lines and dashboards.

Rules:
- Nothing is ever created or changed, neither in a file nor in PostgreSQL (stores/sqlite/snapshot_reader.py and
  stores/postgres/snapshot_reader.py).
- Every answer comes from one snapshot of the queue. No snapshot is kept between two calls, so an open Reader does
  not stop writers from reclaiming space.
- A Reader has no application: it cannot tell what callbacks would answer about a unit.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from msgspec.structs import replace

from runcue.api.places import snapshots_at
from runcue.core.model import parse
from runcue.core.model.record import Record, Work, WorkState, view
from runcue.core.model.retry import Retry
from runcue.core.model.schedule import ScheduleInfo, shown
from runcue.core.model.settings import Rule, Settings
from runcue.core.model.state import Limits, Worker, is_pattern
from runcue.core.schedule.line import index_key_parts
from runcue.core.views.query import Query
from runcue.declare import arguments
from runcue.declare.options import choice, flag, span, whole
from runcue.errors import ForkedConnection, GroupNotFound, StoreError, WorkNotFound, quoted
from runcue.stores.postgres.address import DEFAULT
from runcue.stores.sql import jobs_view
from runcue.stores.sql.snapshot_reader import Life
from runcue.stores.sql.tables import Tables

if TYPE_CHECKING:
    import builtins
    from types import TracebackType

    from runcue.api.signature import Duration, Where, Which
    from runcue.core.ledger.ledger import Ledger
    from runcue.core.model.events import Event, EventFilter
    from runcue.core.model.group import GroupCounts
    from runcue.core.schedule.plan import Changes, Key, TurnReader
    from runcue.core.views.explain import Explanation
    from runcue.executors.command.printed import Output

T = TypeVar("T")
SOME_EVENTS = 256
LARGEST = 2**63 - 1
"""The largest offset in a file."""
MOST_NAMES = 1000
"""How many names of groups are read to find the one that was meant."""
MOST_AHEAD = 10_000
"""How many units one explanation reads at most."""


class Reader:
    """Shows a queue in a file or in PostgreSQL, whether or not any process has it open.

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
        place = arguments.stored_queue(
            path,
            "read {}: a Reader reads a queue in a file or in PostgreSQL",
            "Give its path, or an address such as 'postgresql://user@host/database'.",
        )
        self._snapshots = snapshots_at(place, parse.name(name, "queue"), insecure=flag(insecure, "insecure"))
        self._where = self._snapshots.where

    def __repr__(self) -> str:
        return f"<Reader {quoted(self._where)}{' closed' if self._is_closed else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection to the queue."""
        with self._one_at_a_time:
            self._is_closed = True
            if self._pid == os.getpid():
                self._snapshots.close()

    # work -------------------------------------------------------------------------------------------------

    def get(self, work_id: str) -> Work | None:
        """One unit as it stands, or None when the id is unknown or no longer kept."""
        work_id = arguments.work_id(work_id)
        record = self._read(lambda tables: tables.units.one(work_id))
        return None if record is None else view(record)

    def list(
        self,
        state: WorkState | str | None = None,
        task: str | None = None,
        limit: int = 100,
        *,
        before: str | None = None,
        **where: Unpack[Where],
    ) -> builtins.list[Work]:
        """The latest units of that state, task and so on, newest first.

        `queue`, `service`, `tags`, `group`, `key` (idempotency key), `since` and `until` (when they were submitted),
        and `search`: a text, which is looked for among the newest 200,000. The next page is what comes `before` the
        last id of this one.
        """
        query = arguments.query(state, task, limit, **where)
        last = None if before is None else arguments.work_id(before)

        def look(tables: Tables) -> builtins.list[Record]:
            if last is None:
                return tables.units.latest(query)
            return tables.units.latest(replace(query, before=_found(tables, last).seq))

        return [view(record) for record in self._read(look)]

    def dependents(self, work_id: str, limit: int = 100) -> builtins.list[Work]:
        """The units that depend on a unit, in the order of their submission."""
        work_id, most = arguments.work_id(work_id), arguments.rows(limit)

        def look(tables: Tables) -> builtins.list[Record]:
            ids = tables.records.dependents(work_id)[:most]
            found = tables.records.by_id(ids)
            return [found[dependent] for dependent in ids if dependent in found]

        return [view(record) for record in self._read(look)]

    def dead(self, task: str | None = None, limit: int = 100) -> builtins.list[Work]:
        """The dead letters: units that failed for good, newest first."""
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
        wanted = None if ids is None else [str.__str__(one) for one in ids]  # handles are ids, too

        def look(tables: Tables) -> builtins.list[dict[str, Any]]:
            end = None if last is None else _found(tables, last).seq
            found = self._snapshots.jobs(tables, jobs_view.JobQuery(state, queue, wanted, end, most))
            if state not in {None, "pending"}:
                return found
            query = Query(queue=queue, before=end)
            new = [record for record in reversed(tables.units.accepted()) if query.finds(record)]
            chosen = [jobs_view.row_for(record) for record in new if wanted is None or record.id in wanted]
            return [*chosen, *found][:most]

        return self._read(look)

    def job_counts(self) -> dict[str, int]:
        """How many units there are in each of the states of the view `jobs`, forgotten ones included."""
        return self._read(lambda tables: jobs_view.counts(tables.connection, tables.units.counted()))

    def count(self, **which: Unpack[Which]) -> dict[WorkState, int]:
        """How many units there are in each state, forgotten ones included.

        Of those that are chosen as in `list`: how many are kept.
        """
        if which:
            query = arguments.query(**which)
            found = self._read(lambda tables: tables.units.numbers(query))
            return {state: found.get(state, 0) for state in WorkState}
        head = self._read(lambda tables: tables.units.counted())
        return {state: getattr(head, state.value) for state in WorkState}

    def group(self, name: str) -> GroupCounts:
        """How many units of a group are in each state, those included that are no longer kept."""
        name = arguments.group_name(name)

        return self._read(lambda tables: _group(tables, name))

    def groups(self, limit: int = 100) -> dict[str, GroupCounts]:
        """The groups with live units and those that were done last, and how many units each has."""
        most = arguments.rows(limit)
        return self._read(lambda tables: tables.records.latest_groups(most))

    def tally(self) -> dict[str, dict[str, int]]:
        """How many units of each task are `"pending"` and `"running"`."""
        return self._read(lambda tables: tables.units.live_by_task())

    def explain(self, work_id: str) -> Explanation:
        """Explain why a unit is in its state, and until when, as far as no callback decides.

        At most 10,000 units ahead of it are counted.
        """
        work_id = arguments.work_id(work_id)
        return self._read(lambda tables: self._explained(tables, work_id))

    def explain_many(self, ids: Iterable[str]) -> dict[str, Explanation]:
        """Explain each of these units that exists, as if nothing else were queued."""
        wanted = [arguments.work_id(given) for given in ids]
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
        """What a command printed in an attempt (None: the latest), from byte `start` on; empty at the end.

        With a queue in PostgreSQL the output is on the host that ran the command, and is empty everywhere else.
        """
        from runcue.executors.command.printed import ENDINGS, files_folder, read

        work_id, stream = arguments.work_id(work_id), choice(stream, "stream", tuple(ENDINGS))
        if attempt is None:
            work = self.get(work_id)
            attempt = 1 if work is None else work.attempt
        folder = files_folder(self._snapshots.beside)
        number, first = whole(1)(attempt, "attempt"), whole(0, LARGEST)(start, "start")
        return read(folder, work_id, number, stream, first, arguments.rows(limit))

    # what happens -----------------------------------------------------------------------------------------

    def events(
        self,
        types: str | Iterable[str] | None = None,
        since: int = 0,
        *,
        work: str | None = None,
        group: str | None = None,
    ) -> Iterator[Event]:
        """Iterate over the events after number `since`, up to now, of one unit or one group if that is asked for.

        A `gap` stands for those no longer kept.
        """
        return self._events(arguments.events(types, work, group), arguments.event_number(since))

    def _events(self, wanted: EventFilter, since: int) -> Iterator[Event]:
        if wanted.work_id is not None or wanted.group is not None:
            since = max(since, self._read(lambda tables: _before_all_of(tables, wanted)))
        while True:
            passage = self._read(
                lambda tables, after=since: tables.records.events(after, SOME_EVENTS, wanted)  # type: ignore[misc]
            )
            if passage.until <= since:
                return
            since = passage.until
            yield from passage.events

    def last_event(self) -> int:
        """The number of the latest event: `events(since=…)` with it yields what happens from now on."""
        return self._read(lambda tables: tables.records.head()).last_event_seq

    def services(self) -> builtins.list[dict[str, Any]]:
        """Every service: its limits, how much of them is used, and what blocks it."""
        from runcue.core.limits.services import Services
        from runcue.core.views.explain import snapshot  # slow to import: it brings the scheduler

        def look(tables: Tables) -> builtins.list[dict[str, Any]]:
            now, _, changes = self._everything(tables)
            found = Services(lambda service: None)
            for state in changes.services:
                found.declare(state.limits)
                found[state.limits.name].load(state)
            for name, amount in _slots(tables, changes, changes.workers, found.with_parts).items():
                service = found.find(name)
                if service is not None:
                    service.active += amount
            for name in tables.records.started():
                found.find(name)  # makes a key that has no state of its own but its starts
            since = {service.name: now - service.reach for service in found.values() if service.reach}
            for start in tables.records.starts(since):
                found[start.service].recall([start])
                now = max(now, start.at)  # a start may count from a moment in the near future
            shown = [snapshot(found[name], now) for name in sorted(found)]
            for rate in (rate for service in shown for rate in service["rates"]):
                # a start counts from the latest moment at which it may begin, so one too many may count now
                rate["used"] = min(rate["used"], rate["limit"])
            return shown

        return self._read(look)

    def schedules(self) -> builtins.list[ScheduleInfo]:
        """All schedules of the queue, by name, with their next and last units."""
        return [shown(one) for one in self._read(lambda tables: tables.schedules())]

    def paused(self) -> builtins.list[str]:
        """The queues that are paused."""
        return self._read(lambda tables: tables.paused())

    def config(self) -> dict[str, str]:
        """The texts that `set_config` has stored."""
        return self._read(lambda tables: tables.config())

    def now(self) -> float:
        """Queue time, which the `until` of an explanation is compared with."""
        return self._read(lambda tables: self._snapshots.times(tables, tables.records.head())[0])

    def health(self) -> dict[str, Any]:
        """The health of the queue: versions, sizes, and in `problems` what is wrong. Reads all of a file."""
        return self._read(lambda tables: self._snapshots.health(tables, tables.records.head()))

    def workers(self) -> builtins.list[dict[str, Any]]:
        """Every process that the queue lists: its host and pid, whether it lives, what it runs.

        `state` is `"alive"`, `"unresponsive"` (it lives, and gives no sign of life), `"gone"`, or `"unknown"` where
        this user may not look.
        """

        def look(tables: Tables) -> builtins.list[dict[str, Any]]:
            _, _, changes = self._everything(tables)
            lives = self._snapshots.lives(tables, changes.workers, self._lease)
            return [
                _shown(worker, life, _running(tables, worker), _slots(tables, changes, [worker]))
                for worker, life in zip(changes.workers, lives, strict=True)
            ]

        return self._read(look)

    # looking at everything --------------------------------------------------------------------------------

    def _explained(self, tables: Tables, work_id: str) -> Explanation:
        from runcue.core.views.explain import explain

        record = _found(tables, work_id)
        ledger, is_started = self._ledger(tables, [record], _Ahead(tables, record))
        return _reworded(
            explain(ledger, record, ledger.turn.now, ledger.turn.wall, is_started), ledger, record
        )

    def _each_explained(self, tables: Tables, ids: builtins.list[str]) -> dict[str, Explanation]:
        from runcue.core.views.explain import explain_alone

        records = tables.units.some(ids)
        ledger, is_started = self._ledger(tables, records.values(), tables.reader)
        answers = explain_alone(ledger, records.values(), ledger.turn.now, ledger.turn.wall, is_started)
        return {why.work_id: _reworded(why, ledger, records[why.work_id]) for why in answers}

    def _ledger(self, tables: Tables, records: Iterable[Record], reader: TurnReader) -> tuple[Ledger, bool]:
        """A ledger with everything stored that decides about these units, and whether any process starts work."""
        from runcue.core.ledger.ledger import Ledger
        from runcue.core.schedule.takeover import catch_up

        now, wall, changes = self._everything(tables)
        ledger = Ledger(Settings(), _rules(tables, changes, records), "", is_shared=True)
        ledger.begin(now, wall, reader)
        for record in records:
            for name in record.spec.services:  # they may not be stored yet
                ledger.ready.services.declare(Limits(name))
        lives = self._snapshots.lives(tables, changes.workers, self._lease)
        changes.workers = [
            replace(worker, is_serving=worker.is_serving and state != "gone")
            for worker, (state, _) in zip(changes.workers, lives, strict=True)
        ]
        catch_up(ledger, changes)
        ledger.grants.recall_starts()
        return ledger, any(worker.is_serving for worker in changes.workers)

    def _everything(self, tables: Tables) -> tuple[float, float, Changes]:
        """Queue time, the time of day, and everything stored except units."""
        head = tables.records.head()
        now, wall = self._snapshots.times(tables, head)
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
            return self._snapshots.read(look)


class _Ahead:
    """Reads only the part of a queue that could start before one unit."""

    def __init__(self, tables: Tables, record: Record) -> None:
        self._page = tables.records.page
        self._end = (record.rank, record.seq)
        self._left = MOST_AHEAD
        reader = tables.reader
        self.read, self.by_id, self.dependents = reader.read, reader.by_id, reader.dependents
        self.watched, self.next_watch, self.oldest = reader.watched, reader.next_watch, reader.oldest
        self.starts, self.spent, self.groups = reader.starts, reader.spent, reader.groups
        self.unstarted, self.take_back, self.accepted = reader.unstarted, reader.take_back, reader.accepted

    def page(self, index_key: str, after: Key | None, limit: int) -> list[Record]:
        """The next records under an index key, without those behind the unit, and at most `MOST_AHEAD` in all."""
        if index_key.startswith(("running/", "held/")):
            return self._page(index_key, after, limit)
        if self._left <= 0 or index_key_parts(index_key) is None:
            return []
        found = self._page(index_key, after, min(limit, self._left))
        found = [record for record in found if (record.sort_key, record.seq) < self._end]
        self._left -= len(found)
        return found


def _found(tables: Tables, work_id: str) -> Record:
    record = tables.units.one(work_id)
    if record is None:
        raise WorkNotFound(work_id, forgotten=bool(tables.records.forgotten([work_id])))
    return record


def _group(tables: Tables, name: str) -> GroupCounts:
    found = tables.units.groups([name]).get(name)
    if found is None:
        raise GroupNotFound(name, tables.records.group_names(MOST_NAMES))
    return found


def _before_all_of(tables: Tables, wanted: EventFilter) -> int:
    """The number of an event before all of a unit or of a group."""
    at = None if wanted.work_id is None else _found(tables, wanted.work_id).created_at
    if at is None and wanted.group is not None:
        at = _group(tables, wanted.group).created_at
    return 0 if at is None else tables.records.events_before(at)


def _running(tables: Tables, worker: Worker) -> int:
    row: Any = tables.connection.execute(
        "SELECT count(*) FROM work_units WHERE index_key = $1", (f"running/{worker.id}",)
    ).fetchone()
    return int(row[0])


def _slots(
    tables: Tables,
    changes: Changes,
    workers: Iterable[Worker],
    with_parts: Callable[[Iterable[str]], Iterable[str]] = tuple,
) -> dict[str, int]:
    """How many slots of each service these workers take up, with attempts that were given up and still run."""
    found: Counter[str] = Counter()
    for worker in workers:
        running = tables.records.running(worker.id)
        attempts = [(record.spec.task, record.spec.services, record.chosen) for record in running]
        attempts += [(attempt.task, attempt.services, attempt.chosen) for attempt in worker.overdue]
        for task, services, chosen in attempts:
            rule = changes.tasks.get(task)
            names = services if rule is None or rule.services is None else rule.services
            names += () if rule is None else rule.shared
            used = (chosen if chosen is not None and is_pattern(name) else name for name in names)
            found.update({*with_parts(used)})
    return dict(found)


def _shown(worker: Worker, life: Life, running: int, slots: dict[str, int]) -> dict[str, Any]:
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
        "services": slots,
        "silent_for": silent_for,
    }


def _reworded(why: Explanation, ledger: Ledger, record: Record) -> Explanation:
    """Reword an explanation for a process that only reads the queue."""
    queue = record.spec.queue
    if why.reason == "not_started":
        return replace(why, details="no process has the queue open")
    if why.reason == "paused" and why.service is None and queue not in ledger.ready.paused:
        return replace(why, reason="not_started", details=f"no process serves queue {queue!r}")
    return why


def _rules(tables: Tables, changes: Changes, records: Iterable[Record]) -> dict[str, Rule]:
    """The rules of tasks as far as stored units show them: the services that the first unit of each uses."""
    rules: dict[str, Rule] = {}
    for record in records:
        task, uses = record.spec.task, record.spec.services
        is_alike = task not in rules or rules[task].services == uses
        rules[task] = Rule(Retry(), services=uses if is_alike else None)
    lanes = [
        (name, *parts)
        for name, first in changes.index_heads.items()
        if first and (parts := index_key_parts(name))
    ]
    for name, _, task, services in lanes:
        if not services and (found := tables.records.page(name, None, 1)):
            rules[task] = Rule(Retry(), services=found[0].spec.services)
    for _, _, task, services in lanes:
        if services:  # then the units of that task name their services themselves
            rules[task] = Rule(Retry())
    return rules
