"""What a store keeps besides the records of work: counters, shelves, services, grants, workers.

All of it is written by the turn that changes it, in the same commit, so that whoever takes the next turn, in
whichever process, can go on from there. A store keeps these values and does not know what they mean.
"""

from __future__ import annotations

from typing import Any

import msgspec

from runcue.core.model.parse import Rate

FORGIVEN_AFTER = 3600.0
"""Seconds after which it no longer matters how much the far side said was too much."""


class Quantity(msgspec.Struct, frozen=True):
    """Something of which a start uses an amount, such as tokens, and how much of it may be used."""

    name: str
    rates: tuple[Rate, ...]


class Adaptive(msgspec.Struct, frozen=True):
    """A number of places that follows what the far side bears: fewer after "too many", more after success."""

    min: int
    start: int
    max: int


class Limits(msgspec.Struct, frozen=True):
    """What a service was declared with. Declaring it again with other limits changes it live."""

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
        """Seconds of its longest window: for so long what was started has to be remembered."""
        rates = [*self.rates, *(rate for one in self.quantities for rate in one.rates)]
        own = max((rate.per for rate in rates), default=0.0)
        return own if self.each is None else max(own, self.each.longest)

    def __str__(self) -> str:
        """As people say it: `60/min, 5 at once, 200000 tokens/min`."""
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
        """The limits of a key of this service, by its full name; None when it has no keys."""
        return None if self.each is None else msgspec.structs.replace(self.each, name=name)


def adjusted(limits: Limits, changes: dict[str, Any], quantities: dict[str, Quantity | None]) -> Limits:
    """The same but for some of them; where there are keys, those of each key."""
    if limits.each is not None:
        return msgspec.structs.replace(limits, each=adjusted(limits.each, changes, quantities))
    kept = {one.name: one for one in limits.quantities} | quantities
    found = tuple(one for one in kept.values() if one is not None)
    return msgspec.structs.replace(limits, **changes, quantities=found)


def key_name(service: str, key: str) -> str:
    """What the part of a service is called that is for one key."""
    return f"{service}[{key}]"


def is_pattern(name: str) -> bool:
    """True for a name that means any one of several services; a key may have a star in it."""
    return "*" in name and not name.endswith("]")


def base_name(name: str) -> str | None:
    """The service that a key's part belongs to; None for a name that is no key's."""
    base, bracket, _ = name.partition("[")
    return base if bracket and base and name.endswith("]") else None


class Head(msgspec.Struct, frozen=True):
    """The counters of a queue: the first thing a turn reads, and the last it writes."""

    revision: int = 0
    """Turns that wrote something. Another number than the last one seen: another process was here."""
    seq: int = 0
    """The number of the newest work."""
    token: int = 0
    """The token of the newest attempt."""
    told: int = 0
    """The number of the newest event."""
    now: float = 0.0
    """Queue time of the last turn: the next is never before it."""
    pending: int = 0
    running: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    blocked: int = 0
    """How many of the pending wait for others."""
    decider: str | None = None
    """The process that took the last turn: it goes on, and the others leave what they have for it."""
    wake_at: float | None = None
    """When it wants to look again, whatever comes."""


NO_HEAD = Head()


class BreakerState(msgspec.Struct, frozen=True):
    """How a circuit breaker stands (limits/breaker.py)."""

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
        """True when it has nothing to remember."""
        return (
            self.state == "closed" and self.ramp is None and not (self.failures or self.running or self.epoch)
        )


class ServiceState(msgspec.Struct, frozen=True):
    """How a service stands, but for what is running and what was started lately."""

    limits: Limits
    is_paused: bool = False
    throttled_until: float = 0.0
    throttle_streak: int = 0
    breaker: BreakerState | None = None
    width: float | None = None
    """How many places it has at the moment, where that adapts."""
    narrowed_at: float = 0.0
    """When it last got fewer."""
    declared: Limits | None = None
    """What its program declared, while limits that were set by hand hold."""

    def is_as_new(self, now: float) -> bool:
        """True when it stands as if it had just been declared; an old "too many" no longer matters."""
        breaker, adaptive = self.breaker, self.limits.adaptive
        is_narrow = adaptive is not None and self.width is not None and self.width < adaptive.start
        return (
            not self.is_paused
            and now >= self.throttled_until + (FORGIVEN_AFTER if self.throttle_streak else 0)
            and (not is_narrow or now >= self.narrowed_at + FORGIVEN_AFTER)
            and (breaker is None or breaker.is_as_new)
        )


class Grant(msgspec.Struct, frozen=True):
    """A start that counts in the windows of a service from `at` on, or so much of a quantity; a negative amount
    takes some back."""

    service: str
    at: float
    amount: float = 1
    quantity: str = ""
    work_id: str | None = None
    """The unit it was granted to; None for a sum of several."""


class Overdue(msgspec.Struct, frozen=True):
    """An attempt that was given up and whose code may still run: it keeps its places until that has ended."""

    token: int
    work_id: str
    task: str
    queue: str
    services: tuple[str, ...]
    chosen: str | None = None


class Worker(msgspec.Struct, frozen=True):
    """A process that has the queue open: who it is, what it can run, and how much of that at once."""

    id: str
    host: str
    boot: str
    pid: int
    started_at: float
    queues: tuple[str, ...] | None = None
    """The queues it serves; None for all of them."""
    is_serving: bool = False
    """False for a process that only submits and looks."""
    tasks: tuple[str, ...] = ()
    """The tasks it has handlers for."""
    room: dict[str, int] = {}
    """How many attempts it can have at once: in all, in threads, in its process pool; no limit where not named."""
    hears: bool = False
    """True when it wants to be told of every event of what it did: it has callbacks, metrics or a detailed log."""
    callbacks: tuple[str, ...] = ()
    """Which questions it can answer (the names of `Questions`)."""
    overdue: tuple[Overdue, ...] = ()
    """Attempts of it that were given up and whose code may still run."""
