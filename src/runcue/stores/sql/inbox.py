"""The posts that processes leave for the deciding one, and the letters that it leaves for them.

Rules:
- A turn takes the posts that it decides on: a row is deleted in the transaction that reads it, so it is read once.
  All rows that are there are taken, whatever their numbers: some appear late.
- A post that this release cannot read stays where it is, for one that can. The others are taken all the same.
- Starts and questions that no process has read can be taken back; replies, stops and events cannot.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Protocol

from runcue.core.schedule.plan import Plan, Post
from runcue.errors import StorageCorrupt
from runcue.ports import Outgoing
from runcue.stores.sql import statements, wire
from runcue.stores.sql.connection import Connection, Row
from runcue.stores.sql.session import Session
from runcue.stores.sql.submissions import Submissions

logger = logging.getLogger("runcue")

MOST_POSTS = 500
MOST_SIGNS = 8_000_000
"""How many posts a turn takes, and how much text: the rest waits for the next turn."""


class PostSource(Protocol):
    """How the turns of one database read posts."""

    @property
    def may_have_submissions(self) -> bool:
        """Whether anything may have been submitted from outside since then; to be asked after `may_have_posts`."""
        ...

    def may_have_posts(self, connection: Connection) -> bool:
        """Whether any may have been left since the last turn of this process."""
        ...

    def rows(self, connection: Connection, limit: int, *, anew: bool) -> Iterator[Row]:
        """Id, worker, number and body of the posts that were left first. `anew` when another process decided last."""
        ...

    def turn_over(self) -> None:
        """The turn has taken what it read."""
        ...

    def forget(self) -> None:
        """The next turn cannot know what was there before."""
        ...


class Inbox:
    """What the deciding process takes and leaves. Without a source it takes no posts."""

    def __init__(self, session: Session, source: PostSource | None) -> None:
        self._session = session
        self._source = source
        self._taken: list[int] = []
        """The posts that this turn took."""
        self._submissions = Submissions(session)
        self._took_back = False
        """True when this turn took back what another process had been given."""
        self.has_more = False
        """True when there may be more posts than the last turn took."""
        self._unfamiliar: set[int] = set()

    @property
    def limit(self) -> int:
        """How many posts a turn asks for."""
        return MOST_POSTS + len(self._unfamiliar)

    @property
    def must_write(self) -> bool:
        """True when this turn took anything."""
        return bool(self._taken) or self._took_back or self._submissions.are_taken

    def put(self, post: Outgoing, at: float) -> None:
        """Leave a post for the deciding process."""
        body = wire.items_text(post.items)
        self._session.execute(statements.POST, (self._session.worker, post.number, at, body))
        self.has_more = True

    def posts(self, *, anew: bool) -> list[Post]:
        """The posts that were left, in order, and what was submitted from outside. The turn deletes them. `anew`
        when another process decided last."""
        self._taken, self._took_back = [], False
        source, connection = self._source, self._session.connection
        assert source is not None
        if not source.may_have_posts(connection) and not anew and not self.has_more:
            return []
        found = self._left(source, connection, anew=anew)
        if anew or source.may_have_submissions or self._submissions.has_more:
            found += self._submissions.take()
            self.has_more |= self._submissions.has_more
        return found

    def _left(self, source: PostSource, connection: Connection, *, anew: bool) -> list[Post]:
        """The posts that were left, in order."""
        found: list[Post] = []
        number = signs = 0
        limit, self.has_more = self.limit, False
        for number, (id, worker, post, body) in enumerate(source.rows(connection, limit, anew=anew), 1):
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

    def delete_posts(self) -> None:
        """Delete the posts that this turn took."""
        if self._taken:
            self._session.executemany(self._session.dialect.delete_post, [(id,) for id in self._taken])
        self._submissions.delete()

    def write_letters(self, parts: dict[str, Plan]) -> None:
        """Leave the parts of a plan for the processes that they are for."""
        rows = [(worker, *letter) for worker, part in parts.items() for letter in wire.letters_of(part)]
        self._session.executemany(self._session.dialect.insert_letter, rows)

    def unstarted(self, worker: str) -> list[int]:
        """The tokens of the starts that were assigned to this worker and that it has not read."""
        rows = self._session.execute(statements.UNSTARTED, (worker,)).fetchall()
        return [token for (body,) in rows for _, token in wire.given_in(wire.START, body)]

    def take_back(self, worker: str) -> tuple[list[int], list[str]]:
        """Take back what a worker was given and has not read: the tokens of starts, which then never begin, and the
        units whose callbacks it was to call. Outside of a turn they are only listed.
        """
        is_turn = self._session.is_turn
        statement = statements.TAKE_BACK if is_turn else statements.UNSTARTED
        rows = self._session.execute(statement, (worker,)).fetchall()
        self._took_back |= is_turn and bool(rows)
        starts = [token for (body,) in rows for _, token in wire.given_in(wire.START, body)]
        return starts, [work_id for (body,) in rows for work_id in wire.asked_in(wire.START, body)]

    def turn_over(self) -> None:
        """The turn was committed, or wrote nothing."""
        self._taken = []
        self._submissions.turn_over()
        if self._source is not None:
            self._source.turn_over()

    def forget(self) -> None:
        """The turn was not committed, or there is another connection now."""
        self._taken = []
        self._submissions.turn_over()
        if self._source is not None:
            self._source.forget()
