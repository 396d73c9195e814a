"""What an answer means for the work, told by the exceptions that the libraries really raise."""

import pytest

from runcue.core.model.failure import classify
from tests.throttling.clients import CLIENTS, error_of
from tests.throttling.farside import Answer, FarSide

LATER = "Sun, 06 Nov 1994 08:51:37 GMT"
EARLIER = "Sun, 06 Nov 1994 08:00:00 GMT"
OBSOLETE = "Sunday, 06-Nov-94 08:51:37 GMT"

# Headers of an answer 429, and the pause that they ask for.
WAITS: dict[str, tuple[dict[str, str], float | None]] = {
    "seconds": ({"Retry-After": "7"}, 7.0),
    "a fraction": ({"retry-after": "0.5"}, 0.5),
    "milliseconds": ({"retry-after-ms": "250", "Retry-After": "1"}, 0.25),
    "a date": ({"Retry-After": LATER}, 120.0),
    "a date in an older form": ({"Retry-After": OBSOLETE}, 120.0),
    "a date in the past": ({"Retry-After": EARLIER}, 0.0),
    "a negative time": ({"Retry-After": "-5"}, 0.0),
    "a huge time": ({"Retry-After": "9" * 300}, 86400.0),
    "no time": ({}, None),
    "garbage": ({"Retry-After": "soon"}, None),
    "nothing": ({"Retry-After": ""}, None),
    "no number": ({"Retry-After": "nan"}, None),
}


def meaning(far_side: FarSide, client: str, answer: Answer) -> tuple[str, float | None]:
    far_side.answers.append(answer)
    failure = classify(error_of(client, far_side.url))
    return failure.kind, failure.after


@pytest.mark.parametrize("client", CLIENTS)
def test_429_is_throttling_for_the_time_it_names_if_that_can_be_read(far_side: FarSide, client: str) -> None:
    found = {wait: meaning(far_side, client, Answer(429, headers)) for wait, (headers, _) in WAITS.items()}
    assert found == {wait: ("throttled", seconds) for wait, (_, seconds) in WAITS.items()}
    assert [call.status for call in far_side.calls] == [429] * len(WAITS)  # no library tried again by itself


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("status", [503, 529])
def test_an_overload_is_throttling_if_it_names_a_time_and_an_error_else(
    far_side: FarSide, client: str, status: int
) -> None:
    waits = ("seconds", "milliseconds", "a date", "no time", "garbage")
    found = {wait: meaning(far_side, client, Answer(status, WAITS[wait][0])) for wait in waits}
    assert found == {
        "seconds": ("throttled", 7.0),
        "milliseconds": ("throttled", 0.25),
        "a date": ("throttled", 120.0),
        "no time": ("error", None),
        "garbage": ("error", None),
    }


@pytest.mark.parametrize("client", CLIENTS)
def test_an_answer_that_refuses_is_permanent_and_shows_that_somebody_is_there(
    far_side: FarSide, client: str
) -> None:
    refusals = (400, 401, 404, 422)
    far_side.answers.extend(Answer(status, {"Retry-After": "7"}) for status in refusals)
    found = [classify(error_of(client, far_side.url)) for _ in refusals]
    assert [(failure.kind, failure.is_answer) for failure in found] == [("permanent", True)] * len(refusals)


@pytest.mark.parametrize("client", CLIENTS)
def test_an_answer_that_tells_of_trouble_is_an_error(far_side: FarSide, client: str) -> None:
    troubles = (408, 500, 502, 504)
    far_side.answers.extend(Answer(status) for status in troubles)
    found = [classify(error_of(client, far_side.url)) for _ in troubles]
    assert [(failure.kind, failure.is_answer) for failure in found] == [("error", False)] * len(troubles)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_far_side_that_is_not_there_is_an_error(client: str) -> None:
    with FarSide() as gone:
        url = gone.url
    failure = classify(error_of(client, url))
    assert (failure.kind, failure.is_answer) == ("error", False)
