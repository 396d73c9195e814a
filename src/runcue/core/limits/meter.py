"""Quantities under a rate: tokens, bytes, money; anything of which a call uses an amount.

A meter is an exact sliding window like that of a rate, but of amounts: in any stretch of `per` seconds at most
`limit` is used. A start reserves what it is expected to use. That counts as "now" until its handler is entered
(`open`), and from the moment of entry after that; what it really used counts from the same moment.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from runcue.core.limits.breaker import end_of
from runcue.core.model.parse import Rate
from runcue.errors import InvalidOption

if TYPE_CHECKING:
    from runcue.core.limits.service import Service

Cost: TypeAlias = tuple[tuple[str, float], ...]
"""How much of each quantity one start is expected to use."""

MOST = 1e15
HAIR = 1e-9
"""The rounding error that sums of fractions may have, as a share of the limit."""


def amount(value: object) -> float | None:
    """An amount as a plain number, whatever its class (such as one of NumPy's); None if it is invalid."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    plain = int(value) if isinstance(value, int) else float(value)
    return plain if 0 <= plain <= MOST else None


def checked(amounts: Mapping[str, object]) -> dict[str, float]:
    """The amounts that a handler reports as used, checked."""
    found = {}
    for name, value in amounts.items():
        size = amount(value)
        if size is None:
            raise InvalidOption(f"charge({name})", value, "a number of 0 or more")
        found[name] = size
    return found


class Meter:
    """One rate of one quantity, exact over every sliding window."""

    __slots__ = ("limit", "name", "open", "per", "rate", "used", "uses")

    def __init__(self, name: str, rate: Rate, uses: deque[tuple[float, float]], open: float = 0) -> None:
        self.name = name
        self.rate = rate
        self.limit = rate.limit
        self.per = rate.per
        self.uses = uses
        self.used: float = sum(amount for _, amount in uses)
        self.open = open

    def again(self, rate: Rate) -> Meter:
        """A meter of the same quantity under another rate, with the same uses."""
        return Meter(self.name, rate, deque(self.uses), self.open)

    def room(self, now: float) -> float:
        """How much of it is left now."""
        uses = self.uses
        if uses and now - uses[0][0] >= self.per:
            largest = 0.0
            while uses and now - uses[0][0] >= self.per:
                amount = uses.popleft()[1]
                self.used -= amount
                largest = max(largest, amount)
            if not uses or largest > self.limit:  # the sum lost digits beside such an amount
                self.used = sum(amount for _, amount in uses)
        return self.limit - self.used - self.open

    def first(self, now: float) -> float | None:
        """The moment of the oldest use that still counts."""
        self.room(now)
        return self.uses[0][0] if self.uses else None

    def fits(self, amount: float, now: float) -> bool:
        """True when that much more may be used now."""
        return amount <= 0 or amount <= self.room(now) + self._hair(amount)

    def _hair(self, amount: float) -> float:
        """The rounding error to allow for: none as long as all amounts are whole."""
        return 0.0 if amount == int(amount) and self.used == int(self.used) else self.limit * HAIR

    def holds(self, amount: float) -> bool:
        """True when that much fits into an empty window."""
        return amount <= self.limit * (1 + HAIR)

    def add(self, at: float, amount: float) -> None:
        """Count that so much was used at `at`; a negative amount corrects what was counted there before.

        No more is subtracted than is counted there, or the window would have room for more than its limit.
        """
        uses = self.uses
        place = len(uses)
        if uses and at < uses[-1][0]:
            place = bisect_right(uses, at, key=lambda use: use[0])
        if place and uses[place - 1][0] == at:
            counted = uses[place - 1][1]
            uses[place - 1] = at, max(0.0, counted + amount)
            self.used += uses[place - 1][1] - counted
        elif amount > 0:
            self.used += amount
            uses.insert(place, (at, amount))

    def opens_at(self, amount: float, now: float) -> float | None:
        """When that much fits; None while that depends on calls not yet entered, or if it never does."""
        lacking = amount - self.room(now) - self._hair(amount)
        for at, used in self.uses:
            lacking -= used
            if lacking <= 0:
                return end_of(at, self.per)
        return None


class DryRun:
    """The meters of a service as they would be if units started one after the other, each as soon as it may."""

    def __init__(self, meters: Iterable[Meter], now: float) -> None:
        self._meters = [one.again(one.rate) for one in meters]
        self._at = now
        for meter in self._meters:
            meter.add(now, meter.open)
            meter.open = 0
        self._scarce = self.scarce = ""
        """The quantity that lacked for the unit which was last peeked for."""

    def peek(self, cost: Cost) -> float | None:
        """When the next unit could start; None when it never could."""
        at, self.scarce = self._at, self._scarce
        for meter, amount in self._needed(cost):
            if not meter.fits(amount, at):
                opens_at = meter.opens_at(amount, at)
                if opens_at is None:
                    return None
                at, self.scarce = opens_at, meter.name
        return at

    def start(self, cost: Cost, at: float | None) -> None:
        """Start the next unit at that time; None passes over one that never could."""
        if at is not None:
            for meter, amount in self._needed(cost):
                meter.add(at, amount)
            if at > self._at:
                self._at, self._scarce = at, self.scarce

    def _needed(self, cost: Cost) -> list[tuple[Meter, float]]:
        return [(meter, amount) for name, amount in cost for meter in self._meters if meter.name == name]


class Spending(msgspec.Struct):
    """What one start has reserved or used of the quantities of its services."""

    services: tuple[Service, ...]
    amounts: dict[str, float]
    counted_at: float
    """The moment from which its stored grants count."""
    at: float | None = None
    """When its handler was entered."""
    work_id: str | None = None

    def enter(self, at: float) -> None:
        """The handler was entered: count what was reserved from that moment."""
        self.at = at
        for service in self.services:
            for name, amount in self.amounts.items():
                service.reserve(name, -amount)
                service.use(name, at, amount)

    def settle(self, name: str, amount: float) -> float:
        """Count so much of a quantity instead of what was counted before. Returns the difference."""
        more = amount - self.amounts.get(name, 0)
        self.amounts[name] = amount
        for service in self.services:
            if self.at is None:
                service.reserve(name, more)
            else:
                service.use(name, self.at, more)
        return more

    def returned(self) -> None:
        """The handler was never entered: give back what was reserved."""
        for service in self.services:
            for name, amount in self.amounts.items():
                service.reserve(name, -amount)


def together(one: Cost, other: Cost) -> Cost:
    """The sum of two costs."""
    if not other:
        return one
    sums = dict(one)
    for name, amount in other:
        sums[name] = sums.get(name, 0) + amount
    return tuple(sums.items())
