"""Which process waits for the answer to an item, and where that answer goes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from runcue.core.ledger.current import CurrentTurn
from runcue.core.schedule.plan import Item, Post, Ref


class Answers:
    """The items whose answer another process waits for, with the process, its post and the place in the post."""

    __slots__ = ("_refs", "_turn")

    def __init__(self, turn: CurrentTurn) -> None:
        self._turn = turn
        self._refs: dict[Item, tuple[str, int, int]] = {}

    def expect(self, post: Post, place: int) -> None:
        """The process that left this post waits for the answer to the item at that place of it."""
        self._refs[post.items[place]] = post.worker, post.number, place

    def is_expected(self, item: Item) -> bool:
        """True when another process waits for the answer to that item."""
        return item in self._refs

    def worker_of(self, item: Item) -> str:
        """The process that waits for the answer to that item."""
        return self._refs.get(item, (self._turn.worker,))[0]

    def is_at(self, item: Item, worker: str, ref: Ref) -> bool:
        """True when that worker left that item, in the post and at the place that `ref` names."""
        return self._refs.get(item) == (worker, *ref)

    def drop(self, item: Item) -> None:
        """Forget the item: no process waits for its answer any more."""
        self._refs.pop(item, None)

    def keep(self, items: Iterable[Item]) -> None:
        """Forget all items but these, which are still to be answered."""
        self._refs = {item: self._refs[item] for item in items if item in self._refs}

    def reply(self, item: Item, answer: Any) -> None:
        """Send the answer to the process that left the item."""
        turn = self._turn
        worker, *ref = self._refs.pop(item, (turn.worker,))
        plan = turn.plan if worker == turn.worker else turn.plan.part(worker)
        plan.replies.append((tuple(ref) or item, answer))
