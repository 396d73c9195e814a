"""Which tests `make test` leaves to `make test-all`: more of what it shows with one example.

A test that is given many examples (a matrix of commands and states, of ways to fail) takes a process or a server for
each of them. `make test` takes every n-th of them, and of every test at least the first. `make test-all` takes all.
Tests of the engine are tried on one store instead of each (tests/engine/conftest.py), and where Hypothesis or a seed
makes up examples there are fewer (`fewer`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

ALL: Final = bool(os.environ.get("RUNCUE_ALL"))
"""True for `make test-all`, `make postgres`, and by hand with RUNCUE_ALL=1."""

EVERY: Final = {
    "tests/batch/": 3,
    "tests/browser/": 2,
    "tests/cli/": 8,
    "tests/engine/test_forecast.py": 8,
    "tests/engine/test_quantities.py": 1,
    "tests/engine/": 3,
    "tests/examples_llm/": 2,
    "tests/executors/": 6,
    "tests/faults/": 8,
    "tests/fleet/": 3,
    "tests/packaging/": 4,
    "tests/pg/": 6,
    "tests/sim/": 9,
    "tests/stores/": 6,
    "tests/test_docs.py": 8,
    "tests/test_examples.py": 4,
    "tests/throttling/test_headers.py": 1,
    "tests/throttling/": 9,
    "tests/torture/": 6,
    "tests/web/": 9,
}
"""Of the examples of a test there, every how many-th `make test` takes; the first place that fits counts."""
LONG: Final = frozenset({
    "tests/pg/test_torture.py::test_a_death_at_a_crash_point_breaks_no_promise",
    "tests/test_bench.py::test_a_measure_gives_figures_and_says_what_it_timed",
    "tests/torture/test_short.py::test_a_death_at_a_crash_point_breaks_no_promise",
    "tests/web/test_schema.py::test_every_answer_is_as_described",
})  # fmt: skip
"""Tests of which `make test` takes the first example only."""


def left_out(nodeids: Iterable[str]) -> set[str]:
    """Those of these tests that `make test` leaves out."""
    found: set[str] = set()
    seen: dict[str, int] = {}
    for nodeid in nodeids:
        function, bracket, _ = nodeid.partition("[")
        number = seen[function] = seen.get(function, -1) + 1
        every = next((every for place, every in EVERY.items() if nodeid.startswith(place)), 1)
        if bracket and number and (function in LONG or number % every):
            found.add(nodeid)
    return found


def fewer(amount: int, in_a_sample: int) -> int:
    """So many of something where all tests are run, else as few as that."""
    return amount if ALL else in_a_sample
