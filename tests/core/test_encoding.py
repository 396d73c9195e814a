"""Values of annotated types as JSON, and back."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple, NewType, TypedDict
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest

from runcue.core.model import encoding
from runcue.core.model.encoding import (
    Codec,
    Unsupported,
    bare,
    holds_anything,
    holds_sets,
    plain,
    problem,
    shown,
    with_sorted_sets,
)
from runcue.core.model.parse import encode_params
from runcue.errors import InvalidParams


class Style(enum.Enum):
    SHORT = "short"
    LONG = "long"


@dataclasses.dataclass
class Page:
    number: int
    inner: list[Page] = dataclasses.field(default_factory=list)
    file: Path | None = None


class Point(msgspec.Struct):
    x: float
    y: float = 0.0


class Given(TypedDict):
    name: str


class Pair(NamedTuple):
    left: int
    right: str


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    at: datetime
    style: Style


class OwnModel:
    """A model that is not pydantic's, with the same two methods."""

    @classmethod
    def model_validate_json(cls, data: bytes) -> OwnModel:
        raise ValueError("no name")


class Opaque:
    pass


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


Number = NewType("Number", int)
Loop = dict[str, "Loop"]

VALUES: list[tuple[Any, Any, Any]] = [
    (int, 3, 3),
    (float, 1.5, 1.5),
    (str | None, None, None),
    (Number, 4, 4),
    (datetime, datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
    (timedelta, timedelta(days=3), "P3D"),
    (UUID, UUID(int=5), "00000000-0000-0000-0000-000000000005"),
    (Decimal, Decimal("1.20"), "1.20"),
    (bytes, b"ab\xff", "YWL/"),
    (set[int], {7}, [7]),
    (frozenset[str], frozenset("a"), ["a"]),
    (tuple[int, str], (1, "a"), [1, "a"]),
    (tuple[int, ...], (1, 2), [1, 2]),
    (dict[int, str], {1: "a"}, {"1": "a"}),
    (Literal["a", 1], "a", "a"),
    (Style, Style.LONG, "long"),
    (Path, Path("/a/b"), "/a/b"),
    (list[PurePosixPath], [PurePosixPath("a")], ["a"]),
    (Page, Page(1, [Page(2)], Path("f")),
     {"number": 1, "inner": [{"number": 2, "inner": [], "file": None}], "file": "f"}),
    (Point, Point(1.0, 2.0), {"x": 1.0, "y": 2.0}),
    (Given, {"name": "a"}, {"name": "a"}),
    (Pair, Pair(1, "b"), [1, "b"]),
    (Model, Model(at=datetime(2026, 1, 2, tzinfo=UTC), style=Style.SHORT),
     {"at": "2026-01-02T00:00:00Z", "style": "short"}),
    (list[Any], [1, {"a": None}], [1, {"a": None}]),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "value", "stored"), VALUES, ids=lambda part: shown(part)[:30])
def test_a_value_comes_back_with_the_type_of_its_annotation(annotation: Any, value: Any, stored: Any) -> None:
    codec = Codec(annotation)
    assert codec.encode(value) == stored
    back = codec.decode(codec.encode(value))
    assert back == value
    assert type(back) is type(value)
    codec.check(encoding.encode(value))
    assert codec.schema()


def test_a_value_that_has_its_type_already_is_taken_as_it_is() -> None:
    path, model = Path("a"), Model(at=datetime(2026, 1, 2, tzinfo=UTC), style=Style.SHORT)
    assert Codec(Path).decode(path) is path
    assert Codec(Model).decode(model) is model


@pytest.mark.parametrize(
    "annotation",
    [Opaque, list[Opaque], dict[str, Opaque | None], Callable[[], int], Iterator[int], complex, Page | Point],
)
def test_an_annotation_without_a_json_form_is_refused_with_a_way_out(annotation: Any) -> None:
    with pytest.raises(Unsupported, match=r"has no JSON form.*Use JSON types, a dataclass, a Struct"):
        Codec(annotation)


@pytest.mark.parametrize(
    ("annotation", "problem"),
    [
        (
            dict[tuple[int, int], float],
            r"^dict\[tuple\[int, int\], float\] has no JSON form: keys of dicts have to be",
        ),
        (list[dict[Point, int]], "keys of dicts have to be text, numbers or dates$"),
        (dict[str, set[dict[str, int]]], "lists, sets and dicts cannot be in a set$"),
    ],
)
def test_what_can_never_be_encoded_or_decoded_is_refused(annotation: Any, problem: str) -> None:
    with pytest.raises(Unsupported, match=problem):
        Codec(annotation)


@pytest.mark.parametrize(
    "value", [{1: 2}, {1.5: 2}, {Style.SHORT: 2}, {UUID(int=3): 2}, {datetime(2026, 1, 2, tzinfo=UTC): 2}]
)
def test_keys_may_be_whatever_is_one_text(value: Any) -> None:
    codec = Codec(dict[type(next(iter(value))), int])  # type: ignore[misc]
    codec.check(encoding.encode(value))
    assert codec.decode(codec.encode(value)) == value


def test_object_stands_for_anything_that_json_holds() -> None:
    codec = Codec(dict[str, object])
    value = {"a": [1, {"b": None}]}
    assert codec.decode(codec.encode(value)) == value
    assert encoding.holds_anything(dict[str, object])
    assert codec.schema()["additionalProperties"] == {"description": "Any JSON value"}


def test_an_alias_that_refers_to_itself_is_refused_with_a_way_out() -> None:
    with pytest.raises(Unsupported, match="Loop"):
        Codec(Loop)


def test_a_recursive_dataclass_is_fine() -> None:
    assert "Page" in Codec(Page).schema()["$defs"]


@pytest.mark.parametrize(
    ("annotation", "value", "where", "what"),
    [
        (int, "3", "", "must be int, not str"),
        (int, None, "", "must be int, not None"),
        (int | None, "x", "", "must be int | None, not str"),
        (list[int] | None, 3, "", "must be list | None, not int"),
        (Page, 3, "", "must be dict, not int"),
        (Page, {"number": "x"}, "number", "must be int, not str"),
        (Page, {}, "", "lacks the field 'number'"),
        (
            list[Page],
            [{"number": 1, "inner": [{"number": None}]}],
            "[0].inner[0].number",
            "must be int, not None",
        ),
        (Style, "zz", "", "must be one of 'short', 'long', not 'zz'"),
        (Literal["a", "b"], "c", "", "must be one of 'a', 'b', not 'c'"),
        (dict[str, Style] | None, {"x": "zz"}, "[...]", "must be one of 'short', 'long', not 'zz'"),
        (tuple[Literal["a"], Style], ["c", "short"], "[0]", "is refused: invalid enum value 'c'"),
        (
            Model,
            {"at": "2026-01-02T00:00:00Z", "style": 3},
            "",
            "is refused: style: Input should be 'short' or 'long'",
        ),
        (OwnModel, {}, "", "is refused: no name"),
        (Path, 3, "", "must be str, not int"),
        (Path, None, "", "must be str, not None"),
        (datetime, "soon", "", "is refused: invalid RFC3339 encoded datetime"),
    ],
)
def test_an_error_says_where_and_what(annotation: Any, value: Any, where: str, what: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        Codec(annotation).decode(value)
    assert problem(caught.value, annotation) == (where, what)


def test_a_model_says_in_its_own_words_what_is_wrong() -> None:
    with pytest.raises(msgspec.ValidationError, match="style"):
        Codec(Model).decode({"at": "2026-01-02T00:00:00Z", "style": "zz"})


@pytest.mark.parametrize(
    ("annotation", "text"),
    [(None, "None"), (type(None), "None"), (int, "int"), (list[int], "list[int]"), (int | None, "int | None"),
     (Any, "Any"), (Literal["a"], "Literal['a']"), (Page, "Page")],
)  # fmt: skip
def test_an_annotation_is_shown_as_it_is_written(annotation: Any, text: str) -> None:
    assert shown(annotation) == text


@pytest.mark.parametrize(
    "annotation", [Any, list[Any], dict[str, Any], list[dict[str, Any]], int | list[Any], list, tuple]
)
def test_what_only_json_describes_is_recognized(annotation: Any) -> None:
    assert holds_anything(annotation)


@pytest.mark.parametrize("annotation", [int, list[int], Page, dict[str, int], str | None])
def test_what_an_annotation_describes_is_recognized(annotation: Any) -> None:
    assert not holds_anything(annotation)


@dataclasses.dataclass(frozen=True)
class Tags:
    names: frozenset[str]
    more: list[Any] = dataclasses.field(default_factory=list)


class Words(msgspec.Struct, frozen=True):
    names: set[str]


@attrs.frozen
class Marks:
    names: set[Style]


class Fixed(Tags, enum.Enum):
    ONE = (frozenset("a"),)


LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (frozenset(LETTERS), LETTERS),
        ({"k": [(set(LETTERS), 1)]}, {"k": [[LETTERS, 1]]}),
        (Tags(frozenset(LETTERS), [Words(set(LETTERS))]), {"names": LETTERS, "more": [{"names": LETTERS}]}),
        (Marks(set(Style)), {"names": ["long", "short"]}),
        ({1, "a", None, (2, 3)}, ["a", 1, [2, 3], None]),
    ],
)
def test_sets_have_one_order_in_all_processes(value: Any, stored: Any) -> None:
    before = repr(value)
    assert plain(with_sorted_sets(value)) == stored
    assert repr(value) == before


def test_what_cannot_be_copied_stays_what_it_is() -> None:
    with_sorted_sets(Fixed.ONE)
    assert Fixed.ONE.names == frozenset("a")
    assert type(Fixed.ONE.names) is frozenset


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (set[str], True),
        (dict[str, Tags | None], True),
        (Words, True),
        (list[str], False),
        (Page, False),
        (Any, False),
    ],
)
def test_sets_inside_an_annotation_are_recognized(annotation: Any, expected: bool) -> None:
    assert holds_sets(annotation) is expected


class Id(str):
    __slots__ = ("more",)


def test_a_text_that_can_do_more_is_text() -> None:
    assert plain([Id("a")]) == ["a"]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (Point(math.nan), r"x is nan, which JSON cannot hold"),
        ([None, math.inf], r"\[1\] is inf, which JSON cannot hold"),
        ({1: 2**64}, r"\['1'\] is a whole number of 65 bits"),
        (deep(101), r".* is nested more than 100 deep"),
    ],
)
def test_what_json_would_lose_is_refused(value: Any, problem: str) -> None:
    for root, encoded in (("params", encoding.encode), ("result", plain)):
        with pytest.raises(InvalidParams, match=rf"^{root}[.]?{problem}"):
            encoded(value)


@pytest.mark.parametrize(
    "value", [[None, "null"], 2**64 - 1, -(2**63), "1234567890123456789012", [[1]] * 500]
)
def test_what_looks_as_if_json_would_lose_it_is_kept(value: Any) -> None:
    assert plain(value) == value


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [(Page, Page), (Page | None, Page), (Annotated[Page | None, 1], Page), (int | str, int | str)],
)  # fmt: skip
def test_an_annotation_is_found_inside_what_surrounds_it(annotation: Any, expected: Any) -> None:
    assert bare(annotation) == expected


def test_what_has_no_json_form_cannot_be_encoded() -> None:
    with pytest.raises(NotImplementedError, match="Opaque has no JSON form"):
        plain(Opaque())


def test_models_become_dicts_and_nothing_else_changes() -> None:
    opaque = Opaque()
    value = {
        "a": [Page(1), (Point(1.0),)],
        "b": opaque,
        "c": Model(at=datetime(2026, 1, 2, tzinfo=UTC), style=Style.LONG),
    }
    assert encoding.without_models(value) == {
        "a": [{"number": 1, "inner": [], "file": None}, [{"x": 1.0, "y": 0.0}]],
        "b": opaque,
        "c": {"at": "2026-01-02T00:00:00Z", "style": "long"},
    }


def test_params_may_be_a_model_and_none_is_lost_inside_them() -> None:
    assert encode_params(Point(1.0), 1000) == b'{"x":1.0,"y":0.0}'
    with pytest.raises(
        InvalidParams, match=r"params\.page is of type Page, .* annotated with it, or pass a dict\."
    ):
        encode_params({"page": Page(1)}, 1000)


@pytest.mark.parametrize(
    ("value", "stored"),
    [(None, None), (True, True), (2**64 - 1, 2**64 - 1), ("text", "text"), ("ü", "ü"), (1.5, 1.5), ((1, 2), [1, 2]),
     (Style.SHORT, "short"), (timedelta(seconds=90), "PT90S")],
)  # fmt: skip
def test_a_result_is_what_json_gives_back(value: Any, stored: Any) -> None:
    found = plain(value)
    assert found == stored
    assert type(found) is type(stored)


def test_a_whole_number_that_json_would_lose_is_no_result() -> None:
    with pytest.raises(InvalidParams):
        plain(2**64)


def test_plain_values_inside_others_stay_what_they_are() -> None:
    assert encoding.without_models({"a": [1, "x", (True, 2.5)]}) == {"a": [1, "x", [True, 2.5]]}
