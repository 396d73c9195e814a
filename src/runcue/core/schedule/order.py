"""Which unit of a lane is first: the strategy that `Ready` is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from runcue.core.model.record import Record
from runcue.core.schedule.lane import Lane
from runcue.core.schedule.line import Key

if TYPE_CHECKING:
    from runcue.core.schedule.ready import Ready


class Order(Protocol):
    """The order of the units in a lane: by rank, or by what callbacks said about them."""

    def head(self, lane: Lane) -> Key | None:
        """The place of a lane's first unit among those of all lanes; None when no unit of it may start."""
        ...

    def take(self, lane: Lane, room: int, now: float, limit: Key) -> list[Record] | None:
        """Up to `room` units of a lane, as long as they come before `limit`; None when callbacks are asked first."""
        ...

    def queue_opened(self, name: str) -> None:
        """A queue is open again that was paused or not served."""
        ...

    def lane_found(self, lane: Lane) -> None:
        """A lane may have units in the store that were never loaded."""
        ...


class ByRank:
    """The order of units about which no callback is called."""

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
        """Nothing to do: the lanes of the queue wake by themselves."""

    def lane_found(self, lane: Lane) -> None:
        """Wake the lane."""
        self._ready.wake(lane)
