"""Reports of a function in another process about its unit while it runs: progress, charges, rate-limit headers."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from runcue.core.limits.headers import texts
from runcue.core.limits.meter import checked
from runcue.core.model.failure import describe
from runcue.core.model.record import ProgressReport, Work
from runcue.errors import Permanent
from runcue.executors.process.answer import plain
from runcue.ports import unit_elsewhere

PROGRESS_EVERY = 0.1
"""Seconds between two reports of progress, at least."""
LONGEST_TEXT = 64 * 1024
FIELDS = tuple(name for name in Work.__struct_fields__ if name != "progress")
"""What is sent of a unit: an attempt has made no progress before it begins."""

Send = Callable[[str, tuple[object, ...]], None]
"""Sends a report to the owner: the name of a method of the Work there, and its arguments."""


class Reporter:
    """Sends the owner what a function reports; progress not too often."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._sent_at = float("-inf")

    def progress(self, fraction: float | None, text: str | None) -> None:
        """Report progress, unless the last report was a moment ago."""
        now = time.monotonic()
        if now - self._sent_at >= PROGRESS_EVERY:
            self._sent_at = now
            said = None if text is None else plain(str(text)[:LONGEST_TEXT])
            self._send("progress", (plain(fraction), said))

    def charge(self, amounts: dict[str, float]) -> None:
        """Report what was really used of each quantity."""
        self._send("charge", (amounts,))

    def observe(self, headers: dict[str, str], service: object) -> None:
        """Report the headers of a response."""
        self._send("observe", (headers, service))


class PoolWork(Work, frozen=True, dict=True):
    """The `Work` that a function in another process gets: its methods report to the owner.

    The one class here that derives from another: handlers may ask for `isinstance(work, Work)`, and type checkers do.
    """

    def charge(self, **amounts: float) -> None:
        """Report what was really used of each quantity; may be called from any thread."""
        if (reporter := self._reporter()) is not None:
            reporter.charge(checked(amounts))

    def observe(self, headers: Mapping[str, Any], service: str | None = None) -> None:
        """Report the headers of a response, which say how much the service still accepts, and until when."""
        if (reporter := self._reporter()) is not None:
            reporter.observe(texts(headers), None if service is None else plain(str(service)))

    def _reporter(self) -> Reporter | None:
        """The reporter; a copy of the unit has none."""
        return self.__dict__.get("reporter")

    def __reduce__(self) -> tuple[Any, ...]:
        return Work, msgspec.structs.astuple(self)


def pack_call(function: object, work: Any) -> bytes:
    """A call as bytes, for the other process: the function, and the field values that `pool_work` takes."""
    try:
        return pickle.dumps((function, tuple(getattr(work, name) for name in FIELDS)))
    except Exception as error:
        raise Permanent(
            f"its params cannot be sent to another process ({describe(error)}): use plain values"
        ) from error


def pool_work(values: Sequence[Any], reporter: Reporter) -> PoolWork:
    """The work unit with these field values, for a function whose reports go through `reporter`.

    It is `runcue.current()` from now on: whoever calls the function resets `unit_elsewhere` after it.
    """
    fields: dict[str, Any] = dict(zip(FIELDS, values, strict=True))
    work = PoolWork(**fields, progress=ProgressReport(reporter.progress))  # type: ignore[arg-type] # it is called alike
    work.__dict__["reporter"] = reporter
    unit_elsewhere.set(work)
    return work


def forward(work: Any, verb: str, words: Sequence[Any]) -> None:
    """Apply a report that `Send` brought to the owner's Work."""
    if verb == "progress":
        work.progress(*words)
    elif verb == "charge":
        work.charge(**words[0])
    elif verb == "observe":
        work.observe(*words)
