"""Timed: submit, start and finish of one no-op while N others stay queued in the same lane."""

from __future__ import annotations

from bench.measure import Line, run
from bench.steady import SteadyQueue


def measure(quick: bool) -> list[Line]:
    """How the cost of one dispatch grows with what is queued."""
    shallow, deep, count, rounds = (100, 2_000, 500, 1) if quick else (1_000, 1_000_000, 2_000, 25)

    async def main() -> tuple[float, float]:
        small, large = SteadyQueue(shallow), SteadyQueue(deep)
        await small.fill()
        await large.fill()
        times = [(await small.dispatch(count), await large.dispatch(count)) for _ in range(rounds)]
        return min(small for small, _ in times), min(large for _, large in times)

    small, large = run(main)
    note = f"{1e6 * large:.1f} µs each, at {shallow:,} {1e6 * small:.1f}"
    return [Line(f"{deep:,} queued against {shallow:,}", large / small, "×", at_most=1.25, note=note)]
