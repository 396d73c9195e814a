"""What users write becomes exact, or is refused with its name, its text and what would be right."""

import enum
import json
import math
import os
import re
import subprocess
import sys
import uuid
from collections import OrderedDict
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from time import thread_time
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runcue.core.model import parse
from runcue.core.model.parse import Rate, decode_params, duration, encode_params, moment, number, rates
from runcue.errors import (
    ConfigError,
    InvalidOption,
    InvalidParams,
    InvalidRate,
    StorageCorrupt,
    SubmitError,
    UnknownOption,
)

LIMIT = 256 * 1024


class Colour(enum.Enum):
    RED = "red"


class Size(enum.StrEnum):
    LARGE = "large"


class Level(enum.IntEnum):
    HIGH = 3


class Text(str):
    __slots__ = ()


class Fraction(float):
    pass


class Odd(dict[str, Any]):
    """A dict that equals nothing, not even itself."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = None


class Box(NamedTuple):
    left: int
    top: int


def nested(depth: int) -> dict[str, Any]:
    """Params of so many containers inside each other, the outermost included."""
    inner: Any = []
    for _ in range(depth - 2):
        inner = [inner]
    return {"a": inner}


# --- Numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, 5, 5.5, -3, Level.HIGH])
def test_a_number_becomes_a_float(value: float) -> None:
    assert number(value, "priority") == value
    assert type(number(value, "priority")) is float


def test_a_whole_number_stays_an_int() -> None:
    assert type(number(Level.HIGH, "size", whole=True)) is int


@pytest.mark.parametrize(
    "value", [True, False, None, "5", math.nan, math.inf, -math.inf, 10**400, 1j], ids=str
)
def test_what_is_no_finite_number_is_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidOption, match=r"Invalid priority: .*\. Expected a finite number\.$"):
        number(value, "priority")


@pytest.mark.parametrize("value", [True, 5.0, "5", None])
def test_what_is_not_whole_is_refused_where_it_must_be(value: object) -> None:
    with pytest.raises(InvalidOption, match="Expected a whole number"):
        number(value, "size", whole=True)


def test_bounds_are_included() -> None:
    assert number(1, "x", low=1, high=2) == 1
    assert number(2, "x", low=1, high=2) == 2


@pytest.mark.parametrize("value", [0.999, 2.001])
def test_what_is_out_of_bounds_is_refused_with_the_bounds(value: float) -> None:
    with pytest.raises(
        InvalidOption, match=f"Invalid x: {value}. Expected a finite number, at least 1, at most 2."
    ):
        number(value, "x", low=1, high=2)


def test_a_cap_on_running_work_is_a_whole_number_from_one() -> None:
    assert parse.concurrent(1) == 1
    assert parse.concurrent(1_000_000_000) == 1_000_000_000


@pytest.mark.parametrize("value", [0, -1, True, "5", 2.0, None, 1_000_000_001], ids=repr)
def test_another_cap_is_refused_and_quoted(value: object) -> None:
    with pytest.raises(ValueError, match="Invalid concurrent: ") as caught:
        parse.concurrent(value)
    assert repr(value) in str(caught.value)


# --- Durations ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0, 0.0),
        (90, 90.0),
        (0.5, 0.5),
        (timedelta(minutes=2), 120.0),
        ("200ms", 0.2),
        ("90s", 90.0),
        ("90sec", 90.0),
        ("5m", 300.0),
        ("5min", 300.0),
        ("1.5h", 5400.0),
        ("24h", 86400.0),
        ("2hours", 7200.0),
        ("7d", 604800.0),
        ("1day", 86400.0),
        (Text("5m"), 300.0),
    ],
)
def test_a_duration_is_read_in_every_form(value: object, seconds: float) -> None:
    assert duration(value, "timeout") == pytest.approx(seconds)
    assert type(duration(value, "timeout")) is float


@pytest.mark.parametrize(
    "value",
    [
        True,
        None,
        -1,
        -0.001,
        math.nan,
        math.inf,
        10**400,
        timedelta(seconds=-1),
        "",
        "90",
        "s",
        "-5s",
        "+5s",
        "5 s",
        " 5s",
        "5s\n",
        "5S",
        "5.s",
        ".5s",
        "1e3s",
        "nans",
        "infs",
        "5fortnights",
        "5m3s",
        "５s",
        "9" * 400 + "s",
        b"5s",
        [5],
    ],
    ids=lambda value: repr(value)[:20],
)
def test_another_duration_is_refused_with_its_name_and_the_forms(value: object) -> None:
    with pytest.raises(ConfigError, match=r"Invalid timeout: .*\. Expected seconds .* '7d'\.$"):
        duration(value, "timeout")


@given(st.floats(min_value=0, allow_infinity=False))
def test_seconds_stay_what_they_are(value: float) -> None:
    assert duration(value, "timeout") == value


def test_a_duration_may_be_left_out_only_where_it_is_optional() -> None:
    assert parse.optional_duration(None, "timeout") is None
    assert parse.optional_duration("5m", "timeout") == 300.0
    with pytest.raises(ConfigError, match="Invalid timeout: True"):
        parse.optional_duration(True, "timeout")


# --- Moments --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0, 0.0),
        (1_700_000_000.5, 1_700_000_000.5),
        (2**31, 2.0**31),
        (datetime(1970, 1, 2, tzinfo=UTC), 86400.0),
        (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), 0.0),
        (datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC), 253_402_300_799.0),
    ],
)
def test_a_moment_is_read_as_epoch_seconds(value: object, seconds: float) -> None:
    assert moment(value) == seconds


@pytest.mark.parametrize(
    "value",
    [
        -1,
        -0.5,
        253_402_300_800,
        math.nan,
        math.inf,
        True,
        None,
        "tomorrow",
        date(2030, 1, 1),
        datetime(1969, 12, 31, tzinfo=UTC),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))),
    ],
    ids=repr,
)
def test_a_moment_out_of_time_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"Invalid run_at: .* 1970 to 9999"):
        moment(value)


def test_a_datetime_without_a_zone_is_told_so() -> None:
    with pytest.raises(ConfigError, match="Expected a time zone with it"):
        moment(datetime(2030, 1, 1))  # noqa: DTZ001


# --- Rates ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "limit", "per"),
    [
        ("60/min", 60, 60.0),
        ("5/s", 5, 1.0),
        ("5/sec", 5, 1.0),
        ("5/second", 5, 1.0),
        ("5/seconds", 5, 1.0),
        ("5/m", 5, 60.0),
        ("5/minute", 5, 60.0),
        ("5/minutes", 5, 60.0),
        ("5/h", 5, 3600.0),
        ("5/hr", 5, 3600.0),
        ("5/hour", 5, 3600.0),
        ("5/d", 5, 86400.0),
        ("5/day", 5, 86400.0),
        ("100/10s", 100, 10.0),
        ("100/1.5h", 100, 5400.0),
        ("100/500ms", 100, 0.5),
        ("200k/min", 200_000, 60.0),
        ("2M/day", 2_000_000, 86400.0),
        ("1.1M/min", 1_100_000, 60.0),
        ("0.5k/s", 500, 1.0),
        ("1000M/s", 1_000_000_000, 1.0),
        ("007/s", 7, 1.0),
    ],
)
def test_a_rate_is_read_from_text(text: str, limit: int, per: float) -> None:
    assert rates(text) == (Rate(limit, per),)


@pytest.mark.parametrize("per", [60, 60.0, "1m", timedelta(minutes=1)])
def test_a_rate_is_read_from_a_pair(per: object) -> None:
    assert rates((60, per)) == (Rate(60, 60.0),)


def test_the_longest_window_is_included() -> None:
    assert rates((60, 1e9)) == (Rate(60, 1e9),)


def test_a_rate_cannot_be_changed() -> None:
    rate = Rate(60, 60.0)
    with pytest.raises(AttributeError):
        rate.limit = 61  # type: ignore[misc]


def test_a_list_is_several_rates() -> None:
    assert rates(["5/s", (100, 60), Rate(1000, 3600.0)]) == (
        Rate(5, 1.0),
        Rate(100, 60.0),
        Rate(1000, 3600.0),
    )


def test_a_rate_already_read_is_itself() -> None:
    assert rates(Rate(5, 1.0)) == (Rate(5, 1.0),)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "60",
        "/min",
        "60/",
        "0/min",
        "-1/s",
        "+1/s",
        "1e9/sec",
        "1.5/s",
        "1.0001k/s",
        "60 / min",
        " 60/min",
        "60/min ",
        "60/min\n",
        "６０/min",
        "60/1０s",
        "60/µs",
        "60/10",
        "60/0s",
        "60/-5s",
        "60/0.5ms",
        "60/20000d",
        "60/min/s",
        "5K/s",
        "1001M/s",
        "60;DROP TABLE/min",
        (60, 0),
        (60, -1),
        (60, math.inf),
        (60, math.nan),
        (60, "soon"),
        (60, True),
        (60, 1e9 + 1),
        (math.nan, 1),
        (0, 1),
        (-5, 1),
        (True, 1),
        (2.5, 1),
        ("60", 1),
        (10**9 + 1, 1),
        (10**5000, 1),
        (60,),
        (60, 60, 60),
        (),
        [],
        [60, 60],
        [["60/min"]],
        ["60/min", ""],
        0,
        60,
        True,
        None,
        math.nan,
        {"limit": 60},
        b"60/min",
    ],
    ids=lambda value: repr(value)[:30] if value != (10**5000, 1) else "huge",
)
def test_another_rate_is_refused_as_an_invalid_format(value: object) -> None:
    with pytest.raises(InvalidRate, match=r"^Invalid rate format: "):
        rates(value)


@pytest.mark.parametrize("text", ["0/min", "-1/s", "", "60", "60 / min", "６０/min"])
def test_a_refused_rate_is_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="Invalid rate format") as caught:
        rates(text)
    assert f"Invalid rate format: {text!r}." in str(caught.value)


@pytest.mark.parametrize("unit", ["fortnight", "Min", "w", "month"])
def test_an_unknown_unit_of_time_is_named(unit: str) -> None:
    with pytest.raises(InvalidRate, match=f"^Unknown rate unit: '{unit}' in '60/2{unit}'. Use ") as caught:
        rates(f"60/2{unit}")
    assert caught.value.unit == unit


@pytest.mark.parametrize(
    "text", ["6" * 1_000_000, "60/" + "s" * 1_000_000, "６" * 1_000_000, "\0" * 1_000_000]
)
def test_a_megabyte_is_refused_at_once_and_cut_to_eighty_characters(text: str) -> None:
    started = thread_time()
    with pytest.raises(InvalidRate) as caught:
        rates(text)
    assert thread_time() - started < 1  # of this thread's work, however busy the machine
    assert len(caught.value.given) <= 82
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (Rate(60, 60.0), "60/min"),
        (Rate(5, 1.0), "5/s"),
        (Rate(5, 3600.0), "5/h"),
        (Rate(5, 86400.0), "5/day"),
        (Rate(100, 10.0), "100/10s"),
        (Rate(100, 0.5), "100/0.5s"),
        (Rate(60, 60), "60/min"),
        (Rate(60, 90), "60/90s"),
    ],
)
def test_a_rate_is_shown_as_people_write_it(rate: Rate, text: str) -> None:
    assert str(rate) == text


@given(st.integers(1, 10**9), st.floats(0.001, 1e9))
def test_a_rate_as_shown_is_read_as_the_same_rate(limit: int, per: float) -> None:
    assert rates(str(Rate(limit, per))) == (Rate(limit, per),)


@pytest.mark.no_cover
@given(st.text())
@example("1/" + "9" * 61 + "s")
def test_any_text_is_a_rate_within_bounds_or_refused(text: str) -> None:
    try:
        (rate,) = rates(text)
    except InvalidRate:
        return
    assert 1 <= rate.limit <= 10**9
    assert 0.001 <= rate.per <= 1e9


# --- Names, ids, keys -----------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["a", "x" * 128, "'; DROP TABLE", "sérvice", "two words", Size.LARGE])
def test_a_name_is_any_short_printable_text(value: str) -> None:
    assert parse.name(value, "service") == value
    assert type(parse.name(value, "service")) is str


@pytest.mark.parametrize(
    "value", ["", "x" * 129, "x" * 10**6, "a\n", "a\0", "\ud800", "a\u202eb", None, 5, b"a"]
)
def test_another_name_is_refused_with_what_it_names(value: object) -> None:
    with pytest.raises(
        ConfigError, match=r"Invalid service name: .* 1 to 128 printable characters"
    ) as caught:
        parse.name(value, "service")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", ["a", "x" * 128, "ünïcode", Size.LARGE])
def test_an_id_is_any_short_printable_text(value: str) -> None:
    assert parse.work_id(value) == value
    assert type(parse.work_id(value)) is str


@pytest.mark.parametrize("value", ["", "x" * 129, "a\tb", "\x7f", "\ud800", None, 5])
def test_another_id_is_refused_at_submit(value: object) -> None:
    with pytest.raises(SubmitError, match=r"Invalid id: .* 1 to 128 printable characters"):
        parse.work_id(value)


@pytest.mark.parametrize("value", ["a", "x" * 512, "line\nbreak", "\x01", Size.LARGE])
def test_a_key_is_any_text_without_nul(value: str) -> None:
    assert parse.key(value) == value
    assert type(parse.key(value)) is str


def test_keys_that_look_alike_stay_different() -> None:
    assert parse.key("caf\u00e9") != parse.key("cafe\u0301")


@pytest.mark.parametrize("value", ["", "x" * 513, "x" * 10**6, "a\0b", "\ud800", None, 5, b"a"])
def test_another_key_is_refused_at_submit(value: object) -> None:
    with pytest.raises(SubmitError, match=r"Invalid idempotency_key: .* 1 to 512 characters") as caught:
        parse.key(value)
    assert len(str(caught.value)) < 200


def test_an_unknown_option_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        UnknownOption, match=r"^Cue\(\) has no option 'max_qeued'\. Did you mean 'max_queued'\?$"
    ):
        parse.reject_unknown({"name": 1, "max_qeued": 2}, ("name", "max_queued"), "Cue()")


def test_known_options_pass() -> None:
    parse.reject_unknown(["name"], {"name", "lease"}, "Cue()")


def test_suggestions_are_found_beside_the_rest_of_the_edge() -> None:
    assert parse.nearest("extrct", ["extract"]) == " Did you mean 'extract'?"


# --- Params ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [None, {}, OrderedDict()])
def test_no_params_are_an_empty_object(params: object) -> None:
    assert encode_params(params, LIMIT) == b"{}"


def test_params_become_compact_json() -> None:
    assert encode_params({"page": 1, "tags": ["a", None, True, 1.5]}, LIMIT) == (
        b'{"page":1,"tags":["a",null,true,1.5]}'
    )


@pytest.mark.parametrize("params", [[], [1], "", "text", 0, 5, (), True, b"{}"], ids=repr)
def test_params_that_are_no_dict_are_refused(params: object) -> None:
    with pytest.raises(InvalidParams, match=f"params must be a dict, not {type(params).__name__}"):
        encode_params(params, LIMIT)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ((1, (2, 3)), [1, [2, 3]]),
        (Box(1, 2), [1, 2]),
        (Text("a"), "a"),
        (Fraction(1.5), 1.5),
        (Size.LARGE, "large"),
        (Level.HIGH, 3),
        (
            [(), Level.HIGH, True, None, 1.5, Text("a"), {Text("k"): ()}],
            [[], 3, True, None, 1.5, "a", {"k": []}],
        ),
        (Odd(a=1), {"a": 1}),
        (2**64 - 1, 2**64 - 1),
        (-(2**63), -(2**63)),
        ([2**64 - 1, ()], [2**64 - 1, []]),
        ([-(2**63), ()], [-(2**63), []]),
        (1.7976931348623157e308, 1.7976931348623157e308),
        ("\0\u2028\U0001f600", "\0\u2028\U0001f600"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_equals_its_json_form_is_kept_as_that(value: object, kept: object) -> None:
    data = encode_params({"a": value}, LIMIT)
    assert repr(json.loads(data)) == repr({"a": kept})


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (
            datetime(2030, 1, 1, tzinfo=UTC),
            "is of type datetime, which JSON cannot hold. Pass its isoformat()",
        ),
        (date(2030, 1, 1), "is of type date, which JSON cannot hold. Pass its isoformat()"),
        (timedelta(1), "is of type timedelta, which JSON cannot hold. Pass its total_seconds()"),
        (b"x", "is of type bytes, which JSON cannot hold. Pass base64 text"),
        (bytearray(b"x"), "is of type bytearray, which JSON cannot hold. Pass base64 text"),
        ({1}, "is of type set, which JSON cannot hold. Pass a sorted list"),
        (frozenset(), "is of type frozenset, which JSON cannot hold. Pass a sorted list"),
        (Decimal("1.5"), "is of type Decimal, which JSON cannot hold. Pass it as text"),
        (uuid.UUID(int=1), "is of type UUID, which JSON cannot hold. Pass it as text"),
        (Path("x"), f"is of type {type(Path()).__name__}, which JSON cannot hold. Pass it as text"),
        (Colour.RED, "is of type Colour, which JSON cannot hold. Pass its value"),
        (1j, "is of type complex, which JSON cannot hold. Pass text, numbers"),
        (object(), "is of type object, which JSON cannot hold. Pass text, numbers"),
        (math.nan, "is nan, which JSON cannot hold. Pass None"),
        (math.inf, "is inf, which JSON cannot hold. Pass None"),
        (-math.inf, "is -inf, which JSON cannot hold. Pass None"),
        (2**64, "is a whole number of 65 bits, 64 are the most. Pass it as text"),
        (-(2**63) - 1, "is a whole number of 64 bits, 64 are the most. Pass it as text"),
        (10**5000, "is a whole number of 16610 bits, 64 are the most. Pass it as text"),
        ("\ud800", "is text with a lone surrogate"),
        ({3: 1}, "has the key 3 of type int. Keys must be valid text"),
        ({1.5: 1}, "has the key 1.5 of type float. Keys must be valid text"),
        ({None: 1}, "has the key None of type NoneType. Keys must be valid text"),
        ({True: 1}, "has the key True of type bool. Keys must be valid text"),
        ({"\ud800": 1}, r"has the key '\ud800' of type str. Keys must be valid text"),
    ],
    ids=lambda value: re.sub(" at 0x.*", "", repr(value))[:40] if value != 10**5000 else "huge",
)
def test_what_json_cannot_hold_is_refused_with_its_path_and_what_to_do(value: object, what: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        encode_params({"pages": [0, 1, 2, {"when": value}]}, LIMIT)
    assert caught.value.path == "params.pages[3].when"
    assert str(caught.value).startswith(f"params.pages[3].when {what}")


def test_a_key_that_is_no_identifier_is_quoted_in_the_path() -> None:
    with pytest.raises(InvalidParams, match=r"^params\['two words'\]\['3'\]\[0\] is nan"):
        encode_params({"two words": {"3": [math.nan]}}, LIMIT)


def test_a_long_path_is_cut() -> None:
    with pytest.raises(InvalidParams) as caught:
        encode_params({"x" * 1000: {"y" * 1000: math.nan}}, LIMIT)
    assert caught.value.path == "params." + "x" * 73 + "…"


def test_a_path_of_exactly_eighty_characters_is_whole() -> None:
    with pytest.raises(InvalidParams) as caught:
        encode_params({"x" * 73: math.nan}, LIMIT)
    assert caught.value.path == "params." + "x" * 73


def test_the_size_limit_is_included() -> None:
    params = {"text": "x" * 89}
    assert len(encode_params(params, 100)) == 100
    with pytest.raises(InvalidParams, match="params take 100 bytes as JSON, more than max_params=99"):
        encode_params(params, 99)


def test_the_size_limit_holds_for_params_that_took_the_slow_walk() -> None:
    params = {"text": Text("x" * 89)}
    assert len(encode_params(params, 100)) == 100
    with pytest.raises(InvalidParams, match="params take 100 bytes as JSON, more than max_params=99"):
        encode_params(params, 99)


def test_a_million_keys_are_refused_for_their_size() -> None:
    with pytest.raises(InvalidParams, match="more than max_params=262,144"):
        encode_params(dict.fromkeys(map(str, range(1_000_000))), LIMIT)


def test_a_hundred_containers_inside_each_other_are_accepted() -> None:
    params = nested(100)
    assert decode_params(encode_params(params, LIMIT)) == params


@pytest.mark.parametrize("depth", [101, 500, 5_000, 100_000])
def test_more_than_a_hundred_containers_inside_each_other_are_refused(depth: int) -> None:
    with pytest.raises(InvalidParams, match="is nested more than 100 deep"):
        encode_params(nested(depth), LIMIT)


def test_a_hundred_containers_with_a_tuple_among_them_are_accepted() -> None:
    params = nested(99)
    assert decode_params(encode_params({"b": (), **params, "a": (params["a"],)}, LIMIT)) == {
        "b": [],
        "a": [params["a"]],
    }


def test_depth_is_counted_through_dicts_and_tuples_too() -> None:
    params: Any = 1
    for _ in range(34):
        params = {"a": ([params],)}
    with pytest.raises(InvalidParams, match="is nested more than 100 deep"):
        encode_params(params, LIMIT)


def test_depth_is_counted_through_dicts() -> None:
    params: Any = 1
    for _ in range(101):
        params = {"a": params}
    with pytest.raises(InvalidParams, match="is nested more than 100 deep"):
        encode_params(params, LIMIT)


def test_many_containers_beside_each_other_are_accepted() -> None:
    params = {"rows": [{"cells": []} for _ in range(1000)], "text": "[" * 1000}
    assert decode_params(encode_params(params, LIMIT)) == params


def test_what_contains_itself_is_refused() -> None:
    inner: list[Any] = []
    inner += [inner, inner]
    with pytest.raises(InvalidParams, match="or contains itself"):
        encode_params({"a": inner}, LIMIT)


def test_params_are_copied() -> None:
    params = {"pages": [1]}
    data = encode_params(params, LIMIT)
    params["pages"].append(2)
    assert decode_params(data) == {"pages": [1]}


def test_reading_gives_a_new_dict_each_time() -> None:
    for data in (b"{}", b'{"a":1}'):
        assert decode_params(data) == decode_params(data)
        assert decode_params(data) is not decode_params(data)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b"null"])
def test_stored_params_that_are_no_object_are_damage(data: bytes) -> None:
    with pytest.raises(StorageCorrupt, match="Stored params are no JSON object"):
        decode_params(data)


def as_json(value: Any) -> Any:
    """The same with lists for tuples."""
    if isinstance(value, dict):
        return {field: as_json(item) for field, item in value.items()}
    return [as_json(item) for item in value] if isinstance(value, (list, tuple)) else value


json_leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
foreign_leaves = st.sampled_from(
    [2**64, -(2**63) - 1, math.nan, -math.inf, "\ud800", b"x", {1}, {1: 2}, Decimal(1)]
)


def params_of(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Params of any shape, with such leaves."""
    fields = st.text(max_size=4)
    branches = st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(fields, inner, max_size=3)
        ),
        max_leaves=8,
    )
    return st.dictionaries(fields, branches, max_size=3)


def is_json(value: Any) -> bool:
    """Whether a value means the same to every reader of JSON."""
    match value:
        case None | bool():
            return True
        case str():
            return not any("\ud800" <= character <= "\udfff" for character in value)
        case int():
            return -(2**63) <= value < 2**64
        case float():
            return math.isfinite(value)
        case list() | tuple():
            return all(map(is_json, value))
        case dict():
            return all(
                isinstance(field, str) and is_json(field) and is_json(item) for field, item in value.items()
            )
        case _:
            return False


@given(params_of(json_leaves | foreign_leaves))
def test_params_are_accepted_exactly_when_they_are_json_and_then_come_back_equal(
    params: dict[str, Any],
) -> None:
    if not is_json(params):
        with pytest.raises(InvalidParams):
            encode_params(params, LIMIT)
        return
    data = encode_params(params, LIMIT)
    assert decode_params(data) == as_json(params)
    assert json.loads(data) == as_json(params)


@given(params_of(json_leaves))
def test_what_comes_back_has_the_same_types_down_to_the_sign_of_zero(params: dict[str, Any]) -> None:
    assert repr(decode_params(encode_params(params, LIMIT))) == repr(as_json(params))


def test_importing_the_edge_does_not_load_what_only_mistakes_need() -> None:
    slow = {"difflib", "hashlib", "traceback", "email.utils"}
    code = f"import sys, runcue.core.model.failure; print(sorted({slow} & set(sys.modules)))"
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
