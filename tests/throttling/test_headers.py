"""What responses tell of limits: each API's own way, whatever kind of mapping holds the headers."""

import asyncio
from collections.abc import Callable, Mapping
from email.message import Message
from types import SimpleNamespace
from typing import Any

import aiohttp
import httpx
import pytest
import requests
from hypothesis import example, given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy
from requests.structures import CaseInsensitiveDict

from runcue.core.limits.headers import LONGEST_HEADER, MOST_HEADERS, Left, read
from tests.throttling.farside import DATE, Answer, FarSide

NOW = 1_767_225_600.0  # 2026-01-01T00:00:00Z
DAY = 86400.0


def read_now(headers: Any) -> list[Left]:
    return read(headers, NOW)


# --- Each API's own way ---------------------------------------------------------------------------


def test_openai_tells_of_requests_and_tokens() -> None:
    headers = {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-limit-tokens": "150000",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-remaining-tokens": "149984",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-reset-tokens": "6m0s",
    }
    assert read_now(headers) == [Left("", 59, 1.0), Left("tokens", 149984, 360.0)]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1.0),
        ("20ms", 0.02),
        ("6m0s", 360.0),
        ("1m30.5s", 90.5),
        ("1h2m3s", 3723.0),
        ("350µs", 0.00035),
        ("17.25s", 17.25),
        ("1d", DAY),
        ("2d3h", DAY),
        ("0s", 0.0),
        ("12", 12.0),
        ("7.5", 7.5),
        ("0", 0.0),
        ("999999999", DAY),
        (str(int(NOW) + 30), 30.0),
        (f"{NOW + 30.5}", 30.5),
        (str(int(NOW + 30) * 1000), 30.0),
        (str(int(NOW) - 30), 0.0),
        (str(int(NOW) + 400000), DAY),
        ("2026-01-01T00:00:30Z", 30.0),
        ("2026-01-01T00:00:30.500+00:00", 30.5),
        ("2026-01-01T01:00:30+01:00", 30.0),
        ("2026-01-01T00:00:30", 30.0),
        ("2025-12-31T00:00:00Z", 0.0),
        ("9999-12-31T23:59:59Z", DAY),
        ("0001-01-01T00:00:00+14:00", 0.0),
        ("Thu, 01 Jan 2026 00:00:30 GMT", 30.0),
        (" 12 ", 12.0),
    ],
)
def test_a_reset_is_read_in_every_form(text: str, seconds: float) -> None:
    headers = {"x-ratelimit-remaining": "5", "x-ratelimit-reset": text}
    [left] = read_now(headers)
    assert (left.quantity, left.remaining) == ("", 5)
    assert left.resets_in == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "soon",
            "-5",
            "-1ms",
            "1e3",
            "nan",
            "inf",
            "1 s",
            "1s later",
            "s",
            "1x",
            "١٢",
            "9" * 30,
            "1m" * 9,
        ),
        *("2026-13-01T00:00:00Z", "12:00", "None", "1_000", "0x10", "\0"),
    ],
)
def test_a_reset_that_cannot_be_read_says_nothing(text: str) -> None:
    assert read_now({"x-ratelimit-remaining": "5", "x-ratelimit-reset": text}) == []
    assert read_now({"x-ratelimit-remaining-tokens": "5", "x-ratelimit-reset-tokens": text}) == []
    assert read_now({"RateLimit": f'"a";r=5;t={text}'}) == []


@pytest.mark.parametrize(
    "text", ["", "many", "-1", "1.5", "1e3", "nan", "١٢", "9" * 19, "5, 5", "0x10", "+5"]
)
def test_a_remainder_that_cannot_be_read_says_nothing(text: str) -> None:
    assert read_now({"x-ratelimit-remaining": text, "x-ratelimit-reset": "12"}) == []
    assert read_now({"RateLimit": f'"a";r={text};t=12'}) == []


def test_anthropic_tells_of_four_limits() -> None:
    headers = {}
    for number, what in enumerate(("requests", "tokens", "input-tokens", "output-tokens")):
        headers[f"anthropic-ratelimit-{what}-limit"] = "1000"
        headers[f"anthropic-ratelimit-{what}-remaining"] = str(number)
        headers[f"anthropic-ratelimit-{what}-reset"] = f"2026-01-01T00:00:0{number}Z"
    assert read_now(headers) == [
        Left("", 0, 0.0),
        Left("tokens", 1, 1.0),
        Left("input_tokens", 2, 2.0),
        Left("output_tokens", 3, 3.0),
    ]


@pytest.mark.parametrize("prefix", ["x-ratelimit", "x-rate-limit", "ratelimit", "X-RateLimit", "RateLimit"])
def test_many_tell_of_requests_alone(prefix: str) -> None:
    headers = {f"{prefix}-Limit": "60", f"{prefix}-Remaining": "12", f"{prefix}-Reset": "30"}
    assert read_now(headers) == [Left("", 12, 30.0)]


def test_github_tells_a_moment() -> None:
    headers = {
        "x-ratelimit-limit": "5000",
        "x-ratelimit-remaining": "0",
        "x-ratelimit-reset": str(int(NOW) + 1800),
        "x-ratelimit-used": "5000",
        "x-ratelimit-resource": "core",
    }
    assert read_now(headers) == [Left("", 0, 1800.0)]


def test_limits_for_several_periods_are_told_apart() -> None:
    headers = {
        "x-ratelimit-remaining-requests-day": "14000",
        "x-ratelimit-reset-requests-day": "33011.38",
        "x-ratelimit-remaining-tokens-minute": "900",
        "x-ratelimit-reset-tokens-minute": "11.5",
        "x-ratelimit-remaining-req-minute": "4",
        "x-ratelimit-reset-req-minute": "11.5",
        "x-ratelimit-remaining-hour": "7",
        "x-ratelimit-reset-hour": "60",
    }
    assert read_now(headers) == [
        Left("", 14000, 33011.38),
        Left("tokens", 900, 11.5),
        Left("", 4, 11.5),
        Left("", 7, 60.0),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"default";r=50;t=30', [Left("", 50, 30.0)]),
        ("default;r=50;t=30", [Left("", 50, 30.0)]),
        ('"default" ; r=50 ; t=30;pk=:sdfjLJUOUH==:', [Left("", 50, 30.0)]),
        ('"burst";r=5;t=1, "daily";r=900;t=3600', [Left("", 5, 1.0), Left("", 900, 3600.0)]),
        ('"a;r=1;t=1, b";r=50;t=30', [Left("", 50, 30.0)]),
        (r'"a\";r=1";r=50;t=30', [Left("", 50, 30.0)]),
        ("limit=100, remaining=50, reset=30", [Left("", 50, 30.0)]),
        ('"default";r=50', []),
        ('"default";t=30', []),
        ('"default', []),
        (",;,;", []),
        ("=;=", []),
        ("limit=100, remaining=50", []),
    ],
)
def test_the_standard_header_is_a_list(text: str, expected: list[Left]) -> None:
    assert read_now({"RateLimit": text}) == expected


def test_the_policy_says_what_is_counted() -> None:
    headers = {
        "RateLimit-Policy": '"calls";q=100;w=60;qu="requests", "size";q=5000;w=60;qu="content-bytes"',
        "RateLimit": '"calls";r=50;t=30, "size";r=4096;t=20, "unknown";r=1;t=2',
    }
    assert read_now(headers) == [Left("", 50, 30.0), Left("content_bytes", 4096, 20.0), Left("", 1, 2.0)]


# --- Retry-After ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "120"}, 120.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"Retry-After": "-5"}, 0.0),
        ({"Retry-After": "1e300"}, DAY),
        ({"Retry-After": "Thu, 01 Jan 2026 00:02:00 GMT"}, 120.0),
        ({"Retry-After": "Thu Jan  1 00:02:00 2026"}, 120.0),
        ({"Retry-After": "Thu, 01 Jan 2015 00:02:00 GMT"}, 0.0),
        ({"Retry-After": "99", "retry-after-ms": "250"}, 0.25),
        ({"Retry-After": "99", "retry-after-ms": "soon"}, 99.0),
    ],
)
def test_retry_after_leaves_nothing_until_then(headers: dict[str, str], seconds: float) -> None:
    assert read_now(headers) == [Left("", 0, seconds)]


@pytest.mark.parametrize("text", ["", "soon", "nan", "12s", "Thu, 99 Jan 2026 00:02:00 GMT"])
def test_retry_after_that_cannot_be_read_says_nothing(text: str) -> None:
    assert read_now({"Retry-After": text}) == []


def test_retry_after_holds_besides_what_else_is_told() -> None:
    headers = {"x-ratelimit-remaining-tokens": "9", "x-ratelimit-reset-tokens": "1s", "retry-after": "5"}
    assert read_now(headers) == [Left("tokens", 9, 1.0), Left("", 0, 5.0)]


def test_the_same_is_told_once() -> None:
    headers = {
        "x-ratelimit-remaining": "0",
        "x-ratelimit-reset": "5",
        "Retry-After": "5",
        "RateLimit": "a;r=0;t=5",
    }
    assert read_now(headers) == [Left("", 0, 5.0)]


def test_moments_are_read_by_the_clock_of_the_far_side_where_it_tells_it() -> None:
    date = {"Date": "Thu, 01 Jan 2026 01:00:00 GMT"}  # an hour ahead of us
    assert read_now({**date, "Retry-After": "Thu, 01 Jan 2026 01:02:00 GMT"}) == [Left("", 0, 120.0)]
    moment = {"x-ratelimit-remaining": "5", "x-ratelimit-reset": str(int(NOW) + 3630)}
    assert read_now({**date, **moment}) == [Left("", 5, 30.0)]
    assert read_now({"Date": "today", **moment}) == [Left("", 5, 3630.0)]


# --- Any mapping ----------------------------------------------------------------------------------

TOLD = {"X-RateLimit-Remaining-Tokens": "9", "x-ratelimit-reset-tokens": "30s", "RETRY-AFTER": "5"}


def as_message(headers: Mapping[str, str]) -> Message:
    message = Message()
    for name, value in headers.items():
        message[name] = value
    return message


MAPPINGS: dict[str, Callable[[dict[str, str]], Any]] = {
    "dict": dict,
    "httpx": httpx.Headers,
    "requests": CaseInsensitiveDict,
    "aiohttp": lambda headers: CIMultiDictProxy(CIMultiDict(headers)),
    "email": as_message,
    "upper case": lambda headers: {name.upper(): value for name, value in headers.items()},
    "bytes": lambda headers: {name.encode(): value.encode() for name, value in headers.items()},
    "bytes values": lambda headers: {name: value.encode() for name, value in headers.items()},
}


@pytest.mark.parametrize("make", MAPPINGS.values(), ids=MAPPINGS)
def test_headers_are_read_from_any_mapping(make: Callable[[dict[str, str]], Any]) -> None:
    assert read_now(make(TOLD)) == [Left("tokens", 9, 30.0), Left("", 0, 5.0)]


def test_numbers_are_values_too() -> None:
    assert read_now({"x-ratelimit-remaining": 5, "x-ratelimit-reset": 30}) == [Left("", 5, 30.0)]


def test_a_list_may_come_in_several_lines() -> None:
    lines = CIMultiDict([("RateLimit", "a;r=5;t=1"), ("RateLimit", "b;r=6;t=2")])
    assert read_now(lines) == [Left("", 5, 1.0), Left("", 6, 2.0)]


def test_of_anything_else_that_comes_twice_the_last_counts() -> None:
    lines = CIMultiDict([("Retry-After", "5"), ("Retry-After", "6")])
    assert read_now(lines) == [Left("", 0, 6.0)]


async def headers_of_aiohttp(url: str) -> Any:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.headers


def test_headers_of_real_responses_are_read(far_side: FarSide) -> None:
    far_side.answers.extend([Answer(200, TOLD)] * 3)
    expected = [Left("tokens", 9, 30.0), Left("", 0, 5.0)]
    assert read_now(httpx.get(far_side.url, trust_env=False).headers) == expected
    assert read_now(requests.get(far_side.url, timeout=240).headers) == expected
    assert read_now(asyncio.run(headers_of_aiohttp(far_side.url))) == expected


# --- Foreign and hostile --------------------------------------------------------------------------


def trap(*_: object) -> Any:
    raise RuntimeError("do not touch")


NO_HEADERS: dict[str, Any] = {
    "nothing": None,
    "a number": 5,
    "text": "Retry-After: 5",
    "a list": [("Retry-After", "5")],
    "items that raise": SimpleNamespace(items=trap),
    "items that are no pairs": SimpleNamespace(items=lambda: [1, 2]),
    "a value without words": {"Retry-After": type("Hostile", (), {"__str__": trap})()},
}


@pytest.mark.parametrize("kind", NO_HEADERS)
def test_what_are_no_headers_say_nothing(kind: str) -> None:
    assert read_now(NO_HEADERS[kind]) == []


def test_endless_headers_end() -> None:
    assert read_now(SimpleNamespace(items=lambda: iter(lambda: ("a", "b"), None))) == []


def test_so_many_headers_are_looked_at_and_no_more() -> None:
    padding = {f"x-{number}": "" for number in range(MOST_HEADERS - 1)}
    assert read_now({**padding, "Retry-After": "5"}) == [Left("", 0, 5.0)]
    assert read_now({**padding, "x-more": "", "Retry-After": "5"}) == []


def test_a_header_of_a_thousand_characters_is_read_and_a_longer_one_is_not() -> None:
    told = '"a";r=5;t=30;x='
    longest = told + "x" * (LONGEST_HEADER - len(told))
    assert read_now({"RateLimit": longest}) == [Left("", 5, 30.0)]
    assert read_now({"RateLimit": longest + "x"}) == []


def test_lines_that_are_too_long_together_do_not_add_up() -> None:
    lines = CIMultiDict([("RateLimit", "a;r=5;t=1"), *[("RateLimit", "x" * 600)] * 9])
    assert read_now(lines) == [Left("", 5, 1.0)]


@pytest.mark.parametrize(
    "piece", ['"', '\\"', ",", ";", '";', "1m", "9", "-", "a-", "=", " ", "(", "1.", '"\\']
)
def test_no_text_takes_long(piece: str) -> None:
    for start in ("", '"', "a;", "1"):
        text = (start + piece * LONGEST_HEADER)[:LONGEST_HEADER]
        lists = {"ratelimit": text, "ratelimit-policy": text}
        times = {"date": text, "retry-after": text, "x-ratelimit-remaining": text, "x-ratelimit-reset": text}
        names = {f"x-ratelimit-reset-{text}": "5", f"anthropic-ratelimit-{text}-remaining": "5"}
        assert all(left.resets_in <= DAY for left in read_now({**lists, **times, **names}))


NAMES = st.sampled_from(
    [
        "Retry-After",
        "retry-after-ms",
        "Date",
        "RateLimit",
        "RateLimit-Policy",
        "RateLimit-Remaining",
        "RateLimit-Reset",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-reset-tokens",
        "anthropic-ratelimit-input-tokens-remaining",
        "anthropic-ratelimit-input-tokens-reset",
    ]
)
VALUES = st.one_of(
    st.text(max_size=40),
    st.text('0123456789.:;,="rtdhms-+TZ ', max_size=40),
    st.integers().map(str),
    st.floats().map(str),
    st.datetimes().map(str),
    st.datetimes(timezones=st.timezones()).map(lambda when: when.isoformat()),
    st.binary(max_size=40),
    st.none(),
    st.just(DATE),
)


@given(st.dictionaries(NAMES | st.text(max_size=20), VALUES, max_size=12), st.floats() | st.just(NOW))
@example({"x-ratelimit-remaining": "1", "x-ratelimit-reset": "0001-01-01T00:00:00+23:59"}, NOW)
@example({"Date": "Mon, 01 Jan 0001 00:00:00 +2359", "Retry-After": DATE}, NOW)
@example({"RateLimit-Remaining": "1", "RateLimit-Reset": "2000000000"}, float("nan"))
@example({"RateLimit-Remaining": "1", "RateLimit-Reset": "2000000000"}, float("-inf"))
def test_whatever_comes_is_read_or_ignored(headers: dict[Any, Any], now: float) -> None:
    for left in read(headers, now):
        assert left.remaining >= 0
        assert 0 <= left.resets_in <= DAY
        assert left.quantity == left.quantity.lower()
