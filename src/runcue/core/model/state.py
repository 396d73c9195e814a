"""What a store keeps besides records: counters, services, grants, workers.

The turn that changes a value writes it in the same commit, so that the next turn can go on from there in any process.
A store keeps these values and does not know what they mean.
"""

from __future__ import annotations

from typing import Any

import msgspec

from runcue.core.model.parse import Rate

FORGIVEN_AFTER = 3600.0
"""Seconds after which it no longer matters that a remote service throttled calls."""


class Quantity(msgspec.Struct, frozen=True):
    """Something that starts use amounts of, such as tokens, and how much of it may be used."""

    name: str
    rates: tuple[Rate, ...]


class Adaptive(msgspec.Struct, frozen=True):
    """A number of slots that follows what the remote service can take: fewer after "too many", more after success."""

    min: int
    start: int
    max: int


class Limits(msgspec.Struct, frozen=True):
    """The limits that a service was declared with. A new declaration changes them while units run."""

    name: str
    concurrent: int | None = None
    rates: tuple[Rate, ...] = ()
    circuit_threshold: int | None = None
    circuit_timeout: float = 300.0
    quantities: tuple[Quantity, ...] = ()
    adaptive: Adaptive | None = None
    each: Limits | None = None
    """The limits of each key (`per=`), where there are keys; the others are then those of all keys together."""

    @property
    def longest(self) -> float:
        """Seconds of its longest window: for so long starts have to be remembered."""
        rates = [*self.rates, *(rate for one in self.quantities for rate in one.rates)]
        own = max((rate.per for rate in rates), default=0.0)
        return own if self.each is None else max(own, self.each.longest)

    def __str__(self) -> str:
        """The limits as text: `60/min, 5 at once, 200000 tokens/min`."""
        parts = [str(rate) for rate in self.rates]
        if self.adaptive is not None:
            parts.append(f"{self.adaptive.min} to {self.adaptive.max} at once")
        elif self.concurrent is not None:
            parts.append(f"{self.concurrent} at once")
        for one in self.quantities:
            parts += [str(rate).replace("/", f" {one.name}/", 1) for rate in one.rates]
        if self.circuit_threshold is not None:
            parts.append(f"circuit opens after {self.circuit_threshold}")
        if self.each is not None:
            parts.append(f"each key {self.each}")
        return ", ".join(parts) or "no limits"

    def of_key(self, name: str) -> Limits | None:
        """The limits of the part with that name, which one key has; None when the service has no keys."""
        return None if self.each is None else msgspec.structs.replace(self.each, name=name)


def adjusted(limits: Limits, changes: dict[str, Any], quantities: dict[str, Quantity | None]) -> Limits:
    """Limits with some of them changed; for a service with keys, those of each key."""
    if limits.each is not None:
        return msgspec.structs.replace(limits, each=adjusted(limits.each, changes, quantities))
    kept = {one.name: one for one in limits.quantities} | quantities
    found = tuple(one for one in kept.values() if one is not None)
    return msgspec.structs.replace(limits, **changes, quantities=found)


def key_name(service: str, key: str) -> str:
    """The name of the part of a service that one key has."""
    return f"{service}[{key}]"


def is_pattern(name: str) -> bool:
    """True for the name of a group of services. (A key may have a star in it.)"""
    return "*" in name and not name.endswith("]")


def base_name(name: str) -> str | None:
    """The service that the part of a key belongs to; None for other names."""
    base, bracket, _ = name.partition("[")
    return base if bracket and base and name.endswith("]") else None


class Head(msgspec.Struct, frozen=True):
    """The counters of a queue: the first thing a turn reads, and the last it writes."""

    revision: int = 0
    """How many turns have written something. If it has changed since, another process took a turn."""
    seq: int = 0
    """The number of the newest unit."""
    token: int = 0
    """The token of the newest attempt."""
    last_event_seq: int = 0
    """The number of the newest event."""
    now: float = 0.0
    """The queue time of the last turn: the next turn is never before it."""
    pending: int = 0
    running: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    blocked: int = 0
    """How many of the pending units wait for others."""
    decider: str | None = None
    """The deciding process: the others leave posts for it."""
    wake_at: float | None = None
    """When the deciding process takes its next turn at the latest."""


NO_HEAD = Head()


class BreakerState(msgspec.Struct, frozen=True):
    """What is stored of a circuit breaker (limits/breaker.py)."""

    state: str
    failures: int
    epoch: int
    wait: float
    changed_at: float
    ramp: int | None
    climbed: int
    running: int
    probe_deadline: float | None

    @property
    def is_as_new(self) -> bool:
        """True when it is in the state of a new one."""
        return (
            self.state == "closed" and self.ramp is None and not (self.failures or self.running or self.epoch)
        )


class ServiceState(msgspec.Struct, frozen=True):
    """What is stored of a service, apart from what runs and what started lately."""

    limits: Limits
    is_paused: bool = False
    throttled_until: float = 0.0
    throttle_streak: int = 0
    breaker: BreakerState | None = None
    width: float | None = None
    """How many slots it has at the moment, if that adapts."""
    narrowed_at: float = 0.0
    """When that number was last halved."""
    declared: Limits | None = None
    """What its program declared, while limits that were set by hand hold."""

    def is_as_new(self, now: float) -> bool:
        """True when it allows what a newly declared service would; an old "too many" no longer matters."""
        breaker, adaptive = self.breaker, self.limits.adaptive
        is_narrow = adaptive is not None and self.width is not None and self.width < adaptive.start
        return (
            not self.is_paused
            and now >= self.throttled_until + (FORGIVEN_AFTER if self.throttle_streak else 0)
            and (not is_narrow or now >= self.narrowed_at + FORGIVEN_AFTER)
            and (breaker is None or breaker.is_as_new)
        )


class Grant(msgspec.Struct, frozen=True):
    """A start, or an amount of a quantity, that counts in the windows of a service from `at` on. A negative amount
    corrects an earlier grant."""

    service: str
    at: float
    amount: float = 1
    quantity: str = ""
    work_id: str | None = None
    """The unit it was granted to; None for the sum of several."""


class Overdue(msgspec.Struct, frozen=True):
    """An attempt that was given up and whose code may still run: it keeps its slots until that has ended."""

    token: int
    work_id: str
    task: str
    queue: str
    services: tuple[str, ...]
    chosen: str | None = None


class Worker(msgspec.Struct, frozen=True):
    """A process that has the queue open: who it is, what it can run, and how many attempts at once."""

    id: str
    host: str
    boot: str
    pid: int
    started_at: float
    queues: tuple[str, ...] | None = None
    """The queues it serves; None for all of them."""
    is_serving: bool = False
    """False for a process that runs no units."""
    tasks: tuple[str, ...] = ()
    """The tasks it has handlers for."""
    room: dict[str, int] = {}
    """How many attempts it can have at once: in all, in threads, in its process pool. No entry: no limit."""
    hears: bool = False
    """True when it wants everyday events, too: it has callbacks, metrics or a detailed log."""
    callbacks: tuple[str, ...] = ()
    """Which callbacks it has (the fields of `Questions`)."""
    overdue: tuple[Overdue, ...] = ()
    """Its attempts that were given up and whose code may still run."""
