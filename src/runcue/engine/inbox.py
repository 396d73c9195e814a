"""The items that the next turn takes, in order.

With an inline store, single units that no rule can refuse are gathered in one submission at the end of the inbox. A
turn for each of them would cost more than everything else that is done for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from threading import get_ident

from runcue.core.model.record import Spec
from runcue.core.schedule.plan import Item, Submit


class Inbox:
    """What waits for the next turn of one process."""

    def __init__(self, wake: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        """`wake` is called when a turn has something to take."""
        self._wake = wake
        self._loop = loop
        self._thread = get_ident()
        self._items: list[Item] = []
        self._gathering: Submit | None = None
        """The submission that `gather` adds units to, until a turn takes it."""

    def __bool__(self) -> bool:
        return bool(self._items)

    @property
    def gathered(self) -> int:
        """How many units were gathered since the last turn: nobody waits for an answer about them."""
        return 0 if self._gathering is None else len(self._gathering.specs)

    def put(self, item: Item) -> None:
        """Leave an item for the next turn."""
        self._items.append(item)
        self._wake()

    def put_threadsafe(self, item: Item) -> None:
        """Leave an item for the next turn, from any thread."""
        if get_ident() == self._thread:
            self.put(item)
        else:
            self._loop.call_soon_threadsafe(self.put, item)

    def put_first(self, item: Item) -> None:
        """Leave an item before all others, in place of any item of its type."""
        self._items = [item, *(other for other in self._items if type(other) is not type(item))]

    def put_back(self, items: Iterable[Item]) -> None:
        """Leave items of a turn that failed before all others, but for those that are here already."""
        known = {id(item) for item in self._items}
        self._items = [*(item for item in items if id(item) not in known), *self._items]

    def gather(self, spec: Spec) -> None:
        """Have the next turn accept a unit that no rule can refuse."""
        gathering = self._gathering
        if gathering is not None and self._items[-1] is gathering:
            gathering.specs.append(spec)
        else:  # an item that came in between keeps its place
            self._gathering = Submit([spec], is_plain=True, is_answered=False)
            self.put(self._gathering)

    def take(self) -> list[Item]:
        """Empty the inbox and return its items."""
        items, self._items = self._items, []
        self._gathering = None
        return items
