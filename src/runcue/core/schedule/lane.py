"""A lane: work that is interchangeable as far as limits go, and where it waits for its start."""

from __future__ import annotations

import math
from collections import deque
from heapq import heappop
from typing import TYPE_CHECKING

from runcue.core.limits.meter import Cost
from runcue.core.limits.service import Group, Service
from runcue.core.model.record import Record
from runcue.core.model.settings import NO_QUESTIONS
from runcue.core.schedule.line import Line

if TYPE_CHECKING:
    from runcue.core.ledger.fleet import Crew

Candidate = tuple[float, int, int, Record, float]
"""Order, seq, a number that makes it unique, record, when it was judged: work that callbacks let pass."""

EMPTY = "empty"
ACTIVE = "active"
ASKING = "asking"


LEAST_HOLD = 1.0
HOLD_SHARE = 0.25
"""Places are kept for so many seconds, or for that share of the time that work has waited, if that is longer."""


class Hold:
    """For how long places may be kept for the first work of a lane, which lacks one in another service.

    Without an end a service would idle for as long as another one is busy; without a next time, which is longer, work
    that needs both would starve where calls take longer than that.
    """

    __slots__ = ("_next_after", "_since", "key", "until")

    def __init__(self, key: tuple[float, int], now: float) -> None:
        self.key = key
        self._since = now
        self.until = now
        self._next_after = 0.0

    def allows(self, now: float) -> bool:
        """True when places may be kept for it now, and that until `until`."""
        if now < self.until:
            return True
        waited = now - self._since
        if waited < self._next_after:
            return False
        self.until = now + max(LEAST_HOLD, HOLD_SHARE * waited)
        self._next_after = 2 * max(LEAST_HOLD, waited)
        return True


class Lane:
    """Interchangeable work and where it waits: in the heap, at a service, for an answer, or nowhere."""

    __slots__ = ("asked_at", "candidates", "chosen", "crew", "entries", "gate", "group", "hold", "holds", "line",
                 "member_lanes", "offered_by", "part", "questions", "queue", "rank", "refreshed_at", "ring", "seq",
                 "services", "shelf", "task", "turn", "where")  # fmt: skip

    def __init__(
        self,
        task: str,
        queue: Service,
        services: tuple[Service, ...],
        line: Line,
        shelf: str = "",
        crew: Crew | None = None,
    ) -> None:
        self.task = task
        self.shelf = shelf
        self.queue = queue
        self.services = services if crew is None else (*services, crew)
        self.crew = crew
        """Those who may run its work, where several processes share the queue."""
        self.questions = NO_QUESTIONS
        """What callbacks are asked about its work."""
        self.line = line
        self.part = next((one for one in services if one.base is not None), None)
        """What one key has of a service."""
        self.gate = next((one for one in services if self.part and one.name == self.part.base), None)
        """What it shares with the other keys."""
        self.group = next((one for one in services if isinstance(one, Group)), None)
        self.chosen: Service | None = None
        """The member of a group that this lane's work runs on; such a lane has attempts and no line."""
        self.member_lanes: dict[Service, Lane] = {}
        self.where: object = EMPTY
        self.rank = math.inf
        self.seq = 0
        self.turn = 0
        """How many turns the keys of its gate had had when it came to wait for one."""
        self.offered_by: Service | None = None
        self.holds: tuple[Service, ...] = ()
        """The services in which a place is kept for its first work."""
        self.hold: Hold | None = None
        # only for work that callbacks judge (gates.py):
        self.candidates: list[Candidate] = []
        self.entries: dict[str, Candidate] = {}
        self.ring: deque[Candidate] = deque()
        self.refreshed_at = -math.inf
        self.asked_at = math.inf

    def __lt__(self, other: Lane) -> bool:
        return False  # heap entries with equal keys are the same lane: any order will do

    def __repr__(self) -> str:
        return f"<Lane {self.task} {[service.name for service in self.services]}>"

    def on(self, member: Service) -> Lane:
        """The same lane with one member of its group in the group's place: where its attempts are counted."""
        lane = self.member_lanes.get(member)
        if lane is None:
            services = tuple(
                member if one is self.group else one for one in self.services if one is not self.crew
            )
            lane = Lane(self.task, self.queue, services, self.line, self.shelf, self.crew)
            self.member_lanes[member] = lane
            lane.chosen = member
        return lane

    def may_hold(self, now: float) -> bool:
        """True when places in other services may be kept for its first work now."""
        key = self.rank, self.seq
        if self.hold is None or self.hold.key != key:
            self.hold = Hold(key, now)
        return self.hold.allows(now)

    @property
    def hold_until(self) -> float:
        """Until when they may be."""
        return math.inf if self.hold is None else self.hold.until

    def cost(self) -> Cost:
        """What its first work is expected to use of each quantity."""
        candidates, entries = self.candidates, self.entries
        while candidates and entries.get(candidates[0][3].id) is not candidates[0]:
            heappop(candidates)  # outdated
        head = candidates[0][3] if candidates else self.line.head()
        return () if head is None else head.spec.cost
