"""What is to be said of the application's callbacks: how long they take, and what goes wrong in them.

Observers are told everything; everybody else is told of each cause once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from runcue.core.failure import describe
from runcue.ports import Observer

logger = logging.getLogger("runcue")


class Complaints:
    """Tells observers of all that goes wrong in the application's callbacks, and passes each cause on once."""

    def __init__(self, tell: Callable[[str, BaseException], None], observers: Sequence[Observer]) -> None:
        self._tell = tell
        self.observers = observers
        self._known: set[tuple[str, type, str]] = set()

    def __call__(self, kind: str, error: BaseException) -> None:
        """A callback of this kind failed."""
        for observer in self.observers:
            guarded(observer.complained, kind)
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
            guarded(observer.called, kind, seconds)


def guarded(tell: Callable[..., None], *what: object) -> None:
    """Tell an observer something; what goes wrong there is logged and changes nothing here."""
    try:
        tell(*what)
    except Exception as error:
        logger.warning("an observer failed in %r: %s", tell, error, exc_info=error)
