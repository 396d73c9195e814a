"""The life of a piece of work: which moves there are, and that there are no others."""

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from runcue.core.model.lifecycle import MOVES, IllegalMove, diagram, finished, move, started
from runcue.core.model.record import Record, Spec, WorkState

VERBS = sorted({verb for _, verb in MOVES} | {"finish", "explode", ""})
LEGAL = [(state, verb, target) for (state, verb), target in MOVES.items()]
ILLEGAL = [(state, verb) for state in WorkState for verb in VERBS if (state, verb) not in MOVES]


def record_in(state: WorkState) -> Record:
    return Record("w", Spec("w", "t", b"{}", ()), 1, 10.0, 10.0, state, 2, result="kept", error="kept too")


@pytest.mark.parametrize(("state", "verb", "target"), LEGAL)
def test_a_move_of_the_table_leads_where_the_table_says(
    state: WorkState, verb: str, target: WorkState
) -> None:
    assert move(record_in(state), verb).state is target


@pytest.mark.parametrize(("state", "verb", "target"), LEGAL)
def test_a_move_changes_what_it_was_given_and_leaves_the_old_record_as_it_was(
    state: WorkState, verb: str, target: WorkState
) -> None:
    before = record_in(state)
    kept = asdict(before)
    after = move(before, verb, token=7, error=None)
    assert asdict(before) == kept
    assert asdict(after) == kept | {"state": target, "token": 7, "error": None}


@pytest.mark.parametrize(("state", "verb"), ILLEGAL)
def test_a_move_that_is_not_in_the_table_raises_and_changes_nothing(state: WorkState, verb: str) -> None:
    record = record_in(state)
    kept = asdict(record)
    with pytest.raises(IllegalMove, match=f"unit 'w' is {state.value}: it cannot {verb}"):
        move(record, verb, token=7)
    assert asdict(record) == kept


def test_an_illegal_move_is_a_mistake_of_runcue_itself() -> None:
    assert issubclass(IllegalMove, AssertionError)


@given(verbs=st.lists(st.sampled_from(VERBS), max_size=20))
def test_completed_work_stays_completed_whatever_is_tried(verbs: list[str]) -> None:
    record = record_in(WorkState.PENDING)
    for verb in verbs:
        was = record.state
        try:
            record = move(record, verb)
        except IllegalMove:
            assert record.state is was
        if was is WorkState.COMPLETED:
            assert record.state is WorkState.COMPLETED


def test_only_an_explicit_revival_leads_out_of_a_final_state() -> None:
    out = {verb for state, verb in MOVES if state.is_final}
    assert out == {"revive"}
    assert {state for state, verb in MOVES if verb == "revive"} == {WorkState.FAILED, WorkState.CANCELLED}


def test_every_state_can_be_reached_from_pending() -> None:
    reached, todo = set(), [WorkState.PENDING]
    while todo:
        state = todo.pop()
        if state not in reached:
            reached.add(state)
            todo += [target for (source, _), target in MOVES.items() if source is state]
    assert reached == set(WorkState)


def test_every_live_state_can_come_to_every_end() -> None:
    ends = {state for state in WorkState if state.is_final}
    for live in (WorkState.PENDING, WorkState.RUNNING):
        assert ends <= {target for (source, _), target in MOVES.items() if source is live}


# --- The two most frequent moves ------------------------------------------------------------------


def test_the_start_of_an_attempt_is_the_move_of_that_name() -> None:
    record = msgspec.structs.replace(record_in(WorkState.PENDING), spent=4, next_retry_at=11.0)
    assert started(record, 7, 12.0, "me", "running/me") == move(
        record, "start", attempt=5, token=7, started_at=12.0, next_retry_at=None, worker="me",
        index_key="running/me", sort_key=12.0, watch_at=None,
    )  # fmt: skip


def test_the_good_end_of_an_attempt_is_the_move_of_that_name() -> None:
    record = msgspec.structs.replace(
        record_in(WorkState.RUNNING),
        token=7,
        traceback="of an earlier one",
        worker="me",
        index_key="running/me",
        sort_key=12.0,
    )
    assert finished(record, 42, 13.0) == move(
        record, "finish", spent=2, token=0, completed_at=13.0, result=42, error=None, traceback=None, worker=None,
        index_key=None, sort_key=0.0,
    )  # fmt: skip


@pytest.mark.parametrize("state", [state for state in WorkState if state is not WorkState.PENDING])
def test_only_pending_work_can_be_started(state: WorkState) -> None:
    with pytest.raises(IllegalMove, match="cannot start"):
        started(record_in(state), 7, 12.0, "me", "running/me")


@pytest.mark.parametrize("state", [state for state in WorkState if state is not WorkState.RUNNING])
def test_only_running_work_can_be_finished(state: WorkState) -> None:
    with pytest.raises(IllegalMove, match="cannot finish"):
        finished(record_in(state), 42, 13.0)


# --- The diagram ----------------------------------------------------------------------------------


def test_the_diagram_has_exactly_the_moves_of_the_table() -> None:
    arrows = re.findall(r"^    (\w+) --> (\w+): (\w+)$", diagram(), re.MULTILINE)
    assert {(source, verb): target for source, target, verb in arrows} == MOVES
    assert len(arrows) == len(MOVES)


def test_the_diagram_begins_with_submit_and_ends_in_the_final_states() -> None:
    lines = diagram().splitlines()
    assert lines[:2] == ["stateDiagram-v2", "    [*] --> pending: submit"]
    assert lines[-3:] == ["    completed --> [*]", "    failed --> [*]", "    cancelled --> [*]"]
