"""`runcue.progress`: draws on the terminal how far a queue is.

Rules:
- A terminal gets a live bar (with rich) or one line that is overwritten (without). Any other stream gets only the
  last line, so that logs stay readable.
- It only reads the queue. An error in reading, forecasting or drawing ends the drawing and never the run.
- Texts are plain ASCII: they reach terminals of any encoding.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self, TextIO, cast

import msgspec

from runcue.core.model.record import WorkState
from runcue.errors import RuncueError

if TYPE_CHECKING:
    from runcue.api.cue import Cue

logger = logging.getLogger("runcue")

EVERY = 0.2
"""Seconds between two pictures."""
LATELY = 30.0
"""Seconds over which the rate is measured."""
FORECAST_EVERY = 2.0
"""Seconds between two forecasts, which may be slow."""

Forecast = Callable[[], Awaitable[float | None]]
"""Forecasts in how many seconds the queued units will be done; None when it cannot tell."""


class Tally(msgspec.Struct, frozen=True):
    """How many units of how many are done; `total` is None while it is unknown."""

    done: int
    failed: int
    total: int | None = None
    queued: int = 0
    """How many units are submitted and not done: a forecast covers only these."""


class Picture(msgspec.Struct, frozen=True):
    """The state that is shown at one moment."""

    tally: Tally
    rate: float | None
    left: float | None
    """Seconds until all is done, if that is known."""


Look = Callable[[], Awaitable[Tally]]


def progress(
    cue: Cue, *, total: int | None = None, forecast: Forecast | None = None, file: TextIO | None = None
) -> Bar:
    """Draw how far the queue of that Cue is: `async with cue, runcue.progress(cue): …`.

    Units that ended before do not count. `total` is the number of units in all, where not all are submitted at once;
    `forecast` returns the seconds left; `file` is where to draw, in place of stderr.
    """
    return Bar(Counts(cue, total).look, forecast, file)


class Counts:
    """Counts the units of a Cue that ended since the first look."""

    def __init__(self, cue: Cue, total: int | None) -> None:
        self._cue = cue
        self._total = total
        self._before: tuple[int, int] | None = None

    async def look(self) -> Tally:
        """The tally now."""
        counts = await self._cue.count()
        failed = counts[WorkState.FAILED]
        done = counts[WorkState.COMPLETED] + failed + counts[WorkState.CANCELLED]
        queued = counts[WorkState.PENDING] + counts[WorkState.RUNNING]
        if self._before is None:
            self._before = done, failed
        done, failed = max(0, done - self._before[0]), max(0, failed - self._before[1])
        return Tally(done, failed, max(done + queued, self._total or 0), queued)


# --- Texts ----------------------------------------------------------------------------------------


def clock_text(seconds: float) -> str:
    """A length of time as people read it: 0:07, 2:30, 1:02:03, 3d 4h."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 100:
        return f"{hours // 24}d {hours % 24}h"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def rate_text(per_second: float) -> str:
    """A rate in the unit that gives it digits: 12.3/s, 4.5/min."""
    if per_second >= 1:
        return f"{per_second:,.1f}/s" if per_second < 100 else f"{per_second:,.0f}/s"
    return f"{60 * per_second:.1f}/min"


def live_text(picture: Picture) -> str:
    """A picture as one line of text."""
    tally = picture.tally
    parts = [_done_text(tally)]
    if picture.rate:
        parts.append(rate_text(picture.rate))
    if picture.left is not None:
        parts.append(f"{clock_text(picture.left)} left")
    return ", ".join(parts)


def last_text(tally: Tally, seconds: float) -> str:
    """The last line, which stays on the screen."""
    rate = f" ({rate_text(tally.done / seconds)})" if tally.done and seconds > 0 else ""
    return f"{_done_text(tally)} in {clock_text(seconds)}{rate}"


def _done_text(tally: Tally) -> str:
    total = "" if tally.total is None else f"/{tally.total:,}"
    failed = f", {tally.failed:,} failed" if tally.failed else ""
    return f"{tally.done:,}{total} done{failed}"


# --- Where it is drawn ----------------------------------------------------------------------------


class Guarded:
    """A stream whose errors are harmless: after the first one nothing more is written to it."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str:
        """The encoding of the stream."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Write, if it is still possible."""
        self._try(lambda stream: stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush, if it is still possible."""
        self._try(lambda stream: stream.flush())

    def isatty(self) -> bool:
        """True when the stream is a terminal."""
        return bool(self._try(lambda stream: stream.isatty()))

    def _try(self, action: Callable[[TextIO], Any]) -> Any:
        if self._stream is None:
            return None
        try:
            return action(self._stream)
        except (OSError, ValueError) as error:  # closed, or of an encoding without these characters
            logger.debug("progress is drawn no more: %s", error)
            self._stream = None
            return None


class Line:
    """One plain line that is overwritten again and again."""

    def __init__(self, stream: Guarded) -> None:
        self._stream = stream
        self._length = 0

    def show(self, picture: Picture) -> None:
        """Write the line anew."""
        self._over(live_text(picture)[: shutil.get_terminal_size().columns - 1])

    def close(self) -> None:
        """Wipe the line."""
        self._over("")
        self._stream.write("\r")

    def _over(self, text: str) -> None:
        self._stream.write(f"\r{text:{self._length}}")
        self._stream.flush()
        self._length = len(text)


class RichBar:
    """A bar with a text beside it; output of other code appears above it."""

    def __init__(self, stream: Guarded) -> None:
        from rich.console import Console  # optional, and slow to import
        from rich.progress import BarColumn, Progress, TextColumn

        console = Console(file=cast("IO[str]", stream))
        columns = BarColumn(), TextColumn("{task.description}", markup=False)
        self._progress = Progress(*columns, console=console, auto_refresh=False, transient=True)
        self._task = self._progress.add_task("", total=None)
        self._is_drawn = False

    def show(self, picture: Picture) -> None:
        """Draw a picture."""
        if not self._is_drawn:
            self._is_drawn = True
            self._progress.start()
        done, total = picture.tally.done, picture.tally.total
        self._progress.update(self._task, completed=done, total=total, description=live_text(picture))
        self._progress.refresh()

    def close(self) -> None:
        """Remove the bar."""
        if self._is_drawn:
            self._progress.stop()


Screen = RichBar | Line
"""Shows pictures, one in place of the other."""


def screen_for(stream: Guarded) -> Screen:
    """Choose rich's bar if it is installed, or else a plain line."""
    try:
        return RichBar(stream)
    except ImportError:
        return Line(stream)


# --- Drawing --------------------------------------------------------------------------------------


class Bar:
    """Draws the tallies of `look` while its block runs, and one line at the end."""

    def __init__(self, look: Look, forecast: Forecast | None = None, file: TextIO | None = None) -> None:
        self._look = look
        self._forecast = forecast
        self._file = file
        self._tally = Tally(0, 0)
        self._seen: deque[tuple[float, int]] = deque()
        self._forecast_at = -FORECAST_EVERY
        self._forecast_left: float | None = None
        self._began_at = 0.0
        self._stream = Guarded(None)
        self._screen: Screen | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._stream = Guarded(sys.stderr if self._file is None else self._file)
        self._began_at = loop.time()
        self._tally = await self._look()
        if self._stream.isatty():
            self._screen = screen_for(self._stream)
            self._task = loop.create_task(self._draw(self._screen), name="runcue progress")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._undraw()
        await self._see()
        seconds = asyncio.get_running_loop().time() - self._began_at
        self._stream.write(last_text(self._tally, seconds) + "\n")
        self._stream.flush()

    async def _draw(self, screen: Screen) -> None:
        try:
            while await self._see():
                screen.show(await self._picture())
                await asyncio.sleep(EVERY)
        except Exception as error:  # noqa: BLE001 (drawing must not end the run)
            logger.warning("progress is drawn no more: %r", error)

    def _undraw(self) -> None:
        try:
            if self._screen is not None:
                self._screen.close()
        except Exception as error:  # noqa: BLE001 (drawing must not end the run)
            logger.warning("progress could not be wiped: %r", error)

    async def _see(self) -> bool:
        """Update the tally; False when the queue can no longer be read."""
        try:
            self._tally = await self._look()
        except RuncueError as error:  # the Cue is closed, or its store failed: the run itself gets the error
            logger.debug("progress is drawn no more: %s", error)
            return False
        return True

    async def _picture(self) -> Picture:
        tally, seen = self._tally, self._seen
        now = asyncio.get_running_loop().time()
        seen.append((now, tally.done))
        while seen[0][0] < now - LATELY:
            seen.popleft()
        since, before = seen[0]
        rate = max(0, tally.done - before) / (now - since) if now > since else None
        return Picture(tally, rate, await self._left(tally, rate, now))

    async def _left(self, tally: Tally, rate: float | None, now: float) -> float | None:
        """Seconds until all is done: as forecast for the queued units, else at the rate of the last seconds."""
        if tally.total is None:
            return None
        rest = max(0, tally.total - tally.done)
        if self._forecast is not None and now - self._forecast_at >= FORECAST_EVERY:
            self._forecast_at, self._forecast_left = now, await self._ask(self._forecast)
        if self._forecast_left is not None and tally.queued:
            return max(0.0, self._forecast_left - (now - self._forecast_at)) * max(1.0, rest / tally.queued)
        return rest / rate if rate else None

    async def _ask(self, forecast: Forecast) -> float | None:
        try:
            return await forecast()
        except Exception as error:  # noqa: BLE001 (the application's function may raise anything)
            logger.warning("progress goes on without its forecast, which raised %r", error)
            self._forecast = None
            return None
