"""Logs each cause at most once a minute, however often it occurs.

Anybody who can reach a dashboard can send it nonsense as often as they like, without a token. So:
- A cause is a message before its values are filled in, with the exception, if any, and the line that raised it. Its
  first occurrence is logged at once. Those within the next minute are counted, and the count is logged after it.
- Only our own mistakes are logged with a traceback. What the system refuses (too many open files) is logged in one
  line, and a request that is cancelled when the server ends is not logged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

import msgspec

logger = logging.getLogger("runcue")

MINUTE = 60.0
IS_COUNT = "is_count_of_runcue"
"""What a record has that was counted here already."""


class Told(msgspec.Struct):
    """What was logged, since when it is only counted, and how often it was."""

    logger: logging.Logger
    level: int
    text: str
    since: float
    more: int = 0


class LogLimit:
    """The limit of one dashboard. As a filter of a logger it is the limit of all that is logged there."""

    def __init__(self) -> None:
        self._told: dict[Hashable, Told] = {}

    def warning(self, text: str, *values: object) -> None:
        """Log that something is not as it should be."""
        self._log(logging.WARNING, text, values, None)

    def fault(self, text: str, error: BaseException) -> None:
        """Log a mistake of ours, with its traceback."""
        self._log(logging.ERROR, text, (), error)

    def _log(self, level: int, text: str, values: tuple[object, ...], error: BaseException | None) -> None:
        if logger.isEnabledFor(level):
            whole = text % values if values else text
            more = self._more(_cause(logger.name, text, error), Told(logger, level, whole, time.monotonic()))
            if more is not None:
                logger.log(level, "%s", whole + more, exc_info=error, stacklevel=3)

    @contextmanager
    def over(self, *names: str) -> Iterator[None]:
        """Be the filter of these loggers for a while, and log at its end what was only counted."""
        loggers = [logging.getLogger(name) for name in names]
        for one in loggers:
            one.addFilter(self)
        try:
            yield
        finally:
            self.tell_rest(is_end=True)
            for one in loggers:
                one.removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """True for a record that is to be logged; its count is added to it."""
        if hasattr(record, IS_COUNT):
            return True
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, asyncio.CancelledError):
            return False
        whole = record.getMessage()
        if record.name == "asyncio" and isinstance(error, OSError):
            whole, record.exc_info = f"{whole.splitlines()[0]}: {error}", None
        told = Told(logging.getLogger(record.name), record.levelno, whole.split("\n")[0], time.monotonic())
        more = self._more(_cause(record.name, record.msg, error), told)
        if more is not None:
            record.msg, record.args = whole + more, None
        return more is not None

    def tell_rest(self, *, is_end: bool = False) -> None:
        """Log the counts of all minutes that are over, at the end those of all."""
        now = time.monotonic()
        for cause, told in list(self._told.items()):
            if is_end or now - told.since >= MINUTE:
                del self._told[cause]
                if told.more:
                    told.logger.log(told.level, "%s", told.text + _counted(told.more), extra={IS_COUNT: True})
                    self._told[cause] = msgspec.structs.replace(told, since=now, more=0)

    def _more(self, cause: Hashable, new: Told) -> str | None:
        """What to add to a line: how often it was left out. None when it is only counted."""
        told = self._told.get(cause)
        if told is not None and new.since - told.since < MINUTE:
            told.more += 1
            return None
        self._told[cause] = new
        return _counted(told.more) if told is not None and told.more else ""


def _cause(name: str, text: object, error: BaseException | None) -> Hashable:
    """What two lines have in common that tell the same."""
    place, step = None, None if error is None else error.__traceback__
    while step is not None:
        place, step = (step.tb_frame.f_code, step.tb_lineno), step.tb_next
    return name, str(text).split("\n")[0], type(error), place


def _counted(more: int) -> str:
    return f" (and {more:,} more of these)"
