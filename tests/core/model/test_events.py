"""Which events there are, and what a listener gets to see of them."""

import ast
import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

import runcue
from runcue.core.model.events import (
    EVENTS,
    FINAL_EVENTS,
    WORK_EVENTS,
    Event,
    EventDraft,
    is_final,
    make_event,
)
from runcue.core.model.record import Record, Spec, WorkState

SPEC = Spec("w1", "extract", b"{}", ("api", "disk"))


def record_in(state: WorkState, **fields: Any) -> Record:
    return Record("w1", SPEC, 1, 10.0, 10.0, state, 2, **fields)


def event_of(kind: str, record: Record | None = None, **data: Any) -> Event:
    return make_event(7, EventDraft(kind, 20.0, record, data or None))


# --- The table ------------------------------------------------------------------------------------


def test_every_event_about_a_unit_is_in_the_table() -> None:
    assert EVENTS.keys() >= WORK_EVENTS
    assert FINAL_EVENTS <= WORK_EVENTS


def test_every_event_that_is_emitted_by_name_is_in_the_table() -> None:
    sources = (Path(runcue.__file__).parent / "core").rglob("*.py")
    calls = [node for source in sources for node in ast.walk(ast.parse(source.read_bytes()))
             if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)]  # fmt: skip
    emitted = {call.args[0].value for call in calls  # type: ignore[attr-defined]  # (it is a constant)
               if isinstance(call.func, ast.Attribute) and call.func.attr == "emit"}  # fmt: skip
    assert "queue_status" in emitted
    assert emitted <= EVENTS.keys()


@pytest.mark.parametrize("kind", EVENTS)
def test_every_event_is_explained_in_one_sentence(kind: str) -> None:
    assert EVENTS[kind][0].isupper()
    assert EVENTS[kind].endswith(".")


@pytest.mark.parametrize(
    "kind",
    ["queued", "started", "completed", "failed", "retrying", "cancelled", "skipped", "progress",
     "stale_completion"],
)  # fmt: skip
def test_an_event_about_work_has_a_long_name(kind: str) -> None:
    assert event_of(kind).name == f"work_{kind}"


@pytest.mark.parametrize("kind", sorted(EVENTS.keys() - WORK_EVENTS))
def test_an_event_about_something_else_has_one_name(kind: str) -> None:
    assert event_of(kind).name == kind


# --- What an event carries ------------------------------------------------------------------------


def test_an_event_says_what_when_and_about_which_work() -> None:
    event = event_of("queued", record_in(WorkState.PENDING))
    assert (event.type, event.seq, event.at) == ("queued", 7, 20.0)
    assert (event.work_id, event.task, event.task_type, event.attempt) == ("w1", "extract", "extract", 2)
    assert (event.service, event.final, event.data) == ("api", False, {})


def test_a_result_is_told_with_the_completion_alone() -> None:
    done = record_in(WorkState.COMPLETED, result=42, error="an earlier one")
    assert event_of("completed", done).result == 42
    assert event_of("completed", done).error is None
    assert event_of("skipped", done).result is None


@pytest.mark.parametrize(("kind", "error"), [("failed", "boom"), ("cancelled", "boom"), ("started", None)])
def test_an_error_is_told_with_a_failure_or_a_cancellation_alone(kind: str, error: str | None) -> None:
    assert event_of(kind, record_in(WorkState.FAILED, error="boom", result=42)).error == error
    assert event_of(kind, record_in(WorkState.FAILED, error="boom", result=42)).result is None


def test_a_duration_is_the_time_between_start_and_end() -> None:
    done = record_in(WorkState.COMPLETED, started_at=11.0, completed_at=14.5)
    assert event_of("completed", done).duration == 3.5


@pytest.mark.parametrize("times", [{"started_at": 11.0}, {"completed_at": 14.5}, {}])
def test_without_a_start_or_an_end_there_is_no_duration(times: dict[str, float]) -> None:
    assert event_of("failed", record_in(WorkState.FAILED, **times)).duration is None


def test_what_was_told_explicitly_goes_before_what_the_record_says() -> None:
    record = record_in(WorkState.PENDING, started_at=11.0, completed_at=14.5)
    event = event_of("failed", record, attempt=1, duration=0.5, service="disk", will_retry=True)
    assert (event.attempt, event.duration, event.service, event.will_retry) == (1, 0.5, "disk", True)


def test_work_without_services_is_told_without_one() -> None:
    record = Record("w", Spec("w", "t", b"{}", ()), 1, 10.0, 10.0)
    assert event_of("queued", record).service is None


def test_an_event_about_a_service_names_it() -> None:
    event = event_of("circuit_opened", service="api", failures=5)
    assert (event.service, event.work_id, event.task, event.final) == ("api", None, None, False)


def test_an_event_about_work_that_is_gone_still_names_it() -> None:
    assert event_of("stale_completion", work_id="w9").work_id == "w9"


def test_whatever_else_belongs_to_an_event_is_read_like_a_field() -> None:
    event = event_of("queue_status", pending=3, running=1)
    assert (event.pending, event.running) == (3, 1)


@pytest.mark.parametrize("name", ["depth", "_secret", "__deepcopy__"])
def test_what_does_not_belong_to_an_event_is_missing_by_name(name: str) -> None:
    event = event_of("queue_status", _secret=1)
    with pytest.raises(AttributeError, match=f"a 'queue_status' event has no '{name}'"):
        getattr(event, name)


def test_an_event_can_be_copied_and_pickled() -> None:
    event = event_of("progress", record_in(WorkState.RUNNING), fraction=0.5)
    assert copy.deepcopy(event) == event
    assert pickle.loads(pickle.dumps(event)) == event


# --- The last word about a work -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "state", "final"),
    [
        ("completed", WorkState.COMPLETED, True),
        ("skipped", WorkState.COMPLETED, True),
        ("cancelled", WorkState.CANCELLED, True),
        ("failed", WorkState.FAILED, True),
        ("failed", WorkState.PENDING, False),
        ("retrying", WorkState.PENDING, False),
        ("progress", WorkState.RUNNING, False),
        ("stale_completion", WorkState.COMPLETED, False),
    ],
)
def test_final_is_true_only_on_the_last_event_of_a_work(kind: str, state: WorkState, final: bool) -> None:
    told = EventDraft(kind, 20.0, record_in(state))
    assert is_final(told) is final
    assert make_event(1, told).final is final


def test_an_event_about_no_work_is_not_final() -> None:
    assert not is_final(EventDraft("failed", 20.0))
