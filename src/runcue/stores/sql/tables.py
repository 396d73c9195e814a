"""The tables of a queue behind one connection, in parts: each has its own fields and a few verbs.

`records` and `units` are for reading, `inbox`, `mailbox` and `workers` are what processes leave for each other, and
`writer` writes what a turn decided. Here is what concerns all of them: how everything stands, and how a turn ends.
"""

from __future__ import annotations

from typing import Any

from runcue.core.model.schedule import Schedule
from runcue.core.model.state import Head
from runcue.core.schedule.plan import Changes, Lost, Plan
from runcue.ports import Outgoing
from runcue.stores.sql import forms, statements, states, wire
from runcue.stores.sql.connection import Connection
from runcue.stores.sql.inbox import Inbox, PostSource
from runcue.stores.sql.mailbox import Mailbox, Workers
from runcue.stores.sql.quarantine import Quarantine
from runcue.stores.sql.records import Records, read_watch
from runcue.stores.sql.session import Session
from runcue.stores.sql.statements import Dialect
from runcue.stores.sql.units import Units
from runcue.stores.sql.writer import Writer


class StoredReader:
    """What a decision may read (a TurnReader), of all the parts that have it."""

    def __init__(self, records: Records, units: Units, inbox: Inbox) -> None:
        self.read, self.page, self.by_id = records.read, records.page, records.by_id
        self.dependents, self.oldest = records.dependents, records.oldest
        self.watched, self.next_watch = records.watched, records.next_watch
        self.starts, self.spent, self.groups = records.starts, records.spent, records.groups
        self.unstarted, self.take_back, self.accepted = inbox.unstarted, inbox.take_back, units.accepted


class Tables:
    """The tables behind one connection, for the process `worker` ("" for one that only reads)."""

    def __init__(
        self,
        connection: Connection,
        dialect: Dialect,
        worker: str = "",
        posts: PostSource | None = None,
        quarantine: Quarantine | None = None,
    ) -> None:
        session = self._session = Session(connection, dialect, worker)
        self._quarantine = quarantine or Quarantine()
        self.records = Records(session, self._quarantine)
        self.units = Units(session, self.records)
        self.workers = Workers(session)
        self.inbox = Inbox(session, posts)
        self.mailbox = Mailbox(session, self.records, self.workers)
        self.writer = Writer(session, self.inbox, self._quarantine)
        self.reader = StoredReader(self.records, self.units, self.inbox)
        self.decided: int | None = None
        """The revision of the last turn of this process; None when the next one has to read everything anew."""

    def beside(self, connection: Connection) -> Tables:
        """The tables through another connection, to be read between turns."""
        return Tables(connection, self._session.dialect, quarantine=self._quarantine)

    @property
    def connection(self) -> Any:
        """The connection in use."""
        return self._session.connection

    def use(self, connection: Connection) -> None:
        """Go on with another connection to the same queue."""
        self._session.use(connection)
        self.inbox.forget()

    @property
    def seen(self) -> int:
        """The last revision that this process has read."""
        return max(self.decided or 0, self.mailbox.glimpsed)

    # how everything stands --------------------------------------------------------------------------------

    def config(self) -> dict[str, str]:
        """The application's own settings, but for values that are no text."""
        rows = self._session.execute(self._session.dialect.config)
        return {str(key): str(value) for key, value in rows}

    def paused(self) -> list[str]:
        """The queues that are paused."""
        return [str(name) for (name,) in self._session.execute(statements.PAUSED)]

    def schedules(self) -> list[Schedule]:
        """All schedules, by name; those that cannot be read are left out, and stay as they are."""
        rows = self._session.execute(statements.SCHEDULES).fetchall()
        read = (forms.read_schedule(name, body) for name, body in rows)
        return [one for one in read if one is not None]

    def has_decided_last(self, head: Head) -> bool:
        """True for the process that took the last turn."""
        return head.revision == self.decided and head.decider == self._session.worker

    def changes(self, head: Head) -> Changes | None:
        """What the process that decided last does not know: what the database answered to its last turn."""
        news, is_recounted = self.writer.take_news()
        return Changes(head, index_heads=news) if news or is_recounted else None

    def take_over(self, head: Head) -> Changes:
        """Everything, for a deciding process that has not decided last."""
        self.mailbox.took_over()
        changes = self.everything(self._quarantine.put_back(self.connection, head, self.records.read_row))
        changes.index_heads.update((name, self.writer.first_of(name)) for name in self._quarantine.index_keys)
        changes.schedules = self.schedules()
        self.workers.took_over(changes.workers)
        self.writer.forget()
        return changes

    def everything(self, head: Head) -> Changes:
        """How everything stands, but for the units."""
        answers = self._session.dialect.ask(self.connection, statements.EVERYTHING)
        index_heads, services, workers, tasks, paused, watch = answers
        return Changes(
            head,
            is_first=True,
            index_heads={
                name: None if sort_key is None else (sort_key, seq) for name, sort_key, seq in index_heads
            },
            services=[states.read_service(row) for row in services],
            workers=[states.read_worker(row) for row in workers],
            tasks={name: wire.read_rule(name, rule) for name, rule in tasks},
            paused=frozenset(name for (name,) in paused),
            watch_at=read_watch(watch),
        )

    # what a turn or an exchange does ----------------------------------------------------------------------

    def swap(self, post: Outgoing | None, at: float) -> tuple[Head, list[tuple[str, str]]]:
        """Leave a post for the deciding process, and take the letters of this one; the counters and those letters."""
        if post is not None:
            self.inbox.put(post, at)
        letters = self.mailbox.claim()
        return self.mailbox.glimpse()[1], letters

    @property
    def must_write(self) -> bool:
        """True when there is something to write, whatever the turn decides."""
        return self.inbox.must_write or self.mailbox.is_claimed or bool(self._quarantine.index_keys)

    def written(self, plan: Plan) -> None:
        """The turn was committed."""
        self._turn_over(self.writer.revision)
        self.workers.decided(plan)

    def read_only(self, head: Head) -> None:
        """The turn wrote nothing."""
        self._turn_over(head.revision)

    def _turn_over(self, revision: int) -> None:
        self.decided = revision
        self.inbox.turn_over()
        self._quarantine.done()

    def forget(self) -> None:
        """The turn was not committed: the next one reads everything anew."""
        self.decided = None
        self.mailbox.turn_may_be_lost()
        self.writer.forget()
        self.inbox.forget()
        self._quarantine.done()

    def sign_off(self, at: float) -> None:
        """Delete this worker, and post that to the deciding process. What it may still run is taken over as from a
        dead worker."""
        worker = self._session.worker
        gone = self._session.execute(statements.WORKER_SIGN_OFF, (worker,)).fetchall()
        self._session.execute(statements.DECIDER_GONE, (worker,))
        if gone:
            self._session.execute(statements.FLEET_CHANGED)
            if self.records.head().decider is not None:
                self.inbox.put(Outgoing(0, [Lost(worker)]), at)

    def renew_leases(self, until: float) -> int:
        """Renew the leases of what this worker runs; the number of units."""
        bindings = (until, f"running/{self._session.worker}")
        return len(self._session.execute(statements.RENEW_LEASES, bindings).fetchall())
