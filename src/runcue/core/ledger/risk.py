"""Units that may have killed their workers start one at a time, so that only the guilty one is given up.

A unit is suspect when one more lost worker would fail it (`MOST_CRASHES`). While one suspect unit is on probation,
the start of another one is postponed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from runcue.core.ledger.current import CurrentTurn
from runcue.core.ledger.timers import LATER
from runcue.core.ledger.working_set import WorkingSet
from runcue.core.model.record import Record
from runcue.core.model.settings import MOST_CRASHES, PROBATION


class Risk:
    """The suspect unit on probation, and those that wait for its end."""

    def __init__(self, turn: CurrentTurn, working: WorkingSet, place: Callable[[Record], None]) -> None:
        self._turn = turn
        self._working = working
        self._place = place
        self.id = ""
        """The unit on probation."""
        self._until = 0.0
        self._postponed: deque[tuple[str, float]] = deque()

    def allows(self, record: Record) -> bool:
        """True when that unit may start now; else it is postponed."""
        now = self._turn.now
        if record.crashes < MOST_CRASHES - 1:
            return True
        if now < self._until and self.id in self._working.records and self.id != record.id:
            self._postponed.append((record.id, self._until))
            self._place(replace(record, next_retry_at=self._until))
            return False
        self.id, self._until = record.id, now + PROBATION
        return True

    def is_over(self) -> None:
        """The unit on probation has ended and did no harm: the next suspect unit may start."""
        self.id = ""
        while self._postponed:
            work_id, until = self._postponed.popleft()
            record = self._working.live(work_id)
            if record is not None and _is_postponed(record, until):
                self._place(replace(record, next_retry_at=None))
                return


def _is_postponed(record: Record, until: float) -> bool:
    return (record.token, record.index_key, record.next_retry_at) == (0, LATER, until)
