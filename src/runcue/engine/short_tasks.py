"""Finds the tasks whose handlers take less time than handing a unit to another process would.

A unit that runs in another process costs a letter, an exchange and a post more than one that runs in the deciding
process. For a handler that returns within microseconds that is more than the handler itself, so the deciding process
runs such units itself.

A task is short while many of its handlers in a row end in the step of the loop in which they began. A handler that
suspends waits for something, and more processes could wait for more; so its task is not short for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from runcue.core.model.record import Record

MANY: Final = 16
"""Units that have to begin together before their time is taken: fewer say little about each."""
SHORT: Final = 60e-6
"""The most seconds for a unit of a short task, with all that this process does for it."""
LASTING: Final = 1.0
"""Seconds for which an observation of a task holds."""


class ShortTasks:
    """Judges tasks by the units that this process ran lately."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._short_until: dict[str, float] = {}
        self._long_until: dict[str, float] = {}

    def names(self) -> frozenset[str]:
        """The tasks that are short now."""
        if not self._short_until:
            return frozenset()
        now = self._clock()
        return frozenset(name for name, until in self._short_until.items() if until > now)

    def observe(self, began_at: float, units: Sequence[Record], is_running: Callable[[int], bool]) -> None:
        """Take the time of units that began together and have had their first step; `is_running` takes a token."""
        now = self._clock()
        for name in {unit.spec.task for unit in units if is_running(unit.token)}:
            self._long_until[name] = now + LASTING
            self._short_until.pop(name, None)
        if len(units) >= MANY and now - began_at <= SHORT * len(units):
            for name in {unit.spec.task for unit in units}:
                if self._long_until.get(name, 0.0) <= now:
                    self._short_until[name] = now + LASTING
