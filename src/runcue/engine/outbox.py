"""Keeps the posts of this process until they are taken and answered.

A stored post is taken by exactly one turn, together with what that turn decides. Answers name an item by the number
of its post and its place in it. A submission that waits for room waits in the memory of the deciding process: when
another process takes over deciding, it is posted again.
"""

from __future__ import annotations

from collections.abc import Iterable

from runcue.core.schedule.plan import Item, Plan, Ref, Submit, Withdraw
from runcue.engine.replies import Replies
from runcue.ports import Outgoing, Received

REQUESTS = frozenset({Submit, Withdraw})
"""The items of which a post has to say more."""


class Outbox:
    """Posts by number, with the process that took each."""

    def __init__(self, replies: Replies, *, is_refusing: bool) -> None:
        """`is_refusing`: even a plain submission can be refused, because the queue has a limit."""
        self._replies = replies
        self._is_refusing = is_refusing
        self.number = 0
        """The number of the last post."""
        self._posts: dict[int, tuple[list[Item], str | None]] = {}
        self._unread: set[int] = set()

    @property
    def has_unread(self) -> bool:
        """True while a post is not known to be taken."""
        return bool(self._unread)

    def was_taken(self, number: int) -> bool:
        """True when every post up to that number exists and was taken."""
        return self.number >= number and all(unread > number for unread in self._unread)

    def post(self, items: list[Item]) -> Outgoing | None:
        """Make a post of these items; None when there are none."""
        if not items:
            return None
        self.number += 1
        for item in [one for one in items if type(one) in REQUESTS]:  # most are none
            if type(item) is Submit:
                can_be_refused = not item.is_plain or item.services or item.has_cost or self._is_refusing
                item.is_answered = bool(can_be_refused)
            elif type(item) is Withdraw and item.submit is not None:
                item.ref = self._ref(item.submit, items)
        return Outgoing(self.number, items)

    def _ref(self, submit: Submit, items: list[Item]) -> Ref | None:
        """The latest post of a submission, and its place there; `items` are the post that is being made."""
        posts = [(number, posted) for number, (posted, _) in self._posts.items()]
        for number, posted in reversed([*posts, (self.number, items)]):
            for place, item in enumerate(posted):
                if item is submit:
                    return number, place
        return None

    def posted(self, number: int, items: list[Item], decider: str | None) -> None:
        """Note that a post is stored, and answer the submissions in it that cannot be refused."""
        self._posts[number] = items, decider
        self._unread.add(number)
        for item in items:
            if type(item) is Submit and not item.is_answered:
                self._replies.answer(item, [spec.id for spec in item.specs])

    def receive(self, received: Received) -> None:
        """Pass on the answers that came, and note which posts were taken."""
        self.answer(received.plan)
        if received.unread is not None:
            self._unread &= received.unread

    def unread(self) -> list[Item]:
        """The items of posts that are not known to be taken."""
        return [item for number in self._unread for item in self._posts[number][0]]

    def mark_taken(self, decider: str, posts: Iterable[int] | None = None) -> None:
        """Note that a turn of that process took these posts, or (None) all of them."""
        numbers = self._unread.intersection(self._unread if posts is None else posts)
        for number in numbers:
            self._posts[number] = self._posts[number][0], decider
        self._unread -= numbers

    def answer(self, plan: Plan) -> None:
        """Pass on the answers to posted items, and leave those to other items in the plan."""
        for asked, answer in plan.replies:
            item = self._item(asked) if isinstance(asked, tuple) else None
            if item is not None:
                self._replies.answer(item, answer)
        plan.replies = [reply for reply in plan.replies if not isinstance(reply[0], tuple)]

    def _item(self, ref: Ref) -> Item | None:
        number, place = ref
        items, _ = self._posts.get(number, ([], None))
        return items[place] if place < len(items) else None

    def fail(self, error: Exception, *, is_all: bool = True) -> None:
        """Fail every caller that waits for an answer to a post; unless `is_all`, only where the post was taken."""
        for number, (items, _) in self._posts.items():
            if is_all or number not in self._unread:
                for item in items:
                    self._replies.answer(item, error)

    def resubmissions(self, decider: str | None) -> list[Item]:
        """Submissions to post again, because they wait for room in a process that no longer decides.

        The new decider may have taken the old post itself, so each is withdrawn there first. Other items need no
        repetition: the turn that took them answered them.
        """
        waiting = {id(item) for item in self._replies.items()}
        awaited = self._replies.awaited()
        unread = {id(item) for item in self.unread()}
        repeated: dict[int, Item] = {}
        withdrawn: list[Item] = []
        for number, (items, taken_by) in list(self._posts.items()):
            if number in self._unread:
                continue
            if not any(id(item) in awaited for item in items):
                del self._posts[number]
            elif taken_by != decider:
                self._posts[number] = items, decider
                for place, item in enumerate(items):
                    if type(item) is Submit and item.may_wait and id(item) in waiting - unread:
                        withdrawn.append(Withdraw(None, (number, place)))
                        repeated[id(item)] = item
        return [*withdrawn, *repeated.values()]
