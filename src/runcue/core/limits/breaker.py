"""The circuit breaker of one service.

closed     starts flow; `threshold` failures in a row trip it
open       nothing starts until the wait is over; each failed probe doubles the wait (at most 8 times)
half_open  exactly one probe, the best waiting unit; it has a deadline
           success closes the circuit, and capacity ramps 1, 2, 4, … , wider after each full round of successes;
           failure opens it again;
           a probe that was cancelled or lost proves nothing: another one may start once its code has ended

An HTTP status such as 404 fails the unit for good but was an answer: the service is up, a success here. Any other
permanent failure (`Permanent`, bad params) may have come before the service was called: it proves nothing.
Every trip begins a new `epoch`; the results of calls from an earlier epoch are ignored.
"""

from __future__ import annotations

import math
from typing import Final

from runcue.core.model.state import BreakerState

UNLIMITED: Final = 1 << 30
LONGEST_WAIT: Final = 8
WIDEST_RAMP: Final = 1024

CLOSED: Final = "closed"
OPEN: Final = "open"
HALF_OPEN: Final = "half_open"


def end_of(since: float, length: float) -> float:
    """The first moment `now` with `now - since >= length`; because of rounding it may differ from the sum."""
    at = since + length
    if at - since < length:
        return math.nextafter(at, math.inf)
    before = math.nextafter(at, -math.inf)
    return before if before - since >= length else at


class Breaker:
    """Counts failures in a row, and says whether the service may be called at all."""

    __slots__ = ("changed_at", "climbed", "epoch", "failures", "probe_deadline", "ramp", "running",
                 "state", "threshold", "timeout", "wait")  # fmt: skip

    def __init__(self, threshold: int, timeout: float) -> None:
        self.threshold = threshold
        self.timeout = timeout
        self.state = CLOSED
        self.failures = 0
        self.epoch = 0
        self.wait = timeout
        self.changed_at = 0.0
        self.ramp: int | None = None
        self.climbed = 0  # successes since the ramp was last widened
        self.running = 0
        self.probe_deadline: float | None = None

    def declare(self, threshold: int, timeout: float) -> None:
        """Take new settings; a trip under way keeps its wait."""
        self.threshold = threshold
        self.timeout = timeout
        if self.state == CLOSED:
            self.wait = timeout

    def save(self) -> BreakerState:
        """What is stored of it."""
        return BreakerState(self.state, self.failures, self.epoch, self.wait, self.changed_at, self.ramp,
                            self.climbed, self.running, self.probe_deadline)  # fmt: skip

    def load(self, state: BreakerState) -> None:
        """Take over what is stored of it."""
        self.state, self.failures, self.epoch = state.state, state.failures, state.epoch
        self.wait, self.changed_at = state.wait, state.changed_at
        self.ramp, self.climbed, self.running = state.ramp, state.climbed, state.running
        self.probe_deadline = state.probe_deadline

    def room(self, now: float) -> int:
        """How many starts the circuit allows now."""
        if self.state == CLOSED:
            return UNLIMITED if self.ramp is None else self.ramp - self.running
        if self.state == OPEN:
            return 1 if now - self.changed_at >= self.wait else 0
        return 1 if self.probe_deadline is None else 0

    def changes_at(self) -> float | None:
        """When the circuit may change by itself: the end of the wait or the probe's deadline."""
        if self.state == OPEN:
            return end_of(self.changed_at, self.wait)
        return self.probe_deadline

    def started(self, now: float) -> str | None:
        """A call starts. Returns the new state of the circuit, if that has changed."""
        self.running += 1
        if self.state == CLOSED:
            return None
        was, self.state = self.state, HALF_OPEN
        self.probe_deadline = now + self.timeout
        return HALF_OPEN if was == OPEN else None

    def expire(self, now: float) -> str | None:
        """A probe past its deadline counts as failed."""
        if self.state == HALF_OPEN and self.probe_deadline is not None and now >= self.probe_deadline:
            return self._trip(now)
        return None

    def ended(self, epoch: int, verdict: bool | None, now: float) -> str | None:
        """A call of `epoch` ended well (True), badly (False) or without proving anything (None). Returns the new
        state of the circuit, if that has changed."""
        if epoch != self.epoch:
            return None
        self.running -= 1
        if verdict is None:
            self.probe_deadline = None
            return None
        if not verdict:
            self.failures += 1
            tripped = self.state == HALF_OPEN or self.failures >= self.threshold
            return self._trip(now) if tripped else None
        self.failures = 0
        if self.state == HALF_OPEN:
            self.state, self.wait, self.ramp, self.climbed = CLOSED, self.timeout, 1, 0
            self.changed_at, self.probe_deadline = now, None
            return CLOSED
        if self.ramp is not None:
            self._climb(self.ramp)
        return None

    def _climb(self, ramp: int) -> None:
        self.climbed += 1
        if self.climbed >= ramp:
            self.climbed = 0
            self.ramp = ramp * 2 if ramp < WIDEST_RAMP else None

    def _trip(self, now: float) -> str:
        self.wait = (
            min(self.wait * 2, self.timeout * LONGEST_WAIT) if self.state == HALF_OPEN else self.timeout
        )
        self.state, self.changed_at = OPEN, now
        self.epoch += 1
        self.running = 0
        self.ramp = self.probe_deadline = None
        return OPEN
