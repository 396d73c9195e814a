"""The values runcue is made of."""

import copy
import pickle
from typing import Any

import msgspec
import pytest
from msgspec.structs import astuple, fields

from runcue.core.model.lifecycle import MOVES
from runcue.core.model.record import (
    Attempt,
    Extras,
    PriorityContext,
    Progress,
    ProgressReport,
    Record,
    Spec,
    Work,
    WorkState,
    view,
)
from runcue.core.model.retry import Retry

SPEC = Spec(
    id="w1",
    task="extract",
    params=b'{"page":1}',
    services=("api", "disk"),
    queue="night",
    target="out.txt",
    depends_on=("a", "b"),
    priority=2.5,
    run_at=111.0,
    delay=5.0,
    timeout=60.0,
    dependency_timeout=30.0,
    idempotency_key="key",
    retry=Retry(5),
    group="import",
    extras=Extras(tags=(("run", "nightly"),), expires=899.0),
    label="page 1",
)
HISTORY = (Attempt(1, 120.0, 2.0, "ValueError: no", "worker"),)
RECORD = Record(
    id="w1",
    spec=SPEC,
    seq=4,
    rank=100.0,
    created_at=100.0,
    state=WorkState.FAILED,
    attempt=3,
    spent=3,
    failures=2,
    token=9,
    started_at=150.0,
    completed_at=160.0,
    next_retry_at=155.0,
    throttled_since=140.0,
    skipped=True,
    result={"pages": 1},
    error="boom",
    traceback="Traceback …",
    history=HISTORY,
    worker="host-1",
    expires_at=999.0,
    progress=Progress(0.5, "half"),
)

READ = {"params": {"page": 1}, "tags": {"run": "nightly"}}
"""What people read as a dict."""


# --- States ---------------------------------------------------------------------------------------


def test_there_are_five_states_and_they_are_their_own_text() -> None:
    assert [str(state) for state in WorkState] == ["pending", "running", "completed", "failed", "cancelled"]
    assert WorkState.FAILED == "failed"


def test_queued_is_understood_as_pending_and_never_given_back() -> None:
    assert WorkState("queued") is WorkState.PENDING
    assert WorkState.QUEUED is WorkState.PENDING
    assert WorkState.QUEUED.value == "pending"


@pytest.mark.parametrize("value", ["done", "QUEUED", "", None, 3])
def test_any_other_word_is_no_state(value: object) -> None:
    with pytest.raises(ValueError, match="is not a valid WorkState"):
        WorkState(value)  # type: ignore[arg-type]


def test_a_state_is_found_in_a_table_by_its_text_too() -> None:
    assert {state: state.value for state in WorkState}["running"] == "running"  # type: ignore[index]
    assert ("pending", "start") in MOVES


def test_a_state_is_final_when_only_a_retry_by_hand_leads_out_of_it() -> None:
    final = {WorkState.COMPLETED, WorkState.FAILED, WorkState.CANCELLED}
    assert {state for state in WorkState if state.is_final} == final


@pytest.mark.parametrize("state", list(WorkState))
def test_a_state_survives_copying_and_pickling_as_itself(state: WorkState) -> None:
    assert copy.deepcopy(state) is state
    assert pickle.loads(pickle.dumps(state)) is state


# --- What people are shown of a record ------------------------------------------------------------


def test_every_field_of_a_work_comes_from_the_record_or_what_was_submitted() -> None:
    work = view(RECORD)
    for field in fields(Work):
        [source, *_] = [one for one in (RECORD, SPEC, SPEC.extras) if hasattr(one, field.name)]
        expected = READ.get(field.name, getattr(source, field.name))
        assert getattr(work, field.name) == expected, field.name


def test_nothing_in_the_example_has_its_default_so_that_a_swap_would_be_seen() -> None:
    shown = [value for value in astuple(view(RECORD)) if not isinstance(value, bool)]
    assert all(value is not None for value in shown)
    assert len({repr(value) for value in shown}) == len(shown)


def test_each_view_has_params_of_its_own() -> None:
    first, second = view(RECORD), view(RECORD)
    first.params["page"] = 2
    assert second.params == {"page": 1}
    assert view(RECORD).params == {"page": 1}


def test_a_new_record_is_pending_before_its_first_attempt() -> None:
    work = view(Record("w", Spec("w", "t", b"{}", ()), 1, 10.0, 10.0))
    assert (work.state, work.attempt, work.params, work.service) == (WorkState.PENDING, 1, {}, None)
    assert (work.started_at, work.completed_at, work.result, work.error) == (None, None, None, None)


# --- Work -----------------------------------------------------------------------------------------


def test_a_work_can_be_built_by_hand() -> None:
    work = Work(id="a", task="extract", params={"page": 1})
    assert (work.id, work.task, work.params) == ("a", "extract", {"page": 1})
    assert (work.state, work.queue, work.priority) == (WorkState.PENDING, "default", 0)


def test_works_built_by_hand_do_not_share_their_params() -> None:
    Work(id="a", task="t").params["x"] = 1
    assert Work(id="b", task="t").params == {}


def test_the_older_names_of_a_works_fields_mean_the_same() -> None:
    work = view(RECORD)
    assert (work.task_type, work.attempt_count, work.last_error) == ("extract", 3, "boom")


def test_the_service_of_a_work_is_the_first_it_uses() -> None:
    assert view(RECORD).service == "api"
    assert Work(id="a", task="t").service is None


def test_a_work_is_cancelled_when_its_state_says_so() -> None:
    assert Work(id="a", task="t", state=WorkState.CANCELLED).cancelled
    assert not Work(id="a", task="t").cancelled


@pytest.mark.parametrize(
    "value", [SPEC, RECORD, HISTORY[0], view(RECORD)], ids=lambda value: type(value).__name__
)
def test_values_are_frozen(value: msgspec.Struct) -> None:
    with pytest.raises(AttributeError):
        setattr(value, fields(value)[0].name, "other")


def test_a_priority_context_knows_its_work_by_both_names() -> None:
    context = PriorityContext(view(RECORD), 3.0, 7)
    assert context.work_unit is context.work
    assert (context.wait_time, context.queue_depth, context.service_pressure) == (3.0, 7, {})


# --- Progress -------------------------------------------------------------------------------------


def test_the_progress_of_a_work_built_by_hand_can_be_reported_and_stays_as_it_is() -> None:
    work = Work(id="a", task="t", progress=Progress(0.5, "half"))
    work.progress(0.9, "nearly")
    assert (work.progress.fraction, work.progress.text) == (0.5, "half")
    assert (Work("b", "t").progress.fraction, Work("b", "t").progress.text) == (None, None)


def test_a_report_is_passed_on_and_read_again_and_travels_as_what_it_said() -> None:
    said: list[object] = []
    report = ProgressReport(lambda fraction, text: said.append((fraction, text)))
    report(0.5)
    report(0.75, "more")
    assert said == [(0.5, None), (0.75, "more")]
    assert pickle.loads(pickle.dumps(report)) == Progress(0.75, "more")


@pytest.mark.parametrize(
    ("fields", "title"),
    [
        ({"label": "page 3"}, "page 3"),
        ({"label": "page 3", "idempotency_key": "k"}, "page 3"),
        ({"idempotency_key": "k", "tags": {"run": "nightly"}}, "k"),
        ({"tags": {"run": "nightly", "host": "a"}, "params": {"page": 3}}, "run=nightly host=a"),
        ({"params": {"page": 3, "text": "x" * 200}}, None),
        ({}, ""),
    ],
)
def test_a_unit_is_known_by_its_label_its_key_its_tags_or_its_params(fields: Any, title: str | None) -> None:
    shown = Work(id="a", task="t", **fields).title
    if title is None:
        assert shown.startswith("page=3 text=xx")
        assert shown.endswith("…")
    else:
        assert shown == title
