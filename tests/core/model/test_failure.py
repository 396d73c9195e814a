"""What an exception means for its work, known by its shape, however hostile it is."""

import json
from collections.abc import Callable
from datetime import timedelta
from email.message import Message
from http import HTTPStatus
from io import BytesIO
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runcue.core.model.failure import MESSAGE_BYTES, Failure, classify, describe, is_kind, traceback_text
from runcue.errors import CommandFailed, Permanent, RateLimited, RetryLater, Snooze
from tests import hostile

DATE = "Sun, 06 Nov 1994 08:49:37 GMT"
TWO_MINUTES_LATER = "Sun, 06 Nov 1994 08:51:37 GMT"


def error_with(**attributes: object) -> Exception:
    """An exception as some library would raise it, with these attributes."""
    error = RuntimeError("from afar")
    error.__dict__.update(attributes)
    return error


def with_response(status: object, headers: object = None) -> Exception:
    """An exception of the shape of httpx and requests."""
    return error_with(response=SimpleNamespace(status_code=status, headers=headers or {}))


def meaning(error: BaseException, retry_on: Any = None) -> tuple[str, float | None]:
    failure = classify(error, retry_on)
    return failure.kind, failure.after


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    """The same exception with a traceback."""
    try:
        raise error from cause
    except BaseException as caught:  # noqa: BLE001 (also SystemExit and the like)
        return caught


# --- What a handler raises on purpose -------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_as", "seconds"),
    [
        (12, 12.0),
        (0.5, 0.5),
        ("30s", 30.0),
        (timedelta(minutes=1), 60.0),
        ("2d", 172800.0),
        ("12", 12.0),
        (" 12 ", 12.0),
        ("999999999", 86400.0),
        (-3, 0.0),
        ("-3", 0.0),
        (None, None),
        (DATE, None),
        ("soon", None),
        (float("nan"), None),
        (True, None),
        ([12], None),
    ],
)
def test_being_rate_limited_throttles_for_what_the_far_side_said_if_it_can_be_read(
    given_as: Any, seconds: float | None
) -> None:
    assert meaning(RateLimited(given_as)) == ("throttled", seconds)


def test_being_rate_limited_may_name_the_service() -> None:
    assert classify(RateLimited(service="openai")).service == "openai"
    assert classify(RateLimited()).service is None


def test_a_service_that_is_no_name_is_ignored() -> None:
    assert classify(RateLimited(service=5)).service is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given_as", "seconds"), [(30, 30.0), ("5m", 300.0), (timedelta(1), 86400.0), (0, 0.0)]
)
def test_a_snooze_runs_again_after_its_time(given_as: Any, seconds: float) -> None:
    assert meaning(Snooze(given_as)) == ("snoozed", seconds)


@pytest.mark.parametrize("moment", [0, -1, "0s", timedelta(-1), timedelta(0), float("-inf")])
@pytest.mark.parametrize("steer", [Snooze, RetryLater, RateLimited])
def test_a_moment_that_is_past_means_at_once(steer: Callable[[Any], Exception], moment: Any) -> None:
    assert classify(steer(moment)).after == 0.0


def test_a_later_retry_is_an_error_with_its_own_time() -> None:
    assert meaning(RetryLater(after="30s")) == ("error", 30.0)


@pytest.mark.parametrize("steer", [Snooze, RetryLater])
@pytest.mark.parametrize("after", ["soon", None, float("nan"), True, False])
def test_a_time_that_cannot_be_read_fails_the_attempt_and_says_so(
    steer: Callable[[Any], Exception], after: object
) -> None:
    failure = classify(raised(steer(after)))
    assert (failure.kind, failure.after) == ("error", None)
    assert failure.message.startswith(f"InvalidOption: Invalid after of {steer(1).__class__.__name__}: ")
    assert "in raised" in failure.traceback


def test_a_permanent_error_is_permanent() -> None:
    assert meaning(Permanent("no such page")) == ("permanent", None)


def test_steering_is_not_subject_to_retry_on() -> None:
    assert meaning(RateLimited(1), OSError) == ("throttled", 1.0)
    assert meaning(Snooze(1), OSError) == ("snoozed", 1.0)
    assert meaning(RetryLater(1), OSError) == ("error", 1.0)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(RateLimited, ("throttled", None)), (Snooze, ("snoozed", 0.0)), (RetryLater, ("error", 0.0))],
)
def test_a_subclass_that_forgot_its_parents_init_still_steers(kind: type, expected: object) -> None:
    forgetful = type("Forgetful", (kind,), {"__init__": lambda self: None})
    assert meaning(forgetful()) == expected


# --- Errors in general ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        ValueError("oops"),
        TimeoutError(),
        SystemExit(1),
        SystemExit(404),
        KeyboardInterrupt(),
        GeneratorExit(),
    ],
    ids=repr,
)
def test_whatever_else_is_raised_is_an_error(error: BaseException) -> None:
    assert meaning(error) == ("error", None)


def test_a_cancellation_the_handler_raised_itself_is_an_error() -> None:
    cancelled = type("CancelledError", (BaseException,), {})
    assert classify(cancelled()).kind == "error"
    assert classify(cancelled()).message == "CancelledError"


def test_a_validation_error_of_any_library_is_permanent() -> None:
    theirs = type("ValidationError", (ValueError,), {})
    derived = type("BadInput", (theirs,), {})
    assert meaning(theirs()) == ("permanent", None)
    assert meaning(derived()) == ("permanent", None)


def test_a_name_that_only_resembles_it_is_an_error() -> None:
    assert meaning(type("MyValidationError", (ValueError,), {})()) == ("error", None)


@pytest.mark.parametrize("retry_on", [OSError, (OSError,), (KeyError, OSError)])
def test_what_the_classes_leave_out_is_permanent(retry_on: Any) -> None:
    assert meaning(ConnectionError(), retry_on) == ("error", None)
    assert meaning(ValueError(), retry_on) == ("permanent", None)


def test_what_the_function_denies_is_permanent() -> None:
    def is_transient(error: BaseException) -> object:
        return "busy" if "busy" in str(error) else 0

    assert meaning(ValueError("busy"), is_transient) == ("error", None)
    assert meaning(ValueError("broken"), is_transient) == ("permanent", None)


@pytest.mark.parametrize("failing", [ZeroDivisionError, SystemExit, GeneratorExit])
def test_a_function_that_fails_leaves_the_retry(failing: type[BaseException]) -> None:
    def is_transient(error: BaseException) -> bool:
        raise failing

    assert meaning(ValueError(), is_transient) == ("error", None)


def test_a_function_that_fails_is_named_in_the_message() -> None:
    def broken(error: BaseException) -> bool:
        raise TypeError("no len()")

    assert classify(ValueError("oops"), broken).message == (
        "ValueError: oops (retry_on raised TypeError: no len())"
    )


def test_a_function_that_fails_at_length_leaves_room_for_the_error_it_was_asked_about() -> None:
    def broken(error: BaseException) -> bool:
        raise TypeError("y" * 9999)

    message = classify(ValueError("x" * 9999), broken).message
    assert len(message.encode()) <= MESSAGE_BYTES
    assert message.startswith("ValueError: xxx")
    assert "(retry_on raised TypeError: yyy" in message
    assert message.count("x") > MESSAGE_BYTES / 2


def test_retry_on_cannot_save_what_is_permanent_anyway() -> None:
    assert meaning(Permanent(), Exception) == ("permanent", None)
    assert meaning(with_response(404), Exception) == ("permanent", None)


# --- What proves that the far side is there --------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "retry_on", "expected"),
    [
        (with_response(404), None, True),
        (error_with(status=401), OSError, True),
        (with_response(500), OSError, False),
        (with_response(408), OSError, False),
        (Permanent("no"), None, False),
        (ValueError(), OSError, False),
        (with_response(500), None, False),
        (with_response(429), None, False),
    ],
)
def test_a_permanent_failure_with_a_status_is_an_answer(
    error: BaseException, retry_on: Any, expected: bool
) -> None:
    assert classify(error, retry_on).is_answer is expected


# --- HTTP by shape --------------------------------------------------------------------------------


def of_urllib(status: int, headers: Message) -> Exception:
    """The exception of urllib, whose answer has been read."""
    error = HTTPError("http://far", status, "no", headers, BytesIO())
    error.close()
    return error


SHAPES: dict[str, Callable[[Any], Exception]] = {
    "httpx, requests": with_response,
    "wrapped aiohttp": lambda status: error_with(response=SimpleNamespace(status=status)),
    "sdk": lambda status: error_with(status_code=status),
    "aiohttp": lambda status: error_with(status=status),
    "urllib": lambda status: of_urllib(status, Message()),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_status_is_found_in_every_shape(shape: Callable[[int], Exception]) -> None:
    found = {status: classify(shape(status)).kind for status in (400, 408, 425, 429, 499, 500, 503, 599)}
    assert found == {
        400: "permanent",
        408: "error",
        425: "error",
        429: "throttled",
        499: "permanent",
        500: "error",
        503: "error",
        599: "error",
    }


@pytest.mark.parametrize(
    "status",
    [399, 600, 0, -404, "404", 404.0, None, True, [404], pytest.param(object(), id="object")],
    ids=repr,
)
def test_what_is_no_status_of_an_error_says_nothing(status: object) -> None:
    assert meaning(error_with(status_code=status)) == ("error", None)


def test_a_status_may_be_an_enum_member() -> None:
    assert meaning(with_response(HTTPStatus.NOT_FOUND)) == ("permanent", None)


def test_the_response_is_believed_before_the_exception() -> None:
    error = error_with(response=SimpleNamespace(status_code=500), status_code=404, code=404)
    assert meaning(error) == ("error", None)


def test_an_exception_without_its_response_is_asked_itself() -> None:
    assert meaning(error_with(response=None, status_code=404)) == ("permanent", None)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    "headers",
    [
        {"retry-after": "12"},
        {"Retry-After": "12"},
        {"RETRY-AFTER": 12},
        {b"Retry-After": b"12"},
        {"X-Other": "1", "Retry-After": " 12 "},
        {"Retry-After": "99", "Retry-After-Ms": "12000"},
        {"Retry-After": "12", "retry-after-ms": "soon"},
    ],
    ids=repr,
)
def test_retry_after_is_read_whatever_its_spelling(status: int, headers: dict[Any, Any]) -> None:
    assert meaning(with_response(status, headers)) == ("throttled", 12.0)


def test_headers_are_found_on_the_exception_too() -> None:
    assert meaning(error_with(status=429, headers={"Retry-After": "12"})) == ("throttled", 12.0)


def test_headers_of_urllib_are_understood() -> None:
    headers = Message()
    headers["Retry-After"] = "12"
    assert meaning(of_urllib(503, headers)) == ("throttled", 12.0)


def test_headers_of_the_response_come_before_those_of_the_exception() -> None:
    error = with_response(429, {"Retry-After": "12"})
    error.__dict__["headers"] = {"Retry-After": "99"}
    assert meaning(error) == ("throttled", 12.0)


def test_a_date_is_read_by_the_clock_of_the_far_side() -> None:
    headers = {"Retry-After": TWO_MINUTES_LATER, "Date": DATE}
    assert meaning(with_response(429, headers)) == ("throttled", 120.0)
    assert meaning(with_response(503, headers)) == ("throttled", 120.0)


@pytest.mark.parametrize(
    "date",
    [
        "Sun, 06 Nov 1994 08:49:37 -0000",
        "Sun, 06 Nov 1994 09:49:37 +0100",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
    ],
)
def test_a_date_is_read_in_every_form_that_http_has_had(date: str) -> None:
    headers = {"Retry-After": TWO_MINUTES_LATER, "Date": date}
    assert meaning(with_response(429, headers)) == ("throttled", 120.0)
    assert meaning(with_response(503, {"Retry-After": date, "Date": DATE})) == ("throttled", 0.0)


def test_a_date_that_has_passed_means_at_once() -> None:
    headers = {"Retry-After": DATE, "Date": TWO_MINUTES_LATER}
    assert meaning(with_response(429, headers)) == ("throttled", 0.0)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        None,
        {"Retry-After": "soon", "Date": DATE},
        {"Retry-After": "", "Date": DATE},
        {"Retry-After": "nan"},
        {"Retry-After": "12s"},
        {"Retry-After": ["12"]},
        [("Retry-After", "12")],
        "Retry-After: 12",
        {f"X-{number}": "" for number in range(1000)} | {"Retry-After": "12"},
    ],
    ids=lambda headers: repr(headers)[:60],
)
def test_a_wait_that_cannot_be_read_is_left_open(headers: Any) -> None:
    assert meaning(with_response(429, headers)) == ("throttled", None)
    assert meaning(with_response(503, headers)) == ("error", None)


@pytest.mark.parametrize(
    "headers",
    [
        {"Retry-After": TWO_MINUTES_LATER},
        {"Retry-After": TWO_MINUTES_LATER, "Date": ""},
        {"Retry-After": TWO_MINUTES_LATER, "Date": "today"},
    ],
    ids=repr,
)
@pytest.mark.parametrize("status", [429, 503])
def test_a_date_without_the_far_sides_clock_asks_to_wait_for_a_time_nobody_knows(
    status: int, headers: dict[str, str]
) -> None:
    assert meaning(with_response(status, headers)) == ("throttled", None)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("-5", 0.0), ("0", 0.0), ("1e300", 86400.0), ("inf", 86400.0), ("9" * 999, 86400.0)],
)
def test_an_absurd_wait_is_brought_within_a_day(value: str, seconds: float) -> None:
    assert meaning(with_response(429, {"Retry-After": value})) == ("throttled", seconds)


def test_an_absurd_date_is_brought_within_a_day() -> None:
    headers = {"Retry-After": "Sun, 06 Nov 2094 08:49:37 GMT", "Date": DATE}
    assert meaning(with_response(429, headers)) == ("throttled", 86400.0)


def test_an_overload_is_throttling_when_it_names_a_time() -> None:
    assert meaning(with_response(529, {"Retry-After": "12"})) == ("throttled", 12.0)
    assert meaning(with_response(529)) == ("error", None)


@pytest.mark.parametrize("said", [{"type": "rate_limit_error"}, {"code": "rate_limit_exceeded"}])
def test_a_stream_that_began_well_may_end_with_throttling(said: dict[str, object]) -> None:
    assert meaning(error_with(status_code=200, **said)) == ("throttled", None)
    assert meaning(error_with(status_code=400, **said)) == ("permanent", None)


@pytest.mark.parametrize("said", ["overloaded_error", None, 5, ["rate_limit_error"]])
def test_a_stream_that_ends_with_anything_else_is_an_error(said: object) -> None:
    assert meaning(error_with(status_code=200, type=said, code=said)) == ("error", None)


def from_aws(code: object, status: object, headers: object = None) -> Exception:
    """An exception of the shape of botocore."""
    metadata = {"HTTPStatusCode": status, "HTTPHeaders": headers or {}}
    return error_with(response={"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": metadata})


@pytest.mark.parametrize("status", [400, 403, 429, 500, 503])
@pytest.mark.parametrize(
    "code",
    [
        "Throttling",
        "ThrottlingException",
        "throttlingException",
        "ThrottledException",
        "RequestThrottled",
        "RequestThrottledException",
        "EC2ThrottledException",
        "TooManyRequestsException",
        "RequestLimitExceeded",
        "BandwidthLimitExceeded",
        "ProvisionedThroughputExceededException",
        "SlowDown",
    ],
)
def test_a_code_of_aws_that_asks_to_slow_down_is_throttling_with_any_status(code: str, status: int) -> None:
    assert meaning(from_aws(code, status)) == ("throttled", None)
    assert meaning(from_aws(code, status, {"retry-after": "12"})) == ("throttled", 12.0)


@pytest.mark.parametrize(
    "code",
    ["RequestTimeout", "PriorRequestNotComplete", "LimitExceededException", "TransactionInProgressException"],
)
def test_a_code_of_aws_for_a_passing_trouble_is_an_error_though_the_status_blames_the_caller(
    code: str,
) -> None:
    failure = classify(from_aws(code, 400))
    assert (failure.kind, failure.is_answer) == ("error", False)


@pytest.mark.parametrize("code", ["ResourceNotFoundException", "404", "", None, 5, ["SlowDown"]])
def test_any_other_code_of_aws_leaves_it_to_the_status(code: object) -> None:
    found = {status: classify(from_aws(code, status)).kind for status in (400, 404, 408, 429, 500, 503)}
    assert found == {
        400: "permanent",
        404: "permanent",
        408: "error",
        429: "throttled",
        500: "error",
        503: "error",
    }
    assert classify(from_aws(code, 404)).is_answer


@pytest.mark.parametrize(
    "response", [{}, {"Error": {}}, {"Error": None, "ResponseMetadata": []}, {"Error": 5}]
)
def test_a_response_that_only_resembles_that_of_aws_says_nothing(response: object) -> None:
    assert meaning(error_with(response=response)) == ("error", None)


def test_throttling_comes_before_retry_on() -> None:
    assert meaning(with_response(429), OSError) == ("throttled", None)


# --- Words ----------------------------------------------------------------------------------------


def test_the_message_names_the_class_and_its_text() -> None:
    assert describe(ValueError("oops")) == "ValueError: oops"


@pytest.mark.parametrize("error", [ValueError(), ValueError(""), KeyboardInterrupt()])
def test_an_exception_without_text_is_its_class(error: BaseException) -> None:
    assert describe(error) == type(error).__name__


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb\tc", "a\nb\tc"),
        ("a\0b", r"a\x00b"),
        ("a\rb", r"a\rb"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\x7f\x80\x9f", r"\x7f\x80\x9f"),
        ("\ud800", r"\ud800"),
        ("a\u2028b\u202eb\u2066", r"a\u2028b\u202eb\u2066"),
        ("é → 你好 😀\\", "é → 你好 😀\\"),
        ("\u202a\u2069", r"\u202a\u2069"),
        ("\xa0\u200f\u202f\u206a", "\xa0\u200f\u202f\u206a"),
    ],
    ids=ascii,
)
def test_control_characters_are_shown_escaped_and_all_else_as_it_is(text: str, shown: str) -> None:
    assert describe(Exception(text)) == f"Exception: {shown}"


def test_a_long_message_keeps_its_beginning() -> None:
    message = describe(ValueError("oops" + "x" * 50_000_000))
    assert message.startswith("ValueError: oopsxxx")
    assert message.endswith("x…")
    assert len(message.encode()) == 4096


def test_a_message_that_just_fits_is_whole() -> None:
    text = "x" * (4096 - len("ValueError: "))
    assert describe(ValueError(text)) == f"ValueError: {text}"


def test_a_character_is_never_cut_in_two() -> None:
    for padding in range(4):
        message = describe(ValueError("x" * padding + "😀" * 5000))
        assert message.endswith("😀…")
        assert 4093 <= len(message.encode()) <= 4096


@given(st.text(st.characters()) | st.text(st.characters(categories=["Cs", "Cc"])), st.integers(1, 500))
def test_any_message_can_be_stored_and_sent(text: str, times: int) -> None:
    message = describe(ValueError(text * times))
    assert len(message.encode()) <= 4096
    assert json.loads(json.dumps(message)) == message
    assert all(character in "\n\t" or not ("\0" <= character < " ") for character in message)


def test_the_traceback_tells_where_it_came_from_and_why() -> None:
    text = traceback_text(raised(ValueError("oops"), cause=KeyError("page")))
    assert text.startswith("KeyError: 'page'\n\nThe above exception was the direct cause")
    assert "in raised\n    raise error from cause\n" in text
    assert text.endswith("ValueError: oops\n")


def test_the_traceback_tells_what_is_in_a_group() -> None:
    text = traceback_text(raised(ExceptionGroup("both", [ValueError("left"), KeyError("right")])))
    assert "ValueError: left" in text
    assert "KeyError: 'right'" in text


def test_a_long_message_leaves_the_traceback_its_frames() -> None:
    text = traceback_text(raised(ValueError("x" * 1_000_000)))
    assert "in raised" in text
    assert len(text) < 5000


def test_of_a_long_traceback_the_end_is_kept() -> None:
    error: BaseException = raised(ValueError("the first"))
    for number in range(40):
        error = raised(ValueError(f"then {number} " + "😀" * 500), cause=error)
    text = traceback_text(error)
    assert text.startswith("…")
    assert "then 39" in text
    assert "the first" not in text
    assert 16 * 1024 - 4 <= len(text.encode()) <= 16 * 1024


def test_a_traceback_of_many_frames_shows_the_innermost() -> None:
    def even(left: int) -> None:
        odd(left - 1)

    def odd(left: int) -> None:
        if left < 0:
            raise ValueError("deep down")
        even(left - 1)

    with pytest.raises(ValueError, match="deep down") as caught:
        even(200)
    text = traceback_text(caught.value)
    assert text.count("  File ") == 50
    assert 'raise ValueError("deep down")' in text


@pytest.mark.parametrize("kind", ["cause", "context", "group"])
def test_an_exception_with_too_many_relatives_shows_itself_alone(kind: str) -> None:
    relative = raised(ValueError("relative"))
    for _ in range(60):
        link = ValueError("relative")
        link.__cause__ = relative if kind == "cause" else None
        link.__context__ = relative if kind == "context" else None
        relative = link
    if kind == "group":
        error = raised(BaseExceptionGroup("all", [ValueError("relative") for _ in range(60)]))
    else:
        error = raised(ValueError("last"), cause=relative)
    text = traceback_text(error)
    assert "in raised" in text
    assert "relative" not in text.replace("60 sub-exceptions", "")
    assert text.endswith(describe(error))


@pytest.mark.parametrize(("inside", "are_shown"), [(49, True), (50, False)])
def test_fifty_exceptions_in_all_are_shown(inside: int, are_shown: bool) -> None:
    error = raised(ExceptionGroup("all", [ValueError(f"relative {number}") for number in range(inside)]))
    assert ("relative 0" in traceback_text(error)) is are_shown


def test_a_failure_carries_message_and_traceback() -> None:
    failure = classify(raised(ValueError("oops")))
    assert failure == Failure("error", "ValueError: oops", failure.traceback, None, None)
    assert "in raised" in failure.traceback


def test_a_failure_cannot_be_changed() -> None:
    failure = classify(ValueError("oops"))
    with pytest.raises(AttributeError):
        failure.kind = "permanent"  # type: ignore[misc]


# --- Hostile exceptions ---------------------------------------------------------------------------


def trap(*_: object) -> Any:
    raise RuntimeError("do not touch")


def leave(*_: object) -> Any:
    raise SystemExit


class HostileName(type):
    __name__ = property(trap)


class Nameless(Exception, metaclass=HostileName):
    pass


class TrickyText(str):
    __slots__ = ()
    __len__ = __getitem__ = __format__ = __str__ = trap


HOSTILE: dict[str, BaseException] = {
    "str": type("Hostile", (Exception,), {"__str__": trap, "__repr__": trap})("oops"),
    "str that exits": type("Hostile", (Exception,), {"__str__": leave, "__repr__": leave})("oops"),
    "str of another type": type("Hostile", (Exception,), {"__str__": lambda self: 5})("oops"),
    "str of a tricky type": type("Hostile", (Exception,), {"__str__": lambda self: TrickyText("oops")})(),
    "any attribute": type("Hostile", (Exception,), {"__getattribute__": trap})("oops"),
    "missing attributes": type("Hostile", (Exception,), {"__getattr__": leave})("oops"),
    "status": type("Hostile", (Exception,), {"status_code": property(trap), "response": property(leave)})(),
    "class": type("Hostile", (Exception,), {"__class__": property(trap)})(),
    "notes": type("Hostile", (Exception,), {"__notes__": property(trap)})(),
    "cause": type("Hostile", (Exception,), {"__cause__": property(trap), "__context__": property(trap)})(),
    "truth": type(
        "Hostile", (Exception,), {"__bool__": trap, "__len__": trap, "__eq__": trap, "__hash__": trap}
    )(),
    "name": Nameless(),
    "headers": with_response(500, SimpleNamespace(items=trap)),
    "endless headers": with_response(500, SimpleNamespace(items=lambda: iter(lambda: ("a", "b"), None))),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_exception_is_an_error_with_a_message(name: str) -> None:
    failure = classify(raised(HOSTILE[name]))
    assert failure.kind == "error"
    assert failure.message
    assert json.loads(json.dumps(failure.message)) == failure.message


@pytest.mark.parametrize("name", ["str", "str that exits", "str of another type"])
def test_an_exception_that_cannot_be_put_into_words_is_its_class(name: str) -> None:
    assert describe(HOSTILE[name]) == "Hostile"


def test_an_exception_whose_class_has_no_name_is_called_an_exception() -> None:
    assert describe(HOSTILE["name"]) == "Exception"


@pytest.mark.parametrize("name", ["notes", "cause", "class"])
def test_a_hostile_exception_keeps_its_own_frames(name: str) -> None:
    assert "in raised" in traceback_text(raised(HOSTILE[name]))


@pytest.mark.parametrize(
    "headers", [SimpleNamespace(items=trap), SimpleNamespace(items=leave), property(trap)]
)
def test_hostile_headers_say_nothing(headers: object) -> None:
    assert meaning(with_response(429, headers)) == ("throttled", None)


def test_endless_headers_end() -> None:
    endless = SimpleNamespace(items=lambda: iter(lambda: ("a", "b"), None))
    assert meaning(with_response(429, endless)) == ("throttled", None)


def test_a_chain_that_bites_its_tail_ends() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    failure = classify(first)
    assert failure.message == "ValueError: first"
    assert "second" in failure.traceback


@pytest.mark.parametrize("way", ["raise", "raise odd"])
def test_no_exception_gets_past_its_own_classification(way: str) -> None:
    for number in hostile.NUMBERS:
        failure = classify(raised(hostile.one(way, number)))
        assert failure.kind == "error"
        assert failure.message


@pytest.mark.parametrize("way", ["raise", "raise odd"])
def test_no_exception_of_retry_on_gets_past_either(way: str) -> None:
    def retry_on(error: BaseException) -> bool:
        raise error

    for number in hostile.NUMBERS:
        assert classify(raised(hostile.one(way, number)), retry_on).kind == "error"


def test_an_interrupt_that_retry_on_raises_takes_nobodys_chance_away() -> None:
    def interrupted(error: BaseException) -> bool:
        raise KeyboardInterrupt

    failure = classify(ValueError("oops"), interrupted)
    assert (failure.kind, failure.message) == (
        "error",
        "ValueError: oops (retry_on raised KeyboardInterrupt)",
    )


def test_an_exception_is_of_the_class_that_it_was_made_from_whatever_it_says() -> None:
    liar = type("Liar", (ValueError,), {"__class__": SystemExit})()
    assert is_kind(liar, ValueError)
    assert not is_kind(liar, SystemExit)
    assert not is_kind(None, ValueError)


@pytest.mark.parametrize("is_answer", [False, True])
def test_a_command_that_failed_says_whether_its_host_answered(is_answer: bool) -> None:
    failure = classify(CommandFailed("exit code 3", {"exit_code": 3}, is_answer))
    assert (failure.kind, failure.is_answer) == ("error", is_answer)
    assert failure.message == "CommandFailed: exit code 3"
