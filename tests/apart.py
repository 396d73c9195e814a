"""What is not tried on Windows, and why: one list, by the names of tests.

An entry is a folder, a file, or a test (with all its examples, or one of them). Files that only import what Windows
does not have are left out as a whole, with a reason too. docs/platforms.md has the counts.
"""

from __future__ import annotations

import sys
from typing import Final

S, F = "tests/stores/sqlite", "tests/stores/presence"
LINKS = "makes links, or asks for modes and owners of files, which are others there"
MOVED = "takes away or moves a file that is open, which Windows refuses"
SLASHES = "compares paths that have slashes"
PROC = "looks for open files in /proc"
TERM = "sends SIGTERM to a program, which Windows does not have"
MEMORY = "asks the system how much memory a process has, or how many files it may open"
SIGNALS = "sends signals to programs, or looks at them in /proc; test_windows.py is its twin"
JOBS = "has jobs for /bin/sh; test_windows.py has some for cmd"
TERMINAL = "needs a pseudo-terminal"
SHELL = "starts /bin/sh, or has a command for it"
WORDS = "expects what another system says of a mistake"
WORLDS = "takes half an hour more under Wine; the first of them is tried"
GONE = "asyncio leaves a word and a socket behind there when a client is gone before it was accepted"
HALF = "ends its side of a connection at once, and asyncio drops the answer there"
PROCESSES = "is about sessions, signals and forks; test_windows.py is its twin"
SIGNS = "expects signs that the encoding of a pipe lacks there"
W, TUI = "tests/web/test_server.py", "tests/sim/test_tui.py"

ON_WINDOWS: Final = {
    "tests/stores/presence/test_presence.py": "is about flock, FIFOs, pidfds and forks; test_windows.py is its twin",
    f"{F}/test_neighbours.py::test_files_that_were_taken_away_are_reported_once_and_nobody_is_lost": MOVED,
    "tests/stores/sqlite/test_disk.py": PROC,
    "tests/stores/sqlite/test_owner.py": LINKS,
    "tests/stores/sqlite/test_links.py": LINKS,
    "tests/stores/sqlite/test_health.py::test_a_queue_has_the_same_sizes_by_a_link_to_it": LINKS,
    f"{S}/test_looking.py::test_a_look_that_stumbles_over_a_file_that_was_moved_away_says_that_it_is_gone": MOVED,
    "tests/stores/sqlite/test_looking.py::test_an_idle_process_notices_that_its_file_is_another": MOVED,
    "tests/stores/sqlite/test_looking.py::test_when_who_asks_is_told_of_another_file_no_turn_is_taken_on_it": MOVED,
    "tests/stores/sqlite/test_migration.py::test_a_reader_says_in_one_line_what_to_do_with_an_old_file": SLASHES,
    "tests/stores/sqlite/test_rescue.py::test_what_is_no_queue_is_refused_in_one_line_and_left_alone[fifo]": LINKS,
    "tests/stores/sqlite/test_sqlite.py::test_a_turn_that_was_refused_begins_anew_and_what_is_wrong_stays_so": MOVED,
    "tests/stores/sqlite/test_sqlite.py::test_a_worker_whose_lock_was_removed_is_not_told_so_again_and_again": MOVED,
    "tests/stores/sqlite/test_sqlite.py::test_no_connection_is_made_to_another_file_of_the_same_name": MOVED,
    "tests/stores/sqlite/test_sqlite.py::test_what_was_made_is_taken_back_when_opening_fails": PROC,
    "tests/edge/test_artifacts.py::test_a_folder_that_cannot_be_synced_is_no_failure_but_a_broken_disk_is": LINKS,
    "tests/edge/test_artifacts.py::test_a_link_stays_one_and_what_it_leads_to_is_written": LINKS,
    "tests/edge/test_artifacts.py::test_a_link_that_leads_nowhere_does_not_exist": LINKS,
    "tests/edge/test_artifacts.py::test_a_path_is_a_template_or_comes_from_a_function": SLASHES,
    "tests/edge/test_artifacts.py::test_it_is_on_the_disk_before_it_has_its_name_and_its_name_is_after": LINKS,
    "tests/edge/test_artifacts.py::test_no_path_ever_leaves_its_folder": SLASHES,
    "tests/edge/test_artifacts.py::test_what_replaces_a_file_may_be_read_by_the_same_people": LINKS,
    "tests/edge/test_callbacks.py": LINKS,
    "tests/edge/test_registry.py::test_a_database_check_without_a_database_uses_the_cues_own_file": SLASHES,
    "tests/core/test_encoding.py::test_a_value_comes_back_with_the_type_of_its_annotation[Path-WindowsPath": SLASHES,
    "tests/testing/test_virtual.py::test_a_subprocess_takes_no_virtual_time_while_the_loop_is_held":
        "starts a process on a loop that has none there",
    "tests/engine/test_artifacts_declared.py::test_what_may_not_be_looked_at_is_not_there_and_told_once": SLASHES,
    "tests/batch/test_bar.py::test_with_rich_there_is_a_bar": "rich draws a bar of other signs there",
    "tests/batch/test_interrupt.py": "sends SIGINT and SIGKILL to programs",
    "tests/cli/test_advice.py": JOBS,
    "tests/cli/test_app_worker.py": SIGNALS,
    "tests/cli/test_cancel_wait.py": JOBS,
    "tests/cli/test_crontab.py": "there is no cron on Windows, and its paths have slashes",
    "tests/cli/test_demo.py": SIGNALS,
    "tests/cli/test_dlq.py": JOBS,
    "tests/cli/test_enqueue.py::test_a_flood_is_refused_before_all_of_it_came_and_takes_no_memory": SHELL,
    "tests/cli/test_enqueue.py::test_a_command_of_two_megabytes_runs_to_the_byte": JOBS,
    "tests/cli/test_enqueue.py::test_a_job_runs_where_it_was_enqueued": JOBS,
    "tests/cli/test_enqueue.py::test_a_job_after_a_dead_one_is_warned_of": JOBS,
    "tests/cli/test_finding.py::test_results_are_exported_whole_or_not_at_all": LINKS,
    "tests/cli/test_frame.py": SIGNALS,
    "tests/cli/test_jobs.py": JOBS,
    "tests/cli/test_logs.py": JOBS,
    "tests/cli/test_matrix.py": SIGNALS,
    "tests/cli/test_reading.py": SIGNALS,
    "tests/cli/test_schedule.py": JOBS,
    "tests/cli/test_secrets.py": JOBS,
    "tests/cli/test_service.py::test_circuits_are_shown_where_there_are_any": TERMINAL,
    "tests/cli/test_service.py::test_jobs_keep_to_a_services_limits": JOBS,
    "tests/cli/test_top.py::test_a_queue_of_jobs_speaks_of_jobs": "copies a folder by a call that this Wine lacks",
    "tests/cli/test_top.py::test_a_damaged_file_is_told": MOVED,
    "tests/cli/test_top.py::test_a_file_that_is_gone_is_told_and_one_that_comes_back_is_shown": MOVED,
    "tests/cli/test_top.py::test_a_long_path_leaves_room_for_what_is_wrong": "ends a name with a blank",
    "tests/cli/test_top.py::test_an_act_that_fails_is_told": MOVED,
    "tests/cli/test_top.py::test_logs_follow_what_a_command_prints": JOBS,
    "tests/cli/test_works.py::test_a_damaged_file_is_told_with_a_way_to_save_it_that_works": SHELL,
    "tests/cli/test_works.py::test_a_demo_that_is_kept_stays_and_is_not_played_over": SLASHES,
    "tests/cli/test_works.py::test_a_queue_that_others_may_write_to_is_refused": LINKS,
    "tests/cli/test_works.py::test_an_interrupted_demo_leaves_nothing_behind": SIGNALS,
    "tests/cli/test_works.py::test_the_dashboard_is_really_served_and_ends_with_ctrl_c": SIGNALS,
    "tests/cli/test_works.py::test_a_missing_extra_is_one_line": "wants runcue to be installed",
    "tests/cli/test_works.py::test_the_demo_leaves_nothing_behind_and_says_how_to_go_on": SLASHES,
    "tests/cli/test_works.py::test_top_wants_a_terminal_that_can_be_drawn_on": TERMINAL,
    "tests/cli/test_works.py::test_watching_prints_each_change_until_it_is_interrupted": SIGNALS,
    "tests/cli/test_works.py::test_what_a_command_printed_is_shown": SHELL,
    "tests/cli/test_works_matrix.py": SIGNALS,
    "tests/cli/test_faults.py": SIGNALS,
    "tests/cli/test_flows.py": SIGNALS,
    "tests/cli/test_supervisor.py": SIGNALS,
    "tests/cli/test_worker.py": SIGNALS,
    "tests/executors/test_command.py": PROCESSES,
    "tests/executors/test_dask.py": "runs functions on Dask, which is refused there",
    "tests/executors/test_document_app.py": "runs an example for Linux and macOS",
    "tests/executors/test_jobs.py": PROCESSES,
    "tests/executors/test_lack.py": PROC,
    "tests/executors/test_own_command.py": PROCESSES,
    "tests/executors/test_process.py": PROCESSES,
    "tests/executors/test_server_tool.py": PROCESSES,
    "tests/executors/test_ssh.py": PROCESSES,
    "tests/executors/test_typed_handlers.py::test_a_handler_of_a_command_gets_params_and_outputs": SHELL,
    "tests/sim/test_main.py::test_a_closed_stream_is_no_mistake": SHELL,
    "tests/sim/test_main.py::test_a_folder_is_no_file": WORDS,
    f"{TUI}::test_all_four_panels_fit_on_80_by_24": SIGNS,
    f"{TUI}::test_c_opens_the_circuit_of_the_chosen_service_and_c_again_mends_it": SIGNS,
    f"{TUI}::test_it_runs_in_a_real_terminal_leaves_it_as_it_was_and_reports_how_far_it_came": TERMINAL,
    "tests/cli/test_top.py::test_it_runs_in_a_real_terminal_and_leaves_it_as_it_was": TERMINAL,
    "tests/cli/test_enqueue.py::test_a_terminal_is_told_what_to_do_next": TERMINAL,
    **{f"tests/sim/test_swarm.py::test_every_promise_is_kept_in_every_world[{first}]": WORLDS
       for first in range(50, 2000, 50)},
    "tests/web/test_looking.py::test_no_file_but_that_of_a_work_is_read": LINKS,
    "tests/web/test_mount.py::test_a_server_that_ends_ends_its_streams_properly": TERM,
    "tests/web/test_looking.py::test_what_a_command_printed_is_read_from_its_end_or_anywhere": SHELL,
    "tests/web/test_printed.py::test_a_command_that_runs_and_then_is_done": SHELL,
    "tests/web/test_unavailable.py::test_what_became_of_the_file_is_told_to_people_and_it_goes_on": MOVED,
    "tests/web/test_unavailable.py::test_a_file_that_is_damaged_and_then_exchanged_for_a_good_one": MOVED,
    "tests/web/test_unavailable.py::test_a_file_that_is_gone_and_comes_back": MOVED,
    "tests/web/test_abuse.py::test_refused_connections_are_told_once_a_minute": HALF,
    "tests/web/test_abuse.py::test_no_word_is_lost_about_what_a_websocket_says": GONE,
    "tests/web/test_abuse.py::test_clients_that_vanish_are_not_worth_a_word": GONE,
    "tests/web/test_unavailable.py::test_a_list_that_takes_long_is_cut_off_and_holds_nobody_up":
        "gives a look 0.3 s, in which a file is not always opened there",
    f"{W}::test_clients_that_come_and_go_leave_nothing_behind": GONE,
    f"{W}::test_a_body_that_does_not_end_is_cut_off": MEMORY,
    f"{W}::test_serve_prints_its_link_and_ends_at_a_signal": TERM,
    f"{W}::test_a_second_signal_ends_it_at_once": TERM,
    f"{W}::test_a_queue_that_does_not_answer_does_not_hold_it_up": TERM,
    "tests/web/test_storm.py": MEMORY,
    "tests/torture/test_short.py::test_a_soak_breaks_no_promise_and_tells_what_its_starts_cost":
        "counts the time of the processor by the zygote",
}  # fmt: skip
"""By the beginning of a test's name, why it is not tried on Windows."""


def apart(nodeid: str) -> str:
    """Why this test is not tried on this system; empty when it is."""
    if sys.platform != "win32":
        return ""
    return next((why for name, why in ON_WINDOWS.items() if _is_in(nodeid, name)), "")


def _is_in(nodeid: str, name: str) -> bool:
    return nodeid.startswith(name) and nodeid[len(name) : len(name) + 1] in {"", "/", ":", "[", "("}
