"""This process's attempts from before its ledger was made: a process that takes over must not lose its own."""

from __future__ import annotations

from collections.abc import Iterable

from runcue.core.model.record import Record
from runcue.core.schedule.plan import Item, Outcome


class Inherited:
    """The attempts that this process runs, has answered or is about to begin, whatever the store says of them."""

    __slots__ = ("_about_to_begin", "_answered", "_running")

    def __init__(self) -> None:
        self._running: list[Record] = []
        """Attempts whose code still runs."""
        self._answered: set[int] = set()
        """Tokens of attempts that have answered since, or in a turn whose commit may have failed."""
        self._about_to_begin: set[int] = set()

    def adopt(self, attempts: Iterable[Record], items: Iterable[Item]) -> None:
        """Take over attempts whose code still runs here. Others have answered: their outcomes are among `items`."""
        self._running = list(attempts)
        self._answered = {item.token for item in items if isinstance(item, Outcome)}

    def begin(self, tokens: Iterable[int]) -> None:
        """Note attempts that are about to begin here, or whose outcome is in a post that was not decided yet."""
        self._about_to_begin = set(tokens)

    def was_answered(self, token: int) -> bool:
        """True when that attempt has answered before: its outcome may be stored already, and comes a second time."""
        return token in self._answered

    def begun(self) -> set[int]:
        """Tokens of attempts that were begun here, or are about to be. They must not be put back."""
        return {record.token for record in self._running} | self._answered | self._about_to_begin

    @property
    def is_running(self) -> bool:
        """True while code runs here that the ledger does not count yet."""
        return bool(self._running)

    def take(self) -> list[Record]:
        """The attempts whose code still runs; the caller has the ledger count them."""
        running, self._running = self._running, []
        return running
