"""The workers of a queue, and the letters that the deciding process left for this one.

Rules:
- A process takes its own letters: a row is deleted in the transaction that reads it, so it is read once.
- A transaction whose answer was lost may have taken letters. They are made up for: everything that this process is
  recorded to run is handed to it again, as a start that comes too late. It recognizes what it runs by the token, and
  refuses the rest, which is put back and not run. Attempts that were given up are stopped again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runcue.core.model.record import Record
from runcue.core.model.state import Head, Worker
from runcue.core.schedule.plan import Plan
from runcue.errors import StorageCorrupt
from runcue.ports import Outgoing, Received
from runcue.stores.sql import statements, states, wire
from runcue.stores.sql.records import Records
from runcue.stores.sql.session import Session

logger = logging.getLogger("runcue")

Letter = tuple[str, str]
"""The kind of a letter, and its text."""


class Workers:
    """Reads the workers, and remembers those that were there last."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._fleet: int | None = None
        self.known: Sequence[Worker] = ()
        """The workers that were there when this process last looked."""

    def all(self) -> list[Worker]:
        """Every process that has the queue open, and dead ones that were not noticed yet."""
        return [states.read_worker(row) for row in self._session.execute(statements.WORKER_SELECT)]

    def meet(self, fleet: int) -> None:
        """Read the workers again if `fleet`, which counts their changes, is not what it was."""
        if fleet != self._fleet:
            self.known = self.all()
            self._fleet = fleet

    def took_over(self, workers: Sequence[Worker]) -> None:
        """These were there when this process began to decide."""
        self.known = workers
        self._fleet = None

    def decided(self, plan: Plan) -> None:
        """A turn of this process was committed."""
        if plan.workers or plan.lost:
            workers = {worker.id: worker for worker in self.known} | plan.workers
            self.known = [worker for worker in workers.values() if worker.id not in plan.lost]

    @property
    def pids(self) -> Mapping[str, int]:
        """The workers that this process last read, with their pids."""
        return {worker.id: worker.pid for worker in self.known}

    @property
    def is_known(self) -> bool:
        """False when the others took this process for dead, as far as this one has read."""
        return any(worker.id == self._session.worker for worker in self.known)


class Mailbox:
    """The letters of one process, from their taking to the moment when it is certain that they were read."""

    def __init__(self, session: Session, records: Records, workers: Workers) -> None:
        self._session = session
        self._records = records
        self._workers = workers
        self.is_claimed = False
        """True from deleting letters until it is certain that they were read."""
        self._missed = False
        """True when letters may be gone that were not read."""
        self._held: list[Letter] = []
        """Letters that were taken and could not be read yet."""
        self._given: dict[str, Record] = {}
        """The records of starts that were read with the letters held."""
        self.last_given = 0
        """The token of the last start that was given with its record."""
        self._unheard = False
        """True when the last turn of this process may have been committed though it failed."""
        self.glimpsed = 0
        """The last revision that this process saw without a turn."""

    def claim(self) -> list[Letter]:
        """Take the letters of this process, in order."""
        rows: list[Any] = self._session.execute(statements.CLAIM, (self._session.worker,)).fetchall()
        self.claimed(rows)
        return [(kind, body) for _, kind, body in sorted(rows)]

    def claimed(self, rows: Sequence[Any]) -> None:
        """The transaction under way deletes these letters: until they are read, they may be lost with it."""
        self.is_claimed = bool(rows)

    def unread(self) -> frozenset[int]:
        """The posts of this process that no turn has taken yet."""
        rows = self._session.execute(statements.UNREAD, (self._session.worker,))
        return frozenset(number for (number,) in rows)

    def glimpse(self) -> tuple[bool, Head]:
        """Whether there are letters for this process, and the counters."""
        has_letters, fleet, *counters = self._session.one(statements.GLIMPSE, (self._session.worker,))
        self._workers.meet(fleet)
        head = states.read_head(tuple(counters))
        self.glimpsed = head.revision
        return bool(has_letters) or self._missed, head

    def received(self, head: Head, letters: Iterable[Letter]) -> Received:
        """What these letters say."""
        has_missed = self._missed
        # What this process started itself without learning that the turn was committed.
        self._missed |= self._unheard
        plan = Plan()
        plan.head = head
        letters = [*self._held, *letters]
        unbegun: wire.Given = []
        records = self._loaded([name for letter in letters for name in self._named(letter)])
        for kind, body in letters:
            try:
                unbegun += wire.read_letter(plan, kind, body, records)
            except StorageCorrupt as error:
                logger.error("a letter is left out: %s", error)
                self._missed = has_missed = True
        given_up = self._make_up(plan) if self._missed else []
        is_known = self._workers.is_known
        return Received(
            head, plan, unbegun=unbegun, given_up=given_up, is_known=is_known, has_missed=has_missed
        )

    def nothing_read(self, head: Head, unread: frozenset[int] | None = None) -> Received:
        """What to answer when a post is stored and nothing more can be read now."""
        plan = Plan()
        plan.head = head
        return Received(head, plan, unread, is_known=self._workers.is_known, is_whole=False)

    def _named(self, letter: Letter) -> list[str]:
        try:
            return wire.named_in(*letter)
        except StorageCorrupt:  # reading all of it reports that
            return []

    def _loaded(self, ids: list[str]) -> dict[str, Record]:
        given, self._given = self._given, {}
        self.last_given = max((self.last_given, *(record.token for record in given.values())))
        # Only the deciding process puts damaged rows into quarantine.
        return given | self._records.peek([work_id for work_id in ids if work_id not in given])

    def _make_up(self, plan: Plan) -> wire.Given:
        known = {record.token for record in plan.start}
        for record in self._records.running(self._session.worker):
            if record.token not in known:
                plan.start.append(record)
                plan.rated[record.token] = 0.0
        me = [worker for worker in self._workers.all() if worker.id == self._session.worker]
        return [(one.work_id, one.token) for worker in me for one in worker.overdue]

    def letters_read(self, *, is_all: bool = True) -> None:
        """The letters that the last transaction took have been read; with `is_all`, all of them."""
        if is_all:
            self.is_claimed = self._missed = self._unheard = False
            self._held = []

    def hold(self, letters: list[Letter], given: dict[str, Record] | None = None) -> None:
        """Keep letters whose deletion is committed until they can be read, with the records that came with them."""
        self._held += letters
        self._given = given or {}
        self.is_claimed = False

    def letters_lost(self) -> None:
        """The last transaction failed, and may have taken letters all the same."""
        self._missed |= self.is_claimed
        self.is_claimed = False

    def letters_may_be_lost(self) -> None:
        """Letters may be gone that were not read."""
        self._missed = True

    def turn_may_be_lost(self) -> None:
        """The last turn failed, and may have been committed all the same."""
        self._unheard = True

    def took_over(self) -> None:
        """This process decides from now on: its scheduler puts back starts that were not begun."""
        self._unheard = False

    def has_posted(self, post: Outgoing | None, had_letters: bool) -> bool:
        """Whether an exchange took place: its post is stored, or, without a post, its letters are gone."""
        if post is not None:
            return post.number in self.unread()
        return had_letters and not self.glimpse()[0]
