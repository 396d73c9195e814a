"""Tasks whose handlers take less time than it takes to hand a unit to another process.

A unit that another process runs costs a letter, an exchange and a post more than one that runs where it was decided.
For a handler that returns within microseconds that is more than the handler itself. So the process that decides keeps
such units for itself, and other processes have nothing to do with them.

A task is short while its handlers, many in a row, end in the very step of the loop in which they begin. One that
suspends is waiting for something: then many processes can wait for more, and the task is not short for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from runcue.core.model.record import Record

MANY: Final = 16
"""Units that have to begin together: fewer say little about how long each takes."""
SHORT: Final = 60e-6
"""Seconds that a unit of a short task takes at most, with everything that is done for it in this process."""
LASTING: Final = 1.0
"""Seconds for which what was seen of a task holds."""


class ShortTasks:
    """What the units that this process ran lately say about their tasks."""

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
        """These units began together then, and have had their first step. `is_running` knows them by their token."""
        now = self._clock()
        for name in {unit.spec.task for unit in units if is_running(unit.token)}:
            self._long_until[name] = now + LASTING
            self._short_until.pop(name, None)
        if len(units) >= MANY and now - began_at <= SHORT * len(units):
            for name in {unit.spec.task for unit in units}:
                if self._long_until.get(name, 0.0) <= now:
                    self._short_until[name] = now + LASTING
