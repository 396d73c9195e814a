"""What goes wrong in the application's callbacks: counted, and told once for each cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from runcue.core.failure import describe


class Complaints:
    """Counts what goes wrong in the application's callbacks, and passes each cause on once."""

    def __init__(self, tell: Callable[[str, BaseException], None]) -> None:
        self._tell = tell
        self._known: set[tuple[str, type, str]] = set()
        self.counts: Counter[str] = Counter()

    def __call__(self, kind: str, error: BaseException) -> None:
        """A callback of this kind failed."""
        self.counts[kind] += 1
        cause = (
            kind,
            type(error),
            describe(error)[:100] if isinstance(error, TypeError | TimeoutError) else "",
        )
        if cause not in self._known and len(self._known) < 1000:
            self._known.add(cause)
            self._tell(kind, error)
