"""How the units of a group stand, as numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from runcue.core.model.record import WorkState


class GroupCounts(msgspec.Struct, frozen=True):
    """How many units of a group are in each state. A unit counts on when its record is no longer kept."""

    pending: int = 0
    running: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    created_at: float | None = None
    """When its first unit was submitted."""
    done_at: float | None = None
    """When the last of its units ended; None while one is pending or running."""

    @property
    def total(self) -> int:
        """How many units there are."""
        return self.pending + self.running + self.ended

    @property
    def ended(self) -> int:
        """How many units have come to a final state."""
        return self.completed + self.failed + self.cancelled

    @property
    def is_done(self) -> bool:
        """True when all units have ended, however they did."""
        return not (self.pending or self.running)

    @property
    def fraction(self) -> float:
        """The part of the units that has ended, from 0 to 1."""
        return self.ended / self.total if self.total else 0.0

    @property
    def text(self) -> str:
        """How far it is in words, such as `350 of 1,000 units, 3 failed`."""
        others = (("failed", self.failed), ("cancelled", self.cancelled))
        said = "".join(f", {number:,} {name}" for name, number in others if number)
        return f"{self.ended:,} of {self.total:,} unit{'s' if self.total != 1 else ''}{said}"

    @property
    def by_state(self) -> dict[WorkState, int]:
        """The numbers by state."""
        return {state: getattr(self, state.value) for state in WorkState}

    def moved(self, moves: Mapping[WorkState, int], now: float) -> GroupCounts:
        """The counts after so many units more, or less, have come to each state."""
        numbers = {state.value: number + moves.get(state, 0) for state, number in self.by_state.items()}
        is_live = numbers["pending"] or numbers["running"]
        began = now if self.created_at is None else self.created_at
        return GroupCounts(**numbers, created_at=began, done_at=None if is_live else now)

    def plus(self, new: int) -> GroupCounts:
        """The counts with so many units that were accepted and not decided on yet."""
        return self.moved({WorkState.PENDING: new}, 0.0) if new else self


def counted(states: Iterable[WorkState]) -> GroupCounts:
    """The counts of units in these states."""
    numbers = dict.fromkeys((state.value for state in WorkState), 0)
    for state in states:
        numbers[state.value] += 1
    return GroupCounts(**numbers)
