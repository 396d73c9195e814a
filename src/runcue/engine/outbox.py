"""What this process left for whoever decides, until it was taken and answered.

A post is durable once it was left, and is taken in exactly one turn, together with what that decides. Answers come
back with the number of the post and the place of the item in it. A submission that waits for room waits in the mind
of whoever decides: when somebody else does, it is left again.
"""

from __future__ import annotations

from collections.abc import Iterable

from runcue.core.schedule.plan import Item, Plan, Ref, Submit, Withdraw
from runcue.engine.replies import Replies
from runcue.ports import Outgoing, Received


class Outbox:
    """Posts by number, and what is waited for of each."""

    def __init__(self, replies: Replies, *, is_refusing: bool) -> None:
        """`is_refusing` says that even plain submissions may be refused here: the queue may be full."""
        self._replies = replies
        self._is_refusing = is_refusing
        self.number = 0
        """Of the last post."""
        self._posts: dict[int, tuple[list[Item], str | None]] = {}
        self._unread: set[int] = set()

    @property
    def has_unread(self) -> bool:
        """True while something is not known to have been taken."""
        return bool(self._unread)

    def was_taken(self, number: int) -> bool:
        """True when every post up to that one was made, and taken."""
        return self.number >= number and all(one > number for one in self._unread)

    def post(self, items: list[Item]) -> Outgoing | None:
        """These items as a post; None when there are none."""
        if not items:
            return None
        self.number += 1
        for item in items:
            if type(item) is Submit:
                can_be_refused = not item.is_plain or item.services or item.has_cost or self._is_refusing
                item.is_answered = bool(can_be_refused)
            elif type(item) is Withdraw and item.submit is not None:
                item.ref = self._ref(item.submit, items)
        return Outgoing(self.number, items)

    def _ref(self, submit: Submit, items: list[Item]) -> Ref | None:
        """Where a submission is found: among these items, or where it was left last."""
        posts = [(number, left) for number, (left, _) in self._posts.items()]
        for number, left in reversed([*posts, (self.number, items)]):
            for place, item in enumerate(left):
                if item is submit:
                    return number, place
        return None

    def left(self, number: int, items: list[Item], decider: str | None) -> None:
        """That post is there: those who wait for nothing more are answered."""
        self._posts[number] = items, decider
        self._unread.add(number)
        for item in items:
            if type(item) is Submit and not item.is_answered:
                self._replies.answer(item, [spec.id for spec in item.specs])

    def heard(self, received: Received) -> None:
        """Answer those who are answered by that, and know which posts were taken."""
        self.answer(received.plan)
        if received.unread is not None:
            self._unread &= received.unread

    def unread(self) -> list[Item]:
        """What is not known to have been taken."""
        return [item for number in self._unread for item in self._posts[number][0]]

    def taken(self, decider: str, posts: Iterable[int] | None = None) -> None:
        """This process decided, and took these posts, or (None) everything that was left."""
        numbers = self._unread.intersection(self._unread if posts is None else posts)
        for number in numbers:
            self._posts[number] = self._posts[number][0], decider
        self._unread -= numbers

    def answer(self, plan: Plan) -> None:
        """Answer those who waited for what was left; what is left in the plan is for items of its own turn."""
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
        """Answers may have been lost: whoever waits for one gets the error instead, or (not `is_all`) only who waits
        for one to what was taken."""
        for number, (items, _) in self._posts.items():
            if is_all or number not in self._unread:
                for item in items:
                    self._replies.answer(item, error)

    def again(self, decider: str | None) -> list[Item]:
        """Submissions that wait for room in the mind of somebody who decides no longer: to be left again.

        Who decides now may be the one who took it after all, so it is withdrawn there first. Whatever else was taken
        is answered in the turn that took it.
        """
        waiting = {id(item) for item in self._replies.items()}
        awaited = self._replies.awaited()
        left = {id(item) for item in self.unread()}
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
                    if type(item) is Submit and item.may_wait and id(item) in waiting - left:
                        withdrawn.append(Withdraw(None, (number, place)))
                        repeated[id(item)] = item
        return [*withdrawn, *repeated.values()]
