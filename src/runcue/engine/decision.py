"""One decision: what goes into a turn as values, and the order of its steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from runcue.core.schedule.gates import Allowance, Questions
from runcue.core.schedule.plan import (
    Charge,
    Declare,
    Ended,
    Entered,
    Hello,
    Item,
    Lost,
    Missed,
    Outcome,
    Plan,
    Post,
    ReadRequest,
    Serve,
)
from runcue.core.schedule.scheduler import Scheduler
from runcue.ports import Turn

MUST_BE_KEPT = (Outcome, Ended, Entered, Declare, Serve, Lost, Charge, Hello, Missed)
"""What happened, and must be taken in by some turn, whatever becomes of this one."""
Ask = Callable[[Scheduler, Turn], None]


class Decider(msgspec.Struct, eq=False):
    """One decision to be made: where the store makes it, with the turn held, from these values alone."""

    scheduler: Scheduler
    items: list[Item]
    questions: Questions
    allowance: Allowance
    may_start: bool
    is_whole: bool
    question: Ask | None = None
    short_tasks: frozenset[str] = frozenset()
    """Tasks whose units had better run in this process."""
    taken: Sequence[Post] = ()
    """What it took that processes had left, once it is made."""
    has_more: bool = False
    """True when there was more of that."""

    def __call__(self, turn: Turn) -> Plan:
        """Catch up, take in, decide."""
        scheduler, items, posts = self.scheduler, self.items, turn.posts
        self.taken, self.has_more = posts, turn.has_more
        scheduler.begin(turn.now, turn.wall, turn.reader)
        if turn.changes is not None:
            scheduler.begins(turn.given, posts)
            scheduler.catch_up(turn.changes)
        if turn.reader is None:
            scheduler.ask_with(self.questions)
        else:
            scheduler.greet(items, posts)
            scheduler.keep_here(self.short_tasks)
        everything = [*items, *(item for post in posts for item in post.items)] if posts else items
        lacks: ReadRequest | None
        while lacks := scheduler.needs(everything):
            scheduler.absorb(lacks, turn.read(lacks))
        if posts:
            scheduler.take_posts(posts)
        scheduler.take_in(items)
        if self.is_whole:
            scheduler.plan(self.may_start, self.allowance)
        if self.question is not None:
            self.question(scheduler, turn)
        return scheduler.finish()
