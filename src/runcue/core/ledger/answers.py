"""Items that other processes left and that are to be answered: whose they are, and where the answer goes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from runcue.core.ledger.current import CurrentTurn
from runcue.core.schedule.plan import Item, Post, Ref


class Answers:
    """Replies on their way to whoever waits for them."""

    __slots__ = ("_refs", "_turn")

    def __init__(self, turn: CurrentTurn) -> None:
        self._turn = turn
        self._refs: dict[Item, tuple[str, int, int]] = {}

    def expect(self, post: Post, place: int) -> None:
        """Somebody waits for the answer to the item at that place of a post."""
        self._refs[post.items[place]] = post.worker, post.number, place

    def is_expected(self, item: Item) -> bool:
        """True when another process waits for the answer to that item."""
        return item in self._refs

    def worker_of(self, item: Item) -> str:
        """The process that waits for the answer to that item."""
        return self._refs.get(item, (self._turn.worker,))[0]

    def is_at(self, item: Item, worker: str, ref: Ref) -> bool:
        """True when that item is the one that the worker left there."""
        return self._refs.get(item) == (worker, *ref)

    def drop(self, item: Item) -> None:
        """Nobody waits for that answer any more."""
        self._refs.pop(item, None)

    def keep(self, items: Iterable[Item]) -> None:
        """Only these still wait for their answer; all others have it, or get none."""
        self._refs = {item: self._refs[item] for item in items if item in self._refs}

    def reply(self, item: Item, answer: Any) -> None:
        """Have whoever asked for that told the answer."""
        turn = self._turn
        worker, *ref = self._refs.pop(item, (turn.worker,))
        plan = turn.plan if worker == turn.worker else turn.plan.part(worker)
        plan.replies.append((tuple(ref) or item, answer))
