"""How a handler is called: which are called with their unit, which with params, and which params are refused."""

import contextlib
import enum
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Annotated, Any, Literal, Self, TypedDict, Unpack
from unittest.mock import AsyncMock, Mock, create_autospec

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runcue import Cue, RunningWork, Work
from runcue.core.model.encoding import Codec
from runcue.core.model.outputs import Output, WithOutputs
from runcue.core.model.parse import decode_params
from runcue.declare.options import Options
from runcue.declare.parameters import Call
from runcue.declare.registry import Registry
from runcue.declare.task import Task
from runcue.errors import ConfigError, InvalidParams, Permanent, RuncueError
from tests.edge import annotated_elsewhere

LIMIT = 100_000


def task_of(handler: Callable[..., Any], **options: Any) -> Task:
    """The task that a handler is registered as."""
    known = Registry(Options.of())
    known.task("call", **options)(handler)
    return known.get_task("call")


def called(handler: Callable[..., Any], **params: Any) -> Any:
    """What a plain handler returns when its unit has these params."""
    task = task_of(handler)
    work = Work("a", "call", decode_params(task.encode(params, LIMIT)))
    return task.call(work)


# --- Which is called how --------------------------------------------------------------------------


def every_kind(a: Any, b: Any = 2, *args: Any, c: Any, d: Any = 4, **rest: Any) -> Any:
    return (a, b, args, c, d, rest)


def placed(a: int = 1, b: int = 2, /, c: int = 3) -> Any:
    return (a, b, c)


def loose(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that forgets what it wraps."""

    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inner


def wrapping(function: Callable[..., Any]) -> Callable[..., Any]:
    return functools.wraps(function)(loose(function))


class Around(contextlib.ContextDecorator):
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...


class Reader:
    def read(self, page: int) -> Any:
        return ("read", page)

    def of_work(self, work: Work) -> Any:
        return work.params

    def __call__(self, page: int) -> Any:
        return ("called", page)


@Around()
def decorated(page: int) -> Any:
    return page


def renamed(job: Work) -> Any:
    return job.params


def optional(job: Work | None) -> Any:
    return job and job.params


def noted(job: Annotated[RunningWork, "the unit"]) -> Any:
    return job.params


@pytest.mark.parametrize(
    "handler",
    [
        lambda work: work.params,
        lambda _: _.params,
        lambda *args: args[0].params,
        loose(lambda work: work.params),
        functools.partial(lambda extra, work: work.params, 1),
        Reader().of_work,
        renamed,
    ],
)
def test_a_handler_of_its_unit_alone_is_called_with_it(handler: Callable[..., Any]) -> None:
    assert task_of(handler).parameters is None
    assert called(handler, page=1, more=[2]) == {"page": 1, "more": [2]}


def test_what_takes_anything_gets_the_unit() -> None:
    for mock in (Mock(return_value=3), AsyncMock(return_value=3)):
        assert task_of(mock).parameters is None


@pytest.mark.parametrize(
    ("handler", "params", "result"),
    [
        (every_kind, {"a": 1, "c": 3}, (1, 2, (), 3, 4, {})),
        (every_kind, {"a": 1, "b": 0, "c": 3, "e": 5}, (1, 0, (), 3, 4, {"e": 5})),
        (every_kind, {"a": 1, "c": 3, "args": 5, "rest": 6}, (1, 2, (), 3, 4, {"args": 5, "rest": 6})),
        (placed, {}, (1, 2, 3)),
        (placed, {"a": 5}, (5, 2, 3)),
        (placed, {"b": 5}, (1, 5, 3)),
        (placed, {"c": 5}, (1, 2, 5)),
        (functools.partial(every_kind, 1, c=5), {"b": 3}, (1, 3, (), 5, 4, {})),
        (functools.partial(every_kind, b=5), {"a": 3, "c": 4}, (3, 5, (), 4, 4, {})),
        (wrapping(decorated), {"page": 3}, 3),
        (decorated, {"page": 3}, 3),
        (lambda page: page, {"page": 3}, 3),
        (lambda **rest: rest, {"page": 3, "work": 2}, {"page": 3, "work": 2}),
        (Reader().read, {"page": 3}, ("read", 3)),
        (Reader(), {"page": 3}, ("called", 3)),
        (create_autospec(decorated, return_value=4), {"page": 3}, 4),
        (lambda task, params, id, queue: (task, params, id, queue),
         {"task": 1, "params": 2, "id": 3, "queue": 4}, (1, 2, 3, 4)),
    ],
)  # fmt: skip
def test_any_other_handler_gets_its_params_by_name(
    handler: Callable[..., Any], params: dict[str, Any], result: Any
) -> None:
    assert called(handler, **params) == result


def test_a_unit_is_handed_in_wherever_it_stands() -> None:
    def last(page: int, *, work: Any) -> Any:
        return page, work.id

    def typed(page: int, unit: Work | None = None) -> Any:
        return page, unit and unit.id

    def twice(work: Any, page: int, again: Work) -> Any:
        return page, again is work

    def alone(*, work: Any) -> Any:
        return work.id

    assert called(twice, page=1) == (1, True)

    assert called(last, page=1) == (1, "a")
    assert called(typed, page=1) == (1, "a")
    assert called(alone) == "a"
    assert called(optional) == {}
    assert called(noted) == {}


def test_what_is_handed_in_cannot_be_submitted() -> None:
    def call(work: Work, page: int, **rest: Any) -> None: ...

    with pytest.raises(
        InvalidParams, match=r"^params\.work is not submitted: task 'call' is given it at the start\.$"
    ):
        called(call, page=1, work=2)


def test_an_unbound_method_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"'Reader\.read', the handler of task 'call', is a method: register that of an object\.",
    ):
        task_of(Reader.read)


def test_annotations_are_read_in_the_module_of_the_handler() -> None:
    task = task_of(annotated_elsewhere.read)
    assert task.parameters is not None
    assert task.parameters.codecs["page"].annotation is annotated_elsewhere.Page
    assert task_of(annotated_elsewhere.of_work).parameters is None
    with pytest.raises(
        ConfigError,
        match=r"annotations of 'of_both', .*name 'Work' is not defined\. Name types that are imported",
    ):
        task_of(annotated_elsewhere.of_both)


# --- What submits a task --------------------------------------------------------------------------


def test_an_object_keeps_its_own_attributes() -> None:
    class Handler:
        def __init__(self) -> None:
            self.options = {"a": 1}

        def __call__(self, page: int) -> int:
            return page

    class Bare(Reader):
        pass

    handler, bare = Handler(), Bare()
    cue = Cue()
    cue.task("own")(handler)
    cue.task("bare")(bare)
    cue.task("class")(Bare)
    assert (handler.options, hasattr(handler, "submit")) == ({"a": 1}, False)
    assert bare.unit(page=1).task == "bare"  # type: ignore[attr-defined]
    assert not hasattr(Bare, "submit")


def test_a_task_that_is_registered_again_submits_to_the_last_cue() -> None:
    first, second = Cue(), Cue()

    @second.task("other")
    @first.task
    async def call(page: int) -> None: ...

    assert call.unit(page=1).task == "other"
    assert first.get_task("call").handler is second.get_task("other").handler


def test_params_may_have_any_name() -> None:
    cue = Cue()

    @cue.task
    async def call(page: int, self: int, cls: int, args: int) -> None: ...

    params = {"page": 1, "self": 2, "cls": 3, "args": 4}
    assert call.unit(**params).params == params
    assert call.options(priority=1).unit(**params).params == params


# --- Wrong values ---------------------------------------------------------------------------------


class Style(enum.Enum):
    SHORT = "short"
    LONG = "long"


class Model(pydantic.BaseModel):
    name: str


@attrs.define
class Shape:
    sides: int
    names: list[str] = attrs.field(factory=list)


@dataclass
class Page:
    number: float
    inner: list["Page"] = field(default_factory=list)
    more: Any = None


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def pages(depth: int) -> Page:
    value = Page(1)
    for _ in range(depth):
        value = Page(1, [value])
    return value


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("annotation", "value", "problem"),
    [
        (float, math.nan, r"x is nan, which JSON cannot hold\. Pass None or a finite number\."),
        (float | None, math.nan, r"x is nan, which"),
        (list[float | None], [None, math.inf], r"x\[1\] is inf, which"),
        (Page, Page(math.nan), r"x\.number is nan, which"),
        (Any, -math.inf, r"x is -inf, which"),
        (int, 2**64, r"x is a whole number of 65 bits, 64 are the most\. Pass it as text\."),
        (int, -(2**63) - 1, r"x is a whole number of"),
        (Page, Page(1, more=2**70), r"x\.more is a whole number of 71 bits"),
        (Any, 2**64, r"x is a whole number of 65 bits"),
        (list, nested(101), r"x.* is nested more than 100 deep"),
        (Page, pages(60), r"x.* is nested more than 100 deep"),
        (list, nested(5000), r"x cannot be encoded as JSON \(maximum recursion"),
        (list, LOOP, r"x cannot be encoded as JSON \(maximum recursion"),
        (str, "\ud800", r"x cannot be encoded as JSON \(.*surrogates not allowed\)\. Task 'call' declares x: str\."),
        (Literal["a", 1], "b", r"x must be one of 'a', 1, not 'b'\."),
        (Style | None, "wide", r"x must be one of 'short', 'long', not 'wide'\."),
        (list[Style], ["short", "wide"], r"x\[1\] must be one of 'short', 'long', not 'wide'\."),
        (Literal["a"] | list[Style], ["wide"], r"x\[0\] is refused: invalid enum value 'wide'\."),
        (Annotated[int, msgspec.Meta(gt=0)], 0, r"x is refused: expected int >= 1\."),
        (bool, 1, r"x must be bool, not int\."),
        (tuple[int, str], (1,), r"x is refused: expected array of length 2\."),
        (Model, {"name": 3}, r"x is refused: name: Input should be a valid string\. Task 'call' declares x: Model\."),
        (Model, {}, r"x is refused: name: Field required\."),
        (Shape, Shape("3"), r"x\.sides must be int, not str\."),  # type: ignore[arg-type]
        (dict[str, int], {"a": None}, r"x\[\.\.\.\] must be int, not None\."),
    ],
)  # fmt: skip
def test_a_value_that_would_not_come_back_is_refused_by_name(
    annotation: Any, value: Any, problem: str
) -> None:
    def call(x: Any) -> None: ...

    call.__annotations__["x"] = annotation
    task = task_of(call)
    with pytest.raises(InvalidParams, match=rf"^params\.{problem}"):
        task.encode({"x": value}, LIMIT)


def test_what_takes_the_rest_is_checked_too() -> None:
    with pytest.raises(InvalidParams, match=r"^params\.more cannot be .* Task 'call' declares \*\*rest\.$"):
        called(every_kind, a=1, c=1, more=object())
    with pytest.raises(InvalidParams, match=r"^params\.more is of type set, which JSON cannot hold\."):
        called(every_kind, a=1, c=1, more={1})


def test_the_rest_has_the_type_of_its_annotation() -> None:
    def call(page: int, **more: frozenset[str]) -> Any:
        return more

    assert called(call, page=1, a={"x"}, b=frozenset()) == {"a": {"x"}, "b": frozenset()}
    with pytest.raises(
        InvalidParams, match=r"^params\.b\[0\] must be str, not int\. .*\*\*more: frozenset\[str\]\.$"
    ):
        called(call, page=1, a={"x"}, b={3})
    task = task_of(call)
    assert task.encode({"page": 1, "a": {"y", "x", "z"}}, LIMIT) == b'{"page":1,"a":["x","y","z"]}'
    assert type(task.encode({"page": 1, "a": {Output("u")}}, LIMIT)) is WithOutputs
    with pytest.raises(
        Permanent, match=r"^params\.a\[0\] must be str, not int\. The unit was submitted for another"
    ):
        task.call(Work("a", "call", {"page": 1, "a": [3]}))


def test_the_rest_may_be_spelled_out() -> None:
    class More(TypedDict, total=False):
        word: str

    def call(page: int, **more: Unpack[More]) -> Any:
        return more

    assert called(call, page=1, word="a") == {"word": "a"}


def test_the_rest_must_have_a_json_form() -> None:
    def call(**more: complex) -> None: ...

    with pytest.raises(
        ConfigError, match="Parameter 'more' of task 'call' cannot be submitted: complex has no"
    ):
        task_of(call)


def test_a_key_that_is_no_text_is_unknown() -> None:
    with pytest.raises(InvalidParams, match=r"^params\.1 is unknown: task 'call' takes page\."):
        task_of(decorated).encode({1: 2, "page": 3}, LIMIT)


@pytest.mark.parametrize("beside", [object(), [Output("a"), object()]])
def test_an_output_beside_a_wrong_value_does_not_hide_it(beside: Any) -> None:
    def call(page: int, more: Any, **rest: Any) -> None: ...

    with pytest.raises(
        InvalidParams, match=r"^params\.more cannot be encoded as JSON \(object has no JSON form\)"
    ):
        task_of(call).encode({"page": Output("a"), "more": beside}, LIMIT)


def test_params_of_another_release_are_refused_when_the_unit_starts() -> None:
    def call(page: int, style: Style = Style.SHORT) -> None: ...

    task = task_of(call)
    for params, problem in (
        ({}, "params is refused|params lacks the field 'page'"),
        ({"page": 1, "style": "wide"}, r"params\.style"),
        ({"page": 1, "other": 2}, r"params\.other is unknown: task 'call' takes page, style\."),
    ):
        with pytest.raises(Permanent, match=problem):
            task.call(Work("a", "call", params))


# --- Values that come back ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Shape, Shape(3, ["a"])),
        (list[Shape], [Shape(1)]),
        (Page, pages(20)),
        (int, 2**64 - 1),
        (int, -(2**63)),
        (str, "null"),
        (str, "12345678901234567890123"),
        (float | None, None),
        (Literal["a", 1], 1),
        (Annotated[str, msgspec.Meta(max_length=3)], "abc"),
    ],
)
def test_a_value_comes_back_as_it_was(annotation: Any, value: Any) -> None:
    def call(x: Any) -> Any:
        return x

    call.__annotations__["x"] = annotation
    back = called(call, x=value)
    assert back == value
    assert type(back) is type(value)


def test_a_default_is_handed_in_as_it_is() -> None:
    shared: list[int] = []
    marker = object()

    def call(page: int | None, pages: list[int] = shared, marker: Any = marker) -> Any:
        return pages is shared, marker

    assert called(call, page=None) == (True, marker)
    schema = task_of(call).schema
    assert schema["properties"]["pages"]["default"] == []
    assert "default" not in schema["properties"]["marker"]
    assert schema["required"] == ["page"]


def test_a_task_may_have_the_name_of_a_type_or_of_a_path() -> None:
    known = Registry(Options.of())
    for name in ("Page", "pages/read", "a~b", "größe 2"):
        known.task(name)(lambda page: None)

        async def read(page: Page) -> None: ...

        known.task(f"{name}!")(read)
        assert known.get_task(name).schema["properties"] == {"page": {}}
        [reference] = known.get_task(f"{name}!").schema["properties"]["page"].values()
        assert reference == "#/$defs/Page"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    )
)
def test_annotated_params_hold_what_params_without_annotations_hold(value: Any) -> None:
    def typed(x: Page) -> None: ...
    def untyped(work: Work) -> None: ...

    def stored(handler: Callable[..., Any], value: Any) -> Any:
        try:
            return decode_params(task_of(handler).encode({"x": value}, LIMIT))["x"]
        except InvalidParams:
            return InvalidParams

    annotated = stored(typed, Page(1, more=value))
    assert stored(untyped, value) == (annotated if annotated is InvalidParams else annotated["more"])


@pytest.mark.parametrize("result", [math.nan, 2**64, nested(101)])
def test_a_result_that_a_file_could_not_hold_is_refused_everywhere(result: Any) -> None:
    with pytest.raises(InvalidParams, match=r"^result"):
        Codec(Any).encode(result)


def test_a_function_that_was_sent_elsewhere_cannot_submit() -> None:
    cue = Cue()

    @cue.task
    async def call(page: int) -> None: ...

    rebuild, arguments = call.options().__reduce__()
    there = rebuild(*arguments)
    with pytest.raises(RuncueError, match="A handler in another process cannot submit"):
        there.unit(page=1)


def test_what_annotations_name_goes_along_with_a_function_that_has_no_module() -> None:
    def sent(handler: Any) -> Any:
        task = task_of(handler)
        assert isinstance(task.call, Call)
        return task.call.__reduce__()[1][2]

    def of_a_script(handler: Any) -> Any:
        copied = FunctionType(handler.__code__, handler.__globals__, handler.__name__, handler.__defaults__)
        copied.__annotations__ = handler.__annotations__
        copied.__module__ = "__main__"
        return copied

    assert sent(annotated_elsewhere.read) is None
    assert sent(of_a_script(annotated_elsewhere.read)) == {"page": annotated_elsewhere.Page, "times": int}
    assert sent(of_a_script(annotated_elsewhere.limited)) is None  # msgspec.Meta cannot be pickled
    assert sent(of_a_script(placed)) is None  # its annotations are no text
