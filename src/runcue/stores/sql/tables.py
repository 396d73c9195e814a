"""The tables of a queue in a turn: how everything stands, and writing what was decided.

What a turn decided is written in a few statements, each for many rows. The first record of each shelf is kept
beside the records, so that whoever takes over reads one row for each shelf and no work at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from runcue.core.model.record import HISTORY_KEPT, Record, WorkState
from runcue.core.model.settings import Rule
from runcue.core.model.state import Head
from runcue.core.schedule.plan import Changes, Key, Lost, Plan
from runcue.ports import Outgoing
from runcue.stores.sql import codec, journal, states, wire
from runcue.stores.sql.connection import Connection, Row, Rows
from runcue.stores.sql.mailbox import Mailbox
from runcue.stores.sql.pruning import Deleted, purge
from runcue.stores.sql.records import NEXT_WATCH, read_watch

SHELF_UPSERT = (
    "INSERT INTO shelves SELECT ?1, place, seq, ?2 FROM (SELECT 1) AS one LEFT JOIN "
    "(SELECT place, seq FROM work_units WHERE shelf = ?1 ORDER BY place, seq LIMIT 1) AS first ON true WHERE true "
    "ON CONFLICT (name) DO UPDATE SET place = excluded.place, seq = excluded.seq, revision = excluded.revision "
    "RETURNING place, seq"
)
"""Keeps the first record of a shelf, if there is one, and says which it is."""
EVERYTHING: tuple[tuple[str, Row], ...] = (
    ("SELECT name, place, seq FROM shelves", ()),
    (states.SERVICE_SELECT, ()),
    (states.WORKER_SELECT, ()),
    ("SELECT name, rule FROM tasks", ()),
    ("SELECT name FROM paused_queues", ()),
    (NEXT_WATCH, (0.0,)),
)
"""What a process asks that has not decided last: statements, each with what is bound."""
OLD_ATTEMPTS = (
    "DELETE FROM attempts WHERE work_id = ?1 AND id < "
    "(SELECT id FROM attempts WHERE work_id = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)"
)
"""Deletes all but the newest lines of a history."""
RENEW = "UPDATE work_units SET lease_expires_at = ? WHERE shelf = ? RETURNING 1"
TASK_UPSERT = codec.upsert_into("tasks", ("name", "rule"))
FLEET = "UPDATE head SET fleet = fleet + 1"


class Tables(Mailbox):
    """The tables behind one connection, as the process `worker` sees them ("" for who only looks)."""

    def __init__(self, connection: Connection, worker: str = "") -> None:
        super().__init__(connection, worker)
        self._seen: int | None = None
        self._news: dict[str, Key | None] = {}
        self._turns = self._revision = 0
        self.is_recounted = False
        """True when the counters are others than the last turn believed: the next one is told."""
        self.deleted: list[Deleted] = []
        """What the turn under way deleted, for whoever removes what else there is of it."""
        self._answers: list[tuple[str, Rows]] = []

    @property
    def peers(self) -> Mapping[str, int]:
        """The workers that were there when this process last looked, with their pids."""
        return {worker.id: worker.pid for worker in self.known}

    @property
    def seen(self) -> int:
        """The last revision that this process saw."""
        return max(self._seen or 0, self._glimpsed)

    def beside(self, connection: Connection) -> Tables:
        """The same tables through another connection, to look at between turns."""
        tables = Tables(connection)
        tables._aside = self._aside
        return tables

    # how everything stands --------------------------------------------------------------------------------

    def config(self) -> dict[str, str]:
        """What the application keeps with its queue, but for what is no text."""
        rows = self._execute(
            "SELECT key, value FROM config WHERE typeof(key) = 'text' AND typeof(value) = 'text'"
        )
        return {str(key): str(value) for key, value in rows}

    def paused(self) -> list[str]:
        """The queues that are held back."""
        return [str(name) for (name,) in self._execute("SELECT name FROM paused_queues ORDER BY name")]

    def tasks(self) -> dict[str, Rule]:
        """The rules of all tasks that were declared."""
        return {
            name: wire.read_rule(name, rule) for name, rule in self._execute("SELECT name, rule FROM tasks")
        }

    def goes_on(self, head: Head) -> bool:
        """True for the process that took the last turn."""
        return head.revision == self._seen and head.decider == self._worker

    def changes(self, head: Head) -> Changes | None:
        """What the process that goes on does not know: what the database said to its last turn."""
        news, self._news = self._news, {}
        is_recounted, self.is_recounted = self.is_recounted, False
        return Changes(head, shelves=news) if news or is_recounted else None

    def take_over(self, head: Head) -> Changes:
        """Everything, for a process that decides and has not decided last."""
        self._unheard = False  # core puts back what it finds that was not begun
        changes = self.everything(self._aside.put_back(self.connection, head, self._record))
        changes.shelves.update((name, self._first_of(name)) for name in self._aside.shelves)
        self.known = changes.workers
        self._fleet = None
        self._news = {}
        self.is_recounted = False
        return changes

    def everything(self, head: Head) -> Changes:
        """How everything stands, but for the works."""
        shelves, services, workers, tasks, paused, watch = self._ask(*EVERYTHING)
        return Changes(
            head,
            is_first=True,
            shelves={name: None if place is None else (place, seq) for name, place, seq in shelves},
            services=[states.read_service(row) for row in services],
            workers=[states.read_worker(row) for row in workers],
            tasks={name: wire.read_rule(name, rule) for name, rule in tasks},
            paused=frozenset(name for (name,) in paused),
            watch_at=read_watch(watch),
        )

    def _ask(self, *questions: tuple[str, Row]) -> list[list[Any]]:
        """The rows that each of these statements finds."""
        return [self._execute(statement, bindings).fetchall() for statement, bindings in questions]

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
        for name, is_paused in plan.queues.items():
            statement = "INSERT INTO paused_queues VALUES (?) ON CONFLICT DO NOTHING"
            self._execute(statement if is_paused else "DELETE FROM paused_queues WHERE name = ?", (name,))
        if plan.workers or plan.lost:
            self._write_workers(plan)
        if plan.tasks:
            many(TASK_UPSERT, [(name, wire.rule_text(rule)) for name, rule in plan.tasks.items()])
        for key, value in plan.config.items():
            self._execute("DELETE FROM config WHERE key = ?", (key,))
            if value is not None:
                self._execute("INSERT INTO config VALUES (?, ?)", (key, value))
        if self._taken:
            self._delete_posts()
        if plan.parts:
            self._write_letters(plan.parts)
        if plan.events:
            body = journal.pack(plan.events)
            self._execute("INSERT INTO events VALUES (?, ?, ?, ?, ?)",
                          (revision, now, before.told + 1, len(plan.events), body))  # fmt: skip
        self._write_shelves(plan, revision)
        self._turns += 1
        head = self._aside.counted(self.connection, plan.head, plan.records.values())
        self.is_recounted = head is not plan.head
        head = replace(
            head,
            revision=revision,
            told=before.told + len(plan.events),
            now=now,
            decider=plan.head.decider or self._worker,
            wake_at=self._wakes_at(plan),
        )
        self._execute(states.HEAD_UPDATE, states.head_row(head, self.turn))
        self._revision = revision

    def _wakes_at(self, plan: Plan) -> float | None:
        """When there is something to decide by the passing of time alone. A turn for a question does not look."""
        if math.isfinite(plan.wake_at):
            return plan.wake_at
        return None if plan.is_whole else plan.head.wake_at

    @property
    def turn(self) -> str:
        """Names the last turn that this process wrote."""
        return f"{self._worker} {self._turns}"

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

    def _write_workers(self, plan: Plan) -> None:
        self.connection.executemany(states.WORKER_UPSERT, map(states.worker_row, plan.workers.values()))
        for worker in plan.lost:
            self._execute("DELETE FROM workers WHERE id = ?", (worker,))
            self._execute("DELETE FROM letters WHERE worker = ?", (worker,))
        self._execute(FLEET)

    def _write_shelves(self, plan: Plan, revision: int) -> None:
        names = plan.shelves | {name for name in self._aside.shelves if not name.startswith("running/")}
        self._answers = [(name, self._execute(SHELF_UPSERT, (name, revision))) for name in names]

    def ask_again(self) -> None:
        """The commit stands, but what the database said to it was lost: look at what there is."""
        answers, self._answers = self._answers, []
        self._news |= {name: self._first_of(name) for name, _ in answers}

    def read_answers(self) -> None:
        """Read what the database said to what was written: before the commit or, where that is possible, after."""
        answers, self._answers = self._answers, []
        for name, rows in answers:
            place, seq = rows.fetchall()[0]
            self._news[name] = None if place is None else (place, seq)

    def _first_of(self, shelf: str) -> Key | None:
        row: Any = self._execute(
            "SELECT place, seq FROM work_units WHERE shelf = ? ORDER BY place, seq LIMIT 1", (shelf,)
        ).fetchone()
        return None if row is None else (row[0], row[1])

    def written(self, plan: Plan) -> None:
        """The turn was committed."""
        self._seen = self._revision
        self._turn_over()
        if plan.workers or plan.lost:
            workers = {worker.id: worker for worker in self.known} | plan.workers
            self.known = [worker for worker in workers.values() if worker.id not in plan.lost]

    def read_only(self, head: Head) -> None:
        """The turn wrote nothing."""
        self._seen = head.revision
        self._turn_over()

    def _turn_over(self) -> None:
        self._version = self._version_now
        self._taken = []
        self._aside.done()

    def sign_off(self, at: float) -> None:
        """This worker leaves, and whoever decides is told. What it may still have running is taken over as from a
        dead one."""
        gone = self._execute(
            "DELETE FROM workers WHERE id = ?1 "
            "AND NOT EXISTS (SELECT 1 FROM work_units WHERE shelf IN ('running/' || ?1, 'held/' || ?1)) RETURNING 1",
            (self._worker,),
        ).fetchall()
        self._execute("UPDATE head SET decider = NULL WHERE decider = ?", (self._worker,))
        if gone:
            self._execute(FLEET)
            if self.head().decider is not None:
                self.put(Outgoing(0, [Lost(self._worker)]), at)

    def renew_leases(self, until: float) -> int:
        """What this worker runs is its own until then. How much that is."""
        return len(self._execute(RENEW, (until, f"running/{self._worker}")).fetchall())

    def forget(self) -> None:
        """The turn was not committed: everything has to be read anew."""
        self._unheard = True
        self._seen = self._version = None
        self._answers = []
        self._news = {}
        self._taken = []
        self.is_recounted = False
        self._aside.done()

    @property
    def must_write(self) -> bool:
        """True when there is something to write, whatever the turn decides."""
        return bool(self._taken or self._claimed or self._has_taken_back or self._aside.shelves)
