"""What the methods that ask for something are given: ids, queues, places in the stream of events."""

import asyncio
import inspect
import os
from pathlib import Path
from typing import Any

import pytest

from runcue import Cue
from runcue.api.signature import CueOptions, SubmitOptions, TaskOptions
from runcue.declare import arguments
from runcue.declare.options import CHECKS, Options
from runcue.declare.registry import (
    SUBMIT_OPTIONS,
    TASK_OPTIONS,
    Registry,
)
from runcue.declare.service_options import OPTIONS, read_limits
from runcue.errors import ConfigError, InvalidOption, SubmitError
from tests.edge.nonsense import ODDITIES

NO_IDS: list[Any] = [None, "", 5, b"a", [], {}, (), object(), "a\nb", "x" * 129]


async def forgotten() -> str:
    return "a"


# --- Ids ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("work_id", ["a", "x" * 128, "'; DROP TABLE works", "Ünïcode"])
def test_an_id_is_taken_as_it_is(work_id: str) -> None:
    assert arguments.work_id(work_id) == work_id


@pytest.mark.parametrize("value", NO_IDS)
def test_what_cannot_be_an_id_is_refused_quoting_it(value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^Invalid id: .* Expected 1 to 128 printable characters\.$"):
        arguments.work_id(value)


def test_each_oddity_is_an_id_or_refused() -> None:
    for value in ODDITIES:
        try:
            assert arguments.work_id(value) == value
        except InvalidOption as error:
            assert len(str(error)) < 300  # noqa: PT017 (either outcome is right)


def test_a_call_that_was_not_awaited_is_no_id_and_is_ended() -> None:
    call = forgotten()
    with pytest.raises(InvalidOption, match=r"forgotten.*\(did you forget await\?\)\.$"):
        arguments.work_id(call)
    assert inspect.getcoroutinestate(call) == inspect.CORO_CLOSED


async def test_a_task_is_no_id_and_is_left_alone() -> None:
    task = asyncio.create_task(forgotten())
    for read in (arguments.work_id, arguments.work_ids):
        with pytest.raises(InvalidOption, match="did you forget await"):
            read(task)
    assert await task == "a"


def test_several_ids_may_come_in_any_iterable_or_as_one_alone() -> None:
    assert arguments.work_ids(None) is None
    assert arguments.work_ids("abc") == ["abc"]
    assert (
        arguments.work_ids(["a", "b"])
        == arguments.work_ids(iter("ab"))
        == arguments.work_ids({"a": 1, "b": 2}.keys())
        == ["a", "b"]
    )


@pytest.mark.parametrize("value", [5, b"abc", {"a": 1}, ["a", None], [["a"]], ""])
def test_ids_of_another_kind_are_refused(value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^Invalid id: "):
        arguments.work_ids(value)


def test_every_call_among_ids_that_was_not_awaited_is_ended() -> None:
    calls = [forgotten(), forgotten()]
    with pytest.raises(InvalidOption, match="did you forget await"):
        arguments.work_ids(["a", *calls])
    assert {inspect.getcoroutinestate(call) for call in calls} == {inspect.CORO_CLOSED}


@pytest.mark.parametrize("is_alone", [True, False])
async def test_a_dependency_that_was_not_awaited_is_refused_and_ended(is_alone: bool) -> None:
    cue = Cue()

    @cue.task("t")
    async def t(work: Any) -> None: ...

    call: Any = cue.submit("t")
    with pytest.raises(SubmitError, match=r"^Invalid depends_on: .*\(did you forget await\?\)\.$"):
        await cue.submit("t", depends_on=call if is_alone else ["a", call])
    assert inspect.getcoroutinestate(call) == inspect.CORO_CLOSED


# --- Queues and events ----------------------------------------------------------------------------


def test_queues_are_one_or_several_names() -> None:
    assert arguments.queue_names(None) is None
    assert arguments.queue_names("night") == {"night"}
    assert arguments.queue_names(["a", "b", "a"]) == {"a", "b"}
    assert arguments.queue_names([]) == frozenset()


@pytest.mark.parametrize("value", [5, [3, None], "", b"night", {"night": 1}, [["night"]]])
def test_queues_of_another_kind_are_refused(value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^Invalid queue name: "):
        arguments.queue_names(value)


@pytest.mark.parametrize("value", ["x", 1.5, None, True])
def test_a_reader_goes_on_after_a_whole_number(value: Any) -> None:
    assert arguments.event_number(0) == 0
    with pytest.raises(InvalidOption, match=r"^Invalid since: "):
        arguments.event_number(value)


@pytest.mark.parametrize("value", [5, b"completed", {"completed": 1}, ["completed", None]])
def test_event_types_of_another_kind_are_refused(value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^Invalid event type: "):
        arguments.event_types(value)


# --- The store ------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", [None, ":memory:", Path(":memory:")])
def test_a_queue_in_memory_may_be_named_in_every_way(store: Any) -> None:
    assert isinstance(Cue(store), Cue)


def test_another_store_is_refused_with_what_there_is() -> None:
    others = [value for value in ODDITIES[1:] if not isinstance(value, str | os.PathLike)]
    for store in ("", "mysql://user:secret@host/queue", b":memory:", *others):
        with pytest.raises(
            ConfigError, match=r"^Cannot open .*: a queue is in memory, in a file or in PostgreSQL"
        ) as caught:
            Cue(store)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("store", ["queue.db", Path("queue.db")])
def test_a_queue_in_a_file_is_opened_when_it_is_first_used(
    store: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert isinstance(Cue(store), Cue)
    assert list(tmp_path.iterdir()) == []


# --- The lists of options -------------------------------------------------------------------------


def test_type_checkers_are_told_of_exactly_the_options_there_are() -> None:
    assert set(CueOptions.__annotations__) == set(Options.__struct_fields__) == set(CHECKS)
    named = inspect.signature(Cue.service).parameters.keys() - {"self", "name", "quantities"}
    assert named == set(OPTIONS)
    assert inspect.signature(read_limits).parameters.keys() - {"name", "quantities"} == set(OPTIONS)
    assert set(TaskOptions.__annotations__) == set(TASK_OPTIONS) - {"name"}
    assert set(SubmitOptions.__annotations__) == set(SUBMIT_OPTIONS) - {"task"}


@pytest.mark.parametrize(
    ("kind", "method", "beside"),
    [
        (TaskOptions, "task", {"name"}),
        (SubmitOptions, "spec", {"task", "make_id"}),
    ],
)
def test_the_edge_takes_exactly_the_options_it_names(kind: Any, method: str, beside: set[str]) -> None:
    parameters = inspect.signature(getattr(Registry, method)).parameters
    elsewhere = {"connection"}  # where a unit is left is no part of it
    assert set(parameters) - {"self", "unknown"} == set(kind.__annotations__) - elsewhere | beside
