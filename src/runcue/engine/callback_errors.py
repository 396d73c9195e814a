"""What is to be said of the application's callbacks: how long they take, and what goes wrong in them.

Observers are told everything; everybody else is told of each cause once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from runcue.core.model.failure import describe, is_kind, traceback_text
from runcue.errors import quoted
from runcue.ports import Observer

logger = logging.getLogger("runcue")


class CallbackErrors:
    """Tells observers of all that goes wrong in the application's callbacks, and passes each cause on once."""

    def __init__(self, tell: Callable[[str, BaseException], None], observers: Sequence[Observer]) -> None:
        self._tell = tell
        self.observers = observers
        self._known: dict[tuple[str, int, str], type] = {}
        """Causes that were told: the callback, the class of what it raised (by id: a class may refuse to be hashed),
        and where the class says little, the text."""

    def __call__(self, kind: str, error: BaseException) -> None:
        """A callback of this kind failed."""
        for observer in self.observers:
            guarded(observer.complained, kind)
        text = describe(error)[:100] if is_kind(error, (TypeError, TimeoutError)) else ""
        cause = kind, id(type(error)), text
        if cause not in self._known and len(self._known) < 1000:
            self._known[cause] = type(error)
            self._tell(kind, error)

    def took(self, kind: str, seconds: float) -> None:
        """A callback of this kind answered, or failed, after so long."""
        for observer in self.observers:
            guarded(observer.called, kind, seconds)


def guarded(tell: Callable[..., None], *what: object) -> None:
    """Tell an observer something; what goes wrong there is logged and changes nothing here."""
    try:
        tell(*what)
    except KeyboardInterrupt:  # the user's, at the terminal
        raise
    except BaseException as error:  # noqa: BLE001 (an application's instrument may raise anything)
        log_trouble(f"an observer failed in {quoted(tell)}", error)


def log_trouble(what: str, error: BaseException) -> None:
    """Log what went wrong in an instrument of the application; in our words, as its own may raise, too."""
    logger.warning("%s: %s\n%s", what, describe(error), traceback_text(error))
