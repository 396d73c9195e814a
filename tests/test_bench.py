"""Every measure runs and reports; whether its figures are good is for `make bench` to say, on a quiet machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
IN_MEMORY = ("dispatch", "depth", "memory", "blocked", "priority", "latency", "limiter", "batches", "imports")
IN_A_FILE = ("durable", "rows", "processes", "dashboard")
NAMES = IN_MEMORY + IN_A_FILE


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_measure_gives_figures_and_says_what_it_timed(name: str) -> None:
    done = bench(name, "--quick", "--json")
    assert done.returncode == 0, done.stderr
    [found] = json.loads(done.stdout)["measures"]
    assert found["measure"] == name
    assert found["what"].startswith(("Timed: ", "Measured: ", "Counted: "))
    assert found["figures"]
    assert all(figure["value"] >= 0 and figure["unit"] is not None for figure in found["figures"])


def test_the_table_shows_goals_but_judges_no_tiny_run() -> None:
    done = bench("memory", "--quick")
    assert "each of 1,000 queued" in done.stdout
    assert "≤ 1,024 B" in done.stdout
    assert "pass" not in done.stdout


def test_an_unknown_measure_is_refused_with_those_there_are() -> None:
    done = bench("memroy")
    assert done.returncode == 2
    assert "unknown measure 'memroy'; there are dispatch, depth, memory" in done.stderr
