"""Writes what a turn decided, in a few statements, each for many rows.

The first record under each index key is stored beside the records: a process that takes over reads one row for each
index key, and no units at all.
"""

from __future__ import annotations

import math
from typing import Any, Final

from msgspec.structs import astuple, replace

from runcue.core.model.record import HISTORY_KEPT, Record, WorkState
from runcue.core.model.state import Head
from runcue.core.schedule.plan import Key, Plan
from runcue.core.views.query import marks_of
from runcue.stores.sql import codec, columns, forms, journal, statements, states, wire
from runcue.stores.sql.connection import Row, Rows
from runcue.stores.sql.inbox import Inbox
from runcue.stores.sql.pruning import Deleted, purge
from runcue.stores.sql.quarantine import Quarantine
from runcue.stores.sql.session import Session

LIVE: Final = (WorkState.PENDING, WorkState.RUNNING)


class Writer:
    """Writes plans, and keeps what the database answered for the next turn."""

    def __init__(self, session: Session, inbox: Inbox, quarantine: Quarantine) -> None:
        self._session = session
        self._inbox = inbox
        self._quarantine = quarantine
        self._news: dict[str, Key | None] = {}
        self._turns = 0
        self.revision = 0
        """The revision that was written last."""
        self.is_recounted = False
        """True when the last turn wrote other counters than it had planned: the next turn has to be given them."""
        self.deleted: list[Deleted] = []
        """The units that this turn deleted, whose files have to be deleted, too."""
        self._answers: list[tuple[str, Rows]] = []

    def write(self, plan: Plan, before: Head, now: float, lease: float) -> None:
        """Everything a turn decided."""
        revision = before.revision + 1
        if plan.purged:  # their ids may belong to new work
            self.deleted = purge(self._session.connection, plan.purged)
        if plan.tagged:
            self._write_tags(plan, before)
        self._write_records(plan, before, now, now + lease)
        many = self._session.executemany
        if plan.dependent:
            many(
                statements.INSERT_DEPENDENCY,
                [(need, record.id) for record in plan.dependent for need in record.spec.depends_on],
            )
        for name, counts in plan.groups.items():
            if counts is None:
                self._session.execute(statements.GROUP_DELETE, (name,))
            else:
                self._session.execute(statements.GROUP_UPSERT, (name, *astuple(counts)))
        for name, schedule in plan.schedules.items():
            if schedule is None:
                self._session.execute(statements.SCHEDULE_DELETE, (name,))
            else:
                self._session.execute(statements.SCHEDULE_UPSERT, (name, forms.schedule_text(schedule)))
        if plan.services:
            many(
                statements.SERVICE_UPSERT,
                [states.service_row(state, revision) for state in plan.services.values()],
            )
            for state in plan.services.values():
                row = states.circuit_row(state, revision)
                if row is None:
                    self._session.execute(statements.CIRCUIT_DELETE, (state.limits.name,))
                else:
                    self._session.execute(statements.CIRCUIT_UPSERT, row)
        if plan.grants:
            many(self._session.dialect.insert_grant, map(states.grant_row, plan.grants))
        for name, is_paused in plan.queues.items():
            self._session.execute(statements.PAUSE if is_paused else statements.RESUME, (name,))
        if plan.workers or plan.lost:
            self._write_workers(plan)
        if plan.tasks:
            many(statements.TASK_UPSERT, [(name, wire.rule_text(rule)) for name, rule in plan.tasks.items()])
        for key, value in plan.config.items():
            self._session.execute(statements.CONFIG_DELETE, (key,))
            if value is not None:
                self._session.execute(statements.CONFIG_INSERT, (key, value))
        self._inbox.delete_posts()
        if plan.parts:
            self._inbox.write_letters(plan.parts)
        if plan.events:
            body = journal.pack(plan.events)
            self._session.execute(
                statements.EVENT_INSERT, (revision, now, before.last_event_seq + 1, len(plan.events), body)
            )
        self._write_index_heads(plan, revision)
        self._turns += 1
        head = self._quarantine.counted(self._session.connection, plan.head, plan.records.values())
        self.is_recounted = head is not plan.head
        head = replace(
            head,
            revision=revision,
            last_event_seq=before.last_event_seq + len(plan.events),
            now=now,
            decider=plan.head.decider or self._session.worker,
            wake_at=self._wakes_at(plan),
        )
        self._session.execute(statements.HEAD_UPDATE, states.head_row(head, self.turn))
        self.revision = revision

    def _wakes_at(self, plan: Plan) -> float | None:
        """When time alone will require a decision. A turn that only answers a question leaves that as it was."""
        if math.isfinite(plan.wake_at):
            return plan.wake_at
        return None if plan.is_whole else plan.head.wake_at

    @property
    def turn(self) -> str:
        """Names the last turn that this process wrote."""
        return f"{self._session.worker} {self._turns}"

    def _write_records(self, plan: Plan, before: Head, now: float, lease_until: float) -> None:
        many, words = self._session.executemany, self._session.dialect
        revived, rewritten, usual, newest = plan.revived, plan.rewritten, plan.usual, before.seq
        plain, fresh, started, finished, others = [], [], [], [], []
        for record in plan.records.values():
            if record.seq > newest and (record.id not in revived or not self._has(record.id)):
                lease = lease_until if record.token else None
                is_usual = record.seq in usual and record.id not in rewritten and record.state in LIVE
                if is_usual or codec.is_plain(record):
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
        if plan.respecified:
            self._write_edits(plan, now)
        if others:
            for record in others:
                if record.history:
                    self._write_history(record)
            many(
                words.update,
                [codec.update_row(one, now, lease_until if one.token else None) for one in others],
            )

    def _write_edits(self, plan: Plan, now: float) -> None:
        """What units were submitted with, of those in which that has changed."""
        rows = [codec.spec_row(plan.records[work_id], now) for work_id in plan.respecified]
        self._session.executemany(self._session.dialect.edit, rows)

    def _write_tags(self, plan: Plan, before: Head) -> None:
        """By what new units are found, and how others have ended; before their own rows are written."""
        fresh: list[Row] = []
        ended: list[Row] = []
        for record in map(plan.records.__getitem__, dict.fromkeys(plan.tagged)):
            marks, ending = marks_of(record.spec), columns.ENDINGS.get(record.state, 0)
            stored: Any = None
            if record.id in plan.revived or record.id in plan.retagged:
                stored = self._session.execute(statements.NUMBER_AND_STATE, (record.id,)).fetchone()
            if stored is not None:
                old, state = stored
                before_it = marks_of(plan.retagged.get(record.id, record).spec)
                rows = [(*mark, columns.ENDINGS.get(state, 0), old) for mark in before_it]
                self._session.executemany(statements.TAG_DELETE, rows)
            if stored is not None or record.seq > before.seq:
                fresh += [(*mark, ending, record.seq) for mark in marks]
            else:
                ended += [(ending, *mark, record.seq) for mark in marks]
        if fresh:
            self._session.executemany(self._session.dialect.insert_tag, fresh)
        if ended:
            self._session.executemany(self._session.dialect.end_tag, ended)

    def _has(self, work_id: str) -> bool:
        return self._session.execute(statements.HAS_UNIT, (work_id,)).fetchone() is not None

    def _write_history(self, record: Record) -> None:
        """The lines of the history that are not there yet."""
        stored = self._session.one(statements.HISTORY_LENGTH, (record.id,))[0]
        rows = codec.attempt_rows(record)
        # Its oldest lines are dropped from now on: find the newest stored line among these.
        if stored >= HISTORY_KEPT:
            newest = self._session.one(statements.NEWEST_ATTEMPT, (record.id,))
            places = [place for place, row in enumerate(rows, 1) if row[1:3] == newest]
            stored = max(places, default=0)
        self._session.executemany(self._session.dialect.insert_attempt, rows[stored:])
        if len(rows) >= HISTORY_KEPT:
            self._session.execute(statements.OLD_ATTEMPTS, (record.id, HISTORY_KEPT - 1))

    def _write_workers(self, plan: Plan) -> None:
        self._session.executemany(statements.WORKER_UPSERT, map(states.worker_row, plan.workers.values()))
        for worker in plan.lost:
            self._session.execute(statements.WORKER_DELETE, (worker,))
            self._session.execute(statements.LETTERS_DELETE, (worker,))
        self._session.execute(statements.FLEET_CHANGED)

    def _write_index_heads(self, plan: Plan, revision: int) -> None:
        names = plan.index_keys | {
            name for name in self._quarantine.index_keys if not name.startswith("running/")
        }
        self._answers = [
            (name, self._session.execute(statements.INDEX_HEAD_UPSERT, (name, revision))) for name in names
        ]

    def ask_again(self) -> None:
        """Read the first records under the index keys again: the commit took place, but its answers were lost."""
        answers, self._answers = self._answers, []
        self._news |= {name: self.first_of(name) for name, _ in answers}

    def read_answers(self) -> None:
        """Read the answers to what was written: before the commit or, in PostgreSQL, after it."""
        answers, self._answers = self._answers, []
        for name, rows in answers:
            sort_key, seq = rows.fetchall()[0]
            self._news[name] = None if sort_key is None else (sort_key, seq)

    def first_of(self, index_key: str) -> Key | None:
        """The first record under an index key."""
        row: Any = self._session.execute(statements.INDEX_HEAD, (index_key,)).fetchone()
        return None if row is None else (row[0], row[1])

    def take_news(self) -> tuple[dict[str, Key | None], bool]:
        """The first records under the written index keys, and whether the counters are others than planned."""
        found = self._news, self.is_recounted
        self.forget()
        return found

    def forget(self) -> None:
        """Whatever the database answered is read anew."""
        self._answers = []
        self._news = {}
        self.is_recounted = False
