"""Figures of one service: calls under way, and what its rate and its circuit let through.

Rules:
- It is rate-limited while one of its windows is full and something waits for it that could start otherwise. That is
  reckoned from starts and arrivals: runcue's own event for it is told once a second at most.
- Everything is averaged over stretches of time, so that its room does not grow with the length of the run.
"""

from __future__ import annotations

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
        self.starts = self.completed = self.failed = 0
        self._amount_waiting = 0
        self._circuit: dict[str, int] = {}
        self._windows = [
            (deque[float](maxlen=limit), per) for limit, per in config.windows() if limit <= LARGEST_WINDOW
        ]
        self._seen = self._full = self._limited = self._open = self._waited = 0.0
        self._starts_here, self._limited_here = 0, 0.0
        self._open_since: float | None = None
        self._series: tuple[Series, Series, Series] = ([], [], [])
        total = config.total
        self._quantities = dict(config.quantities) | (dict(total.quantities) if total is not None else {})
        self._used = dict.fromkeys(self._quantities, 0.0)
        self._used_here = dict.fromkeys(self._quantities, 0.0)
        self._used_series: dict[str, Series] = {name: [] for name in self._quantities}

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
        self.starts += 1
        self._starts_here += 1
        self.running.change(1, at)
        for starts, _ in self._windows:
            starts.append(at)

    def use(self, amounts: Mapping[str, float], before: Mapping[str, float] = {}) -> None:
        """Count the use of each quantity; `before` has been counted already."""
        for name in self._quantities:
            more = amounts.get(name, before.get(name, 0.0)) - before.get(name, 0.0)
            self._used[name] += more
            self._used_here[name] += more

    def leave(self, at: float) -> None:
        """Count out a call that is over."""
        self._pass(at)
        self.running.change(-1, at)

    def turn(self, state: str, at: float) -> None:
        """Count a change of the circuit."""
        self._circuit[state] = self._circuit.get(state, 0) + 1
        if state == "opened" and self._open_since is None:
            self._open_since = at
        elif state == "closed" and self._open_since is not None:
            self._open += at - self._open_since
            self._open_since = None

    def point(self, at: float, width: float) -> None:
        """Add a point for the stretch of time that began at `at`."""
        self._pass(at + width)
        running, starts, limited = self._series
        running.append((at, rounded(self.running.mean(at + width))))
        starts.append((at, rounded(self._starts_here * 60 / width)))
        limited.append((at, rounded(min(1.0, self._limited_here / width))))
        self._starts_here, self._limited_here = 0, 0.0
        for name, used in self._used_here.items():
            self._used_series[name].append((at, rounded(used * 60 / width)))
            self._used_here[name] = 0.0

    def coarsen(self) -> None:
        """Merge every two points."""
        for series in (*self._series, *self._used_series.values()):
            series[:] = halved(series)

    def _pass(self, at: float) -> None:
        """Account for the time since the last change."""
        since, length = self._seen, at - self._seen
        if length <= 0:
            return
        self._seen = at
        places = self._places
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
        is_open = 0.0 if self._open_since is None else max(0.0, ended - self._open_since)
        whole = max(ended, 1e-9)
        allowed = min((limit * max(1.0, whole / per) for limit, per in self.config.windows()), default=0.0)
        return ServiceSummary(
            concurrent=self._places,
            rates=self.config.rates,
            quantities={name: self._quantity(name, whole) for name in self._quantities},
            starts=self.starts,
            completed=self.completed,
            failed=self.failed,
            running_mean=rounded(self.running.total / whole),
            running_peak=self.running.peak,
            is_adaptive=self.config.adaptive is not None,
            waiting_share=rounded(self._waited / whole),
            full_share=rounded(self._full / whole),
            rate_share=rounded(min(1.0, self.starts / allowed)) if allowed else 0.0,
            rate_limited=rounded(self._limited),
            rate_limited_share=rounded(self._limited / whole),
            circuit=dict(sorted(self._circuit.items())),
            circuit_open=rounded(self._open + is_open),
            circuit_open_share=rounded((self._open + is_open) / whole),
            running=self._series[0],
            starts_per_minute=self._series[1],
            limited=self._series[2],
        )

    @property
    def _places(self) -> int | None:
        """The most calls at once, of all keys together where there are keys."""
        if self.config.per is None:
            return self.config.places
        return None if self.config.total is None else self.config.total.concurrent

    def _quantity(self, name: str, whole: float) -> QuantitySummary:
        rates, used = self._quantities[name], self._used[name]
        allowed = min(limit * max(1.0, whole / per) for limit, per in windows(rates))
        return QuantitySummary(
            rates=rates, used=rounded(used), share=rounded(used / allowed), per_minute=self._used_series[name]
        )


def halved(series: Series) -> Series:
    """One point for every two, being their mean."""
    return [
        (first[0], rounded((first[1] + second[1]) / 2))
        for first, second in zip(series[::2], series[1::2], strict=True)
    ]
