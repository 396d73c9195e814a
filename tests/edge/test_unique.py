"""Unique(…), expires= and edit(): what they are given is checked at once, and refused with nothing changed."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given

import runcue
from runcue import ConfigError, Cue, InvalidOption, RuncueError, SubmitError, Unique, WorkNotFound
from runcue.core.model.outputs import Output
from runcue.core.model.record import Extras, Uniqueness
from runcue.declare.edits import edit_of
from runcue.declare.options import Options
from runcue.declare.registry import Registry
from runcue.errors import WorkNotEditable
from tests.edge.nonsense import anything
from tests.handlers import no_op

ACTIVE = Unique(while_active=True)


class Edge(Registry):
    """A registry with one task."""

    def __init__(self) -> None:
        super().__init__(Options.of())
        self.task("call")(no_op)

    def key(self, unique: Unique, **options: Any) -> str | None:
        """The unique key of a unit that is submitted so."""
        return self.spec("call", make_id=lambda: "made", unique=unique, **options).unique_key


# --- The rule ---------------------------------------------------------------------------------------


def test_durations_are_read_in_all_their_forms() -> None:
    unique = Unique(by="url", within=timedelta(minutes=10), on_conflict="extend", at_most="1h")
    assert (unique.by, unique.within, unique.at_most) == (("url",), 600.0, 3600.0)
    assert unique.rule() == Uniqueness(600.0, "extend", 3600.0)


def test_equal_rules_are_equal_and_none_can_be_changed() -> None:
    assert Unique(by=["a"], within=60) == Unique(by=("a",), within="1m")
    with pytest.raises(AttributeError):
        ACTIVE.within = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "neither within= nor while_active="),
        ({"within": 60, "while_active": True}, "Unique has within= and while_active="),
        ({"within": 60, "on_conflict": "extend"}, "on_conflict='extend' and at_most= go together"),
        ({"within": 60, "at_most": 60}, "on_conflict='extend' and at_most= go together"),
        ({"within": 60, "on_conflict": "ignore"}, "Invalid on_conflict: 'ignore'. Expected one of 'return', 'repl"),
        ({"within": "soon"}, "Invalid within: 'soon'"),
        ({"within": 0}, "Invalid within: 0"),
        ({"while_active": 1}, "Invalid while_active: 1"),
        ({"while_active": True, "by": []}, r"Invalid by: \[\]. Expected names of params, or a plain function"),
        ({"while_active": True, "by": [1]}, "Invalid by"),
        ({"while_active": True, "by": 7}, "Invalid by: 7"),
        ({"within": 60, "on_conflict": "extend", "at_most": -1}, "Invalid at_most: -1"),
    ],
)  # fmt: skip
def test_a_rule_that_makes_no_sense_is_refused_with_what_was_expected(
    options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        Unique(**options)


def test_a_coroutine_function_cannot_say_what_is_the_same() -> None:
    async def by(params: dict[str, Any]) -> str:
        return "x"

    with pytest.raises(InvalidOption, match="a plain function of the params"):
        Unique(by=by, while_active=True)


# --- The key ----------------------------------------------------------------------------------------


def test_the_key_has_the_name_of_the_task_and_the_named_params() -> None:
    unique = Unique(by=["b", "a"], while_active=True)
    assert Edge().key(unique, params={"a": 1, "b": [2], "c": 3}) == '["call",{"a":1,"b":[2]}]'


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"amount": 1, "tags": ["b", "a"]}, {"amount": 1.0, "tags": {"a", "b"}}),
        ({"amount": 2, "tags": set()}, {"amount": 2.0, "tags": frozenset(), "note": "none"}),
        ({"amount": Output("x"), "tags": ["a"]}, {"amount": Output("x"), "tags": {"a"}, "note": "none"}),
    ],
)
def test_params_that_a_handler_gets_as_equal_values_are_the_same(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    def pay(amount: float, tags: frozenset[str], note: str = "none") -> None: ...

    edge = Edge()
    edge.task("pay")(pay)

    def key(params: dict[str, Any]) -> str | None:
        return edge.spec("pay", make_id=lambda: "made", unique=ACTIVE, params=params).unique_key

    assert key(one) == key(other)
    assert key(one) != key(other | {"note": "more"})


def test_params_without_annotations_are_the_same_only_if_their_json_is() -> None:
    values: list[Any] = [1, 1.0, "1", True, None, "null", [1], {"a": 1}, "\xe9", "e\u0301"]
    assert len({Edge().key(ACTIVE, params={"x": value}) for value in values}) == len(values)


def test_a_set_is_stored_in_one_order() -> None:
    def index(tags: set[str], more: frozenset[str] = frozenset({"y", "x"})) -> None: ...

    edge = Edge()
    edge.task("index")(index)
    spec = edge.spec("index", make_id=lambda: "made", params={"tags": {"c", "a", "b"}})
    assert spec.params == b'{"tags":["a","b","c"]}'
    assert edge.get_task("index").schema["properties"]["more"]["default"] == ["x", "y"]


def test_a_long_key_is_cut_to_a_hash() -> None:
    key = Edge().key(ACTIVE, params={"text": "x" * 1000})
    assert key is not None
    assert len(key) == len("call ") + 48
    assert key != Edge().key(ACTIVE, params={"text": "y" * 1000})


def test_a_param_that_is_not_there_is_refused_with_the_one_that_was_meant() -> None:
    unique = Unique(by=["url"], while_active=True)
    with pytest.raises(
        SubmitError, match=r"goes by params\['url'\], which task 'call' was not submitted with. Did you mean 'urls'"
    ):  # fmt: skip
        Edge().key(unique, params={"urls": 1})


@pytest.mark.parametrize(
    ("by", "problem"),
    [
        (lambda params: params["url"], "by= of unique= raised KeyError"),
        (lambda params: object(), "by= of unique= returned what is no JSON"),
    ],
)
def test_a_function_that_raises_or_returns_nonsense_refuses_the_submission(by: Any, problem: str) -> None:
    with pytest.raises(SubmitError, match=problem):
        Edge().key(Unique(by=by, while_active=True))


def test_what_is_unique_is_not_accepted_without_a_look() -> None:
    edge = Edge()
    spec = edge.spec("call", make_id=lambda: "made", unique=ACTIVE)
    assert not edge.always_accepts(spec)
    assert not edge.submission([spec]).is_plain


# --- With what else a unit is submitted with --------------------------------------------------------

EXTEND = Unique(while_active=True, on_conflict="extend", at_most=60)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"unique": {"within": 60}}, "Invalid unique: .* Expected a runcue.Unique"),
        ({"unique": ACTIVE, "idempotency_key": "k"}, "unique= and idempotency_key= are both given"),
        ({"unique": EXTEND}, "postpones a unit by its delay: give delay="),
        ({"unique": EXTEND, "run_at": 2e9}, "give delay='30s', and no run_at"),
        ({"unique": EXTEND, "delay": 61}, "delay=61 s is longer than at_most=60 s"),
        ({"expires": 0}, "Invalid expires: 0"),
        ({"expires": "soon"}, "Invalid expires: 'soon'"),
        ({"expires": 60, "delay": 60}, "expires=60 s is over before delay=60 s"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises((SubmitError, ConfigError), match=problem):
        Edge().spec("call", make_id=lambda: "made", **options)


def test_a_unit_that_expires_is_accepted_without_a_look() -> None:
    edge = Edge()
    spec = edge.spec("call", make_id=lambda: "made", expires="1h")
    assert spec.extras == Extras(expires=3600.0)
    assert edge.always_accepts(spec)


@given(unique=anything, expires=anything)
def test_no_nonsense_gets_through(unique: object, expires: object) -> None:
    try:
        spec = Edge().spec("call", make_id=lambda: "made", unique=unique, expires=expires)  # type: ignore[arg-type]
    except RuncueError:
        return
    assert unique is None
    assert spec.extras is None or spec.extras.expires is not None


# --- Edits ------------------------------------------------------------------------------------------


async def test_an_edit_that_is_refused_leaves_the_unit_as_it_was() -> None:
    cue = Cue(max_params=100)
    cue.service("host_a")
    cue.task("call", uses="host_{host}")(no_op)
    work_id = await cue.submit("call", params={"host": "a"})
    before = await cue.get(work_id)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, r"edit\(\) changes params=, priority= or both"),
        ({"params": {"host": "b"}}, "Unknown service: 'host_b'"),
        ({"params": {"host": {1, 2}}}, "params"),
        ({"params": {"host": "a", "text": "x" * 100}}, "more than max_params=100"),
        ({"params": [1]}, "must be a dict"),
        ({"priority": "high"}, "Invalid priority"),
    ]
    for options, problem in wrong:
        with pytest.raises(RuncueError, match=problem):
            await cue.edit(work_id, **options)
    assert await cue.get(work_id) == before
    with pytest.raises(WorkNotFound):
        await cue.edit("nobody", priority=1)
    await cue.cancel(work_id)
    with pytest.raises(WorkNotEditable, match="is cancelled: only pending and failed units"):
        await cue.edit(work_id, priority=1)
    await cue.close()


def test_a_program_without_the_task_edits_params_as_they_are() -> None:
    edge = Edge()
    spec = edge.spec("call", make_id=lambda: "made")
    edit = edit_of(Registry(Options.of()), spec, {"n": 1}, None)
    assert (edit.params, edit.services, edit.cost, edit.priority) == (b'{"n":1}', None, None, None)


async def test_an_edit_takes_no_output_of_another_unit() -> None:
    cue = Cue()
    cue.task("call")(no_op)
    first = await cue.submit("call")
    second = await cue.submit("call", params={"n": 1})
    with pytest.raises(SubmitError, match=r"edit\(\) cannot hand on outputs of other units"):
        await cue.edit(second, params={"n": runcue.output(first)})
    work = await cue.get(second)
    assert work is not None
    assert (work.params, work.depends_on) == ({"n": 1}, ())
    await cue.close()
