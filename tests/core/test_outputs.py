"""Results of units in the params of others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import attrs
import msgspec
import pytest

from runcue.core.model.outputs import Output, WithOutputs, filled, outputs_in
from runcue.core.model.parse import decode_params, encode_params


@dataclass
class Page:
    text: Any
    more: Any = None


class Point(msgspec.Struct):
    x: Any


@attrs.define
class Mark:
    x: Any


@pytest.mark.parametrize(
    ("params", "ids"),
    [
        ({"a": Output("x")}, ["x"]),
        ({"a": [Output("x"), {"b": (Output("y"), 3)}]}, ["x", "y"]),
        ({"a": Page(Output("x"), [Page(1, Output("y"))])}, ["x", "y"]),
        ({"a": Point({"b": Output("x")}), "kind": Page}, ["x"]),
        ({"a": Mark([Output("x")])}, ["x"]),
        ({"a": {Output("x")}, "b": frozenset([Output("y")])}, ["x", "y"]),
        ({"a": {"$output": "x"}}, []),
        ({"a": "text"}, []),
    ],
)
def test_outputs_are_found_wherever_they_are(params: Any, ids: list[str]) -> None:
    assert list(outputs_in(params)) == ids


def test_the_result_is_put_where_the_output_was() -> None:
    params = {"a": Output("x"), "b": [1, Output("y"), {"c": Output("x")}], "d": "text"}
    data = encode_params(params, 10_000)
    assert type(data) is WithOutputs
    assert data.ids == ("x", "y")
    results = {"x": {"page": 1}, "y": None}
    assert filled(decode_params(data), results) == {
        "a": {"page": 1}, "b": [1, None, {"c": {"page": 1}}], "d": "text",
    }  # fmt: skip


@pytest.mark.parametrize(
    "value", [{"$output": "z"}, {"$output": 5}, {"$output": "x", "more": 1}, {"$output": ["x"]}]
)
def test_what_only_looks_like_an_output_stays(value: Any) -> None:
    assert filled({"a": value}, {"x": 1}) == {"a": value}
