"""Which final records a queue in memory keeps: the last `keep_finished`, and those whose results are wanted."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

from runcue.core.model.record import Record


class FinishedRetention:
    """Final records, oldest first. With `most` None nothing is noted: the store decides what it keeps."""

    def __init__(self, most: int | None) -> None:
        self.most = most
        self._finished: deque[Record] = deque()
        self._gone: set[int] = set()
        """Numbers of units that were revived or deleted since."""
        self.wanted: Counter[str] = Counter()
        """How many live units get the result of each unit when they start."""
        self._put_by: dict[str, Record] = {}
        """Records that would be surplus, but that their results are wanted."""

    def add(self, *records: Record) -> None:
        """Note these final records."""
        if self.most is not None:
            self._finished.extend(records)

    def drop(self, record: Record) -> None:
        """Forget a record that is final no longer, or was deleted."""
        if self.most is not None and self._put_by.pop(record.id, None) is None:
            self._gone.add(record.seq)

    def surplus(self) -> Iterator[Record]:
        """Take out the oldest records beyond `most`."""
        while self.most is not None and len(self._finished) - len(self._gone) > self.most:
            oldest = self._finished.popleft()
            if oldest.seq in self._gone:
                self._gone.remove(oldest.seq)
            elif oldest.id in self.wanted:
                self._put_by[oldest.id] = oldest
            else:
                yield oldest

    def want_for(self, record: Record) -> None:
        """Keep the results that a live unit gets when it starts."""
        if self.most is not None and record.spec.extras is not None:
            self.wanted.update(record.spec.extras.outputs)

    def end(self, record: Record) -> None:
        """Keep no more results for a unit that has ended."""
        extras = record.spec.extras
        for id in () if self.most is None or extras is None else extras.outputs:
            self.wanted[id] -= 1
            if not self.wanted[id]:
                del self.wanted[id]
                if id in self._put_by:
                    self._finished.appendleft(self._put_by.pop(id))
