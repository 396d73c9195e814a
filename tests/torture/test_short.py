"""A short torture, every time: real processes on one file, killed at random, and nothing is lost or done twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torture import spawner, swarm
from tests.torture.soak import soaked
from tests.torture.swarm import Herd, Plan, play, sweep


@pytest.fixture(scope="module")
def herd() -> Iterator[Herd | spawner.Herd]:
    with swarm.herd() as processes:
        yield processes


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_kills_break_no_promise(herd: Herd | spawner.Herd, tmp_path: Path, seed: int) -> None:
    result = play(herd, tmp_path, Plan(seed, kills=12, seconds=1.0, works=20))
    assert result.violations == [], f"seed {seed}, kept in {result.folder}"
    assert result.kills >= 12
    assert result.works >= 20


@pytest.mark.parametrize(
    "plan", list(sweep(1, 1)), ids=lambda plan: f"{plan.crash_role} {plan.crash_at} {plan.crash_times}x"
)
def test_a_death_at_a_crash_point_breaks_no_promise(
    herd: Herd | spawner.Herd, tmp_path: Path, plan: Plan
) -> None:
    result = play(herd, tmp_path, plan)
    assert result.violations == [], f"kept in {result.folder}"
    assert result.kills, "the crash point was never passed"


def test_a_soak_breaks_no_promise_and_tells_what_its_starts_cost(herd: Herd, tmp_path: Path) -> None:
    result, parts = soaked(herd, tmp_path, seed=1, seconds=1.0, parts=2)
    assert result.violations == [], f"kept in {result.folder}"
    assert result.works >= 100
    assert sum(part.spent for part in parts) > 0
