"""Work that may be what kills its workers runs alone at last, so that those beside it live."""

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
    """The one that is being risked, and those that wait until it has run for a while."""

    def __init__(self, turn: CurrentTurn, working: WorkingSet, place: Callable[[Record], None]) -> None:
        self._turn = turn
        self._working = working
        self._place = place
        self.id = ""
        self._until = 0.0
        self._put_aside: deque[tuple[str, float]] = deque()

    def allows(self, record: Record) -> bool:
        """False for work that took its worker with it twice, while another such has not run for long."""
        now = self._turn.now
        if record.crashes < MOST_CRASHES - 1:
            return True
        if now < self._until and self.id in self._working.records and self.id != record.id:
            self._put_aside.append((record.id, self._until))
            self._place(replace(record, next_retry_at=self._until))
            return False
        self.id, self._until = record.id, now + PROBATION
        return True

    def is_over(self) -> None:
        """The one that was risked did no harm: the next may come."""
        self.id = ""
        while self._put_aside:
            work_id, until = self._put_aside.popleft()
            record = self._working.live(work_id)
            if record is not None and (record.token, record.shelf, record.next_retry_at) == (0, LATER, until):
                self._place(replace(record, next_retry_at=None))
                return
