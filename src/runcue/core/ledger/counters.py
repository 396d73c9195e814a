"""How many units there are in each state, the numbers given out so far, and whether the queue makes progress."""

from __future__ import annotations

import math

from runcue.core.model.lifecycle import CANCELLED, COMPLETED, FAILED
from runcue.core.model.record import WorkState
from runcue.core.model.state import NO_HEAD, Head


class Counters:
    """Counts that change with every move of a unit. Every change is progress."""

    __slots__ = ("_ended", "_head", "blocked", "has_moved", "moved_at", "pending", "running", "seq", "stalled_for",
                 "token")  # fmt: skip

    def __init__(self) -> None:
        self.pending = 0
        self.running = 0
        self.blocked = 0
        """How many of the pending units wait for other units."""
        self._ended = dict.fromkeys((state for state in WorkState if state.is_final), 0)
        self.seq = 0
        """The number of the newest unit."""
        self.token = 0
        """The newest token of an attempt."""
        self._head = NO_HEAD
        self.has_moved = False
        """True when something has moved since the last `settle`."""
        self.moved_at = 0.0
        self.stalled_for = -math.inf
        """How long the standstill had lasted when its limits were last acted on."""

    @property
    def counts(self) -> dict[WorkState, int]:
        """How many units are pending and running, and how many have ever come to each final state."""
        return {WorkState.PENDING: self.pending, WorkState.RUNNING: self.running, **self._ended}

    @property
    def stored(self) -> Head:
        """The counters as the last turn left them."""
        return self._head

    def load(self, head: Head) -> None:
        """Go on from the stored counters, which another process may have changed."""
        if (head.pending, head.running, head.seq) != (self.pending, self.running, self.seq):
            self.has_moved = True
        self._head = head
        self.seq, self.token = head.seq, head.token
        self.pending, self.running, self.blocked = head.pending, head.running, head.blocked
        self._ended = {COMPLETED: head.completed, FAILED: head.failed, CANCELLED: head.cancelled}

    def store(self, now: float, events: int, decider: str | None, wake_at: float | None) -> Head:
        """The counters as this turn leaves them, after emitting so many events."""
        before, ended = self._head, self._ended
        self._head = Head(before.revision, self.seq, self.token, before.last_event_seq + events, now, self.pending,
                          self.running, ended[COMPLETED], ended[FAILED], ended[CANCELLED], self.blocked, decider,
                          wake_at)  # fmt: skip
        return self._head

    # moves of units -----------------------------------------------------------------------------------------

    def accepted(self, amount: int) -> None:
        """Count so many new pending units; they have the next numbers."""
        self.seq += amount
        self.pending += amount
        self.has_moved = True

    def started(self, amount: int) -> None:
        """Count so many starts; they have the next tokens."""
        self.token += amount
        self.pending -= amount
        self.running += amount
        self.has_moved = True

    def returned(self) -> None:
        """Count a running unit as pending again."""
        self.running -= 1
        self.pending += 1
        self.has_moved = True

    def ended(self, state: WorkState, *, was_running: bool, amount: int = 1) -> None:
        """Count so many units that have come to this final state."""
        self._ended[state] += amount
        if was_running:
            self.running -= amount
        else:
            self.pending -= amount
        self.has_moved = True

    def revived(self, state: WorkState) -> int:
        """Count a unit of that final state as pending again. Returns its new number."""
        self._ended[state] -= 1
        self.accepted(1)
        return self.seq

    def purged(self, state: WorkState) -> None:
        """Count a unit of that final state no longer: it was deleted."""
        self._ended[state] -= 1

    def became_blocked(self) -> None:
        """Count one more pending unit that waits for others."""
        self.blocked += 1

    def became_unblocked(self) -> None:
        """Count one pending unit less that waits for others."""
        self.blocked -= 1

    # progress -----------------------------------------------------------------------------------------------

    def note_progress(self) -> None:
        """Note progress that no count shows: a unit whose time has come."""
        self.has_moved = True

    def settle(self, now: float) -> bool:
        """True when something has moved since the last call: then a standstill can begin now at the earliest."""
        if self.has_moved:
            self.has_moved = False
            self.restart_stall(now)
            return True
        return False

    def restart_stall(self, now: float) -> None:
        """Measure a standstill from now on."""
        self.moved_at, self.stalled_for = now, -math.inf

    def note_stall(self, seconds: float) -> None:
        """Note that the limits on a standstill were acted on when it had lasted that long."""
        self.stalled_for = seconds
