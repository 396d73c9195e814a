"""Which tests `make test` leaves to `make test-all`: more of what it shows with one example.

A test that is given many examples (a matrix of commands and states, of ways to fail) takes a process or a server for
each of them. `make test` takes every n-th of them, and of every test at least the first, but for those of LATER.
`make test-all` takes all.
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
    "tests/core/schedule/test_ten_years.py::test_each_slot": 12,
    "tests/core/schedule/test_ten_years.py::test_killed": 4,
    "tests/engine/test_forecast.py": 8,
    "tests/engine/test_quantities.py": 1,
    "tests/engine/": 3,
    "tests/examples_llm/": 2,
    "tests/executors/": 6,
    "tests/faults/": 8,
    "tests/fleet/": 3,
    "tests/packaging/": 4,
    "tests/pg/": 6,
    "tests/sim/test_swarm.py": 1,
    "tests/sim/": 9,
    "tests/stores/": 6,
    "tests/test_docs.py::test_every_link": 1,
    "tests/test_docs.py::test_tables": 1,
    "tests/test_docs.py::test_the_signatures": 1,
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
LATER: Final = frozenset({
    "tests/cli/test_dlq.py::test_eight_at_once_retry_a_job_once",
    "tests/cli/test_faults.py::test_cl2_any_other_command_runs_to_the_byte",
    "tests/cli/test_faults.py::test_cl6_a_locale_without_letters_shows_what_it_can",
    "tests/cli/test_matrix.py::test_what_may_only_be_read_is_read_and_not_changed",
    "tests/cli/test_service.py::test_changes_at_once_do_not_undo_each_other",
    "tests/cli/test_worker.py::test_four_workers_run_each_of_200_jobs_exactly_once",
    "tests/cli/test_works_matrix.py::test_a_locked_queue_is_busy",
    "tests/engine/test_dependencies.py::test_a_chain_of_three_thousand_runs_to_its_end",
    "tests/engine/test_events.py::test_the_final_event_of_each_kept_work_survives",
    "tests/engine/test_operating.py::test_all_dead_letters_are_purged_however_many",
    "tests/executors/test_command.py::test_a_gibibyte_on_one_line_needs_neither_memory_nor_disk",
    "tests/executors/test_dask.py::test_a_program_that_ends_without_closing_leaves_nothing_and_dask_says_nothing",
    "tests/executors/test_dask.py::test_closing_is_bounded_when_the_scheduler_hangs",
    "tests/faults/test_threads.py::test_finished_work_does_not_pile_up",
    "tests/packaging/test_types.py::test_the_types_of_the_wheel_are_what_users_are_told",
    "tests/pg/test_workers.py::test_the_example_shows_that_the_limits_were_kept",
    "tests/sim/test_main.py::test_nothing_is_missed_when_all_comes_at_once",
    "tests/sim/test_report.py::test_the_same_seed_gives_the_same_bytes",
    "tests/stores/presence/test_presence.py::test_a_thousand_forks_leave_the_parent_its_lock_and_its_turn",
    "tests/stores/presence/test_presence.py::test_a_thousand_joins_and_leaves_rob_nobody",
    "tests/stores/sqlite/test_rescue.py::test_a_page_of_noise_costs_what_is_on_it_and_nothing_else",
    "tests/test_cli_docs.py::test_what_who_is_on_call_is_shown_is_what_a_terminal_shows",
    "tests/test_docs.py::test_a_snippet_runs_with_a_dask_cluster",
    "tests/test_docs.py::test_the_steps_of_the_tutorial_can_be_done_one_after_the_other_in_one_folder",
    "tests/test_examples.py::test_the_picture_is_whole_although_a_process_was_killed",
    "tests/torture/test_swarm.py::test_an_actor_that_is_asked_to_ends_by_itself",
    "tests/torture/test_swarm.py::test_nobody_outlives_the_herd",
    "tests/web/test_storm.py::test_of_a_thousand_who_listen_a_few_are_served_and_nothing_is_left_of_them",
})  # fmt: skip
"""Tests that `make test` leaves out: each takes seconds of the processor to show for thousands, for eight processes
at once, or on one more page, what a test beside it shows for a few."""


def left_out(nodeids: Iterable[str]) -> set[str]:
    """Those of these tests that `make test` leaves out."""
    found: set[str] = set()
    seen: dict[str, int] = {}
    for nodeid in nodeids:
        function, bracket, _ = nodeid.partition("[")
        number = seen[function] = seen.get(function, -1) + 1
        every = next((every for place, every in EVERY.items() if nodeid.startswith(place)), 1)
        is_more = bracket and number and (function in LONG or number % every)
        if is_more or function in LATER:
            found.add(nodeid)
    return found


def fewer(amount: int, in_a_sample: int) -> int:
    """So many of something where all tests are run, else as few as that."""
    return amount if ALL else in_a_sample
