"""Logs each cause at most once a minute, however often it occurs.

Anybody who can reach a dashboard can send it nonsense as often as they like, without a token. So:
- A cause is a message before its values are filled in, with the exception, if any, and the line that raised it. Its
  first occurrence is logged at once. Those within the next minute are counted, and then their number is logged.
- Only our own mistakes are logged with a traceback. An error of the system (too many open files) is logged in one
  line. A request that is cancelled because the server ends is not logged.
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
"""The attribute of log records that were made here: they are not counted again."""


class Logged(msgspec.Struct):
    """A line that was logged, since when it is only counted, and how often it occurred since."""

    logger: logging.Logger
    level: int
    text: str
    since: float
    more: int = 0


class LogLimit:
    """The limit for the log lines of one dashboard; as a filter of a logger, for all that is logged there."""

    def __init__(self) -> None:
        self._logged: dict[Hashable, Logged] = {}

    def warning(self, text: str, *values: object) -> None:
        """Log a warning."""
        self._log(logging.WARNING, text, values, None)

    def fault(self, text: str, error: BaseException) -> None:
        """Log a mistake in runcue, with its traceback."""
        self._log(logging.ERROR, text, (), error)

    def _log(self, level: int, text: str, values: tuple[object, ...], error: BaseException | None) -> None:
        if logger.isEnabledFor(level):
            whole = text % values if values else text
            more = self._more(
                _cause(logger.name, text, error), Logged(logger, level, whole, time.monotonic())
            )
            if more is not None:
                logger.log(level, "%s", whole + more, exc_info=error, stacklevel=3)

    @contextmanager
    def over(self, *names: str) -> Iterator[None]:
        """Filter these loggers for a while; at the end log what was only counted."""
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
        """Whether to log this record; adds to it how often it was left out."""
        if hasattr(record, IS_COUNT):
            return True
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, asyncio.CancelledError):
            return False
        whole = record.getMessage()
        if record.name == "asyncio" and isinstance(error, OSError):
            whole, record.exc_info = f"{whole.splitlines()[0]}: {error}", None
        line = Logged(logging.getLogger(record.name), record.levelno, whole.split("\n")[0], time.monotonic())
        more = self._more(_cause(record.name, record.msg, error), line)
        if more is not None:
            record.msg, record.args = whole + more, None
        return more is not None

    def tell_rest(self, *, is_end: bool = False) -> None:
        """Log the counts of all minutes that are over; with `is_end` all counts."""
        now = time.monotonic()
        for cause, line in list(self._logged.items()):
            if is_end or now - line.since >= MINUTE:
                del self._logged[cause]
                if line.more:
                    line.logger.log(line.level, "%s", line.text + _counted(line.more), extra={IS_COUNT: True})
                    self._logged[cause] = msgspec.structs.replace(line, since=now, more=0)

    def _more(self, cause: Hashable, new: Logged) -> str | None:
        """The text to add to a line, with how often it was left out; None when the line is only counted."""
        line = self._logged.get(cause)
        if line is not None and new.since - line.since < MINUTE:
            line.more += 1
            return None
        self._logged[cause] = new
        return _counted(line.more) if line is not None and line.more else ""


def _cause(name: str, text: object, error: BaseException | None) -> Hashable:
    """The cause of a log line, as a key."""
    place, step = None, None if error is None else error.__traceback__
    while step is not None:
        place, step = (step.tb_frame.f_code, step.tb_lineno), step.tb_next
    return name, str(text).split("\n")[0], type(error), place


def _counted(more: int) -> str:
    return f" (and {more:,} more of these)"
