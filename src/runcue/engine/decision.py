"""Makes the decision of one turn: the inputs, as values, and the order of the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from runcue.core.schedule.gates import Allowance, Questions
from runcue.core.schedule.plan import (
    Charge,
    Declare,
    DeclareSchedules,
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

MUST_BE_KEPT = (Outcome, Ended, Entered, Declare, DeclareSchedules, Serve, Lost, Charge, Hello, Missed)
"""Items that report facts: if a turn fails, the next one has to take them."""
Ask = Callable[[Scheduler, Turn], None]


class Decider(msgspec.Struct, eq=False):
    """The decision function of one turn. The store calls it with the turn held; it depends on these values alone."""

    scheduler: Scheduler
    items: list[Item]
    questions: Questions
    allowance: Allowance
    may_start: bool
    is_whole: bool
    question: Ask | None = None
    short_tasks: frozenset[str] = frozenset()
    """Tasks whose units are best run in this process."""
    taken: Sequence[Post] = ()
    """The posts that the turn took."""
    has_more: bool = False
    """True when posts were left for the next turn."""

    def __call__(self, turn: Turn) -> Plan:
        """Catch up with the store, take in the items, make the plan."""
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
        request: ReadRequest | None
        while request := scheduler.needs(everything):
            scheduler.absorb(request, turn.read(request))
        if posts:
            scheduler.take_posts(posts)
        scheduler.take_in(items)
        if self.is_whole:
            scheduler.plan(self.may_start, self.allowance)
        if self.question is not None:
            self.question(scheduler, turn)
        return scheduler.finish()
