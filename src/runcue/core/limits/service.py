"""Services and their limits: how many starts are allowed at this moment, and when the next will be.

A rate is an exact sliding window: in any stretch of `per` seconds at most `limit` starts. A start counts from
its grant; while the handler has not been entered it counts as "now" (`open`), then from its true entry.
`now - stamp >= per` is the only comparison, so that a check by subtraction has the same result.
Nothing is given back: a start whose handler was entered stays in its windows however it ends.

A name tells the kind of service: `name[key]` is the part of a service that one key has (`per=`); a name with a star
is a `Group`, any one of the services that match.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import msgspec

from runcue.core.limits.breaker import Breaker, end_of
from runcue.core.limits.meter import HAIR, Cost, Meter
from runcue.core.model.parse import Rate
from runcue.core.model.state import Grant, ServiceState, base_name
from runcue.core.model.state import Limits as Limits  # noqa: PLC0414 (it is looked for here too)
from runcue.core.schedule.parked import Parked

if TYPE_CHECKING:
    from runcue.core.schedule.lane import Lane

UNLIMITED = 1 << 30
SLACK, LEAST_SLACK, MOST_SLACK = 0.01, 0.01, 0.05
FIRST_THROTTLE = 1.0
LONGEST_THROTTLE = 60.0


class Blocked(msgspec.Struct, frozen=True):
    """Why a service lets nothing start now, and until when if that is known."""

    reason: str
    until: float | None = None
    details: str = ""


class Window:
    """One rate of a service, exact over every sliding window."""

    __slots__ = ("limit", "open", "per", "stamps")

    def __init__(self, rate: Rate, stamps: deque[float] | None = None, open: int = 0) -> None:
        self.limit = rate.limit
        self.per = rate.per
        self.stamps = deque[float]() if stamps is None else stamps
        self.open = open

    def room(self, now: float) -> int:
        """How many more starts this window holds now."""
        stamps, per = self.stamps, self.per
        while stamps and now - stamps[0] >= per:
            stamps.popleft()
        return self.limit - len(stamps) - self.open

    def first(self, now: float) -> float | None:
        """The moment of the oldest start that still counts."""
        self.room(now)
        return self.stamps[0] if self.stamps else None

    def entered(self, at: float) -> None:
        """Count an open grant as a call at `at`."""
        self.open -= 1
        if self.stamps and at < self.stamps[-1]:
            insort(self.stamps, at)
        else:
            self.stamps.append(at)

    def uncount(self, at: float) -> None:
        """Count one call less of those at `at`, if it still counts."""
        place = bisect_right(self.stamps, at) - 1
        if place >= 0 and self.stamps[place] == at:
            del self.stamps[place]

    def as_meter(self) -> Meter:
        """A meter that counts calls like this window: each start uses one."""
        return Meter("", Rate(self.limit, self.per), deque((stamp, 1) for stamp in self.stamps), self.open)

    def opens_at(self, now: float) -> float | None:
        """When a full window has room again; None while that hangs on grants not yet entered."""
        excess = -self.room(now)
        if excess >= len(self.stamps):
            return None
        return end_of(self.stamps[excess], self.per)

    def turn_of(self, place: int, now: float) -> float:
        """When the start at that place in line (0 is the next) fits, if all before it start as soon as they can."""
        room = self.room(now)
        index = place - room  # of the start that has to leave the window first
        if index < 0:
            return now
        known = self.limit - min(room, 0)
        cycles = max(0, (index - known) // self.limit + 1)
        index -= cycles * self.limit
        leaving = self.stamps[index] if index < len(self.stamps) else now
        return leaving + self.per * (cycles + 1)


class Service:
    """One service: its limits, what is active in it, and whether it is paused, throttled or tripped."""

    __slots__ = ("active", "base", "breaker", "budgets", "cap", "declared", "groups", "held_by", "is_metered",
                 "is_out", "is_paused", "is_rated", "is_round_robin", "limits", "meters", "name", "narrowed_at",
                 "offered", "open", "parked", "reserved", "rounds", "throttle_streak", "throttled_until", "wakes_at",
                 "width", "windows")  # fmt: skip

    def __init__(self, limits: Limits) -> None:
        self.name = limits.name
        self.base = base_name(limits.name)
        """The service that this is the part of a key of, if it is one."""
        self.active = 0
        self.open = 0  # granted starts under a rate whose handler was not entered yet
        self.is_paused = False
        self.is_out = False  # the last event about it said that it is not available
        self.throttled_until = 0.0
        self.throttle_streak = 0
        self.windows: tuple[Window, ...] = ()
        self.meters: tuple[Meter, ...] = ()
        self.reserved: dict[str, float] = {}  # of each quantity, by starts whose handler was not entered yet
        self.budgets: dict[str, Budget] = {}
        self.breaker: Breaker | None = None
        self.width: float | None = None  # how many slots there are, if that adapts
        self.narrowed_at = 0.0
        self.declared: Limits | None = None  # by its program, while limits that were set by hand hold
        self.groups: tuple[Group, ...] = ()  # those that it is a member of
        self.wakes_at = math.inf
        # for the choice (schedule/ready.py):
        self.parked = Parked(self)
        self.held_by: Lane | None = None  # the lane that a slot is held for
        self.offered: Lane | None = None  # the lane that was last offered room
        self.rounds = 0  # of its keys so far; for the part of a key: the next round of that key
        self.declare(limits)

    def declare(self, limits: Limits) -> None:
        """Take new limits; what runs and what was started lately goes on counting.

        Starts are known as far back as the longest window of the old limits: a longer one counts only those,
        and the first rate of a service counts from now on.
        """
        self.limits = limits
        self.cap = UNLIMITED if limits.concurrent is None else limits.concurrent
        if limits.adaptive is None:
            self.width = None
        else:
            width = limits.adaptive.start if self.width is None else self.width
            self._set_width(min(max(width, limits.adaptive.min), limits.adaptive.max))
        longest = max(self.windows, key=lambda window: window.per, default=None)
        stamps = () if longest is None else longest.stamps
        self.windows = tuple(Window(rate, deque(stamps), self.open) for rate in limits.rates)
        self.meters = tuple(self._meter(one.name, rate) for one in limits.quantities for rate in one.rates)
        self.is_rated = bool(self.windows or self.meters)
        self._set_metered(bool(self.meters or self.budgets))
        self.is_round_robin = limits.each is not None and (self.is_rated or self.cap < UNLIMITED)
        """True where keys compete for limits that they share: they are served round robin (schedule/ready.py)."""
        if limits.circuit_threshold is None:
            self.breaker = None
        elif self.breaker is None:
            self.breaker = Breaker(limits.circuit_threshold, limits.circuit_timeout)
        else:
            self.breaker.declare(limits.circuit_threshold, limits.circuit_timeout)

    def _set_metered(self, is_metered: bool) -> None:
        self.is_metered = is_metered
        for group in self.groups:
            group.is_metered |= is_metered

    def _meter(self, name: str, rate: Rate) -> Meter:
        """A meter that knows what was used lately, as far back as the longest of the old ones."""
        old = [meter for meter in self.meters if meter.name == name]
        if old:
            return max(old, key=lambda meter: meter.per).again(rate)
        return Meter(name, rate, deque(), self.reserved.get(name, 0))

    @property
    def slack(self) -> float:
        """How long after its grant a call may usually begin: a stored grant counts from then on."""
        shortest = min((one.per for one in self._rated()), default=0.0)
        return min(max(shortest * SLACK, LEAST_SLACK), MOST_SLACK)

    def state(self) -> ServiceState:
        """What is stored of it."""
        breaker = None if self.breaker is None else self.breaker.save()
        return ServiceState(self.limits, self.is_paused, self.throttled_until, self.throttle_streak, breaker,
                            self.width, self.narrowed_at, self.declared)  # fmt: skip

    def load(self, state: ServiceState) -> None:
        """Take over what is stored of it; its limits were declared before."""
        self.is_paused = state.is_paused
        self.throttled_until, self.throttle_streak = state.throttled_until, state.throttle_streak
        self.declared = state.declared
        if self.breaker is not None and state.breaker is not None:
            self.breaker.load(state.breaker)
        if self.width is not None and state.width is not None:
            self._set_width(state.width)
            self.narrowed_at = state.narrowed_at

    def is_as_new(self, now: float) -> bool:
        """True when a new one of the same name would allow no more than this one does."""
        return (
            not (self.active or self.open)
            and self.state().is_as_new(now)
            and not any(self.budget(name, now) for name in list(self.budgets))
            and all(one.room(now) == one.limit for one in self._rated())
        )

    @property
    def reach(self) -> float:
        """For how many seconds its starts have to be remembered."""
        return max((one.per for one in self._rated()), default=0.0)

    def _rated(self) -> tuple[Window | Meter, ...]:
        return (*self.windows, *self.meters)

    def recall(self, starts: Iterable[Grant]) -> None:
        """Count grants from before this process decided: in order, and once."""
        calls: list[float] = []
        for start in starts:
            if start.quantity:
                self.use(start.quantity, start.at, start.amount)
            else:
                calls += [start.at] * int(start.amount)
        for window in self.windows:
            window.stamps.extend(calls)

    def reserve(self, quantity: str, amount: float) -> None:
        """Reserve so much more of a quantity for starts whose handler was not entered yet."""
        total = self.reserved.get(quantity, 0) + amount
        self.reserved[quantity] = total if total > HAIR else 0
        for meter in self.meters:
            if meter.name == quantity:
                meter.open = self.reserved[quantity]

    def use(self, quantity: str, at: float, amount: float) -> None:
        """Count that so much more of a quantity was used at that time."""
        for meter in self.meters:
            if meter.name == quantity:
                meter.add(at, amount)

    def uncount(self, quantity: str, at: float, amount: float) -> None:
        """Count so much less of a quantity, or so many calls ("") less, of what was counted at that time."""
        if quantity:
            self.use(quantity, at, -amount)
            return
        for window in self.windows:
            for _ in range(int(amount)):
                window.uncount(at)

    def granted(self, amount: int) -> None:
        """Count so many granted starts; each is later `entered` or `returned`, once."""
        self.open += amount
        for window in self.windows:
            window.open += amount

    def entered(self, at: float) -> None:
        """One of the granted starts entered its handler at that time."""
        self.open -= 1
        for window in self.windows:
            window.entered(at)

    def returned(self) -> None:
        """One of the granted starts never came to its handler."""
        self.open -= 1
        for window in self.windows:
            window.open -= 1

    def room(self, now: float) -> int:
        """How many starts this service allows now: zero or less means none."""
        if self.is_paused or now < self.throttled_until:
            return 0
        room = self.cap - self.active
        for window in self.windows:
            left = window.room(now)
            if left < room:
                room = left
        if self.breaker is not None:
            left = self.breaker.room(now)
            if left < room:
                room = left
        if self.budgets:
            budget = self.budget("", now)
            if budget is not None and budget.left < room:
                room = int(budget.left)
        return room

    def fits(self, cost: Cost, now: float) -> bool:
        """True when so much of each quantity is left."""
        for name, amount in cost:
            for meter in self.meters:
                if meter.name == name and not meter.fits(amount, now):
                    return False
            if self.budgets:
                budget = self.budget(name, now)
                if budget is not None and budget.left < amount:
                    return False
        return True

    def has(self, quantity: str) -> bool:
        """True when a limit on that quantity was declared."""
        return any(meter.name == quantity for meter in self.meters)

    def sells(self, cost: Cost) -> bool:
        """True when one of these quantities is limited here at the moment."""
        return any(name in self.budgets or self.has(name) for name, _ in cost)

    def holds(self, cost: Cost) -> bool:
        """True when so much of each quantity fits into an empty window."""
        return all(
            meter.holds(amount) for name, amount in cost for meter in self.meters if meter.name == name
        )

    def tightest(self, quantity: str) -> Meter:
        """The meter that allows least of a quantity at once."""
        return min((meter for meter in self.meters if meter.name == quantity), key=lambda meter: meter.limit)

    def outage(self, now: float) -> Blocked | None:
        """Why it is not available: paused, throttled or its circuit not closed; None when it is."""
        if self.is_paused:
            return Blocked("paused")
        if now < self.throttled_until:
            return Blocked("throttled", self.throttled_until, "the service asked to be left alone")
        if self.breaker is not None and self.breaker.state != "closed":
            return Blocked("circuit", self.breaker.changes_at(), self.breaker.state)
        return None

    def fullest(self, now: float) -> tuple[float | None, float | None]:
        """How much is used of the fullest rate or quantity, and its limit."""
        limits = [(one.limit - one.room(now), one.limit) for one in self._rated()]
        return max(limits, key=lambda one: one[0] / one[1], default=(None, None))

    def blocked(self, now: float, cost: Cost = ()) -> Blocked | None:
        """Why no unit that uses so much may start now, the most lasting reason first; None when one may."""
        outage = self.outage(now)
        if outage is not None and outage.reason != "circuit":
            return outage
        if self.breaker is not None and self.breaker.room(now) <= 0:
            return Blocked("circuit", self.breaker.changes_at(), self.breaker.state)
        full = [window for window in self.windows if window.room(now) <= 0]
        if full:
            times = [window.opens_at(now) for window in full]
            until = None if None in times else max(time for time in times if time is not None)
            tightest = full[0]
            return Blocked("rate", until, f"{tightest.limit}/{tightest.limit} used")
        if cost or self.budgets:
            short = self._short_of(cost, now)
            if short is not None:
                return short
        if self.active >= self.cap:
            return Blocked("concurrency", None, f"{self.active}/{self.cap} running")
        return None

    def _short_of(self, cost: Cost, now: float) -> Blocked | None:
        """The quantity of which not enough is left."""
        for name, amount in (("", 1.0), *cost):
            for meter in self.meters:
                if meter.name == name and not meter.fits(amount, now):
                    if not meter.holds(amount):
                        details = f"needs {amount:,.10g} {name} and there are never more than {meter.limit:,}"
                        return Blocked("rate", None, f"{details}: raise the limit or cancel it")
                    until = meter.opens_at(amount, now)
                    details = f"needs {amount:,.10g} of {meter.limit:,} {name}, {max(meter.room(now), 0):,.10g} left"
                    return Blocked("rate", until, details)
            budget = self.budget(name, now) if self.budgets else None
            if budget is not None and budget.left < amount:
                left = f"{max(budget.left, 0):,.10g} {name or 'calls'} left"
                return Blocked("rate", budget.until, f"{left}, as the service said itself")
        return None

    def gains_at(self, now: float) -> float:
        """When the passing of time alone next adds to the room in its windows."""
        ends = (end_of(at, one.per) for one in self._rated() if (at := one.first(now)) is not None)
        return min(ends, default=math.inf)

    def throttle(self, now: float, after: float | None) -> float:
        """The remote service said "too many": start nothing for `after` seconds, or 1 s doubling to 60 s."""
        if after is None:
            if now < self.throttled_until:  # a call that started before the first one was throttled
                return self.throttled_until
            after = min(FIRST_THROTTLE * 2**self.throttle_streak, LONGEST_THROTTLE)
            self.throttle_streak = min(self.throttle_streak + 1, 16)
        self.throttled_until = max(self.throttled_until, now + after)
        return self.throttled_until

    # what the remote service says -------------------------------------------------------------------------

    def narrow(self, now: float, started_at: float) -> bool:
        """It said "too many": halve the slots, once for all calls under way. True when that changed them."""
        adaptive = self.limits.adaptive
        if adaptive is None or self.width is None or started_at <= self.narrowed_at:
            return False
        self.narrowed_at = now
        self._set_width(max(self.width / 2, adaptive.min))
        return True

    def went_well(self, started_at: float) -> bool:
        """A call that started then ended well. True when something changed that has to be written."""
        is_wider = self.width is not None and self.widen()
        if not self.throttle_streak or started_at < self.throttled_until:  # it started before the pause
            return is_wider
        self.throttle_streak = 0
        return True

    def widen(self) -> bool:
        """A call ended well: as many of them as there are slots add one, if all are used. True when one was added."""
        adaptive = self.limits.adaptive
        is_used = bool(self.parked) or self.active >= self.cap // 2
        if adaptive is None or self.width is None or self.width >= adaptive.max or not is_used:
            return False
        before = self.cap
        self._set_width(min(self.width + 1 / self.width, adaptive.max))
        return self.cap > before

    def _set_width(self, width: float) -> None:
        self.width = width
        self.cap = int(width)

    def under_way(self, quantity: str) -> float:
        """How much of a quantity ("" for calls) was granted to calls that the remote service has not seen yet."""
        if not quantity:
            return self.open
        return max((meter.open for meter in self.meters if meter.name == quantity), default=0)

    def observe(self, quantity: str, left: float, until: float) -> None:
        """The remote service said how much of a quantity it will still accept before `until`."""
        self.budgets[quantity] = Budget(left, until)
        self._set_metered(True)

    def budget(self, quantity: str, now: float) -> Budget | None:
        """What the remote service said about a quantity, while that holds."""
        budget = self.budgets.get(quantity)
        if budget is not None and now >= budget.until:
            del self.budgets[quantity]
            return None
        return budget

    def spend_budget(self, quantity: str, amount: float) -> None:
        """Subtract so much from what the remote service said is left."""
        budget = self.budgets.get(quantity)
        if budget is not None:
            budget.left -= amount

    def pressure(self, now: float) -> float:
        """How loaded the service is, from 0 to 1: the fullest of its limits."""
        loads = [self.active / self.cap, *(1 - one.room(now) / one.limit for one in self._rated())]
        return max(0.0, min(1.0, max(loads)))


class Budget(msgspec.Struct):
    """How much of a quantity the remote service will still accept until some moment, as it said."""

    left: float
    until: float


class Group(Service):
    """Any one of the services that a pattern such as `ssh_*` matches. It has room when one of them has."""

    __slots__ = ("members",)

    def __init__(self, pattern: str) -> None:
        super().__init__(Limits(pattern))
        self.members: list[Service] = []

    def admit(self, service: Service) -> None:
        """Make a service a member if the pattern matches it; one that has keys by now is a member no longer."""
        pattern = self.name.replace("[", "[[]").replace("?", "[?]")  # only a star has a special meaning here
        is_meant = service.limits.each is None and not service.name.startswith("#")
        if not is_meant and service in self.members:
            self.members.remove(service)
            service.groups = tuple(group for group in service.groups if group is not self)
        if is_meant and fnmatchcase(service.name, pattern) and service not in self.members:
            self.members.append(service)
            service.groups = (*service.groups, self)
            self.is_metered |= service.is_metered

    def room(self, now: float) -> int:
        """How many starts all members together allow now."""
        return min(sum(max(0, member.room(now)) for member in self.members), UNLIMITED)

    def fits(self, cost: Cost, now: float) -> bool:
        """True when a member has room and enough of each quantity."""
        return self.pick(cost, now) is not None

    def has(self, quantity: str) -> bool:
        """True when a limit on that quantity was declared for a member."""
        return any(one.has(quantity) for one in self.members)

    def sells(self, cost: Cost) -> bool:
        """True when a member limits one of these quantities at the moment."""
        return any(one.sells(cost) for one in self.members)

    def holds(self, cost: Cost) -> bool:
        """True when so much of each quantity fits into the empty windows of a member."""
        return any(one.holds(cost) for one in self.members)

    def tightest(self, quantity: str) -> Meter:
        """The tightest meter of the member that allows most."""
        return max((one.tightest(quantity) for one in self.members), key=lambda meter: meter.limit)

    def pick(self, cost: Cost, now: float) -> Service | None:
        """The least loaded member that may be used now, the first one of several."""
        free = [one for one in self.members if one.room(now) > 0 and one.fits(cost, now)]
        return min(free, key=lambda one: (one.pressure(now), one.active), default=None)

    def blocked(self, now: float, cost: Cost = ()) -> Blocked | None:
        """Why no member may be used: the reason of the one that is free first."""
        reasons = [one.blocked(now, cost) for one in self.members]
        if not reasons:
            return Blocked("paused", None, f"no service is called {self.name}")
        if None in reasons:
            return None
        known = [why for why in reasons if why is not None]
        first = min(known, key=lambda why: (why.until is None, why.until or 0.0, why.reason != "concurrency"))
        return Blocked(first.reason, first.until, f"each of {len(known)}: {first.details or first.reason}")

    def gains_at(self, now: float) -> float:
        """When the passing of time alone next adds to the room of a member."""
        return min((member.gains_at(now) for member in self.members), default=math.inf)
