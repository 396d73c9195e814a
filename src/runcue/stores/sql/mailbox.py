"""What processes leave for each other in the tables: posts for whoever decides, and letters from who decided.

Rules:
- A post is taken by the turn that decides over it, and a letter by the process that it is for: each is deleted in the
  transaction that reads it, so it is read once. What is there is taken, whatever its number: rows may come late.
- A post that this release cannot read stays where it is, for one that can. It holds up nobody.
- Starts and questions that nobody has read can be taken back; what was told cannot.
- Letters that may have been taken by a transaction whose answer was lost are made up for: all that this process is
  said to run is handed to it once more, as what comes too late: what it does not run already, which it knows by the
  token, is refused as late and put back, not run. What it is said to have given up it is told anew to stop.
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
from runcue.stores.sql import states, wire
from runcue.stores.sql.codec import insert_into
from runcue.stores.sql.connection import Connection, Row, rows_of
from runcue.stores.sql.records import Records

logger = logging.getLogger("runcue")

Letter = tuple[str, str]
"""Its kind and its text."""
MOST_POSTS = 500
MOST_SIGNS = 8_000_000
"""How many posts a turn takes, and how much text: what there is beyond that waits for the next."""
INBOX_COLUMNS = ("id", "worker", "number", "body")
INBOX = f"SELECT {', '.join(INBOX_COLUMNS)} FROM inbox ORDER BY id LIMIT ?"
POST = "INSERT INTO inbox (worker, number, at, body) VALUES (?, ?, ?, ?)"
LETTER_COLUMNS = ("worker", "kind", "body")
LETTER = insert_into("letters", LETTER_COLUMNS)
CLAIM = "DELETE FROM letters WHERE worker = ? RETURNING id, kind, body"
UNSTARTED = "SELECT body FROM letters WHERE worker = ? AND kind = 'start'"
TAKE_BACK = "DELETE FROM letters WHERE worker = ? AND kind = 'start' RETURNING body"
UNREAD = "SELECT number FROM inbox WHERE worker = ?"
GLIMPSE = f"SELECT EXISTS (SELECT 1 FROM letters WHERE worker = ?1), fleet, {states.HEAD} FROM head"
"""Whether there is anything for a worker, how often workers changed, and the counters."""
SUBMITTED = "SELECT at, body FROM inbox WHERE instr(body, ?) > 0 ORDER BY id"


class Mailbox(Records):
    """Posts and letters behind one connection, for the process `worker` ("" for who only looks)."""

    submitted_select = SUBMITTED

    def __init__(self, connection: Connection, worker: str = "") -> None:
        super().__init__(connection, may_take=bool(worker))
        self._worker = worker
        self._taken: list[int] = []
        """The posts that the turn under way took."""
        self._has_taken_back = False
        """True when it took something back that somebody was given."""
        self.has_more = False
        """True when there are more posts than the last turn took, or may be."""
        self._unfamiliar: set[int] = set()
        self._claimed = False
        """True while it is not certain that letters were read that the transaction under way deletes."""
        self._missed = False
        """True when letters may be gone that nobody has read."""
        self._held: list[Letter] = []
        """Letters that were taken and are not understood yet."""
        self._unheard = False
        """True when the last turn of this process may have been kept though it failed."""
        self._fleet: int | None = None
        self._glimpsed = 0
        """The last revision that this process saw without a turn."""
        self.has_seen_post = False
        """True once something was found that nobody has decided over: it may be newer than the last revision."""
        self.known: Sequence[Worker] = ()
        """The workers that were there when this process last looked."""

    def use(self, connection: Connection) -> None:
        """Go on with another connection to the same queue."""
        super().use(connection)
        self._version: int | None = None
        self._version_now: int | None = None

    # for whoever decides ----------------------------------------------------------------------------------

    def put(self, post: Outgoing, at: float) -> None:
        """Leave that for whoever decides."""
        self._execute(POST, (self._worker, post.number, at, wire.items_text(post.items)))
        self.has_more = True

    def posts(self, *, anew: bool) -> list[Post]:
        """What was left, in order: read within a turn, which deletes it. `anew` when nothing is known of it."""
        self._taken, self._has_taken_back = [], False
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
        # PostgreSQL leaves out what comes after a large one. Where nothing could be taken, nothing more can be.
        self.has_more |= number >= limit or (signs > MOST_SIGNS and bool(found))
        return found

    def _may_have_posts(self) -> bool:
        """Whether another connection has committed anything since the last turn of this one."""
        self._version_now = self._one("PRAGMA data_version")[0]
        return self._version_now != self._version

    def _inbox(self, limit: int) -> Iterator[Row]:
        return rows_of(self.connection, INBOX, (limit,), INBOX_COLUMNS)

    def _delete_posts(self) -> None:
        self.connection.executemany("DELETE FROM inbox WHERE id = ?", [(id,) for id in self._taken])

    # for one process --------------------------------------------------------------------------------------

    def _write_letters(self, parts: dict[str, Plan]) -> None:
        rows = [(worker, *letter) for worker, part in parts.items() for letter in wire.letters_of(part)]
        self.connection.executemany(LETTER, rows)

    def unstarted(self, worker: str) -> list[int]:
        """The tokens of the starts that this process was given and has not read."""
        rows = self._execute(UNSTARTED, (worker,)).fetchall()
        return [token for (body,) in rows for _, token in wire.given_in(wire.START, body)]

    def take_back(self, worker: str) -> tuple[list[int], list[str]]:
        """Take what that process was given and has not read: the tokens of those starts, which are never begun, and
        the works that it was to be asked about.

        Outside of a turn nothing is taken: they are only told.
        """
        is_turn = self._may_take and self.connection.in_transaction
        rows = self._execute(TAKE_BACK if is_turn else UNSTARTED, (worker,)).fetchall()
        self._has_taken_back |= is_turn and bool(rows)
        starts = [token for (body,) in rows for _, token in wire.given_in(wire.START, body)]
        return starts, [work_id for (body,) in rows for work_id in wire.asked_in(wire.START, body)]

    def claim(self) -> list[Letter]:
        """Take what was decided for this process, in order."""
        rows: list[Any] = self._execute(CLAIM, (self._worker,)).fetchall()
        self._claimed = bool(rows)
        return [(kind, body) for _, kind, body in sorted(rows)]

    def swap(self, post: Outgoing | None, at: float) -> tuple[Head, list[Letter]]:
        """Leave that for whoever decides, and take what was decided for this process. The counters, too."""
        if post is not None:
            self.put(post, at)
        letters = self.claim()
        return self.glimpse()[1], letters

    def unread(self) -> frozenset[int]:
        """Those posts of this process that nobody has taken yet."""
        return frozenset(number for (number,) in self._execute(UNREAD, (self._worker,)))

    def glimpse(self) -> tuple[bool, Head]:
        """Whether there is anything for this process, and the counters."""
        has_letters, fleet, *counters = self._one(GLIMPSE, (self._worker,))
        self.meet(fleet)
        head = states.read_head(tuple(counters))
        self._glimpsed = head.revision
        return bool(has_letters) or self._missed, head

    def meet(self, fleet: int) -> None:
        """Workers came, went or changed so often: if that is more than when they were last read, read them."""
        if fleet != self._fleet:
            self.known = self.workers()
            self._fleet = fleet

    def received(self, head: Head, letters: Iterable[Letter]) -> Received:
        """What these letters say."""
        has_missed = self._missed
        self._missed |= self._unheard  # what this process started itself, and never heard that it was kept
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
        """A post is there, and nothing more can be read now."""
        plan = Plan()
        plan.head = head
        return Received(head, plan, unread, is_known=self.is_known, is_whole=False)

    def _named(self, letter: Letter) -> list[str]:
        try:
            return wire.named_in(*letter)
        except StorageCorrupt:  # whoever reads all of it says so
            return []

    def _loaded(self, ids: list[str]) -> dict[str, Record]:
        may_take, self._may_take = self._may_take, False  # only who decides sets damaged rows aside
        try:
            return self.by_id(ids) if ids else {}
        finally:
            self._may_take = may_take

    def _make_up(self, plan: Plan) -> wire.Given:
        known = {record.token for record in plan.start}
        for record in self.records("shelf = ? ORDER BY seq", (f"running/{self._worker}",)):
            if record.token not in known:
                plan.start.append(record)
                plan.rated[record.token] = 0.0
        me = [worker for worker in self.workers() if worker.id == self._worker]
        return [(one.work_id, one.token) for worker in me for one in worker.overdue]

    def letters_read(self, *, is_all: bool = True) -> None:
        """What the last transaction took of letters is in good hands, if that is all of it."""
        if is_all:
            self._claimed = self._missed = self._unheard = False
            self._held = []

    def hold(self, letters: list[Letter]) -> None:
        """These are taken for good: until they are understood they are kept here."""
        self._held += letters
        self._claimed = False

    def letters_lost(self) -> None:
        """The last transaction failed: whether it took letters nobody knows."""
        self._missed |= self._claimed
        self._claimed = False

    def letters_missed(self) -> None:
        """Letters may be gone that nobody has read."""
        self._missed = True

    def has_posted(self, post: Outgoing | None, had_letters: bool) -> bool:
        """Whether a transaction took place, as it seems now: its post is there, or else its letters are not."""
        if post is not None:
            return post.number in self.unread()
        return had_letters and not self.glimpse()[0]

    # those who are there ----------------------------------------------------------------------------------

    def workers(self) -> list[Worker]:
        """Everybody who has the queue open, the dead included until they are noticed."""
        return [states.read_worker(row) for row in self._execute(states.WORKER_SELECT)]

    @property
    def is_known(self) -> bool:
        """False when the others took this process for dead, as far as it knows."""
        return any(worker.id == self._worker for worker in self.known)

    # work that was accepted and nobody has decided over ----------------------------------------------------

    def one(self, work_id: str) -> Record | None:
        """That work, also if it was only just submitted; raises when it is damaged."""
        return super().one(work_id) or self._submitted(work_id)

    def some(self, ids: Iterable[str]) -> dict[str, Record]:
        """Those of these works that there are, also if they were only just submitted."""
        wanted = list(ids)
        found = self.by_id(wanted)
        for work_id in wanted:
            if work_id not in found and (record := self._submitted(work_id)) is not None:
                found[work_id] = record
        return found

    def accepted(self) -> list[Record]:
        """The works that were accepted and nobody has decided over, in order, after all others."""
        rows: list[Any] = self._execute(self.submitted_select, ('"submit"',)).fetchall()
        if not rows:
            return []
        self.has_seen_post = True
        found: list[Record] = []
        seq = self.head().seq
        for at, body in rows:
            try:
                specs = wire.accepted(body)
            except (ValueError, StorageCorrupt):  # whoever decides says so
                continue
            found += [
                Record(one.id, one, seq + len(found) + n, at, at, since=at) for n, one in enumerate(specs, 1)
            ]
        return found

    def latest(self, query: Query) -> list[Record]:
        """The records that are asked for, newest first, also of what was only just accepted."""
        new = [record for record in reversed(self.accepted()) if query.finds(record)]
        return [*new, *self.find(query)][: query.limit]

    def counted(self) -> Head:
        """The counters, with what was only just accepted."""
        head, new = self.head(), len(self.accepted())
        return replace(head, pending=head.pending + new) if new else head

    def live_by_task(self) -> dict[str, dict[str, int]]:
        """How many works of each task are pending and running, also of what was only just accepted."""
        found = self.tally()
        for record in self.accepted():
            found["pending"][record.spec.task] = found["pending"].get(record.spec.task, 0) + 1
        return found

    def _submitted(self, work_id: str) -> Record | None:
        name = msgspec.json.encode(work_id).decode()
        for at, body in self._execute(self.submitted_select, (name,)).fetchall():
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
