"""Attempts of this process from before its ledger was made, which a process that takes over must not lose."""

from __future__ import annotations

from collections.abc import Iterable

from runcue.core.model.record import Record
from runcue.core.schedule.plan import Item, Outcome


class Inherited:
    """What this process runs, has answered, or is about to begin, whatever its new ledger knows of it."""

    __slots__ = ("_about_to_begin", "_answered", "_running")

    def __init__(self) -> None:
        self._running: list[Record] = []
        """Attempts whose code still runs."""
        self._answered: set[int] = set()
        """Tokens of attempts that have answered, in a turn of which it is not known whether it was kept, or since."""
        self._about_to_begin: set[int] = set()

    def adopt(self, attempts: Iterable[Record], items: Iterable[Item]) -> None:
        """The code of these attempts still runs. Among `items`, yet to be taken in, are the answers of others."""
        self._running = list(attempts)
        self._answered = {item.token for item in items if isinstance(item, Outcome)}

    def begin(self, tokens: Iterable[int]) -> None:
        """These attempts are about to begin, or their outcome was left for whoever decides."""
        self._about_to_begin = set(tokens)

    def was_answered(self, token: int) -> bool:
        """True when that attempt has answered: if that turn was kept, a later turn does not find it."""
        return token in self._answered

    def begun(self) -> set[int]:
        """Tokens of attempts that were begun here, or are about to be: they must not be put back."""
        return {record.token for record in self._running} | self._answered | self._about_to_begin

    @property
    def is_running(self) -> bool:
        """True while code runs here that the ledger has not been told of."""
        return bool(self._running)

    def take(self) -> list[Record]:
        """The attempts whose code still runs: the ledger knows them from now on."""
        running, self._running = self._running, []
        return running
