"""What the checker speaks of: what a queue was told to keep to, what was seen of it, and what is wrong about that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from heapq import heappop, heappush
from typing import Final, Protocol

import msgspec

from runcue import Retry
from runcue.sim.config import Config, ServiceConfig
from runcue.sim.limits import Quantities, Total, windows

ROUNDING: Final = 1e-6
"""What times kept as seconds since 1970 lose in a float."""


class Violation(msgspec.Struct, frozen=True):
    """A promise that was not kept: which, when (queue time), what shows it, and whom it concerns."""

    rule: str
    at: float
    text: str
    work_ids: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.rule} at {self.at:.6f}: {self.text}"


class Limits(msgspec.Struct, frozen=True):
    """What one service allows: `rates` are numbers of calls and the seconds in which there may be so many."""

    rates: tuple[tuple[int, float], ...] = ()
    concurrent: int | None = None
    circuit_timeout: float | None = None
    quantities: Mapping[str, Sequence[tuple[float, float]]] = {}
    """Of what there are amounts, and how much of it may be used in so many seconds."""
    per: str = ""
    """The param that tells keys apart, where there are keys."""
    each: Limits | None = None
    """What each key may have, where there are keys: the rest is then what all of them may have together."""


class Task(msgspec.Struct, frozen=True):
    """What one task uses, and how it is retried (None: not known)."""

    uses: tuple[str, ...] = ()
    retry: Retry | None = None


class Rules(msgspec.Struct, frozen=True):
    """What a queue was told to keep to."""

    services: dict[str, Limits] = {}
    tasks: dict[str, Task] = {}
    age_step: float | None = 60.0


class Asked(msgspec.Struct, frozen=True):
    """What was submitted, as far as rules are about it."""

    id: str
    depends_on: tuple[str, ...] = ()
    priority: float = 0.0
    key: str | None = None
    has_time: bool = False
    """True when it was given a time before which it must not start: then its place among others is not judged."""
    cost: dict[str, float] = {}
    """What it is expected to use of each quantity."""
    keys: Mapping[str, str] = {}
    """Its params that services tell keys apart by."""


class Call(Protocol):
    """One call of a mock service, as it saw it; not `left_at` yet when it goes on still."""

    @property
    def work_id(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def node(self) -> object: ...
    @property
    def entered_at(self) -> float: ...
    @property
    def left_at(self) -> float | None: ...
    @property
    def how(self) -> str: ...
    @property
    def services(self) -> Sequence[str]:
        """The services it ran on, as its handler was told."""

    @property
    def charges(self) -> Sequence[tuple[str, float]]:
        """What its handler said that it used, one after the other."""

    @property
    def is_kept(self) -> bool:
        """False when its process could not write for a while: what it charged may not have been counted."""


class Ending(Protocol):
    """How a run ended."""

    @property
    def calls(self) -> Sequence[Call]: ...
    @property
    def counts(self) -> Mapping[str, int]: ...
    @property
    def ended_at(self) -> float: ...


Start = tuple[str, int, float]
"""Work, attempt, and when it was started. A start that was given back leaves its number to the next."""


class Life:
    """One work, as far as its events tell."""

    __slots__ = ("asked", "attempt", "attempts", "completed_at", "crashes", "failures", "id", "is_candidate",
                 "is_sure", "lost", "missing", "number", "rank", "retry_at", "spent", "state", "task", "uses",
                 "version")  # fmt: skip

    def __init__(self, id: str, task: str, number: int, asked: Asked | None) -> None:
        self.id = id
        self.task = task
        self.number = number
        self.asked = asked
        self.state = ""
        self.attempt = self.spent = self.failures = self.crashes = self.version = 0
        self.attempts: dict[int, float] = {}
        """When each attempt was started, the last time it was."""
        self.lost: list[tuple[Start, float]] = []
        """Starts of which nothing came back, and when the next one was."""
        self.is_sure = True
        """False when it cannot be known whether its last start counted."""
        self.is_candidate = False
        self.missing = 0
        self.uses: tuple[str, ...] | None = None
        """The services it uses, once somebody has asked for them."""
        self.rank = self.retry_at = 0.0
        self.completed_at: float | None = None

    def asked_for(self) -> tuple[str, ...]:
        """What it depends on, as far as anybody said."""
        return () if self.asked is None else self.asked.depends_on

    @property
    def start(self) -> Start:
        """Its latest start."""
        return self.id, self.attempt, self.attempts[self.attempt]


class Circuit:
    """One circuit, as far as events tell."""

    def __init__(self, timeout: float) -> None:
        self.state = "closed"
        self.timeout = self.wait = timeout
        self.changed_at = 0.0
        self.knocking: tuple[str, float] | None = None
        """Who was started while it was open, until it is told that this is the probe."""
        self.probe: Start | None = None
        """Who was sent ahead, while nothing is told of how that ended."""


class Lane:
    """Works that are interchangeable as far as limits go, and which of them could start."""

    def __init__(self) -> None:
        self._ready: list[tuple[float, int, int, Life]] = []
        self._later: list[tuple[float, int, int, Life]] = []

    def join(self, life: Life, due: float | None) -> None:
        """It could start, from `due` on."""
        if due is None:
            heappush(self._ready, (life.rank, life.number, life.version, life))
        else:
            heappush(self._later, (due, life.number, life.version, life))

    def left(self, life: Life) -> None:
        """Something happened to it: what was known of it no longer holds."""
        life.version += 1

    def best(self, now: float) -> Life | None:
        """The first that could start."""
        while self._later and self._later[0][0] < now:
            _, _, version, life = heappop(self._later)
            if life.version == version:
                self.join(life, None)
        while self._ready and self._ready[0][3].version != self._ready[0][2]:
            heappop(self._ready)
        return self._ready[0][3] if self._ready else None


def part_name(service: str, key: str) -> str:
    """What the part of a service is called that is for one key."""
    return f"{service}[{key}]"


def fits(name: str, use: str) -> bool:
    """True when a service is one that this use of a task may mean: a star stands for anything."""
    return name == use if "*" not in use else fnmatchcase(name, use)


def limits_of(service: ServiceConfig) -> Limits:
    """What a service of a configuration allows."""
    circuit = None if service.circuit_threshold is None else service.circuit_timeout
    own = Limits(tuple(service.windows()), service.places, circuit, _windows(service.quantities))
    if service.per is None:
        return own
    total = service.total or Total()
    return Limits(
        tuple(windows(total.rates)), total.concurrent, None, _windows(total.quantities), service.per, own
    )


def _windows(quantities: Quantities) -> dict[str, list[tuple[int, float]]]:
    return {name: windows(rates) for name, rates in quantities.items()}


def rules_of(config: Config) -> Rules:
    """What a configuration tells a queue to keep to."""
    services = {name: limits_of(service) for name, service in config.services.items()}
    retry = config.retry.policy()
    tasks = {name: Task(tuple(uses), retry) for name, uses in config.uses().items()}
    return Rules(services, tasks, config.age_step)
