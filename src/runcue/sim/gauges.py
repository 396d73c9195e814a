"""Figures of one service: calls under way, and what its rate and its circuit let through.

Rules:
- A service is rate-limited while one of its windows is full and a unit waits that could start otherwise. This is
  computed from starts and arrivals, because runcue emits its own event for it at most once a second.
- Series hold averages over stretches of time, so that memory does not grow with the length of the run.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

import msgspec

from runcue.sim.config import ServiceConfig
from runcue.sim.histogram import Level, rounded
from runcue.sim.limits import windows

LARGEST_WINDOW = 100_000
"""A rate of more starts than this in one window is not followed exactly."""

Series = list[tuple[float, float]]


class QuantitySummary(msgspec.Struct, kw_only=True):
    """One quantity of a service over the whole run: what was charged, or else expected."""

    rates: list[str] = []
    used: float = 0.0
    share: float = 0.0
    """Of what its tightest rate allows in that time, and in one window of it at least; 1 is all of it.

    With keys this is of what one key may have, unless there is a total."""
    per_minute: Series = []


class ServiceSummary(msgspec.Struct, kw_only=True):
    """One service over the whole run. Shares are of the time it took."""

    concurrent: int | None = None
    rates: list[str] = []
    quantities: dict[str, QuantitySummary] = {}
    starts: int = 0
    completed: int = 0
    failed: int = 0
    """Failed attempts."""
    refused: int = 0
    """Calls that the service refused as too many."""
    running_mean: float = 0.0
    running_peak: int = 0
    is_adaptive: bool = False
    """Whether `concurrent` is the most that it may grow to."""
    waiting_share: float = 0.0
    """With something there that could have started if its limits had let it."""
    full_share: float = 0.0
    """With as many calls under way as `concurrent` allows."""
    rate_share: float = 0.0
    """Of what its tightest rate allows in that time, and in one window of it at least; 1 is all of it."""
    rate_limited: float = 0.0
    """Seconds during which its rate let nothing start although something was there."""
    rate_limited_share: float = 0.0
    circuit: dict[str, int] = {}
    """How often it was opened, half_open, closed."""
    circuit_open: float = 0.0
    circuit_open_share: float = 0.0
    running: Series = []
    starts_per_minute: Series = []
    limited: Series = []


class Gauge:
    """One service, followed from event to event."""

    def __init__(self, config: ServiceConfig) -> None:
        self.config = config
        self.running = Level()
        total = config.total
        rates = dict(config.quantities) | (dict(total.quantities) if total is not None else {})
        self.found = ServiceSummary(
            rates=config.rates,
            quantities={name: QuantitySummary(rates=texts) for name, texts in rates.items()},
            is_adaptive=config.adaptive is not None,
        )
        """The figures so far; those that are shares or rounded are set at the end."""
        if config.per is None:
            self.found.concurrent = config.places
        elif total is not None:  # of all keys together
            self.found.concurrent = total.concurrent
        self._amount_waiting = 0
        self._windows = [
            (deque[float](maxlen=limit), per) for limit, per in config.windows() if limit <= LARGEST_WINDOW
        ]
        self._seen = self._full = self._limited = self._open = self._waited = 0.0
        self._starts_here, self._limited_here = 0, 0.0
        self._open_since: float | None = None
        self._used_here = dict.fromkeys(rates, 0.0)

    def come(self, at: float) -> None:
        """Count a unit that could start from now on."""
        self._pass(at)
        self._amount_waiting += 1

    def go(self, at: float) -> None:
        """Count out a unit that has started or ended."""
        self._pass(at)
        self._amount_waiting -= 1

    def start(self, at: float) -> None:
        """Count a call that begins."""
        self._pass(at)
        self.found.starts += 1
        self._starts_here += 1
        self.running.change(1, at)
        for starts, _ in self._windows:
            starts.append(at)

    def use(self, amounts: Mapping[str, float], before: Mapping[str, float] = {}) -> None:
        """Count the use of each quantity; `before` has been counted already."""
        for name, quantity in self.found.quantities.items():
            more = amounts.get(name, before.get(name, 0.0)) - before.get(name, 0.0)
            quantity.used += more
            self._used_here[name] += more

    def leave(self, at: float) -> None:
        """Count out a call that is over."""
        self._pass(at)
        self.running.change(-1, at)

    def turn(self, state: str, at: float) -> None:
        """Count a change of the circuit."""
        self.found.circuit[state] = self.found.circuit.get(state, 0) + 1
        if state == "opened" and self._open_since is None:
            self._open_since = at
        elif state == "closed" and self._open_since is not None:
            self._open += at - self._open_since
            self._open_since = None

    def point(self, at: float, width: float) -> None:
        """Add a point for the stretch of time that began at `at`."""
        self._pass(at + width)
        self.found.running.append((at, rounded(self.running.mean(at + width))))
        self.found.starts_per_minute.append((at, rounded(self._starts_here * 60 / width)))
        self.found.limited.append((at, rounded(min(1.0, self._limited_here / width))))
        self._starts_here, self._limited_here = 0, 0.0
        for name, quantity in self.found.quantities.items():
            quantity.per_minute.append((at, rounded(self._used_here[name] * 60 / width)))
            self._used_here[name] = 0.0

    def coarsen(self) -> None:
        """Merge every two points."""
        quantities = [one.per_minute for one in self.found.quantities.values()]
        for series in (self.found.running, self.found.starts_per_minute, self.found.limited, *quantities):
            series[:] = halved(series)

    def _pass(self, at: float) -> None:
        """Account for the time since the last change."""
        since, length = self._seen, at - self._seen
        if length <= 0:
            return
        self._seen = at
        places = self.found.concurrent
        if places is not None and self.running.value >= places:
            self._full += length
        if self._amount_waiting > 0:
            self._waited += length
            free_at = max(
                (starts[0] + per for starts, per in self._windows if len(starts) == starts.maxlen),
                default=0.0,
            )
            limited = min(length, max(0.0, free_at - since))
            self._limited += limited
            self._limited_here += limited

    def summary(self, ended: float) -> ServiceSummary:
        """The figures of the whole run."""
        self._pass(ended)
        found, whole = self.found, max(ended, 1e-9)
        is_open = 0.0 if self._open_since is None else max(0.0, ended - self._open_since)
        found.running_mean, found.running_peak = rounded(self.running.total / whole), self.running.peak
        found.waiting_share, found.full_share = rounded(self._waited / whole), rounded(self._full / whole)
        found.rate_share = rounded(min(1.0, _share(found.starts, found.rates, whole)))
        found.rate_limited, found.rate_limited_share = rounded(self._limited), rounded(self._limited / whole)
        found.circuit = dict(sorted(found.circuit.items()))
        found.circuit_open = rounded(self._open + is_open)
        found.circuit_open_share = rounded((self._open + is_open) / whole)
        for quantity in found.quantities.values():
            quantity.share = rounded(_share(quantity.used, quantity.rates, whole))
            quantity.used = rounded(quantity.used)
        return found


def _share(used: float, rates: list[str], whole: float) -> float:
    """The share that was used of what the tightest rate allows in that time, or in one window if that is longer."""
    allowed = min((limit * max(1.0, whole / per) for limit, per in windows(rates)), default=math.inf)
    return used / allowed


def halved(series: Series) -> Series:
    """One point for every two, being their mean."""
    return [
        (first[0], rounded((first[1] + second[1]) / 2))
        for first, second in zip(series[::2], series[1::2], strict=True)
    ]
