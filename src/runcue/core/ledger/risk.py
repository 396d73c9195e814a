"""Work that may be what kills its workers runs alone at last, so that those beside it live."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from msgspec.structs import replace

from runcue.core.ledger.timers import LATER
from runcue.core.model.record import Record
from runcue.core.model.settings import MOST_CRASHES, PROBATION


class Owner(Protocol):
    """What of the ledger is needed here."""

    now: float
    records: dict[str, Record]

    def place(self, record: Record) -> None:
        """Put pending work where it waits."""

    def live(self, work_id: str) -> Record | None:
        """That work, if it is pending or running."""


class Risk:
    """The one that is being risked, and those that wait until it has run for a while."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self.id = ""
        self._until = 0.0
        self._set_aside: deque[tuple[str, float]] = deque()

    def allows(self, record: Record) -> bool:
        """False for work that took its worker with it twice, while another such has not run for long."""
        owner = self._owner
        if record.crashes < MOST_CRASHES - 1:
            return True
        if owner.now < self._until and self.id in owner.records and self.id != record.id:
            self._set_aside.append((record.id, self._until))
            owner.place(replace(record, next_retry_at=self._until))
            return False
        self.id, self._until = record.id, owner.now + PROBATION
        return True

    def is_over(self) -> None:
        """The one that was risked did no harm: the next may come."""
        self.id = ""
        while self._set_aside:
            work_id, until = self._set_aside.popleft()
            record = self._owner.live(work_id)
            if record is not None and (record.token, record.shelf, record.next_retry_at) == (0, LATER, until):
                self._owner.place(replace(record, next_retry_at=None))
                return
