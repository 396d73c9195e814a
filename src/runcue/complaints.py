"""What is to be said of the application's callbacks: how long they take, and what goes wrong in them.

Observers are told everything; everybody else is told of each cause once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from runcue.core.failure import describe
from runcue.ports import Observer


class Complaints:
    """Counts what goes wrong in the application's callbacks, and passes each cause on once."""

    def __init__(self, tell: Callable[[str, BaseException], None], observers: Sequence[Observer]) -> None:
        self._tell = tell
        self.observers = observers
        self._known: set[tuple[str, type, str]] = set()
        self.counts: Counter[str] = Counter()

    def __call__(self, kind: str, error: BaseException) -> None:
        """A callback of this kind failed."""
        self.counts[kind] += 1
        for observer in self.observers:
            observer.complained(kind)
        cause = (
            kind,
            type(error),
            describe(error)[:100] if isinstance(error, TypeError | TimeoutError) else "",
        )
        if cause not in self._known and len(self._known) < 1000:
            self._known.add(cause)
            self._tell(kind, error)

    def took(self, kind: str, seconds: float) -> None:
        """A callback of this kind answered, or failed, after so long."""
        for observer in self.observers:
            observer.called(kind, seconds)
