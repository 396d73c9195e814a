"""Numbers that are too many to keep: percentiles from buckets, and levels averaged over time.

A bucket spans one per cent and remembers the sum of what fell into it, so that a percentile is right within that,
and exact where all values are the same.
"""

from __future__ import annotations

import math

import msgspec

GROWTH = math.log(1.01)
SMALLEST = 1e-6


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Count, mean, percentiles and maximum of some numbers."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    max: float = 0.0


class Histogram:
    """Any amount of numbers of 0 or more, in bounded room."""

    __slots__ = ("_buckets", "_max", "_sum", "count")

    def __init__(self) -> None:
        self._buckets: dict[int, list[float]] = {}
        self.count = 0
        self._sum = 0.0
        self._max = 0.0

    def add(self, value: float) -> None:
        """Count one more."""
        place = -1 if value < SMALLEST else int(math.log(value / SMALLEST) / GROWTH)
        bucket = self._buckets.get(place)
        if bucket is None:
            bucket = self._buckets[place] = [0, 0.0]
        bucket[0] += 1
        bucket[1] += value
        self.count += 1
        self._sum += value
        if value > self._max:
            self._max = value

    def percentiles(self, *shares: float) -> list[float]:
        """The values below which these shares lie, given in ascending order; 0 when there is nothing."""
        found: list[float] = []
        passed = 0.0
        for _, (amount, total) in sorted(self._buckets.items()):
            passed += amount
            while len(found) < len(shares) and passed >= max(
                1, math.ceil(shares[len(found)] * self.count - 1e-9)
            ):
                found.append(total / amount)
        return found or [0.0] * len(shares)

    def spread(self) -> Spread:
        """Count, mean, percentiles and maximum."""
        p50, p95, p99 = (rounded(value) for value in self.percentiles(0.5, 0.95, 0.99))
        mean = self._sum / self.count if self.count else 0.0
        return Spread(count=self.count, mean=rounded(mean), p50=p50, p95=p95, p99=p99, max=rounded(self._max))


class Level:
    """Something that goes up and down, averaged over stretches of time."""

    __slots__ = ("_area", "_mark", "_since", "peak", "peak_at", "total", "value")

    def __init__(self) -> None:
        self.value = 0
        self.peak = 0
        self.peak_at = 0.0
        self.total = 0.0
        """Value times seconds, all in all."""
        self._area = 0.0
        self._since = 0.0
        self._mark = 0.0

    def change(self, by: int, at: float) -> None:
        """Change the level by so much, from now on."""
        self._pass(at)
        self.value = max(0, self.value + by)
        if self.value > self.peak:
            self.peak, self.peak_at = self.value, at

    def mean(self, at: float) -> float:
        """The average since the last call."""
        self._pass(at)
        length = at - self._mark
        found = self._area / length if length > 0 else float(self.value)
        self._area, self._mark = 0.0, at
        return found

    def _pass(self, at: float) -> None:
        area = self.value * max(0.0, at - self._since)
        self._area += area
        self.total += area
        self._since = max(self._since, at)


def rounded(value: float) -> float:
    """Six significant digits: what a report shows, and the same everywhere."""
    return float(f"{value:.6g}")
