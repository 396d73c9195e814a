"""The tables of a queue in a turn: what others changed, and writing what was decided.

What a turn decided is written in a few statements, each for many rows. The first record of each shelf is kept
beside the records, so that whoever catches up reads one row for each shelf that changed and no work at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from runcue.core.model import HISTORY_KEPT, Record, WorkState
from runcue.core.plan import Changes, Key, Plan
from runcue.core.state import Head, Worker
from runcue.stores import codec, journal, states
from runcue.stores.aside import NOTED
from runcue.stores.connection import Connection, Row, Rows
from runcue.stores.pruning import Deleted, purge
from runcue.stores.records import NEXT_WATCH, Records, read_watch

SHELF_UPSERT = (
    "INSERT INTO shelves SELECT ?1, place, seq, ?2 FROM (SELECT 1) AS one LEFT JOIN "
    "(SELECT place, seq FROM work_units WHERE shelf = ?1 ORDER BY place, seq LIMIT 1) AS first ON true WHERE true "
    "ON CONFLICT (name) DO UPDATE SET place = excluded.place, seq = excluded.seq, revision = excluded.revision "
    "RETURNING place, seq"
)
"""Keeps the first record of a shelf, if there is one, and says which it is."""
WORKERS_SINCE = f"{states.WORKER_SELECT} WHERE EXISTS (SELECT 1 FROM workers WHERE revision > ?)"
"""Everybody, if somebody came, went or changed since that revision."""
Questions = tuple[tuple[str, Row], ...]
"""Statements, each with what is bound."""
OLD_ATTEMPTS = (
    "DELETE FROM attempts WHERE work_id = ?1 AND id < "
    "(SELECT id FROM attempts WHERE work_id = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)"
)
"""Deletes all but the newest lines of a history."""
RENEW = "UPDATE work_units SET lease_expires_at = ? WHERE shelf = ? RETURNING 1"
LARGEST = 2**63 - 1
LAST_GRANT = "SELECT coalesce(max(id), 0) FROM service_log"


class Tables(Records):
    """The tables behind one connection, as worker `me` sees them; `is_seen` says whether others see that it lives."""

    def __init__(
        self,
        connection: Connection,
        me: Worker | None = None,
        is_seen: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(connection, may_take=me is not None)
        self._me = me
        self._is_seen = is_seen
        self._seen: int | None = None
        self._last_grant = 0
        self._last_mail = 0
        self._registered: Worker | None = None
        """Ourselves as the others know us; not `_me` when there is something new to tell."""
        self._news: dict[str, Key | None] = {}
        self._turns = self._revision = 0
        self.is_recounted = False
        """True when the counters are others than the last turn believed: the next one is told."""
        self._active: dict[str, int] = {}
        self._registering: Worker | None = None
        self.deleted: list[Deleted] = []
        """What the turn under way deleted, for whoever removes what else there is of it."""
        self.known: Sequence[Worker] = ()
        """The workers that were there when this process last looked."""
        self._answers: list[tuple[str, Rows]] = []
        self._granted: Rows | None = None

    @property
    def peers(self) -> Mapping[str, int]:
        """Those workers, with their pids."""
        return {worker.id: worker.pid for worker in self.known}

    @property
    def seen(self) -> int:
        """The last revision that this process saw."""
        return 0 if self._seen is None else self._seen

    def beside(self, connection: Connection) -> Tables:
        """The same tables through another connection, to look at between turns."""
        tables = Tables(connection)
        tables._aside = self._aside
        return tables

    def serve(self, queues: frozenset[str] | None) -> None:
        """Tell the others with the next turn which queues this process serves. From any thread."""
        if self._me is not None:
            names = None if queues is None else tuple(sorted(queues))
            self._me = replace(self._me, queues=names, is_serving=True)

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

    def changes(self, head: Head) -> Changes | None:
        """What this process has not seen yet; None when there is nothing."""
        if head.revision == self._seen:
            news, self._news = self._news, {}
            is_recounted, self.is_recounted = self.is_recounted, False
            return Changes(head, is_foreign=False, shelves=news) if news or is_recounted else None
        if self._seen is None and self._me is not None:
            head = self._aside.put_back(self.connection, head, self._record)
        changes = Changes(head, is_first=self._seen is None, shelves=self._news)
        shelves, services, workers, paused, last_grant, noted, watch, mail, grants = self._told()
        self._aside.learn(noted)
        for name, place, seq in shelves:
            changes.shelves[name] = None if place is None else (place, seq)
        changes.shelves.update((name, self._first_of(name)) for name in self._aside.shelves)
        changes.services = [states.read_service(row) for row in services]
        changes.grants = [states.read_grant(row) for row in grants]
        self._last_grant = last_grant[0][0]
        found = [states.read_worker(row) for row in workers]
        if found or self._seen is None:
            changes.workers = self.known = found
            if self._me is not None and self._me.id not in self.peers and self._is_seen():
                self._registered = None  # others took this process for dead, and would not do so again
        changes.paused = frozenset(name for (name,) in paused)
        changes.mail = [token for _, token in mail]
        changes.watch_at = read_watch(watch)
        self._last_mail = max((number for number, _ in mail), default=0)
        self._news = {}
        self.is_recounted = False
        return changes

    def _told(self) -> list[list[Any]]:
        """What there is to know of what others did."""
        return self._ask(*self._questions())

    def _questions(self) -> Questions:
        """What a process asks that was away: the same at each time, but for what is bound."""
        seen = -1 if self._seen is None else self._seen
        return (
            ("SELECT name, place, seq FROM shelves WHERE revision > ?", (seen,)),
            (f"{states.SERVICE_SELECT} WHERE services.revision > ?", (seen,)),
            (WORKERS_SINCE, (seen,)),
            ("SELECT name FROM paused_queues", ()),
            (LAST_GRANT, ()),
            (NOTED, ()),
            (NEXT_WATCH, (0.0,)),
            ("SELECT id, token FROM mail WHERE worker = ?", (self._me.id if self._me else "",)),
            (
                f"{states.GRANT_SELECT} WHERE id > ? ORDER BY id",
                (LARGEST if self._seen is None else self._last_grant,),
            ),
        )

    def _ask(self, *questions: tuple[str, Row]) -> list[list[Any]]:
        """The rows that each of these statements finds."""
        return [self._execute(statement, bindings).fetchall() for statement, bindings in questions]

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
            many("INSERT INTO dependencies VALUES (?, ?) ON CONFLICT DO NOTHING",
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
            self._granted = self._execute(LAST_GRANT)
        for name, is_paused in plan.queues.items():
            statement = "INSERT INTO paused_queues VALUES (?) ON CONFLICT DO NOTHING"
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
        many, revived, rewritten, newest = (
            self.connection.executemany,
            plan.revived,
            plan.rewritten,
            before.seq,
        )
        plain, fresh, started, finished, others = [], [], [], [], []
        for record in plan.records.values():
            if record.seq > newest and (record.id not in revived or not self._has(record.id)):
                lease = lease_until if record.token else None
                if codec.is_plain(record):
                    plain.append(codec.plain_row(record, now, lease))
                else:
                    fresh.append(codec.insert_row(record, now, lease))
                    if record.history:
                        many(codec.ATTEMPT_INSERT, codec.attempt_rows(record))
            elif record.id in rewritten or record.skipped:
                others.append(record)
            elif record.state is WorkState.RUNNING:
                started.append(codec.start_row(record, now, lease_until))
            elif record.state is WorkState.COMPLETED:
                finished.append(codec.finish_row(record, now))
            else:
                others.append(record)
        if plain:
            many(codec.INSERT_PLAIN, plain)
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
        if len(rows) >= HISTORY_KEPT:
            self._execute(OLD_ATTEMPTS, (record.id, HISTORY_KEPT - 1))

    def _write_workers(self, plan: Plan, revision: int) -> None:
        if self._me is None:
            return
        me, active = self._me, self._active if plan.active is None else plan.active
        if self._registered is not me or (plan.active is not None and self._is_seen()):
            self._execute(states.WORKER_UPSERT, states.worker_row(replace(me, active=active), revision))
        elif plan.active is not None:  # who cannot be seen to live is not there again because of that
            self._execute(states.ACTIVE_UPDATE, states.active_row(me.id, active, revision))
        self._registering = me
        for worker in plan.lost:
            self._execute("DELETE FROM workers WHERE id = ?", (worker,))
            self._execute("DELETE FROM mail WHERE worker = ?", (worker,))
            # one of the others has to change, or nobody would look at the workers again
            self._execute("UPDATE workers SET revision = ? WHERE id = ?", (revision, self._me.id))
        if self._last_mail:
            self._execute("DELETE FROM mail WHERE worker = ? AND id <= ?", (self._me.id, self._last_mail))

    def _write_shelves(self, plan: Plan, revision: int) -> None:
        names = plan.shelves | {name for name in self._aside.shelves if not name.startswith("running/")}
        self._answers = [(name, self._execute(SHELF_UPSERT, (name, revision))) for name in names]

    def ask_again(self) -> None:
        """The commit stands, but what the database said to it was lost: look at what there is.

        Up to which grant it was read is not known then. This process will take its own last ones for those of
        another, and count them twice, which exceeds nothing.
        """
        answers, self._answers, self._granted = self._answers, [], None
        self._news |= {name: self._first_of(name) for name, _ in answers}

    def read_answers(self) -> None:
        """Read what the database said to what was written: before the commit or, where that is possible, after."""
        answers, self._answers = self._answers, []
        for name, rows in answers:
            place, seq = rows.fetchall()[0]
            self._news[name] = None if place is None else (place, seq)
        granted, self._granted = self._granted, None
        if granted is not None:
            self._last_grant = granted.fetchall()[0][0]

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
            self.known = [worker for worker in self.known if worker.id not in plan.lost]

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

    def renew_leases(self, until: float) -> int:
        """What this worker runs is its own until then. How much that is."""
        rows = self._execute(RENEW, (until, f"running/{self._me.id if self._me else ''}"))
        return len(rows.fetchall())

    def forget(self) -> None:
        """The turn was not committed: everything has to be read anew."""
        self._seen = None
        self._answers, self._granted = [], None
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
