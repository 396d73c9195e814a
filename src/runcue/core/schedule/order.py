"""Which unit of a lane is first: a strategy that the ready index is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from runcue.core.model.record import Record
from runcue.core.schedule.lane import Lane
from runcue.core.schedule.line import Key

if TYPE_CHECKING:
    from runcue.core.schedule.ready import Ready


class Order(Protocol):
    """Says which units of a lane come first: by rank, or by what callbacks said about them."""

    def head(self, lane: Lane) -> Key | None:
        """The place of the first unit of a lane among all lanes; None when none of it may start."""
        ...

    def take(self, lane: Lane, room: int, now: float, limit: Key) -> list[Record] | None:
        """Up to `room` units of a lane, as long as they come before `limit`; None when callbacks are asked first."""
        ...

    def queue_opened(self, name: str) -> None:
        """A queue goes on that was paused or not served."""
        ...

    def lane_found(self, lane: Lane) -> None:
        """A lane may have units in the store that nobody here has seen."""
        ...


class ByRank:
    """The order of units about which no callback is asked."""

    __slots__ = ("_ready",)

    def __init__(self, ready: Ready) -> None:
        self._ready = ready

    def head(self, lane: Lane) -> Key | None:
        """The first unit by rank."""
        return lane.line.key()

    def take(self, lane: Lane, room: int, now: float, limit: Key) -> list[Record] | None:
        """The first units by rank."""
        return lane.line.take(room, limit)

    def queue_opened(self, name: str) -> None:
        """Nothing but its lanes waited for that."""

    def lane_found(self, lane: Lane) -> None:
        """It may be a candidate."""
        self._ready.wake(lane)
