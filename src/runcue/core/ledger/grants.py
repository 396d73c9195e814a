"""Starts that rates and quantities have granted: whether their handlers were entered, and what they use.

A start counts in the windows of a rate from when its handler was entered. Until then it counts as "now". What is
stored of it is the latest moment at which it may still begin (`counted_at`): the next process that decides counts
from there, which is never too early.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from runcue.core.ledger.current import CurrentTurn
from runcue.core.limits.meter import Spending
from runcue.core.limits.service import Service
from runcue.core.model.record import Record
from runcue.core.model.state import Grant
from runcue.core.schedule.lane import Lane
from runcue.core.schedule.plan import Entry, Spent
from runcue.core.schedule.ready import Ready

SAFE = 2.0
"""A call may take this many times as long to begin as it took lately."""
HALF_LIFE = 10.0
"""Seconds after which half of a delay that did not happen again is forgotten."""


class Granted(NamedTuple):
    """The services with a rate that granted a start, when they did, and from when the stored grant counts."""

    services: list[Service]
    at: float
    counted_at: float


NOT_RATED = Granted([], 0.0, 0.0)


class Grants:
    """Granted starts by token."""

    __slots__ = ("_is_stored", "_lag", "_lagged_at", "_ready", "_spending", "_turn", "_unentered", "_unrecalled",
                 "_was_late_at")  # fmt: skip

    def __init__(self, turn: CurrentTurn, ready: Ready, *, is_stored: bool) -> None:
        """`is_stored` says that other processes may decide later, so that grants have to be stored for them."""
        self._turn = turn
        self._ready = ready
        self._is_stored = is_stored
        self._unentered: dict[int, Granted] = {}
        self._spending: dict[int, Spending] = {}
        """What running attempts have reserved or used of quantities."""
        self._lag = self._lagged_at = 0.0
        """The longest time from a grant to its handler lately: a slow disk or a busy loop makes it long."""
        self._was_late_at = -math.inf
        self._unrecalled: list[Service] = []
        """Services that are new since the last turn: starts that other processes granted are not counted yet."""
        if is_stored:
            ready.services.on_new = self._unrecalled.append

    # granting -----------------------------------------------------------------------------------------------

    def grant(self, services: list[Service], records: list[Record]) -> Granted:
        """Grant the starts of these units under the rates of these services."""
        now = self._turn.now
        granted = Granted(services, now, now + self._slack(services))
        if self._is_stored:
            names = [service.name for service in services if service.windows]
            self._turn.plan.grants += [
                Grant(name, granted.counted_at, 1, "", record.id) for name in names for record in records
            ]
        return granted

    def add(self, token: int, granted: Granted) -> None:
        """Note the token of a granted start. Its handler was not entered yet."""
        self._unentered[token] = granted

    @property
    def _usual_lag(self) -> float:
        """How long a call takes to begin, by what was seen lately."""
        return self._lag * 2.0 ** ((self._lagged_at - self._turn.now) / HALF_LIFE) if self._lag else 0.0

    def _slack(self, services: list[Service]) -> float:
        """How long after its grant a call may begin. If calls could not make it, nothing would ever begin."""
        return max(min(service.slack for service in services), SAFE * self._usual_lag)

    def recall_starts(self) -> None:
        """Count the stored grants of services that are new here, all read at once."""
        if not self._unrecalled:
            return
        services = {service.name: service for service in self._unrecalled if service.reach}
        self._unrecalled.clear()
        reader, now = self._turn.reader, self._turn.now
        if reader is not None and services:
            starts: dict[str, list[Grant]] = {}
            for start in reader.starts({name: now - one.reach for name, one in services.items()}):
                starts.setdefault(start.service, []).append(start)
            for name, some in starts.items():
                services[name].recall(some)
                self._ready.touch(services[name])

    # entering -----------------------------------------------------------------------------------------------

    def entered(self, entries: list[Entry]) -> None:
        """Granted starts have entered their handlers: windows count them from there."""
        touched: list[Service] = []
        longest = 0.0
        for token, at, began in entries:
            services, granted_at, _ = self._unentered.pop(token, NOT_RATED)
            for service in services:
                service.entered(at)
            if services and token in self._spending:
                self._spending[token].enter(at)
            if services is not touched:
                for service in services:
                    self._ready.touch(service)
                touched = services
            if services and began - granted_at > longest:
                longest = began - granted_at
        if longest > self._usual_lag:
            self._lag, self._lagged_at = longest, self._turn.now

    def was_late(self, token: int) -> None:
        """A call could not begin in time: allow the next ones more time, up to what this one would have needed."""
        now = self._turn.now
        if token in self._unentered and self._was_late_at < now:
            self._was_late_at = now
            services, granted_at, _ = self._unentered[token]
            enough = max(2 * self._usual_lag, min(service.slack for service in services))
            self._lag, self._lagged_at = min(enough, max(self._usual_lag, now - granted_at)), now

    def are_any(self) -> bool:
        """True while an attempt has a grant that may have to be settled when it ends."""
        return bool(self._unentered or self._spending)

    def ended(self, token: int, work_id: str) -> None:
        """The code of that attempt has ended. If its handler was never entered, the grant is given back."""
        if token in self._unentered:
            self._give_back(token, work_id)
        self._spending.pop(token, None)

    def lost(self, token: int) -> None:
        """It will never be known when that attempt began: count it from the latest moment at which it may have."""
        services, _, counted_at = self._unentered.pop(token, NOT_RATED)
        for service in services:
            service.entered(counted_at)
        if services and token in self._spending:
            self._spending[token].enter(counted_at)

    def _give_back(self, token: int, work_id: str) -> None:
        """The handler was never entered: give its grant back, and store that the grant does not count."""
        services, _, counted_at = self._unentered.pop(token)
        spending = self._spending.get(token)
        for service in services:
            service.returned()
            self._ready.touch(service)
            if self._is_stored and service.windows:
                self._turn.plan.grants.append(Grant(service.name, counted_at, -1, work_id=work_id))
        if spending is not None:
            spending.returned()
            for name, amount in spending.amounts.items():
                self._store_use(spending, name, -amount)

    def never_began(self, record: Record, lane: Lane) -> None:
        """Give back what another process granted, when it decided, to an attempt that certainly never begins."""
        reader = self._turn.reader
        if reader is None or record.token in self._unentered:  # what was granted here `ended` gives back
            return
        self.recall_starts()  # what is given back has to be counted first
        since = self._turn.now if record.started_at is None else record.started_at
        for service in lane.services:
            if not service.reach:
                continue
            for name, (amount, at) in reader.spent(record.id, service.name, since).items():
                if amount > 0:
                    service.uncount(name, at, amount)
                    self._turn.plan.grants.append(Grant(service.name, at, -amount, name, record.id))
            self._ready.touch(service)
        self._spending.pop(record.token, None)

    # quantities ---------------------------------------------------------------------------------------------

    def reserve(self, record: Record, token: int, lane: Lane, granted: Granted) -> None:
        """Reserve what a granted start is expected to use of each quantity."""
        metered = tuple(service for service in granted.services if service.meters)
        spending = self._spending[token] = Spending(metered, {}, granted.counted_at, work_id=record.id)
        for name, amount in record.spec.cost:
            for service in lane.services:
                service.spend_budget(name, amount)
            self._store_use(spending, name, spending.settle(name, amount))

    def recall(self, record: Record, lane: Lane) -> None:
        """Read what was counted for an attempt from before this process decided, so that it can be settled."""
        metered = tuple(service for service in lane.services if service.meters)
        if metered:
            assert self._turn.reader is not None
            at = self._turn.now if record.started_at is None else record.started_at
            counted: dict[str, Spent] = {}
            for service in metered:  # an attempt uses as much of a quantity in each of its services
                counted |= self._turn.reader.spent(record.id, service.name, at)
            amounts = {name: one.amount for name, one in counted.items() if name}
            at = max((one.at for one in counted.values()), default=at)
            self._spending[record.token] = Spending(metered, amounts, at, at, record.id)

    def charge(self, token: int, amounts: dict[str, float]) -> None:
        """A running attempt reports what it has really used so far: count that instead of what was expected."""
        spending = self._spending.get(token)
        if spending is None:
            return
        self.recall_starts()  # what is given back has to be counted first
        for name, amount in amounts.items():
            self._store_use(spending, name, spending.settle(name, amount))
        for service in spending.services:
            self._ready.touch(service)

    def _store_use(self, spending: Spending, name: str, more: float) -> None:
        """Store that so much more of a quantity was granted."""
        if more and self._is_stored:
            self._turn.plan.grants += [
                Grant(service.name, spending.counted_at, more, name, spending.work_id)
                for service in spending.services
                if any(meter.name == name for meter in service.meters)
            ]

    def observe(self, lane: Lane, name: str | None, left: Sequence[tuple[str, float, float]]) -> None:
        """A remote service told a running attempt how much it will still accept, and for how long that holds.

        The calls under way that it may not have seen yet are subtracted.
        """
        now = self._turn.now
        named = [one for one in lane.services if name is not None and name in (one.name, one.base)]
        own = named or [one for one in lane.services if not one.name.startswith("#")]
        for service in own[:1]:
            for quantity, amount, seconds in sorted(left, key=lambda one: (one[1], -one[2]), reverse=True):
                service.observe(quantity, amount - service.under_way(quantity), now + seconds)
                self._ready.wake_service(service, now + seconds)
            self._ready.touch(service)
