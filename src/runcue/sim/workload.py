"""Draws the arrivals of a simulation from its seed: groups of units that belong together.

Rules:
- Arrivals are made one at a time and in order of time, however many there are.
- When units arrive, what they are and how urgent they are come from different random streams: changing one of
  these does not change the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from random import Random

import msgspec

from runcue.sim.config import Config, Workload
from runcue.sim.mocks import Script, draw

MIXED = ("none", "single", "chain", "fan_out", "fan_in", "diamond", "complex")
"""What `random` draws from when no weights say otherwise."""


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """One unit to submit."""

    id: str
    task: str
    priority: float = 0.0
    needs: tuple[str, ...] = ()
    """The units that have to be complete first (with `is_ready`: whose artifacts have to be there)."""
    makes: str = ""
    """The artifact it makes, where units are linked by artifacts."""
    script: Script = ()
    """What its attempts do, where a recording says so; otherwise the behaviour of the service decides."""
    cost: dict[str, float] = {}
    """The expected use of each quantity."""
    keys: dict[str, str] = {}
    """The params that tell the keys of services apart."""


class Arrival(msgspec.Struct, frozen=True):
    """Units that arrive together, `at` seconds after the beginning."""

    at: float
    works: list[Submission]
    pattern: str = "none"


def arrivals(config: Config, until: float | None = None) -> Iterator[Arrival]:
    """Yield everything that arrives in a simulation, in order, until `until` or its end."""
    end = config.duration if until is None else until
    workload = config.workload
    times, kinds, urgencies = (
        Random(f"{config.seed}/{stream}") for stream in ("arrivals", "patterns", "priorities")
    )
    if config.is_silent:
        return
    tasks = list(config.arriving())
    prices = Prices(config)
    weights = workload.pattern_weights or dict.fromkeys(MIXED, 1.0)
    levels = list(workload.priorities) or [0.0]
    shares = list(workload.priorities.values()) or [1.0]
    numbers = count(1)
    at, made = 0.0, 0
    for group in count():
        pattern = workload.pattern
        if pattern == "random":
            pattern = kinds.choices(list(weights), list(weights.values()))[0]
        shape = shapes(pattern, workload)
        if workload.count is not None:
            shape = shape[: workload.count - made]
        priority = urgencies.choices(levels, shares)[0]
        if not shape:
            return
        at = _next_time(at, len(shape), workload, times)
        if at >= end:
            return
        made += len(shape)
        ids = [f"w{next(numbers)}" for _ in shape]
        works = [
            Submission(
                id=work_id,
                task=tasks[(group if pattern == "none" else level) % len(tasks)],
                priority=priority,
                needs=tuple(ids[need] for need in needs if need < len(ids)),
                makes=work_id if workload.linked_by == "is_ready" else "",
            )
            for work_id, (level, needs) in zip(ids, shape, strict=True)
        ]
        yield Arrival(at, [*map(prices, works)] if workload.cost or workload.keys else works, pattern)


class Prices:
    """Draws the cost and the keys of units."""

    def __init__(self, config: Config) -> None:
        self._cost, self._keys = config.workload.cost, config.workload.keys
        self._sold = {
            task: {quantity for name in uses for quantity in config.services[name].sells()}
            for task, uses in config.uses().items()
        }
        self._costs, self._owners = (Random(f"{config.seed}/{stream}") for stream in ("costs", "keys"))

    def __call__(self, work: Submission) -> Submission:
        """A unit with its cost and its keys; quantities that none of its services limits are left out."""
        amounts = {name: exact(draw(one, self._costs), one.mean) for name, one in self._cost.items()}
        keys = {
            param: self._owners.choices(list(values), list(values.values()))[0]
            for param, values in self._keys.items()
        }
        sold = self._sold[work.task]
        cost = {name: amount for name, amount in amounts.items() if name in sold}
        return msgspec.structs.replace(work, cost=cost, keys=keys)


def exact(amount: float, usual: float) -> float:
    """Round an amount as it would be counted: to whole numbers where it is large."""
    return float(round(amount)) if usual >= 10 else round(amount, 6)


def shapes(pattern: str, workload: Workload) -> list[tuple[int, tuple[int, ...]]]:
    """A pattern as units: the level of each, and the places of those it needs."""
    width = workload.fan_out_width
    match pattern:
        case "single":
            return [(0, ()), (1, (0,))]
        case "chain":
            return [(place, (place - 1,) if place else ()) for place in range(workload.chain_depth)]
        case "fan_out":
            return [(0, ()), *[(1, (0,))] * width]
        case "fan_in":
            return [*[(0, ())] * width, (1, tuple(range(width)))]
        case "diamond":
            middle = workload.diamond_width
            return [(0, ()), *[(1, (0,))] * middle, (2, tuple(range(1, middle + 1)))]
        case "complex":
            # A start that fans out into short chains, which meet again, and an end that hangs on that.
            firsts = range(1, width + 1)
            seconds = range(width + 1, 2 * width + 1)
            return [
                (0, ()),
                *[(1, (0,)) for _ in firsts],
                *[(2, (first,)) for first in firsts],
                (3, tuple(seconds)),
                (4, (2 * width + 1,)),
            ]
        case "circular":
            return [(0, (1,)), (1, (0,))]
        case _:
            return [(0, ())]


def rate_at(second: float, workload: Workload) -> float | None:
    """How many units arrive in a second at that time; None: all at once."""
    rate = workload.submit_rate
    for step in workload.submit_rates:
        if step.at <= second:
            rate = step.rate
    return rate


def _next_time(at: float, size: int, workload: Workload, times: Random) -> float:
    """When the next group arrives: a group of several takes the place of as many single units."""
    gap = times.expovariate(1.0) if workload.arrivals == "poisson" else 1.0
    gap *= size
    while True:  # at the rate of each stretch of time it passes through
        rate = rate_at(at, workload)
        ends = [step.at for step in workload.submit_rates if step.at > at]
        if rate is None and not ends:
            return at
        if rate is not None and (not ends or at + gap / rate <= ends[0]):
            return at + gap / rate
        gap -= (ends[0] - at) * (rate or 0.0)
        at = ends[0]
