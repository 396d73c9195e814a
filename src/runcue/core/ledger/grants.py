"""Starts that rates and quantities have granted: whether their handlers were entered, and what they use.

A start counts from when its handler was entered. Until then it counts as "now", and whoever decides next counts it
from the latest moment at which it may still begin (`counted_at`).
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
from runcue.core.schedule.plan import Entry
from runcue.core.schedule.ready import Ready

SAFE = 2.0
"""How much longer than it usually takes a call may take to begin."""
HALF_LIFE = 10.0
"""Seconds after which half of a delay that did not happen again is forgotten."""


class Granted(NamedTuple):
    """Services with a rate that granted a start, when they did, and from when on whoever decides next counts it."""

    services: list[Service]
    at: float
    counted_at: float


NOT_RATED = Granted([], 0.0, 0.0)


class Grants:
    """Granted starts by token."""

    __slots__ = ("_is_stored", "_lag", "_lagged_at", "_ready", "_spending", "_turn", "_unentered", "_unrecalled",
                 "_was_late_at")  # fmt: skip

    def __init__(self, turn: CurrentTurn, ready: Ready, *, is_stored: bool) -> None:
        """`is_stored` says that other processes may decide next, and have to know what was granted."""
        self._turn = turn
        self._ready = ready
        self._is_stored = is_stored
        self._unentered: dict[int, Granted] = {}
        self._spending: dict[int, Spending] = {}
        """What running attempts have reserved or used of quantities."""
        self._lag = self._lagged_at = 0.0
        """How long it took from a grant to the handler at most, lately: a slow disk or a busy loop takes its time."""
        self._was_late_at = -math.inf
        self._unrecalled: list[Service] = []
        """Services that are watched since this turn: what was started before is not counted yet."""
        if is_stored:
            ready.services.on_new = self._unrecalled.append

    # granting -----------------------------------------------------------------------------------------------

    def grant(self, services: list[Service], records: list[Record]) -> Granted:
        """Starts of these units are granted by these services, which have rates."""
        now = self._turn.now
        granted = Granted(services, now, now + self._slack(services))
        if self._is_stored:
            names = [service.name for service in services if service.windows]
            self._turn.plan.grants += [
                Grant(name, granted.counted_at, 1, "", record.id) for name in names for record in records
            ]
        return granted

    def add(self, token: int, granted: Granted) -> None:
        """The start with that token is one of those; its handler was not entered yet."""
        self._unentered[token] = granted

    @property
    def _usual_lag(self) -> float:
        """How long a call has to be given to begin, by what was seen lately."""
        return self._lag * 2.0 ** ((self._lagged_at - self._turn.now) / HALF_LIFE) if self._lag else 0.0

    def _slack(self, services: list[Service]) -> float:
        """How long after its grant a call may begin. It has to be possible, or nothing would ever begin."""
        return max(min(service.slack for service in services), SAFE * self._usual_lag)

    def recall_starts(self) -> None:
        """Count what was started before its service was watched here: read at once for all of them."""
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
        """Granted starts entered their handlers: their windows count from then on."""
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
        """A call could not begin in time: the next are given more, up to what this one would have needed."""
        now = self._turn.now
        if token in self._unentered and self._was_late_at < now:
            self._was_late_at = now
            services, granted_at, _ = self._unentered[token]
            enough = max(2 * self._usual_lag, min(service.slack for service in services))
            self._lag, self._lagged_at = min(enough, max(self._usual_lag, now - granted_at)), now

    def are_any(self) -> bool:
        """True while an attempt has something that was granted and may have to be settled."""
        return bool(self._unentered or self._spending)

    def ended(self, token: int, work_id: str) -> None:
        """The code of that attempt has ended. If it was never entered, nothing of the grant was used."""
        if token in self._unentered:
            self._give_back(token, work_id)
        self._spending.pop(token, None)

    def lost(self, token: int) -> None:
        """Nobody will hear when that attempt began: it counts as begun as late as it may have."""
        services, _, counted_at = self._unentered.pop(token, NOT_RATED)
        for service in services:
            service.entered(counted_at)
        if services and token in self._spending:
            self._spending[token].enter(counted_at)

    def _give_back(self, token: int, work_id: str) -> None:
        """It was never called: what was granted was not used, and whoever decides next counts one less."""
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

    # quantities ---------------------------------------------------------------------------------------------

    def reserve(self, record: Record, token: int, lane: Lane, granted: Granted) -> None:
        """A start is granted: what it is expected to use of each quantity is taken from here on."""
        metered = tuple(service for service in granted.services if service.meters)
        spending = self._spending[token] = Spending(metered, {}, granted.counted_at, work_id=record.id)
        for name, amount in record.spec.cost:
            for service in lane.services:
                service.spend_budget(name, amount)
            self._store_use(spending, name, spending.settle(name, amount))

    def recall(self, record: Record, lane: Lane) -> None:
        """An attempt from before this ledger goes on: what it reserved is counted, and it may say it used more."""
        metered = tuple(service for service in lane.services if service.meters)
        if metered:
            assert self._turn.reader is not None
            at = self._turn.now if record.started_at is None else record.started_at
            counted: dict[str, float] = {}
            for service in metered:  # what one charge changes is the same for all of them
                counted |= self._turn.reader.spent(record.id, service.name, at)
            self._spending[record.token] = Spending(metered, counted, at, at, True, record.id)

    def charge(self, token: int, amounts: dict[str, float]) -> None:
        """A running attempt says what it has really used so far: that counts from when it was entered."""
        spending = self._spending.get(token)
        if spending is None:
            return
        for name, amount in amounts.items():
            self._store_use(spending, name, spending.settle(name, amount))
        for service in spending.services:
            self._ready.touch(service)

    def _store_use(self, spending: Spending, name: str, more: float) -> None:
        """Have whoever decides next count that much more of a quantity."""
        if more and self._is_stored:
            self._turn.plan.grants += [
                Grant(service.name, spending.counted_at, more, name, spending.work_id)
                for service in spending.services
                if any(meter.name == name for meter in service.meters)
            ]

    def observe(self, lane: Lane, name: str | None, left: Sequence[tuple[str, float, float]]) -> None:
        """The far side of a running attempt said what it will still take, and for how long that holds.

        Calls that are under way here and that it may not have seen yet are taken off.
        """
        now = self._turn.now
        named = [one for one in lane.services if name is not None and name in (one.name, one.base)]
        own = named or [one for one in lane.services if not one.name.startswith("#")]
        for service in own[:1]:
            for quantity, amount, seconds in sorted(left, key=lambda one: (one[1], -one[2]), reverse=True):
                service.observe(quantity, amount - service.under_way(quantity), now + seconds)
                self._ready.wake_service(service, now + seconds)
            self._ready.touch(service)
