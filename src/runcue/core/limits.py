"""Services and their limits: how many starts are allowed at this moment, and when the next will be.

A rate is an exact sliding window: in any stretch of `per` seconds at most `limit` starts. A start counts from
its grant; while the handler has not been entered it counts as "now" (`open`), then from its true entry.
`now - stamp >= per` is the one comparison, so that a checker that subtracts sees what we saw.
Nothing is given back: a start that was entered stays in its windows whatever becomes of it.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from runcue.core.breaker import Breaker, end_of
from runcue.core.parse import Rate
from runcue.core.state import Limits as Limits  # noqa: PLC0414 (it is looked for here too)
from runcue.core.state import ServiceState

if TYPE_CHECKING:
    from runcue.core.ready import Lane

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

    def entered(self, at: float) -> None:
        """One open grant became a call at `at`."""
        self.open -= 1
        if self.stamps and at < self.stamps[-1]:
            insort(self.stamps, at)
        else:
            self.stamps.append(at)

    def opens_at(self, now: float) -> float | None:
        """When a full window has room again; None while that hangs on grants not yet entered."""
        excess = -self.room(now)
        if excess >= len(self.stamps):
            return None
        return end_of(self.stamps[excess], self.per)

    def turn_of(self, place: int, now: float) -> float:
        """When the start at that place in the line (0 is the next) fits, if all before it start in time."""
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

    __slots__ = (
        "active",
        "breaker",
        "cap",
        "held_by",
        "is_paused",
        "limits",
        "name",
        "open",
        "others",
        "parked",
        "share",
        "throttle_streak",
        "throttled_until",
        "wakes_at",
        "windows",
    )

    def __init__(self, limits: Limits) -> None:
        self.name = limits.name
        self.active = 0
        self.open = 0  # grants under a rate whose handler was not entered yet
        self.others = 0  # of the active, how many run in other processes
        self.share: int | None = None  # how many may run here while other processes want places, too
        self.is_paused = False
        self.throttled_until = 0.0
        self.throttle_streak = 0
        self.windows: tuple[Window, ...] = ()
        self.breaker: Breaker | None = None
        self.parked: list[tuple[float, int, Lane]] = []  # lanes that wait here (ready.py)
        self.held_by: Lane | None = None  # the lane a unit is kept for (ready.py)
        self.wakes_at = math.inf
        self.declare(limits)

    def declare(self, limits: Limits) -> None:
        """Take new limits; what runs and what was started lately goes on counting.

        Starts are known as far back as the longest window of the old limits: a longer one counts only those,
        and the first rate of a service counts from now on.
        """
        self.limits = limits
        self.cap = UNLIMITED if limits.concurrent is None else limits.concurrent
        longest = max(self.windows, key=lambda window: window.per, default=None)
        stamps = () if longest is None else longest.stamps
        self.windows = tuple(Window(rate, deque(stamps), self.open) for rate in limits.rates)
        if limits.circuit_threshold is None:
            self.breaker = None
        elif self.breaker is None:
            self.breaker = Breaker(limits.circuit_threshold, limits.circuit_timeout)
        else:
            self.breaker.declare(limits.circuit_threshold, limits.circuit_timeout)

    @property
    def slack(self) -> float:
        """How long after its grant a call may begin as a rule: other processes count it from then on."""
        shortest = min((window.per for window in self.windows), default=0.0)
        return min(max(shortest * SLACK, LEAST_SLACK), MOST_SLACK)

    def state(self) -> ServiceState:
        """How it stands, for whoever takes the next turn."""
        breaker = None if self.breaker is None else self.breaker.save()
        return ServiceState(self.limits, self.is_paused, self.throttled_until, self.throttle_streak, breaker)

    def load(self, state: ServiceState) -> None:
        """Stand as another process left it."""
        if state.limits != self.limits:
            self.declare(state.limits)
        self.is_paused = state.is_paused
        self.throttled_until, self.throttle_streak = state.throttled_until, state.throttle_streak
        if self.breaker is not None and state.breaker is not None:
            self.breaker.load(state.breaker)

    def started_elsewhere(self, at: float, amount: int) -> None:
        """Another process was granted that many starts; less than none when it did not use some of them."""
        for window in self.windows:
            for _ in range(amount):
                insort(window.stamps, at)
            for _ in range(-amount):
                if at in window.stamps:
                    window.stamps.remove(at)

    def granted(self, amount: int) -> None:
        """That many starts were granted under these rates; each is later `entered` or `returned`, once."""
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
        if self.share is not None and self.share - self.active + self.others < room:
            room = self.share - self.active + self.others
        for window in self.windows:
            left = window.room(now)
            if left < room:
                room = left
        if self.breaker is not None:
            left = self.breaker.room(now)
            if left < room:
                room = left
        return room

    def blocked(self, now: float) -> Blocked | None:
        """Why nothing may start now, most lasting reason first; None when something may."""
        if self.is_paused:
            return Blocked("paused")
        if now < self.throttled_until:
            return Blocked("throttled", self.throttled_until, "the service asked to be left alone")
        if self.breaker is not None and self.breaker.room(now) <= 0:
            return Blocked("circuit", self.breaker.changes_at(now), self.breaker.state)
        full = [window for window in self.windows if window.room(now) <= 0]
        if full:
            times = [window.opens_at(now) for window in full]
            until = None if None in times else max(time for time in times if time is not None)
            tightest = full[0]
            return Blocked("rate", until, f"{tightest.limit}/{tightest.limit} used")
        if self.active >= self.cap:
            return Blocked("concurrency", None, f"{self.active}/{self.cap} running")
        if self.is_at_its_share:
            return Blocked("concurrency", None, f"{self.share} running here, the rest is for other processes")
        return None

    def fair_share(self, hungry: int) -> int | None:
        """How many may run here when so many other processes want places; None when all may."""
        return max(1, self.cap // (hungry + 1)) if hungry and self.cap < UNLIMITED else None

    @property
    def is_at_its_share(self) -> bool:
        """True when other processes want places and as many run here as is fair."""
        return self.share is not None and self.active - self.others >= self.share

    def gains_at(self) -> float:
        """When the passing of time alone next adds to the room in its windows."""
        ends = [end_of(window.stamps[0], window.per) for window in self.windows if window.stamps]
        return min(ends, default=math.inf)

    def throttle(self, now: float, after: float | None) -> float:
        """The service said "too many": leave it alone for `after` seconds, or 1 s doubling to 60 s."""
        if after is None:
            if now < self.throttled_until:  # one of a burst that was already in flight
                return self.throttled_until
            after = min(FIRST_THROTTLE * 2**self.throttle_streak, LONGEST_THROTTLE)
            self.throttle_streak = min(self.throttle_streak + 1, 16)
        self.throttled_until = max(self.throttled_until, now + after)
        return self.throttled_until

    def pressure(self, now: float) -> float:
        """How loaded the service is, from 0 to 1: the fullest of its limits."""
        loads = [self.active / self.cap]
        loads += [1 - window.room(now) / window.limit for window in self.windows]
        return max(0.0, min(1.0, max(loads)))
