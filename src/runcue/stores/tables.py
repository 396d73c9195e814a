"""Reading and writing the tables of a queue file, inside a turn or between turns.

What a turn decided is written in a few statements, each for many rows. The first record of each shelf is kept
beside the records, so that whoever catches up reads one row for each shelf that changed and no work at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import apsw
from msgspec.structs import replace

from runcue.core.events import Event
from runcue.core.model import HISTORY_KEPT, Record, WorkState
from runcue.core.plan import Changes, Found, Key, Lacks, Plan
from runcue.core.query import Query, by_task
from runcue.core.state import Head, Worker
from runcue.errors import StorageCorrupt
from runcue.stores import codec, finding, journal, states
from runcue.stores.aside import Aside
from runcue.stores.pruning import Deleted, purge

Row = tuple[Any, ...]
BEFORE_ALL: Key = (float("-inf"), 0)
SHELF_UPSERT = (
    "INSERT INTO shelves VALUES (?, ?, ?, ?) "
    "ON CONFLICT (name) DO UPDATE SET place = excluded.place, seq = excluded.seq, revision = excluded.revision"
)
OLDEST = (
    f"{codec.SELECT} INDEXED BY work_units_pending WHERE seq > ? AND state = 'pending' ORDER BY seq LIMIT ?"
)
WATCHED = (
    f"{codec.SELECT} WHERE watch_at BETWEEN ?1 AND ?3 AND (watch_at > ?1 OR seq > ?2) "
    "ORDER BY watch_at, seq LIMIT ?4"
)
MANY = 500
"""How many ids are asked for in one statement."""


class Tables:
    """The tables behind one connection, as worker `me` sees them; `is_seen` says whether others see that it lives."""

    def __init__(
        self,
        connection: apsw.Connection,
        me: Worker | None = None,
        is_seen: Callable[[], bool] = lambda: True,
    ) -> None:
        self.use(connection)
        self._me = me
        self._is_seen = is_seen
        self._seen: int | None = None
        self._last_grant = 0
        self._last_mail = 0
        self._registered: Worker | None = None
        """Ourselves as the others know us; not `_me` when there is something new to tell."""
        self._news: dict[str, Key | None] = {}
        self._turns = self._revision = 0
        self._aside = Aside()
        self.is_recounted = False
        """True when the counters are others than the last turn believed: the next one is told."""
        self._active: dict[str, int] = {}
        self._registering: Worker | None = None
        self.deleted: list[Deleted] = []
        """What the turn under way deleted, for whoever removes what else there is of it."""
        self.peers: Mapping[str, int] = {}
        """The workers that were there when this process last looked, with their pids."""

    def use(self, connection: apsw.Connection) -> None:
        """Go on with another connection to the same file."""
        self.connection = connection
        self._execute = connection.execute

    def beside(self, connection: apsw.Connection) -> Tables:
        """The same tables through another connection, to look at between turns."""
        tables = Tables(connection)
        tables._aside = self._aside
        return tables

    def serve(self, queues: frozenset[str] | None) -> None:
        """Tell the others with the next turn which queues this process serves. From any thread."""
        if self._me is not None:
            names = None if queues is None else tuple(sorted(queues))
            self._me = replace(self._me, queues=names, is_serving=True)

    # records ----------------------------------------------------------------------------------------------

    def records(self, where: str, bindings: Row = ()) -> list[Record]:
        """The records that a condition finds, but for those that are damaged."""
        return list(self._sound(self._execute(f"{codec.SELECT} WHERE {where}", bindings).fetchall()))

    def _sound(self, rows: Iterable[Row]) -> Iterator[Record]:
        for row in rows:
            try:
                yield self._record(row)
            except StorageCorrupt as error:
                self._aside.name(row, error)
                if self._me is not None and self.connection.in_transaction:
                    self._aside.take(self.connection, row)

    def _filled(
        self, fetch: Callable[[Key, int], Iterable[Row]], column: str, after: Key, limit: int
    ) -> list[Record]:
        """As many records as wanted if there are so many, whatever has to be left out among them."""
        found: list[Record] = []
        while limit > len(found):
            asked = limit - len(found)
            rows = list(fetch(after, asked))
            found += self._sound(rows)
            if len(rows) < asked:
                break
            after = (rows[-1][codec.COLUMNS.index(column)], rows[-1][1])
        return found

    def _record(self, row: Row) -> Record:
        if not row[-1] or type(row[-1]) is not int:
            return codec.read_row(row)
        lines = self._execute(codec.ATTEMPT_SELECT, (row[0], row[-1]))
        return codec.read_row(row, codec.read_attempts(row[0], lines))

    def one(self, work_id: str) -> Record | None:
        """That work; raises when it is damaged."""
        row: Any = self._execute(f"{codec.SELECT} WHERE id = ?", (work_id,)).fetchone()
        return None if row is None else self._record(row)

    def by_id(self, ids: Iterable[str]) -> dict[str, Record]:
        """Those of these works that there are, but for those that are damaged."""
        wanted = list(ids)
        found: dict[str, Record] = {}
        for start in range(0, len(wanted), MANY):
            some = tuple(wanted[start : start + MANY])
            for record in self.records(f"id IN ({','.join('?' * len(some))})", some):
                found[record.id] = record
        return found

    def forgotten(self, ids: Iterable[str]) -> dict[str, WorkState]:
        """How those of these works ended that are no longer kept, as far as that matters."""
        wanted = list(ids)
        found: dict[str, WorkState] = {}
        for start in range(0, len(wanted), MANY):
            some = tuple(wanted[start : start + MANY])
            rows = self._execute(
                f"SELECT id, state FROM forgotten WHERE id IN ({','.join('?' * len(some))})", some
            )
            found.update((name, codec.read_state(name, state)) for name, state in rows)
        return found

    def read(self, lacks: Lacks) -> Found:
        """The stored records a decision names."""
        found = Found(records=self.by_id(lacks.ids))
        found.forgotten = self.forgotten(lacks.ids - found.records.keys())
        found.keys = self._owners(lacks.keys)
        for need in lacks.dependents_of:
            found.dependents[need] = self.records(
                "id IN (SELECT work_id FROM dependencies WHERE needs = ?) ORDER BY seq", (need,)
            )
        return found

    def _owners(self, keys: Iterable[str]) -> dict[str, Record]:
        """The newest work of each of these keys, if there is one."""
        wanted = list(keys)
        found: dict[str, Record] = {}
        for start in range(0, len(wanted), MANY):
            some = tuple(wanted[start : start + MANY])
            where = f"idempotency_key IN ({','.join('?' * len(some))}) ORDER BY seq"
            found.update((str(one.spec.idempotency_key), one) for one in self.records(where, some))
        return found

    def page(self, shelf: str, after: Key | None, limit: int) -> list[Record]:
        """The next records of a shelf."""

        def fetch(after: Key, amount: int) -> Iterable[Row]:
            return self._execute(codec.SELECT_PAGE, (shelf, *after, amount))

        return self._filled(fetch, "place", after or BEFORE_ALL, limit)

    def dependents(self, work_id: str) -> list[str]:
        """The ids of everybody who ever depended on that work, in the order they came."""
        found = self._execute(
            "SELECT work_id FROM dependencies JOIN work_units ON id = work_id WHERE needs = ? ORDER BY seq",
            (work_id,),
        )
        return [name for (name,) in found]

    def watched(self, until: float, limit: int, after: Key | None = None) -> list[Record]:
        """Records that somebody has to look at by then, most urgent first; the next after (time, number)."""

        def fetch(after: Key, amount: int) -> Iterable[Row]:
            return self._execute(WATCHED, (*after, until, amount))

        return self._filled(fetch, "watch_at", after or BEFORE_ALL, limit)

    def next_watch(self, after: float) -> float:
        """When somebody has to look at a record after that moment; infinity when there is none."""
        row = self._execute("SELECT min(watch_at) FROM work_units WHERE watch_at > ?", (after,)).fetchone()
        at: Any = None if row is None else row[0]
        return float("inf") if at is None else float(at)

    def oldest(self, after: int, limit: int) -> list[Record]:
        """The pending records that came first, after that number."""

        def fetch(after: Key, amount: int) -> Iterable[Row]:
            return self._execute(OLDEST, (after[1], amount))

        return self._filled(fetch, "seq", (0.0, after), limit)

    def find(self, query: Query) -> list[Record]:
        """The records that are asked for, newest first; a text is searched among the newest only."""
        rows = self._execute(*finding.statement(query))
        found = list(islice(self._sound(rows), query.limit))
        rows.close()
        return found

    def tally(self) -> dict[str, dict[str, int]]:
        """How many works of each task are pending and running."""
        rows: Any = self._execute(finding.TALLY)
        return by_task(rows)

    def events(self, after: int, limit: int) -> list[Event]:
        """Events after that number, in order: whole turns, at least `limit` events if there are so many.

        For those that are no longer kept there is one that says how many are missed.
        """
        head = self.head()
        after = max(0, after)
        if after >= head.told:
            return []
        first: Any = self._execute("SELECT first_seq, at FROM events ORDER BY first_seq LIMIT 1").fetchone()
        start, at = first or (head.told + 1, head.now)
        found: list[Event] = []
        if start > after + 1:
            found.append(Event("gap", start - 1, at, data={"missed": start - 1 - after}))
            after = start - 1
        rows = self._execute(
            "SELECT body, first_seq, at FROM events WHERE first_seq + amount > ? AND first_seq > "
            "coalesce((SELECT max(first_seq) FROM events WHERE first_seq <= ?), 0) - 1 ORDER BY first_seq",
            (after + 1, after + 1),
        )
        for body, first_seq, at in rows:
            found += [
                event for event in journal.unpack(body, first_seq, at, self._result_of) if event.seq > after
            ]
            if len(found) >= limit:
                rows.close()
                break
        return found

    def _result_of(self, work_id: str) -> Any:
        record = self.by_id([work_id]).get(work_id)
        return None if record is None else record.result

    # what others changed ----------------------------------------------------------------------------------

    def config(self) -> dict[str, str]:
        """What the application keeps with its queue, but for what is no text."""
        rows = self._execute(
            "SELECT key, value FROM config WHERE typeof(key) = 'text' AND typeof(value) = 'text'"
        )
        return {str(key): str(value) for key, value in rows}

    def paused(self) -> list[str]:
        """The queues that are held back."""
        return [str(name) for (name,) in self._execute("SELECT name FROM paused_queues ORDER BY name")]

    def head(self) -> Head:
        """The counters."""
        return states.read_head(self._one(states.HEAD_SELECT))

    def changes(self, head: Head, oldest_grant: float) -> Changes | None:
        """What this process has not seen yet; None when there is nothing."""
        if head.revision == self._seen:
            news, self._news = self._news, {}
            is_recounted, self.is_recounted = self.is_recounted, False
            return Changes(head, is_foreign=False, shelves=news) if news or is_recounted else None
        seen = -1 if self._seen is None else self._seen
        if self._seen is None and self._me is not None:
            head = self._aside.put_back(self.connection, head, self._record)
        changes = Changes(head, is_first=self._seen is None, shelves=self._news)
        for name, place, seq in self._execute(
            "SELECT name, place, seq FROM shelves WHERE revision > ?", (seen,)
        ):
            changes.shelves[name] = None if place is None else (place, seq)
        changes.shelves.update((name, self._first_of(name)) for name in self._aside.shelves)
        services = self._execute(f"{states.SERVICE_SELECT} WHERE services.revision > ?", (seen,))
        changes.services = [states.read_service(row) for row in services]
        longest = max((service.limits.longest for service in changes.services), default=0.0)
        oldest = min(oldest_grant, head.now - longest) if changes.is_first else float("-inf")
        grants = self._execute(
            f"{states.GRANT_SELECT} WHERE id > ? AND started_at > ? ORDER BY id", (self._last_grant, oldest)
        )
        changes.grants = [states.read_grant(row) for row in grants]
        self._last_grant = self._one("SELECT coalesce(max(id), 0) FROM service_log")[0]
        if self._one("SELECT count(*) FROM workers WHERE revision > ?", (seen,))[0] or self._seen is None:
            changes.workers = self.workers()
            self.peers = {worker.id: worker.pid for worker in changes.workers}
            if self._me is not None and self._me.id not in self.peers and self._is_seen():
                self._registered = None  # others took this process for dead, and would not do so again
        changes.paused = frozenset(name for (name,) in self._execute("SELECT name FROM paused_queues"))
        if self._me is not None:
            mail: list[Any] = self._execute(
                "SELECT id, token FROM mail WHERE worker = ?", (self._me.id,)
            ).fetchall()
            changes.mail = [token for _, token in mail]
            self._last_mail = max((number for number, _ in mail), default=0)
        self._news = {}
        self.is_recounted = False
        return changes

    def workers(self) -> list[Worker]:
        """Everybody who has the queue open, the dead included until they are noticed."""
        return [states.read_worker(row) for row in self._execute(states.WORKER_SELECT)]

    # what a turn decided ----------------------------------------------------------------------------------

    def write(self, plan: Plan, before: Head, now: float, lease: float) -> None:
        """Everything a turn decided."""
        revision = before.revision + 1
        if plan.purged:  # their ids may belong to new work
            self.deleted = purge(self.connection, plan.purged)
        self._write_records(plan, before, now, now + lease)
        many = self.connection.executemany
        if plan.dependent:
            many("INSERT OR IGNORE INTO dependencies VALUES (?, ?)",
                 [(need, record.id) for record in plan.dependent for need in record.spec.depends_on])  # fmt: skip
        if plan.services:
            many(
                states.SERVICE_UPSERT,
                [states.service_row(state, revision) for state in plan.services.values()],
            )
            for state in plan.services.values():
                row = states.circuit_row(state, revision)
                if row is None:
                    self._execute(states.CIRCUIT_DELETE, (state.limits.name,))
                else:
                    self._execute(states.CIRCUIT_UPSERT, row)
        if plan.grants:
            many(states.GRANT_INSERT, map(states.grant_row, plan.grants))
            self._last_grant = self.connection.last_insert_rowid()
        for name, is_paused in plan.queues.items():
            statement = "INSERT OR IGNORE INTO paused_queues VALUES (?)"
            self._execute(statement if is_paused else "DELETE FROM paused_queues WHERE name = ?", (name,))
        self._write_workers(plan, revision)
        for key, value in plan.config.items():
            self._execute("DELETE FROM config WHERE key = ?", (key,))
            if value is not None:
                self._execute("INSERT INTO config VALUES (?, ?)", (key, value))
        if plan.mail:
            many("INSERT INTO mail (worker, token) VALUES (?, ?)", plan.mail)
        if plan.events:
            body = journal.pack(plan.events)
            self._execute("INSERT INTO events VALUES (?, ?, ?, ?, ?)",
                          (revision, now, before.told + 1, len(plan.events), body))  # fmt: skip
        self._write_shelves(plan, revision)
        self._turns += 1
        head = self._aside.counted(self.connection, plan.head, plan.records.values())
        self.is_recounted = head is not plan.head
        head = replace(head, revision=revision, told=before.told + len(plan.events), now=now)
        self._execute(states.HEAD_UPDATE, states.head_row(head, self.turn))
        self._revision = revision

    @property
    def turn(self) -> str:
        """Names the last turn that this process wrote."""
        return f"{self._me.id if self._me else ''} {self._turns}"

    def _write_records(self, plan: Plan, before: Head, now: float, lease_until: float) -> None:
        fresh, started, finished, others = [], [], [], []
        for record in plan.records.values():
            if record.seq > before.seq and (record.id not in plan.revived or not self._has(record.id)):
                fresh.append(codec.insert_row(record, now, lease_until if record.token else None))
                if record.history:
                    self.connection.executemany(codec.ATTEMPT_INSERT, codec.attempt_rows(record))
            elif record.id in plan.rewritten or record.skipped:
                others.append(record)
            elif record.state is WorkState.RUNNING:
                started.append(codec.start_row(record, now, lease_until))
            elif record.state is WorkState.COMPLETED:
                finished.append(codec.finish_row(record, now))
            else:
                others.append(record)
        many = self.connection.executemany
        if fresh:
            many(codec.INSERT, fresh)
        if started:
            many(codec.START, started)
        if finished:
            many(codec.FINISH, finished)
        if others:
            for record in others:
                if record.history:
                    self._write_history(record)
            many(
                codec.UPDATE,
                [codec.update_row(one, now, lease_until if one.token else None) for one in others],
            )

    def _has(self, work_id: str) -> bool:
        return self._execute("SELECT 1 FROM work_units WHERE id = ?", (work_id,)).fetchone() is not None

    def _write_history(self, record: Record) -> None:
        """The lines of the history that are not there yet."""
        stored = self._one("SELECT history FROM work_units WHERE id = ?", (record.id,))[0]
        rows = codec.attempt_rows(record)
        if stored >= HISTORY_KEPT:  # its oldest lines are dropped from now on: go by the newest that is there
            newest = self._one(
                "SELECT number, at FROM attempts WHERE work_id = ? ORDER BY id DESC LIMIT 1", (record.id,)
            )
            places = [place for place, row in enumerate(rows, 1) if row[1:3] == newest]
            stored = max(places, default=0)
        self.connection.executemany(codec.ATTEMPT_INSERT, rows[stored:])

    def _write_workers(self, plan: Plan, revision: int) -> None:
        if self._me is None:
            return
        me, active = self._me, self._active if plan.active is None else plan.active
        is_known = self._registered is me
        if is_known and plan.active is not None:
            self._execute(states.ACTIVE_UPDATE, states.active_row(me.id, active, revision))
            is_known = self.connection.changes() == 1 or not self._is_seen()
        if not is_known:
            self._execute(states.WORKER_UPSERT, states.worker_row(replace(me, active=active), revision))
        self._registering = me
        for worker in plan.lost:
            self._execute("DELETE FROM workers WHERE id = ?", (worker,))
            self._execute("DELETE FROM mail WHERE worker = ?", (worker,))
            # one of the others has to change, or nobody would look at the workers again
            self._execute("UPDATE workers SET revision = ? WHERE id = ?", (revision, self._me.id))
        if self._last_mail:
            self._execute("DELETE FROM mail WHERE worker = ? AND id <= ?", (self._me.id, self._last_mail))

    def _write_shelves(self, plan: Plan, revision: int) -> None:
        news: dict[str, Key | None] = {}
        for name in plan.shelves | {name for name in self._aside.shelves if not name.startswith("running/")}:
            news[name] = first = self._first_of(name)
            self._execute(SHELF_UPSERT, (name, *(first or (None, None)), revision))
        self._news = news

    def _first_of(self, shelf: str) -> Key | None:
        row: Any = self._execute(
            "SELECT place, seq FROM work_units WHERE shelf = ? ORDER BY place, seq LIMIT 1", (shelf,)
        ).fetchone()
        return None if row is None else (row[0], row[1])

    def written(self, plan: Plan) -> None:
        """The turn was committed."""
        self._seen = self._revision
        self._registered = self._registering
        self._last_mail = 0
        self._aside.done()
        if plan.active is not None:
            self._active = plan.active
        if plan.lost:
            self.peers = {name: pid for name, pid in self.peers.items() if name not in plan.lost}

    def read_only(self, head: Head) -> None:
        """The turn wrote nothing."""
        self._seen = head.revision

    def sign_off(self) -> None:
        """This worker leaves. What it may still have running is taken over as from a dead one."""
        if self._me is not None and self._registered is not None:
            self._execute(
                "DELETE FROM workers WHERE id = ?1 "
                "AND NOT EXISTS (SELECT 1 FROM work_units WHERE shelf IN ('running/' || ?1, 'held/' || ?1))",
                (self._me.id,),
            )

    def forget(self) -> None:
        """The turn was not committed: everything has to be read anew."""
        self._seen = None
        self._last_grant = self._last_mail = 0
        self._news = {}
        self.is_recounted = False
        self._aside.done()

    @property
    def must_write(self) -> bool:
        """True when there is something to write, whatever the turn decides."""
        return self._me is not None and (
            self._registered is not self._me or bool(self._last_mail) or bool(self._aside.shelves)
        )

    def _one(self, statement: str, bindings: tuple[Any, ...] = ()) -> tuple[Any, ...]:
        row: Any = self._execute(statement, bindings).fetchone()
        assert isinstance(row, tuple)
        return row
