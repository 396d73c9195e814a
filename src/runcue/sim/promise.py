"""The values of the checker: the rules of a queue, what was observed, and violations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from heapq import heappop, heappush
from typing import Final

import msgspec

from runcue import Retry
from runcue.sim.config import Config, ServiceConfig
from runcue.sim.limits import Quantities, Total, windows
from runcue.sim.timetable import ScheduleConfig

ROUNDING: Final = 1e-6
"""The rounding error of a time that is stored as seconds since 1970."""


class Violation(msgspec.Struct, frozen=True):
    """A broken promise: which, when (queue time), the evidence, and the ids of the units."""

    rule: str
    at: float
    text: str
    work_ids: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.rule} at {self.at:.6f}: {self.text}"


class Limits(msgspec.Struct, frozen=True):
    """The limits of one service: each of `rates` is a number of calls and a window in seconds."""

    rates: tuple[tuple[int, float], ...] = ()
    concurrent: int | None = None
    circuit_timeout: float | None = None
    quantities: Mapping[str, Sequence[tuple[float, float]]] = {}
    """The rates of each quantity: an amount and a window in seconds."""
    per: str = ""
    """The param that tells keys apart, where there are keys."""
    each: Limits | None = None
    """The limits of each key, where there are keys; the other fields are then those of all keys together."""


class Task(msgspec.Struct, frozen=True):
    """What one task uses, and how it is retried (None: not known)."""

    uses: tuple[str, ...] = ()
    retry: Retry | None = None


class Rules(msgspec.Struct, frozen=True):
    """The rules that a queue has to keep."""

    services: dict[str, Limits] = {}
    tasks: dict[str, Task] = {}
    age_step: float | None = 60.0
    schedules: dict[str, ScheduleConfig] = {}


class Asked(msgspec.Struct, frozen=True):
    """One submission, as far as rules are about it."""

    id: str
    depends_on: tuple[str, ...] = ()
    priority: float = 0.0
    key: str | None = None
    has_time: bool = False
    """True when it must not start before some time: then its place in the order is not judged."""
    cost: dict[str, float] = {}
    """The expected use of each quantity."""
    keys: Mapping[str, str] = {}
    """The params that tell the keys of services apart."""


class Call(msgspec.Struct):
    """One call as the mock service, or the handler itself, saw it."""

    work_id: str
    attempt: int
    node: object
    entered_at: float
    services: tuple[str, ...] = ()
    """All services of the unit, as the handler sees them."""
    left_at: float = math.inf
    how: str = ""
    """How the call ended; empty while it runs."""
    charges: Sequence[tuple[str, float]] = ()
    """The amounts that the handler charged, in order."""
    is_kept: bool = True
    """False when its process could not commit for a while: its charges may not have been counted."""


Start = tuple[str, int, float]
"""A unit's id, the attempt, and when it was started. The start after a refused one has the same attempt number."""


class Life(msgspec.Struct, eq=False):
    """One unit, as far as its events tell."""

    id: str
    task: str
    number: int
    asked: Asked | None
    state: str = ""
    attempt: int = 0
    spent: int = 0
    failures: int = 0
    crashes: int = 0
    version: int = 0
    """Counts the events about the unit: a lane drops entries with an older version."""
    attempts: dict[int, float] = {}
    """When each attempt was last started."""
    lost: list[tuple[Start, float]] = []
    """Starts without an answer, and when the next start was."""
    is_sure: bool = True
    """False when the last start may or may not have counted as an attempt."""
    is_candidate: bool = False
    missing: int = 0
    """How many of its dependencies are not complete."""
    uses: tuple[str, ...] | None = None
    """The services it uses, once they were asked for."""
    rank: float = 0.0
    retry_at: float = 0.0
    completed_at: float | None = None

    def asked_for(self) -> tuple[str, ...]:
        """The ids that the unit depends on, as far as they are known."""
        return () if self.asked is None else self.asked.depends_on

    @property
    def start(self) -> Start:
        """The latest start of the unit."""
        return self.id, self.attempt, self.attempts[self.attempt]


class Circuit:
    """One circuit, as far as events tell."""

    def __init__(self, timeout: float) -> None:
        self.state = "closed"
        self.timeout = self.wait = timeout
        self.changed_at = 0.0
        self.knocking: tuple[str, float] | None = None
        """The unit started while the circuit was open, until an event says that it is the probe."""
        self.probe: Start | None = None
        """The probe, until an event says how it ended."""


class Lane:
    """Units that are interchangeable as far as limits go, and which of them could start."""

    def __init__(self) -> None:
        self._ready: list[tuple[float, int, int, Life]] = []
        self._later: list[tuple[float, int, int, Life]] = []

    def join(self, life: Life, due: float | None) -> None:
        """Add a unit that could start, from `due` on."""
        if due is None:
            heappush(self._ready, (life.rank, life.number, life.version, life))
        else:
            heappush(self._later, (due, life.number, life.version, life))

    def left(self, life: Life) -> None:
        """Drop the entries of a unit, because something happened to it."""
        life.version += 1

    def best(self, now: float) -> Life | None:
        """The first unit that could start."""
        while self._later and self._later[0][0] < now:
            _, _, version, life = heappop(self._later)
            if life.version == version:
                self.join(life, None)
        while self._ready and self._ready[0][3].version != self._ready[0][2]:
            heappop(self._ready)
        return self._ready[0][3] if self._ready else None


def part_name(service: str, key: str) -> str:
    """The name of the part of a service for one key."""
    return f"{service}[{key}]"


def fits(name: str, use: str) -> bool:
    """True when a task's `uses`, in which a star stands for anything, may mean this service."""
    return name == use if "*" not in use else fnmatchcase(name, use)


def limits_of(service: ServiceConfig) -> Limits:
    """The limits of a service of a configuration."""
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
    """The rules that follow from a configuration."""
    services = {name: limits_of(service) for name, service in config.services.items()}
    retry = config.retry.policy()
    tasks = {name: Task(tuple(uses), retry) for name, uses in config.uses().items()}
    return Rules(services, tasks, config.age_step, config.schedules)
