"""The ready index: which of the units that could run starts next, without looking at the others.

A lane has the units that are alike as far as limits go: same task, queue and services, the best first. Active lanes
(which might start a unit) are in one heap, ordered by their first units. A lane that finds no room is parked as a
whole at the one service that blocks it. A service with room offers it to its best parked lane, and to the next one
when that lane has found its place. So the cost of a start does not depend on how many units are queued, nor on how
many lanes wait.

A lane that needs several services and lacks only a slot in one of them holds a slot in each of the others for a while
(`held_by`), against younger units only. Without that it would starve; and nothing can deadlock, because every hold
ends. Where starts use an amount of a quantity, a lane whose first unit finds too little of it is not overtaken by
younger units that use some.

Keys of a service (`per=`) that share its limits are served round robin: their lanes wait at that service (the base
service of the lane) and start one unit at a time. The key is next that was served, or came, the longest ago.

Every heap may hold outdated entries: an entry counts only while its lane is where the entry says, with the rank and
number that the entry has. When there are many more entries than lanes, outdated ones are swept out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from runcue.core.limits.meter import together
from runcue.core.limits.service import UNLIMITED, Blocked, Limits, Service
from runcue.core.limits.services import Services
from runcue.core.model.record import Record, Spec
from runcue.core.model.settings import NO_QUESTIONS, Questions, Rule
from runcue.core.schedule.lane import ACTIVE, ASKING, EMPTY, Lane
from runcue.core.schedule.line import Key, Line, Page, index_key_of
from runcue.core.schedule.order import ByRank, Order

if TYPE_CHECKING:
    from runcue.core.ledger.fleet import Crew

CrewOf = Callable[[str, str, tuple[str, ...]], "Crew"]
"""Finds the workers that may run the units of a task and a queue, whose attempts have these needs."""
Read = Callable[["Lane", Key | None, int], Page]
"""Reads the next units of a lane from the store."""
FRESH = 0.1
"""Seconds for which a callback's answer may be acted on."""
FEW = 100
"""How many outdated entries a heap may hold, besides a multiple of the lanes, before they are swept out."""
AT_ONCE = 1000
"""How many starts one turn grants with a shared store, so that other processes get theirs soon."""
FEW_LANES = 1000
"""How many lanes there may be before those without units are dropped."""


def is_older(one: Lane, other: Lane) -> bool:
    """True when the first unit of one lane comes before that of another."""
    return (one.rank, one.seq) < (other.rank, other.seq)


class Ready:
    """All lanes, and the choice among them."""

    __slots__ = ("_active", "_crew_of", "_heads", "_holders", "_left", "_most_lanes", "_order", "_page", "_put_off",
                 "_records", "_timers", "lanes", "limited", "paused", "questions", "queues", "served", "services",
                 "touched")  # fmt: skip

    def __init__(
        self,
        records: dict[str, Record],
        page: Read | None = None,
        heads: dict[str, Key] | None = None,
        crew_of: CrewOf | None = None,
    ) -> None:
        self._records = records
        self._page = page
        self._crew_of = crew_of
        self.questions = NO_QUESTIONS  # about units whose task has none in its rule
        self._heads = {} if heads is None else heads
        self.lanes: dict[tuple[str, str, tuple[str, ...]], Lane] = {}
        self._most_lanes = FEW_LANES
        self._left = UNLIMITED  # how many units may still start in this turn
        self._put_off: dict[Lane, None] = {}  # lanes that could not start all they might because of that
        self._active: list[tuple[float, int, Lane]] = []
        self.touched: dict[Service, None] = {}  # a set with an order: same input, same plan
        self._holders: dict[Lane, None] = {}
        self._timers: list[tuple[float, str]] = []
        self.services = Services(self.touch)
        self.queues: dict[str, Service] = {}
        self.served: frozenset[str] | None = None
        self.paused: set[str] = set()
        self.limited: list[tuple[Service, Blocked]] = []
        self._order: Order = ByRank(self)

    def order_by(self, order: Order) -> None:
        """Use this order for the units of each lane from now on."""
        self._order = order

    def ask_with(self, questions: Questions) -> None:
        """Have these callbacks called about units whose task has no questions in its rule."""
        self.questions = questions

    # what changes -----------------------------------------------------------------------------------------

    def lane(self, spec: Spec, rule: Rule) -> Lane:
        """The lane of a unit. Its own services come first, then those that its executor takes up (threads, …)."""
        services = spec.services if rule.services is None else rule.services
        key = (spec.task, spec.queue, services)
        lane = self.lanes.get(key)
        if lane is None:
            names = services + (rule.implicit if self._crew_of is None else rule.shared)
            used = tuple(map(self._service, dict.fromkeys(self.services.with_parts(names))))
            index_key = index_key_of(spec.task, spec.queue, () if rule.services is not None else services)
            crew = None if self._crew_of is None else self._crew_of(spec.task, spec.queue, rule.own)
            lane = Lane(spec.task, self.queue(spec.queue), used, Line(self._records), index_key, crew)
            lane.questions = self.questions if rule.questions is None else rule.questions
            if self._page is not None:
                lane.line.page = partial(self._page, lane)
                lane.line.reset(self._heads.get(index_key))
            self.lanes[key] = lane
            if lane.line.more:
                self._order.lane_found(lane)
        return lane

    def _service(self, name: str) -> Service:
        service = self.services.find(name)
        if service is None:
            raise KeyError(name)
        return service

    def clear(self) -> None:
        """Drop every lane: the caller places all units anew."""
        for lane in self.lanes.values():
            lane.where = EMPTY
            self._unhold(lane)
        self.lanes.clear()
        self._active.clear()
        self._put_off.clear()

    def queue(self, name: str) -> Service:
        """A queue, as a service that its lanes are parked at while it is paused or not served."""
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = Service(Limits(name))
            self._update_queue(queue)
        return queue

    def serve(self, names: frozenset[str] | None) -> None:
        """Start only units of these queues from now on (None: of all)."""
        self.served = names
        for queue in self.queues.values():
            self._update_queue(queue)

    def pause_queue(self, name: str, paused: bool) -> None:
        """Pause or resume a queue."""
        (self.paused.add if paused else self.paused.discard)(name)
        self._update_queue(self.queue(name))

    def _update_queue(self, queue: Service) -> None:
        unserved = self.served is not None and queue.name not in self.served
        queue.is_paused = unserved or queue.name in self.paused
        self.touch(queue)
        if not queue.is_paused:
            self._order.queue_opened(queue.name)

    def push(self, lane: Lane, record: Record) -> None:
        """Add a unit to its lane, where only limits can hold it back."""
        lane.line.push(record)
        rank, seq = record.rank, record.seq
        if lane.where is EMPTY or rank < lane.rank or (rank == lane.rank and seq < lane.seq):
            self.wake(lane)

    def push_all(self, lane: Lane, records: list[Record]) -> None:
        """Add several units to their lane, in the order they came."""
        lane.line.extend(records)
        self.wake(lane)

    def found(self, lane: Lane) -> None:
        """A lane may have units in the store that were never loaded."""
        self._order.lane_found(lane)

    def wake(self, lane: Lane) -> None:
        """Put a lane where it belongs after its first unit may have changed."""
        key = self._order.head(lane)
        if key is None:
            self._unhold(lane)
            return
        where = lane.where
        if key == (lane.rank, lane.seq) and (where is ACTIVE or isinstance(where, Service)):
            return
        lane.rank, lane.seq = key
        if where is EMPTY and lane.base is not None:
            lane.round = lane.base.rounds
        for service in lane.holds:  # the slot may be held against younger units than before
            self.touch(service)
        if isinstance(where, Service):
            self._wait_at(where, lane)
            # The first unit may be older than the one that a slot is held for, or use less.
            if where.held_by is not None or where.is_metered:
                self.touch(where)
        elif lane.base is not None and lane.base.is_round_robin:
            self._wait_at(lane.base, lane)
            self.touch(lane.base)
        else:
            lane.where = ACTIVE
            self._activate(lane)

    def _activate(self, lane: Lane) -> None:
        """Put a lane among the active ones."""
        heap = self._active
        heappush(heap, (lane.rank, lane.seq, lane))
        if len(heap) > 4 * len(self.lanes) + FEW:
            living = {one: (rank, seq, one) for rank, seq, one in heap
                      if one.where is ACTIVE and one.rank == rank and one.seq == seq}  # fmt: skip
            heap[:] = living.values()
            heapify(heap)

    def _wait_at(self, service: Service, lane: Lane) -> None:
        """Park a lane at a service, at its base service behind the lanes whose keys have waited longer."""
        key_round = service.rounds
        if lane.base is service and lane.part is not None:
            key_round = max(lane.round, lane.part.rounds)
        service.parked.add(key_round, lane, 4 * len(self.lanes) + FEW)

    def left(self, lane: Lane) -> None:
        """A unit has left its lane without a start: slots that were held for it may be free."""
        lane.line.left()
        if lane.holds:
            self._unhold(lane)
            if isinstance(lane.where, Service):
                lane.where = EMPTY
                self.wake(lane)
        elif isinstance(lane.where, Service) and lane.where.is_metered:  # the next unit may use less
            self.touch(lane.where)

    def touch(self, service: Service) -> None:
        """A service has changed: it may have room at the next choice."""
        if service.parked:
            self.touched[service] = None
        for group in service.groups:
            if group.parked:
                self.touched[group] = None

    # letting go -------------------------------------------------------------------------------------------

    @property
    def has_many_lanes(self) -> bool:
        """True when there are twice as many lanes, or services, as `drop_idle` left the last time."""
        return max(len(self.lanes), len(self.services)) > self._most_lanes

    def drop_idle(self, busy: set[Lane], now: float) -> None:
        """Drop lanes without units (units of `busy` ones are elsewhere), then queues and keys without lanes."""
        lanes = self.lanes
        for key, lane in list(lanes.items()):
            if lane not in busy and not lane.holds and self._order.head(lane) is None:
                lane.where = EMPTY  # so that no heap entry of it counts any more
                del lanes[key]
        self.queues = {lane.queue.name: lane.queue for lane in lanes.values()}
        self.services.drop_keys((service for lane in lanes.values() for service in lane.services), now)
        self._most_lanes = max(FEW_LANES, 2 * len(lanes), 2 * len(self.services))

    # time -------------------------------------------------------------------------------------------------

    def due(self, now: float) -> list[Service]:
        """The services whose time has come; each is touched."""
        services = []
        while self._timers and self._timers[0][0] <= now:
            at, name = heappop(self._timers)
            service = self.services.lookup(name)
            if service is not None and service.wakes_at == at:
                service.wakes_at = math.inf
                services.append(service)
                self.touch(service)
        return services

    def wake_service(self, service: Service, at: float) -> None:
        """Have a service touched at that time."""
        if at < service.wakes_at:
            service.wakes_at = at
            heappush(self._timers, (at, service.name))

    def wakes_at(self) -> float:
        """When a service may next have room by the passing of time alone."""
        timers = self._timers
        while timers:
            service = self.services.lookup(timers[0][1])
            if service is not None and service.wakes_at == timers[0][0]:
                break
            heappop(timers)
        return timers[0][0] if timers else math.inf

    # the choice -------------------------------------------------------------------------------------------

    @property
    def has_more(self) -> bool:
        """True when more units might start in the next turn, because this one had granted enough."""
        return bool(self._put_off)

    def begin(self) -> None:
        """Begin a turn in which units may start."""
        self._left = UNLIMITED if self._page is None else AT_ONCE
        put_off, self._put_off = self._put_off, {}
        for lane in put_off:
            self.wake(lane)

    def choose(self, now: float, start: Callable[[Lane, list[Record]], None]) -> None:
        """Start the best units that may start, until none may, or the turn has granted enough."""
        self._review_holders(now)
        active = self._active
        while active or self.touched:
            if self.touched:
                touched, self.touched = self.touched, {}
                for service in touched:
                    self._offer(service, now)
                continue
            rank, seq, lane = heappop(active)
            if lane.where is not ACTIVE or lane.seq != seq or lane.rank != rank:
                continue
            key = self._order.head(lane)
            if key is None:
                lane.where = EMPTY
                self._unhold(lane)
            elif key != (rank, seq):
                if lane.offered_by is not None:  # another lane parked there may be better now
                    self.touched[lane.offered_by] = None
                    lane.where, lane.offered_by = lane.offered_by, None
                self.wake(lane)
                continue
            else:
                self._serve(lane, now, start)
            if lane.offered_by is not None:
                self._settled(lane, lane.offered_by, now)

    def _serve(self, lane: Lane, now: float, start: Callable[[Lane, list[Record]], None]) -> None:
        if not self._left:
            self._unhold(lane)
            lane.where = EMPTY
            self._put_off[lane] = None
            return
        room, blocker = self._room(lane, now)
        if blocker is not None:
            self._park(lane, blocker, now)
            return
        limit: Key = self._active[0][:2] if self._active else (math.inf, 0)
        if room > 1 and lane.offered_by is not None and lane.offered_by is lane.base:
            room = room if lane.offered_by.parked.first() is None else 1
        if room > 1:
            limit = self._limit(lane, limit)
        batch = self._order.take(lane, min(room, self._left), now, limit)
        if batch is None:
            lane.where = ASKING
            return
        if lane.part is not None and lane.base is not None:
            # the key goes behind all that wait, and those that come before its next start
            lane.base.rounds += 1
            lane.part.rounds = lane.base.rounds + 1
        start(lane, batch)
        self._left -= len(batch)
        self._unhold(lane)
        self._review_holders(now)
        lane.where = EMPTY
        self.wake(lane)

    def _limit(self, lane: Lane, limit: Key) -> Key:
        """How far a lane with room for several units may go: to the first unit that might start instead."""
        own = (lane.rank, lane.seq)
        for service in lane.services:
            holder = service.held_by
            if holder is not None and own < (holder.rank, holder.seq) < limit:
                limit = (holder.rank, holder.seq)
        if lane.offered_by is not None:
            first = lane.offered_by.parked.first()
            if first is not None and own < (first.rank, first.seq) < limit:
                limit = (first.rank, first.seq)
        return limit

    def _settled(self, lane: Lane, service: Service, now: float) -> None:
        """A lane that was offered room has found its place: offer the room to the next one. If the lane is parked
        again, only one that uses none of the lacking quantity may be next."""
        lane.offered_by = None
        if lane.where is not service or not service.holds(lane.cost()):
            self._offer(service, now)
        elif service not in self.touched and service.sells(lane.cost()) and service.room(now) > 0:
            self._offer_one(service, service.parked.first_free)

    def _room(self, lane: Lane, now: float) -> tuple[int, Service | None]:
        if lane.queue.is_paused:
            return 0, lane.queue
        room = UNLIMITED
        is_metered = False
        for service in lane.services:
            left = service.room(now)
            holder = service.held_by
            if holder is not None and is_older(holder, lane):
                left -= 1
            if left <= 0:
                return 0, service
            room = min(room, left)
            is_metered |= service.is_metered
        return (room, None) if not is_metered else self._affordable(lane, room, now)

    def _affordable(self, lane: Lane, room: int, now: float) -> tuple[int, Service | None]:
        """The room where units may use quantities: for one at a time, not before an older one that waits for more."""
        cost = lane.cost()
        if not cost:
            return 1, None  # the next unit may use some
        for service in lane.services:
            if not service.is_metered:
                continue
            is_in_line = service.sells(cost) and not service.is_round_robin  # else rounds decide
            first = service.parked.first_costly() if is_in_line else None
            if first is not None and is_older(first, lane):
                return 0, service
            holder = service.held_by
            kept = holder.cost() if holder is not None and is_older(holder, lane) else ()
            if not service.fits(together(cost, kept), now):
                return 0, service
        return 1, None

    def _park(self, lane: Lane, blocker: Service, now: float) -> None:
        self._wait_at(blocker, lane)
        blocked = blocker.blocked(now, lane.cost() if blocker.is_metered else ())
        self._unhold(lane)
        # its last slot is held for an older unit: others that wait for it may not hold slots
        if blocked is None:
            for other in [other for other in self._holders if other.where is blocker]:
                self._unhold(other)
            self.wake_service(blocker, blocker.gains_at(now))
            return
        if blocked.until is not None:
            self.wake_service(blocker, blocked.until)
        if blocked.reason == "rate":
            self.limited.append((blocker, blocked))
        if len(lane.services) > 1 and blocked.reason == "concurrency":
            # not in the base service: a key whose own slots are taken would keep the other keys from theirs
            others = tuple(one for one in lane.services if one is not blocker and one is not lane.base)
            is_free = others and all(self._may_hold(service, lane, now) for service in others)
            if is_free and lane.may_hold(now):
                lane.holds = others
                self._holders[lane] = None
                for service in others:
                    if service.held_by is not None:
                        self._unhold(service.held_by)
                    service.held_by = lane
                self.wake_service(lane.holds[0], lane.hold_until)

    def _may_hold(self, service: Service, lane: Lane, now: float) -> bool:
        if service.room(now) <= 0 or not service.fits(lane.cost(), now):
            return False
        return service.held_by is None or not is_older(service.held_by, lane)

    def _review_holders(self, now: float) -> None:
        for lane in list(self._holders):
            if self._may_keep(lane, now):
                self.wake_service(lane.holds[0], lane.hold_until)
            else:
                self._unhold(lane)

    def _may_keep(self, lane: Lane, now: float) -> bool:
        """True while a lane lacks nothing but a slot in the service that it waits for."""
        assert lane.hold is not None
        if lane.queue.is_paused or now >= lane.hold.until:
            return False
        if isinstance(lane.where, Service):
            blocked = lane.where.blocked(now, lane.cost())
            if blocked is not None and blocked.reason != "concurrency":
                return False
        return all(service.room(now) > 0 and service.fits(lane.cost(), now) for service in lane.holds)

    def _unhold(self, lane: Lane) -> None:
        if lane.holds:
            for service in lane.holds:
                service.held_by = None
                self.touch(service)
            lane.holds = ()
            del self._holders[lane]

    def _offer(self, service: Service, now: float) -> None:
        if service.parked.too_costly:
            for lane in service.parked.take_affordable():
                self._wait_at(service, lane)
        if service.parked.first() is None:
            return
        if service.room(now) > 0:
            self._offer_one(service, service.parked.first)
        else:
            blocked = service.blocked(now)
            if blocked is not None and blocked.until is not None:
                self.wake_service(service, blocked.until)

    def _offer_one(self, service: Service, first: Callable[[], Lane | None]) -> None:
        """Offer the room of a service to its first parked lane. Lanes of keys go to their base service first."""
        earlier = service.offered
        if earlier is not None and earlier.offered_by is service and earlier.base is service:
            earlier.offered_by = None  # it was not chosen yet, and another lane may be first now
            self._wait_at(service, earlier)
        while (lane := first()) is not None:
            key_round = service.parked.remove(lane)
            if lane.base is service and lane.part is not None and key_round < lane.part.rounds:
                self._wait_at(service, lane)  # another lane of its key was served in that round
                continue
            if lane.base is None or not lane.base.is_round_robin or lane.base is service:
                lane.offered_by = service
                service.offered = lane
                lane.where = ACTIVE
                heappush(self._active, (lane.rank, lane.seq, lane))
                return
            self._wait_at(lane.base, lane)
            self.touch(lane.base)
