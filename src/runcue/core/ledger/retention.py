"""Which final records a queue in memory keeps: the last `keep_finished` of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from runcue.core.model.record import Record


class FinishedRetention:
    """Final records, oldest first. With `most` None nothing is noted: the store decides what it keeps."""

    def __init__(self, most: int | None) -> None:
        self.most = most
        self._finished: deque[Record] = deque()
        self._gone: set[int] = set()
        """Numbers of units that were revived or deleted since."""

    def add(self, *records: Record) -> None:
        """Note these final records."""
        if self.most is not None:
            self._finished.extend(records)

    def drop(self, record: Record) -> None:
        """Forget a record that is final no longer, or was deleted."""
        if self.most is not None:
            self._gone.add(record.seq)

    def surplus(self) -> Iterator[Record]:
        """Take out the oldest records beyond `most`."""
        while self.most is not None and len(self._finished) - len(self._gone) > self.most:
            oldest = self._finished.popleft()
            if oldest.seq in self._gone:
                self._gone.remove(oldest.seq)
            else:
                yield oldest
