"""The public surface: what there is, what importing it costs, and that nothing slips in or out unnoticed."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import runcue
import runcue.models
import runcue.testing
from runcue.api.sync import Sync

TYPING = Path(__file__).parent / "typing" / "api.py"

PUBLIC = {
    "__version__",
    # what an application holds, and what it is given
    "Attempt", "Client", "Command", "Cue", "Event", "Explanation", "Forecast", "Group", "GroupCounts", "Handle",
    "Outbox", "PriorityContext", "Reader", "Rescue", "Retry", "RunningWork", "TaskFunction", "Unit", "Work",
    "WorkState", "WorkUnit",
    # tasks as functions
    "current", "output",
    # mending, and making by hand
    "postgres_schema", "recover",
    # writing what others wait for
    "write_output",
    # limits, duplicates and batches
    "Unique", "adaptive", "map", "progress",
    # submitting at moments
    "ScheduleInfo",
    # seeing
    "JsonFormatter", "Metrics", "mask", "trace",
    # ready-made callbacks
    "dependency_check_db", "dependency_check_file", "priority_by_wait_time", "priority_constant",
    # raised by a handler to steer its own work
    "Permanent", "RateLimited", "RetryLater", "Snooze",
    # raised by runcue
    "BadCommand", "CommandFailed", "ForkedConnection", "SchemaTooNew", "StorageBusy", "StorageCorrupt", "StorageFull",
    "StorageInsecure", "StorageReplaced", "Unreachable", "WorkerLost", "ResourceFailed", "WrongResult",
    "ConfigError", "CueClosed", "DependencyCycle", "DuplicateWork", "GroupNotFound", "InvalidOption", "InvalidParams",
    "InvalidRate", "QueueFull", "RuncueError", "ScheduleConflict", "StoreError", "SubmitError", "UnknownOption",
    "UnknownSchedule", "UnknownService", "UnknownTask", "WorkCancelled", "WorkExpired", "WorkFailed",
    "WorkNotEditable", "WorkNotFound", "WorkTimedOut", "WrongThread",
}  # fmt: skip

CUE = {
    # registration
    "service", "task", "get_task", "is_ready", "is_stale", "priority", "dependency_satisfied", "on_start",
    "on_complete", "on_failure", "on_skip", "on_cancel", "on_backpressure", "on_pending_warning",
    "on_stall_warning", "on_group_done", "around", "observe", "resource",
    # work
    "submit", "submit_many", "get", "list", "dead", "count", "cancel", "retry", "edit", "purge", "purge_dead", "wait",
    "result", "results", "join", "map", "tally", "group", "wake", "relay",
    # submitting at moments
    "every", "cron", "schedule", "unschedule", "run_now",
    # running
    "start", "stop", "close", "loop", "name", "path",
    # looking and operating
    "events", "explain", "forecast", "debug_blocked", "services", "pause", "resume", "set_config", "get_config",
    "explain_many", "last_event", "dependents", "now", "paused", "set_limits",
}  # fmt: skip

SYNC = {"submit", "get", "edit", "cancel", "wait", "result", "group"}

READER = {
    "get", "list", "dead", "count", "jobs", "job_counts", "explain", "explain_many", "output", "events", "services",
    "workers", "paused", "config", "now", "health", "close", "dependents", "last_event", "tally", "group",
    "groups", "schedules",
}  # fmt: skip


CLIENT = {
    "submit", "submit_many", "get", "list", "status", "wait", "result", "results", "cancel", "retry", "relay",
    "grant", "close",
}  # fmt: skip


def public_names(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def documented(name: str, thing: object) -> list[str]:
    """What is missing from a first line: it is one sentence of its own, not made up by a library."""
    first = (inspect.getdoc(thing) or "").partition("\n")[0].strip()
    if len(first) < 15 or not first.endswith((".", ":", "`")) or first.startswith(f"{name}("):
        return [f"{name}: {first!r}"]
    return []


def modules_after(statement: str) -> set[str]:
    """The modules in a fresh interpreter after one statement."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True
    )
    return set(done.stdout.split())


def test_the_public_names_are_exactly_these() -> None:
    assert set(runcue.__all__) == PUBLIC
    assert len(runcue.__all__) == len(PUBLIC)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_public_name_can_be_imported(name: str) -> None:
    assert getattr(runcue, name) is not None
    assert name in dir(runcue)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'runcue' has no attribute 'Queue'"):
        getattr(runcue, "Queue")  # noqa: B009 (the attribute does not exist: mypy knows that)


def test_every_public_name_is_documented() -> None:
    assert [
        line for name in sorted(PUBLIC - {"__version__"}) for line in documented(name, getattr(runcue, name))
    ] == []


def test_a_cue_has_exactly_these_methods_and_each_is_documented() -> None:
    assert public_names(runcue.Cue) == CUE
    assert [line for name in sorted(CUE) for line in documented(name, getattr(runcue.Cue, name))] == []


def test_the_view_for_other_threads_has_exactly_these_methods_and_each_is_documented() -> None:
    assert public_names(Sync) == SYNC
    assert [line for name in sorted(SYNC) for line in documented(name, getattr(Sync, name))] == []


def test_a_reader_has_exactly_these_methods_and_each_is_documented() -> None:
    assert public_names(runcue.Reader) == READER
    assert [line for name in sorted(READER) for line in documented(name, getattr(runcue.Reader, name))] == []


def test_every_error_is_a_runcue_error() -> None:
    for name in PUBLIC:
        thing = getattr(runcue, name)
        if isinstance(thing, type) and issubclass(thing, BaseException):
            assert issubclass(thing, runcue.RuncueError), name


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (runcue.ConfigError, ValueError),
        (runcue.SubmitError, ValueError),
        (runcue.WorkNotFound, LookupError),
        (runcue.UnknownTask, runcue.ConfigError),
        (runcue.UnknownService, runcue.ConfigError),
        (runcue.InvalidRate, runcue.ConfigError),
        (runcue.QueueFull, runcue.SubmitError),
        (runcue.DependencyCycle, runcue.SubmitError),
        (runcue.DuplicateWork, runcue.SubmitError),
        (runcue.WorkTimedOut, runcue.WorkFailed),
    ],
)
def test_an_error_is_caught_as_what_it_is_a_kind_of(error: type, kind: type) -> None:
    assert issubclass(error, kind)


def test_a_closed_cue_is_no_matter_of_values() -> None:
    assert not issubclass(runcue.CueClosed, ValueError)
    assert runcue.CueClosed.__bases__ == (runcue.RuncueError,)


def test_older_code_finds_its_models() -> None:
    assert runcue.WorkUnit is runcue.Work
    assert runcue.models.Work is runcue.models.WorkUnit is runcue.Work
    assert runcue.models.WorkState is runcue.WorkState
    assert runcue.models.PriorityContext is runcue.PriorityContext


def test_the_test_kit_has_its_own_names() -> None:
    assert set(runcue.testing.__all__) == {
        "Deadlock", "VirtualLoop", "fail_commit", "fill_disk", "kill", "run", "settle", "watch",
    }  # fmt: skip


def test_importing_runcue_loads_next_to_nothing() -> None:
    loaded = modules_after("import runcue")
    assert {"asyncio", "msgspec", "logging"}.isdisjoint(loaded)
    assert {name for name in loaded if name.startswith("runcue")} == {"runcue"}


def test_importing_cue_loads_only_what_running_needs() -> None:
    loaded = modules_after("from runcue import Cue")
    assert "asyncio" in loaded
    assert {"rich", "apsw", "sqlite3", "click", "difflib", "runcue.testing"}.isdisjoint(loaded)


def test_importing_reader_loads_no_event_loop() -> None:
    loaded = modules_after("from runcue import Reader")
    assert {"asyncio", "rich", "sqlite3", "click", "difflib", "runcue.api.cue", "runcue.testing"}.isdisjoint(
        loaded
    )


def test_a_client_has_exactly_these_methods_and_each_is_documented() -> None:
    assert public_names(runcue.Client) == CLIENT
    assert [line for name in sorted(CLIENT) for line in documented(name, getattr(runcue.Client, name))] == []


def test_a_type_checker_sees_a_marker() -> None:
    assert (Path(runcue.__file__).parent / "py.typed").exists()


def test_the_typing_test_uses_everything_that_is_public() -> None:
    tree = ast.parse(TYPING.read_text(encoding="utf-8"))
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert sorted((PUBLIC | CUE | SYNC | READER) - attributes) == []
