"""What processes leave for each other in the tables: posts for the deciding process, and its letters to the others.

Rules:
- A turn takes the posts that it decides on, and a process takes its own letters: a row is deleted in the transaction
  that reads it, so it is read once. All rows that are there are taken, whatever their numbers: some appear late.
- A post that this release cannot read stays where it is, for one that can. The others are taken all the same.
- Starts and questions that no process has read can be taken back; replies, stops and events cannot.
- A transaction whose answer was lost may have taken letters. They are made up for: everything that this process is
  recorded to run is handed to it again, as a start that comes too late. It recognizes what it runs by the token, and
  refuses the rest, which is put back and not run. Attempts that were given up are stopped again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from runcue.core.model.record import Record
from runcue.core.model.state import Head, Worker
from runcue.core.schedule.plan import Plan, Post
from runcue.core.views.query import Query
from runcue.errors import StorageCorrupt
from runcue.ports import Outgoing, Received
from runcue.stores.sql import statements, states, wire
from runcue.stores.sql.connection import Connection, Row, rows_of
from runcue.stores.sql.records import Records
from runcue.stores.sql.statements import Dialect

logger = logging.getLogger("runcue")

Letter = tuple[str, str]
"""The kind of a letter, and its text."""
MOST_POSTS = 500
MOST_SIGNS = 8_000_000
"""How many posts a turn takes, and how much text: the rest waits for the next turn."""


INBOX_COLUMNS = ("id", "worker", "number", "body")


class Mailbox(Records):
    """Posts and letters behind one connection, for the process `worker` ("" for one that only reads)."""

    def __init__(self, connection: Connection, dialect: Dialect, worker: str = "") -> None:
        super().__init__(connection, dialect, may_take=bool(worker))
        self._worker = worker
        self._taken: list[int] = []
        """The posts that this turn took."""
        self._took_back = False
        """True when this turn took back what another process had been given."""
        self.has_more = False
        """True when there may be more posts than the last turn took."""
        self._unfamiliar: set[int] = set()
        self._claimed = False
        """True from deleting letters until it is certain that they were read."""
        self._missed = False
        """True when letters may be gone that were not read."""
        self._held: list[Letter] = []
        """Letters that were taken and could not be read yet."""
        self._unheard = False
        """True when the last turn of this process may have been committed though it failed."""
        self._fleet: int | None = None
        self._glimpsed = 0
        """The last revision that this process saw without a turn."""
        self.has_seen_post = False
        """True once a unit was found that was only accepted: it may be newer than the last revision."""
        self.known: Sequence[Worker] = ()
        """The workers that were there when this process last looked."""

    def use(self, connection: Connection) -> None:
        """Go on with another connection to the same queue."""
        super().use(connection)
        self._version: int | None = None
        self._version_now: int | None = None

    # for the deciding process ------------------------------------------------------------------------------

    def put(self, post: Outgoing, at: float) -> None:
        """Leave a post for the deciding process."""
        self._execute(statements.POST, (self._worker, post.number, at, wire.items_text(post.items)))
        self.has_more = True

    def posts(self, *, anew: bool) -> list[Post]:
        """The posts that were left, in order. The turn deletes them. `anew` when another process decided last."""
        self._taken, self._took_back = [], False
        if not self._may_have_posts() and not anew and not self.has_more:
            return []
        self._is_new = anew
        found: list[Post] = []
        number = signs = 0
        limit, self.has_more = MOST_POSTS + len(self._unfamiliar), False
        for number, (id, worker, post, body) in enumerate(self._inbox(limit), 1):
            signs += len(body)
            if number > 1 and signs > MOST_SIGNS:
                self.has_more = True
                break
            try:
                found.append(Post(worker, post, wire.read_items(body)))
            except (StorageCorrupt, wire.Unfamiliar) as error:
                if id not in self._unfamiliar:
                    self._unfamiliar.add(id)
                    logger.error("a post of worker %s is left to others: %s", worker, error)
            else:
                self._taken.append(id)
        # PostgreSQL leaves out what comes after a large post. If none of these could be read, no other is asked for.
        self.has_more |= number >= limit or (signs > MOST_SIGNS and bool(found))
        return found

    def _may_have_posts(self) -> bool:
        """Whether another connection has committed anything since the last turn of this one."""
        self._version_now = self._one(self._dialect.version)[0]
        return self._version_now != self._version

    def _inbox(self, limit: int) -> Iterator[Row]:
        return rows_of(self.connection, self._dialect.inbox, (limit,), INBOX_COLUMNS)

    def _delete_posts(self) -> None:
        self.connection.executemany(statements.POST_DELETE, [(id,) for id in self._taken])

    # for one process --------------------------------------------------------------------------------------

    def _write_letters(self, parts: dict[str, Plan]) -> None:
        rows = [(worker, *letter) for worker, part in parts.items() for letter in wire.letters_of(part)]
        self.connection.executemany(self._dialect.insert_letter, rows)

    def unstarted(self, worker: str) -> list[int]:
        """The tokens of the starts that were assigned to this worker and that it has not read."""
        rows = self._execute(statements.UNSTARTED, (worker,)).fetchall()
        return [token for (body,) in rows for _, token in wire.given_in(wire.START, body)]

    def take_back(self, worker: str) -> tuple[list[int], list[str]]:
        """Take back what a worker was given and has not read: the tokens of starts, which then never begin, and the
        units whose callbacks it was to call. Outside of a turn they are only listed.
        """
        is_turn = self._may_take and self.connection.in_transaction
        rows = self._execute(statements.TAKE_BACK if is_turn else statements.UNSTARTED, (worker,)).fetchall()
        self._took_back |= is_turn and bool(rows)
        starts = [token for (body,) in rows for _, token in wire.given_in(wire.START, body)]
        return starts, [work_id for (body,) in rows for work_id in wire.asked_in(wire.START, body)]

    def claim(self) -> list[Letter]:
        """Take the letters of this process, in order."""
        rows: list[Any] = self._execute(statements.CLAIM, (self._worker,)).fetchall()
        self._claimed = bool(rows)
        return [(kind, body) for _, kind, body in sorted(rows)]

    def swap(self, post: Outgoing | None, at: float) -> tuple[Head, list[Letter]]:
        """Leave a post for the deciding process, and take the letters of this one; the counters and those letters."""
        if post is not None:
            self.put(post, at)
        letters = self.claim()
        return self.glimpse()[1], letters

    def unread(self) -> frozenset[int]:
        """The posts of this process that no turn has taken yet."""
        return frozenset(number for (number,) in self._execute(statements.UNREAD, (self._worker,)))

    def glimpse(self) -> tuple[bool, Head]:
        """Whether there are letters for this process, and the counters."""
        has_letters, fleet, *counters = self._one(statements.GLIMPSE, (self._worker,))
        self.meet(fleet)
        head = states.read_head(tuple(counters))
        self._glimpsed = head.revision
        return bool(has_letters) or self._missed, head

    def meet(self, fleet: int) -> None:
        """Read the workers again if `fleet`, which counts their changes, is not what it was."""
        if fleet != self._fleet:
            self.known = self.workers()
            self._fleet = fleet

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
        return Received(
            head, plan, unbegun=unbegun, given_up=given_up, is_known=self.is_known, has_missed=has_missed
        )

    def nothing_read(self, head: Head, unread: frozenset[int] | None = None) -> Received:
        """What to answer when a post is stored and nothing more can be read now."""
        plan = Plan()
        plan.head = head
        return Received(head, plan, unread, is_known=self.is_known, is_whole=False)

    def _named(self, letter: Letter) -> list[str]:
        try:
            return wire.named_in(*letter)
        except StorageCorrupt:  # reading all of it reports that
            return []

    def _loaded(self, ids: list[str]) -> dict[str, Record]:
        # Only the deciding process puts damaged rows into quarantine.
        may_take, self._may_take = (
            self._may_take,
            False,
        )
        try:
            return self.by_id(ids) if ids else {}
        finally:
            self._may_take = may_take

    def _make_up(self, plan: Plan) -> wire.Given:
        known = {record.token for record in plan.start}
        for record in self.running(self._worker):
            if record.token not in known:
                plan.start.append(record)
                plan.rated[record.token] = 0.0
        me = [worker for worker in self.workers() if worker.id == self._worker]
        return [(one.work_id, one.token) for worker in me for one in worker.overdue]

    def letters_read(self, *, is_all: bool = True) -> None:
        """The letters that the last transaction took have been read; with `is_all`, all of them."""
        if is_all:
            self._claimed = self._missed = self._unheard = False
            self._held = []

    def hold(self, letters: list[Letter]) -> None:
        """Keep letters whose deletion is committed until they can be read."""
        self._held += letters
        self._claimed = False

    def letters_lost(self) -> None:
        """The last transaction failed, and may have taken letters all the same."""
        self._missed |= self._claimed
        self._claimed = False

    def letters_may_be_lost(self) -> None:
        """Letters may be gone that were not read."""
        self._missed = True

    def has_posted(self, post: Outgoing | None, had_letters: bool) -> bool:
        """Whether an exchange took place: its post is stored, or, without a post, its letters are gone."""
        if post is not None:
            return post.number in self.unread()
        return had_letters and not self.glimpse()[0]

    # workers ------------------------------------------------------------------------------------------------

    def workers(self) -> list[Worker]:
        """Every process that has the queue open, and dead ones that were not noticed yet."""
        return [states.read_worker(row) for row in self._execute(statements.WORKER_SELECT)]

    @property
    def is_known(self) -> bool:
        """False when the others took this process for dead, as far as this one has read."""
        return any(worker.id == self._worker for worker in self.known)

    # units that were accepted and not decided on ------------------------------------------------------------

    def one(self, work_id: str) -> Record | None:
        """That unit, also if it was only just accepted; raises when it is damaged."""
        return super().one(work_id) or self._submitted(work_id)

    def some(self, ids: Iterable[str]) -> dict[str, Record]:
        """These units, also those that were only just accepted, but for those that are unknown."""
        wanted = list(ids)
        found = self.by_id(wanted)
        for work_id in wanted:
            if work_id not in found and (record := self._submitted(work_id)) is not None:
                found[work_id] = record
        return found

    def accepted(self) -> list[Record]:
        """The units that were accepted and not decided on, in order, after all others."""
        rows: list[Any] = self._execute(self._dialect.submitted, ('"submit"',)).fetchall()
        if not rows:
            return []
        self.has_seen_post = True
        found: list[Record] = []
        seq = self.head().seq
        for at, body in rows:
            try:
                specs = wire.accepted(body)
            except (ValueError, StorageCorrupt):  # the deciding process reports it
                continue
            found += [
                Record(one.id, one, seq + len(found) + n, at, at, since=at) for n, one in enumerate(specs, 1)
            ]
        return found

    def latest(self, query: Query) -> list[Record]:
        """The records that a query finds, newest first, also of units that were only just accepted."""
        new = [record for record in reversed(self.accepted()) if query.finds(record)]
        return [*new, *self.find(query)][: query.limit]

    def counted(self) -> Head:
        """The counters, with the units that were only just accepted."""
        head, new = self.head(), len(self.accepted())
        return replace(head, pending=head.pending + new) if new else head

    def live_by_task(self) -> dict[str, dict[str, int]]:
        """How many units of each task are pending and running, with those that were only just accepted."""
        found = self.tally()
        for record in self.accepted():
            found["pending"][record.spec.task] = found["pending"].get(record.spec.task, 0) + 1
        return found

    def _submitted(self, work_id: str) -> Record | None:
        name = msgspec.json.encode(work_id).decode()
        for at, body in self._execute(self._dialect.submitted, (name,)).fetchall():
            try:
                spec = wire.submitted(body, work_id)
            except (ValueError, StorageCorrupt):  # whoever decides says so
                continue
            if spec is not None:
                self.has_seen_post = True
                places = {record.id: record.seq for record in self.accepted()}
                seq = places.get(work_id) or self.head().seq + 1
                return Record(spec.id, spec, seq, at, at, since=at)
        return None
