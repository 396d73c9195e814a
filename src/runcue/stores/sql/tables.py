"""The tables of a queue in a turn: reads how everything stands, and writes what was decided.

A turn is written in a few statements, each for many rows. The first record of each shelf is stored beside the
records, so that a process that takes over reads one row for each shelf and no units at all.
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
from runcue.stores.sql import codec, journal, statements, states, wire
from runcue.stores.sql.connection import Connection, Rows
from runcue.stores.sql.mailbox import Mailbox
from runcue.stores.sql.pruning import Deleted, purge
from runcue.stores.sql.records import read_watch
from runcue.stores.sql.statements import Dialect


class Tables(Mailbox):
    """The tables behind one connection, for the process `worker` ("" for one that only reads)."""

    def __init__(self, connection: Connection, dialect: Dialect, worker: str = "") -> None:
        super().__init__(connection, dialect, worker)
        self._seen: int | None = None
        self._news: dict[str, Key | None] = {}
        self._turns = self._revision = 0
        self.is_recounted = False
        """True when the last turn wrote other counters than it had planned: the next turn has to be given them."""
        self.deleted: list[Deleted] = []
        """The units that this turn deleted, whose files have to be deleted, too."""
        self._answers: list[tuple[str, Rows]] = []

    @property
    def peers(self) -> Mapping[str, int]:
        """The workers that this process last read, with their pids."""
        return {worker.id: worker.pid for worker in self.known}

    @property
    def seen(self) -> int:
        """The last revision that this process has read."""
        return max(self._seen or 0, self._glimpsed)

    def beside(self, connection: Connection) -> Tables:
        """The tables through another connection, to be read between turns."""
        tables = Tables(connection, self._dialect)
        tables._quarantine = self._quarantine
        return tables

    # how everything stands --------------------------------------------------------------------------------

    def config(self) -> dict[str, str]:
        """The application's own settings, but for values that are no text."""
        rows = self._execute(self._dialect.config)
        return {str(key): str(value) for key, value in rows}

    def paused(self) -> list[str]:
        """The queues that are paused."""
        return [str(name) for (name,) in self._execute(statements.PAUSED)]

    def tasks(self) -> dict[str, Rule]:
        """The rules of all tasks that were declared."""
        return {name: wire.read_rule(name, rule) for name, rule in self._execute(statements.TASKS)}

    def has_decided_last(self, head: Head) -> bool:
        """True for the process that took the last turn."""
        return head.revision == self._seen and head.decider == self._worker

    def changes(self, head: Head) -> Changes | None:
        """What the process that decided last does not know: what the database answered to its last turn."""
        news, self._news = self._news, {}
        is_recounted, self.is_recounted = self.is_recounted, False
        return Changes(head, shelves=news) if news or is_recounted else None

    def take_over(self, head: Head) -> Changes:
        """Everything, for a deciding process that has not decided last."""
        self._unheard = False  # the core puts back starts that were not begun
        changes = self.everything(self._quarantine.put_back(self.connection, head, self._record))
        changes.shelves.update((name, self._first_of(name)) for name in self._quarantine.shelves)
        self.known = changes.workers
        self._fleet = None
        self._news = {}
        self.is_recounted = False
        return changes

    def everything(self, head: Head) -> Changes:
        """How everything stands, but for the units."""
        shelves, services, workers, tasks, paused, watch = self._ask(*statements.EVERYTHING)
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

    def _ask(self, *questions: str) -> list[list[Any]]:
        """The rows that each of these statements finds."""
        return [self._execute(statement).fetchall() for statement in questions]

    # what a turn decided ----------------------------------------------------------------------------------

    def write(self, plan: Plan, before: Head, now: float, lease: float) -> None:
        """Everything a turn decided."""
        revision = before.revision + 1
        if plan.purged:  # their ids may belong to new work
            self.deleted = purge(self.connection, plan.purged)
        self._write_records(plan, before, now, now + lease)
        many = self.connection.executemany
        if plan.dependent:
            many(
                statements.INSERT_DEPENDENCY,
                [(need, record.id) for record in plan.dependent for need in record.spec.depends_on],
            )
        if plan.services:
            many(
                statements.SERVICE_UPSERT,
                [states.service_row(state, revision) for state in plan.services.values()],
            )
            for state in plan.services.values():
                row = states.circuit_row(state, revision)
                if row is None:
                    self._execute(statements.CIRCUIT_DELETE, (state.limits.name,))
                else:
                    self._execute(statements.CIRCUIT_UPSERT, row)
        if plan.grants:
            many(self._dialect.insert_grant, map(states.grant_row, plan.grants))
        for name, is_paused in plan.queues.items():
            self._execute(statements.PAUSE if is_paused else statements.RESUME, (name,))
        if plan.workers or plan.lost:
            self._write_workers(plan)
        if plan.tasks:
            many(statements.TASK_UPSERT, [(name, wire.rule_text(rule)) for name, rule in plan.tasks.items()])
        for key, value in plan.config.items():
            self._execute(statements.CONFIG_DELETE, (key,))
            if value is not None:
                self._execute(statements.CONFIG_INSERT, (key, value))
        if self._taken:
            self._delete_posts()
        if plan.parts:
            self._write_letters(plan.parts)
        if plan.events:
            body = journal.pack(plan.events)
            self._execute(statements.EVENT_INSERT, (revision, now, before.told + 1, len(plan.events), body))
        self._write_shelves(plan, revision)
        self._turns += 1
        head = self._quarantine.counted(self.connection, plan.head, plan.records.values())
        self.is_recounted = head is not plan.head
        head = replace(
            head,
            revision=revision,
            told=before.told + len(plan.events),
            now=now,
            decider=plan.head.decider or self._worker,
            wake_at=self._wakes_at(plan),
        )
        self._execute(statements.HEAD_UPDATE, states.head_row(head, self.turn))
        self._revision = revision

    def _wakes_at(self, plan: Plan) -> float | None:
        """When time alone will require a decision. A turn that only answers a question leaves that as it was."""
        if math.isfinite(plan.wake_at):
            return plan.wake_at
        return None if plan.is_whole else plan.head.wake_at

    @property
    def turn(self) -> str:
        """Names the last turn that this process wrote."""
        return f"{self._worker} {self._turns}"

    def _write_records(self, plan: Plan, before: Head, now: float, lease_until: float) -> None:
        many, words = self.connection.executemany, self._dialect
        revived, rewritten, newest = plan.revived, plan.rewritten, before.seq
        plain, fresh, started, finished, others = [], [], [], [], []
        for record in plan.records.values():
            if record.seq > newest and (record.id not in revived or not self._has(record.id)):
                lease = lease_until if record.token else None
                if codec.is_plain(record):
                    plain.append(codec.plain_row(record, now, lease))
                else:
                    fresh.append(codec.insert_row(record, now, lease))
                    if record.history:
                        many(words.insert_attempt, codec.attempt_rows(record))
            elif record.id in rewritten or record.skipped:
                others.append(record)
            elif record.state is WorkState.RUNNING:
                started.append(codec.start_row(record, now, lease_until))
            elif record.state is WorkState.COMPLETED:
                finished.append(codec.finish_row(record, now))
            else:
                others.append(record)
        if plain:
            many(words.insert_plain, plain)
        if fresh:
            many(words.insert, fresh)
        if started:
            many(words.start, started)
        if finished:
            many(words.finish, finished)
        if others:
            for record in others:
                if record.history:
                    self._write_history(record)
            many(
                words.update,
                [codec.update_row(one, now, lease_until if one.token else None) for one in others],
            )

    def _has(self, work_id: str) -> bool:
        return self._execute(statements.HAS_UNIT, (work_id,)).fetchone() is not None

    def _write_history(self, record: Record) -> None:
        """The lines of the history that are not there yet."""
        stored = self._one(statements.HISTORY_LENGTH, (record.id,))[0]
        rows = codec.attempt_rows(record)
        # Its oldest lines are dropped from now on: find the newest stored line among these.
        if stored >= HISTORY_KEPT:
            newest = self._one(statements.NEWEST_ATTEMPT, (record.id,))
            places = [place for place, row in enumerate(rows, 1) if row[1:3] == newest]
            stored = max(places, default=0)
        self.connection.executemany(self._dialect.insert_attempt, rows[stored:])
        if len(rows) >= HISTORY_KEPT:
            self._execute(statements.OLD_ATTEMPTS, (record.id, HISTORY_KEPT - 1))

    def _write_workers(self, plan: Plan) -> None:
        self.connection.executemany(statements.WORKER_UPSERT, map(states.worker_row, plan.workers.values()))
        for worker in plan.lost:
            self._execute(statements.WORKER_DELETE, (worker,))
            self._execute(statements.LETTERS_DELETE, (worker,))
        self._execute(statements.FLEET_CHANGED)

    def _write_shelves(self, plan: Plan, revision: int) -> None:
        names = plan.shelves | {name for name in self._quarantine.shelves if not name.startswith("running/")}
        self._answers = [(name, self._execute(statements.SHELF_UPSERT, (name, revision))) for name in names]

    def ask_again(self) -> None:
        """Read the first records of the shelves again: the commit took place, but its answers were lost."""
        answers, self._answers = self._answers, []
        self._news |= {name: self._first_of(name) for name, _ in answers}

    def read_answers(self) -> None:
        """Read the answers to what was written: before the commit or, in PostgreSQL, after it."""
        answers, self._answers = self._answers, []
        for name, rows in answers:
            place, seq = rows.fetchall()[0]
            self._news[name] = None if place is None else (place, seq)

    def _first_of(self, shelf: str) -> Key | None:
        row: Any = self._execute(statements.SHELF_FIRST, (shelf,)).fetchone()
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
        self._quarantine.done()

    def sign_off(self, at: float) -> None:
        """Delete this worker, and post that to the deciding process. What it may still run is taken over as from a
        dead worker."""
        gone = self._execute(statements.WORKER_SIGN_OFF, (self._worker,)).fetchall()
        self._execute(statements.DECIDER_GONE, (self._worker,))
        if gone:
            self._execute(statements.FLEET_CHANGED)
            if self.head().decider is not None:
                self.put(Outgoing(0, [Lost(self._worker)]), at)

    def renew_leases(self, until: float) -> int:
        """Renew the leases of what this worker runs; the number of units."""
        return len(self._execute(statements.RENEW_LEASES, (until, f"running/{self._worker}")).fetchall())

    def forget(self) -> None:
        """The turn was not committed: the next one reads everything anew."""
        self._unheard = True
        self._seen = self._version = None
        self._answers = []
        self._news = {}
        self._taken = []
        self.is_recounted = False
        self._quarantine.done()

    @property
    def must_write(self) -> bool:
        """True when there is something to write, whatever the turn decides."""
        return bool(self._taken or self._claimed or self._took_back or self._quarantine.shelves)
