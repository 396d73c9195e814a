"""JSON logs: one object a line, whatever is logged, and no secret in it."""

import io
import json
import logging
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runcue import Cue, RunningWork
from runcue.instrument.logging import JsonFormatter
from tests.instrument.seen import BOUND

Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    logger = logging.getLogger("tests.app")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    yield logger
    logger.handlers.clear()


@pytest.fixture
def lines(log: logging.Logger) -> Lines:
    """What was logged so far, read as what it should be."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    handler.handleError = _fail  # type: ignore[method-assign]  # (else a formatter that fails is only printed)
    log.addHandler(handler)
    return lambda: [json.loads(line, parse_constant=_refused) for line in stream.getvalue().splitlines()]


def _fail(record: logging.LogRecord) -> None:
    raise AssertionError(f"{record!r} could not be written")


def _refused(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


async def test_an_event_is_an_object_with_its_fields(log: logging.Logger, lines: Lines) -> None:
    logger = logging.getLogger("runcue")
    logger.addHandler(log.handlers[0])
    logger.setLevel(logging.INFO)
    logger.propagate = False
    cue = Cue()

    @cue.task
    async def fragile(work: RunningWork) -> None:
        raise OSError("disk full at https://ann:hunter2@disks/")

    async with cue:
        await cue.submit(fragile, id="page-7")
        await cue.join(timeout=BOUND)
    [line] = lines()
    assert list(line) == [
        "time", "level", "logger", "message", "event", "work_id", "task", "attempt", "error", "will_retry", "duration"
    ]  # fmt: skip
    assert datetime.fromisoformat(line["time"]).utcoffset() == timedelta()
    assert line["level"] == "WARNING"
    assert line["logger"] == "runcue"
    assert line["event"] == "work_failed"
    assert line["work_id"] == "page-7"
    assert line["will_retry"] is False
    assert line["error"] == "OSError: disk full at https://ann:***@disks/"
    assert line["message"].startswith("work_failed: work_id=page-7")
    assert "hunter2" not in str(line)


def test_lines_of_the_application_have_their_extra(log: logging.Logger, lines: Lines) -> None:
    log.info("page %d", 7, extra={"pages": [1, 2], "time": "never", "name_of": Path("x")})
    [line] = lines()
    assert line["message"] == "page 7"
    assert line["pages"] == [1, 2]
    assert line["name_of"] == "x"
    assert line["time"] != "never"


def test_an_exception_is_text_without_secrets(log: logging.Logger, lines: Lines) -> None:
    try:
        raise OSError("password=hunter2 was wrong")
    except OSError:
        log.exception("no entry", stack_info=True)
    [line] = lines()
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert line["exception"].endswith("OSError: password=*** was wrong")
    assert line["stack"].startswith("Stack (most recent call last):\n")


def test_what_is_logged_outside_of_an_exception_as_one_has_none(log: logging.Logger, lines: Lines) -> None:
    log.error("no error", exc_info=(None, None, None))
    assert "exception" not in lines()[0]


class Hostile:
    """A value that nobody can look at."""

    def __str__(self) -> str:
        raise ValueError

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        raise ValueError

    __hash__ = object.__hash__


def endless() -> list[Any]:
    ring: list[Any] = []
    ring.append(ring)
    return ring


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        pytest.param(float("nan"), None, id="nan"),
        pytest.param(10**30, 10**30, id="large"),
        pytest.param(10**5000, "<int>", id="larger"),
        pytest.param("\ud800", "\\ud800", id="surrogate"),
        pytest.param("a\nb\u2028c\x85d", "a\nb\u2028c\x85d", id="newlines"),
        pytest.param({(1, 2): 3, Hostile: 4}, {"(1, 2)": 3, f"{Hostile}": 4}, id="keys"),
        pytest.param(Hostile(), "<Hostile>", id="hostile"),
        pytest.param({"password": Hostile()}, "<dict>", id="hostile-secret"),
        pytest.param(OSError("token=canary"), "OSError('token=***')", id="exception"),
        pytest.param({"cookie": "canary", "bad": "\ud800"}, "{'cookie': '***', 'bad': '\\ud800'}", id="both"),
        pytest.param(memoryview(b"ab"), "YWI=", id="bytes"),
    ],
)
def test_a_value_that_is_no_json_is_put_into_words(
    log: logging.Logger, lines: Lines, value: object, shown: object
) -> None:
    log.info("look", extra={"value": value})
    assert lines()[0]["value"] == shown


def test_a_value_that_contains_itself_ends(log: logging.Logger, lines: Lines) -> None:
    log.info("look", extra={"value": endless()})
    assert str(lines()[0]["value"]).strip("[]") == "'***'"


def test_a_secret_is_hidden_wherever_it_stands(log: logging.Logger, lines: Lines) -> None:
    log.info(
        "Authorization: Bearer canary1",
        extra={
            "api_key": "canary2",
            "params": {"user": {"password": "canary3"}},
            "url": "redis://u:canary4@h",
        },
    )
    [line] = lines()
    assert "canary" not in str(line)
    assert line["params"] == {"user": {"password": "***"}}


@pytest.mark.parametrize(
    ("message", "shown"), [("%d pages", "%d pages ('many',)"), (Hostile(), "<Hostile> ('many',)")]
)
def test_a_message_that_does_not_fit_its_arguments_is_shown_with_them(message: object, shown: str) -> None:
    record = logging.makeLogRecord({"msg": message, "args": ("many",)})
    assert json.loads(JsonFormatter().format(record))["message"] == shown


any_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers()), inner, max_size=4)
        | st.sets(st.integers(), max_size=4)
    ),
    max_leaves=10,
)


@given(message=st.text(), value=any_value)
def test_any_record_is_one_line_of_json(message: str, value: object) -> None:
    record = logging.makeLogRecord({"msg": message, "args": (), "value": value})
    line = JsonFormatter().format(record)
    assert len(line.splitlines()) == 1
    assert json.loads(line, parse_constant=_refused)["level"] == "Level None"
