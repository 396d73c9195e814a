"""A lane: units that are alike as far as limits go, and where they wait for their start."""

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
"""A unit that passed all gates: its order and number, a number that makes it unique, its record, and when callbacks
said so."""

EMPTY = "empty"
ACTIVE = "active"
ASKING = "asking"

LEAST_HOLD = 1.0
HOLD_SHARE = 0.25
"""Slots are held for so many seconds, or for that share of the time that the unit has waited, if that is longer."""


class Hold:
    """For how long slots may be held for the first unit of a lane, which lacks a slot in another service.

    Without an end a service would idle for as long as the other one is busy. Without a next time, which is longer, a
    unit that needs both would starve where calls take longer than that.
    """

    __slots__ = ("_next_after", "_since", "key", "until")

    def __init__(self, key: tuple[float, int], now: float) -> None:
        self.key = key
        self._since = now
        self.until = now
        self._next_after = 0.0

    def allows(self, now: float) -> bool:
        """True when slots may be held for it now; then it may keep them until `until`."""
        if now < self.until:
            return True
        waited = now - self._since
        if waited < self._next_after:
            return False
        self.until = now + max(LEAST_HOLD, HOLD_SHARE * waited)
        self._next_after = 2 * max(LEAST_HOLD, waited)
        return True


class Lane:
    """Units that are alike, and where they wait: among the active lanes, at a service, for callbacks, or nowhere."""

    __slots__ = ("asked_at", "base", "candidates", "chosen", "crew", "entries", "group", "hold", "holds",
                 "index_key", "line", "member_lanes", "offered_by", "part", "questions", "queue", "rank",
                 "refreshed_at", "rotation", "round", "seq", "services", "task", "where")  # fmt: skip

    def __init__(
        self,
        task: str,
        queue: Service,
        services: tuple[Service, ...],
        line: Line,
        index_key: str = "",
        crew: Crew | None = None,
    ) -> None:
        self.task = task
        self.index_key = index_key
        self.queue = queue
        self.services = services if crew is None else (*services, crew)
        self.crew = crew
        """The workers that may run its units, where several processes share the queue."""
        self.questions = NO_QUESTIONS
        """Which callbacks are called about its units."""
        self.line = line
        self.part = next((one for one in services if one.base is not None), None)
        """The part of a service that one key has (`per=`), if the lane uses such a part."""
        self.base = next((one for one in services if self.part and one.name == self.part.base), None)
        """The service that the key shares with the other keys."""
        self.group = next((one for one in services if isinstance(one, Group)), None)
        self.chosen: Service | None = None
        """The member of a group that the attempts of this lane run on; such a lane has no pending units."""
        self.member_lanes: dict[Service, Lane] = {}
        self.where: object = EMPTY
        self.rank = math.inf
        self.seq = 0
        self.round = 0
        """How many rounds `base` had had when the lane began to wait there."""
        self.offered_by: Service | None = None
        self.holds: tuple[Service, ...] = ()
        """The services in which a slot is held for its first unit."""
        self.hold: Hold | None = None
        # only for units that callbacks are called about (gates.py):
        self.candidates: list[Candidate] = []
        self.entries: dict[str, Candidate] = {}
        self.rotation: deque[Candidate] = deque()
        self.refreshed_at = -math.inf
        self.asked_at = math.inf

    def __lt__(self, other: Lane) -> bool:
        return False  # two heap entries with the same rank and number are of the same lane: any order will do

    def __repr__(self) -> str:
        return f"<Lane {self.task} {[service.name for service in self.services]}>"

    def on(self, member: Service) -> Lane:
        """The lane that counts the attempts which run on that member of the group."""
        lane = self.member_lanes.get(member)
        if lane is None:
            services = tuple(
                member if one is self.group else one for one in self.services if one is not self.crew
            )
            lane = Lane(self.task, self.queue, services, self.line, self.index_key, self.crew)
            self.member_lanes[member] = lane
            lane.chosen = member
        return lane

    def may_hold(self, now: float) -> bool:
        """True when slots in other services may be held for its first unit now."""
        key = self.rank, self.seq
        if self.hold is None or self.hold.key != key:
            self.hold = Hold(key, now)
        return self.hold.allows(now)

    @property
    def hold_until(self) -> float:
        """Until when slots may be held for its first unit."""
        return math.inf if self.hold is None else self.hold.until

    def cost(self) -> Cost:
        """What its first unit is expected to use of each quantity."""
        candidates, entries = self.candidates, self.entries
        while candidates and entries.get(candidates[0][3].id) is not candidates[0]:
            heappop(candidates)  # outdated
        head = candidates[0][3] if candidates else self.line.head()
        return () if head is None else head.spec.cost
