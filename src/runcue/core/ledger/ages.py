"""Which pending unit was submitted first: the one that is dropped where a full queue makes room (`drop_oldest`)."""

from __future__ import annotations

from heapq import heappop, heappush

from runcue.core.ledger.current import CurrentTurn
from runcue.core.ledger.timers import FEW
from runcue.core.ledger.working_set import PAGE, WorkingSet
from runcue.core.model.record import Record, WorkState
from runcue.core.schedule.plan import TurnReader


class Ages:
    """Pending units by age: in a heap if `is_noted`; a shared store finds the oldest by itself."""

    __slots__ = ("_by_age", "_is_noted", "_turn", "_working")

    def __init__(self, turn: CurrentTurn, working: WorkingSet, *, is_noted: bool) -> None:
        self._turn = turn
        self._working = working
        self._is_noted = is_noted
        self._by_age: list[tuple[int, str]] = []

    def note(self, record: Record) -> None:
        """Note that this unit became pending."""
        if self._is_noted:
            by_age, records = self._by_age, self._working.records
            heappush(by_age, (record.seq, record.id))
            if len(by_age) > 2 * len(records) + FEW:
                by_age[:] = sorted((one.seq, one.id) for one in records.values() if not one.token)

    def oldest(self) -> Record:
        """The pending unit that was submitted first. At least one unit must be pending."""
        if self._turn.reader is not None:
            return self._oldest_stored(self._turn.reader)
        while True:
            seq, work_id = heappop(self._by_age)
            record = self._working.records.get(work_id)
            if record is not None and record.seq == seq and not record.token:
                return record

    def _oldest_stored(self, reader: TurnReader) -> Record:
        """The oldest of the units that this turn made pending and of the stored ones that it has not changed."""
        written = self._turn.plan.records
        fresh = [record for record in written.values() if record.state is WorkState.PENDING]
        after, page = 0, reader.oldest(0, PAGE)
        while page and all(record.id in written for record in page):
            after = page[-1].seq
            page = reader.oldest(after, PAGE)
        stored = [record for record in page if record.id not in written][:1]
        oldest = self._working.live(min((*fresh, *stored), key=lambda record: record.seq).id)
        assert oldest is not None
        return oldest
