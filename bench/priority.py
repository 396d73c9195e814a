"""Timed: submit, start and finish of one no-op with N candidates, with and without a priority callback."""

from __future__ import annotations

from bench.measure import Line, run
from bench.steady import SteadyQueue
from runcue import PriorityContext


class Score:
    """A plain callback: some units matter more, and waiting counts."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, context: PriorityContext) -> float:
        self.asked += 1
        page: int = context.work.params["page"]
        return page % 10 / 20 + min(context.wait_time / 600, 0.5)


def measure(quick: bool) -> list[Line]:
    """What asking the application for the order costs."""
    depth, count, rounds = (2_000, 500, 1) if quick else (100_000, 2_000, 25)
    score = Score()

    async def main() -> tuple[float, float]:
        plain, scored = SteadyQueue(depth), SteadyQueue(depth, score)
        await plain.fill()
        await scored.fill()
        times = [(await plain.dispatch(count), await scored.dispatch(count)) for _ in range(rounds)]
        return min(plain for plain, _ in times), min(scored for _, scored in times)

    plain, scored = run(main)
    if score.asked < depth:
        raise RuntimeError(f"only {score.asked:,} of {depth:,} candidates were scored: nothing to measure")
    note = f"{1e6 * scored:.1f} µs each, without {1e6 * plain:.1f}, asked {score.asked:,} ×"
    return [Line(f"callback over {depth:,} candidates", scored / plain, "×", at_most=2.0, note=note)]
