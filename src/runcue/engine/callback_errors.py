"""Reports the errors and the durations of the application's callbacks.

Observers get every error; the log and the event `callback_failed` get each cause once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from runcue.core.model.failure import describe, is_kind, traceback_text
from runcue.errors import quoted
from runcue.ports import Observer

logger = logging.getLogger("runcue")


class CallbackErrors:
    """Passes every error of a callback to the observers, and each cause once to `emit`."""

    def __init__(self, emit: Callable[[str, BaseException], None], observers: Sequence[Observer]) -> None:
        self._emit = emit
        self.observers = observers
        self._known: dict[tuple[str, int, str], type] = {}
        """Causes that were emitted: the callback, the exception's class (by id: a class may refuse to be hashed), and
        the text where the class alone says little."""

    def __call__(self, kind: str, error: BaseException) -> None:
        """A callback of this kind failed."""
        for observer in self.observers:
            guarded(observer.complained, kind)
        text = describe(error)[:100] if is_kind(error, (TypeError, TimeoutError)) else ""
        cause = kind, id(type(error)), text
        if cause not in self._known and len(self._known) < 1000:
            self._known[cause] = type(error)
            self._emit(kind, error)

    def took(self, kind: str, seconds: float) -> None:
        """Note how long a callback of this kind took, whether or not it failed."""
        for observer in self.observers:
            guarded(observer.called, kind, seconds)


def guarded(method: Callable[..., None], *arguments: object) -> None:
    """Call a method of an observer; an error in it is logged and changes nothing."""
    try:
        method(*arguments)
    except KeyboardInterrupt:  # Ctrl-C
        raise
    except BaseException as error:  # noqa: BLE001 (an application's instrument may raise anything)
        log_trouble(f"an observer raised in {quoted(method)}", error)


def log_trouble(what: str, error: BaseException) -> None:
    """Log an error of the application's instrument, with safe texts: its own `str` may raise, too."""
    logger.warning("%s: %s\n%s", what, describe(error), traceback_text(error))
