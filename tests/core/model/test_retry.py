"""How often work is tried and how long it waits in between."""

import math
import os
import subprocess
import sys
from datetime import timedelta
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runcue.core.model.retry import Retry, delay_after
from runcue.errors import ConfigError

BACKOFFS = ["exponential", "linear", "fixed", "power"]
ANY_DELAY = st.floats(min_value=0, max_value=1.7e308)


def plain_delays(count: int = 4, **fields: Any) -> list[float]:
    retry = Retry(jitter=False, **fields)
    return [delay_after(retry, "w", attempt) for attempt in range(1, count + 1)]


async def is_transient(error: BaseException) -> bool:
    return True


# --- Reading a policy -----------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "attempts"), [(None, 1), (0, 1), (1, 1), (2, 2), (10, 10)])
def test_a_number_is_the_number_of_attempts_in_all(value: int | None, attempts: int) -> None:
    assert Retry.of(value) == Retry(max_attempts=attempts)


def test_a_dict_gives_the_fields() -> None:
    assert Retry.of({"max_attempts": 5, "base_delay": "1s"}) == Retry(max_attempts=5, base_delay=1.0)


def test_a_retry_is_itself() -> None:
    retry = Retry(max_attempts=7)
    assert Retry.of(retry) is retry


@pytest.mark.parametrize("count", [1, 3, 10])
def test_a_policy_that_was_given_as_a_count_is_equal_to_it(count: int) -> None:
    policy = Retry.of(count)
    assert policy == count
    assert count == policy
    assert policy != count + 1
    assert {count: "found"}[policy] == "found"  # type: ignore[index]


@pytest.mark.parametrize(
    "other", [{"backoff": "fixed"}, {"base_delay": 1}, {"jitter": False}, {"retry_on": OSError}], ids=repr
)
def test_a_policy_that_says_more_is_equal_to_no_count(other: dict[str, Any]) -> None:
    assert Retry(max_attempts=3, **other) != 3
    assert Retry(max_attempts=3, **other) != Retry(max_attempts=3)


FIELDS = {
    "max_attempts": st.integers(1, 4),
    "backoff": st.sampled_from(BACKOFFS),
    "base_delay": st.sampled_from([0.25, 1.0]),
    "max_delay": st.sampled_from([300.0, 60.0]),
    "jitter": st.booleans(),
    "retry_on": st.sampled_from([None, OSError]),
}


@given(st.fixed_dictionaries({}, optional=FIELDS))
def test_what_is_equal_has_the_same_hash(fields: dict[str, Any]) -> None:
    policy = Retry(**fields)
    assert (policy, hash(policy)) == (Retry(**fields), hash(Retry(**fields)))
    for other in (3, 3.0, True, 1, 0, None, "3", Retry(), Retry(1)):
        assert (policy == other) == (other == policy)
        assert hash(policy) == hash(other) or policy != other


def test_without_fields_there_are_three_attempts_with_exponential_backoff() -> None:
    assert Retry() == Retry(
        max_attempts=3, backoff="exponential", base_delay=0.25, max_delay=300.0, jitter=True, retry_on=None
    )


@pytest.mark.parametrize(
    "value", [True, False, -1, 1.5, "3", [3], pytest.param(object(), id="object")], ids=repr
)
def test_anything_else_is_refused_by_the_name_retry(value: object) -> None:
    with pytest.raises(ConfigError, match="Invalid retry: "):
        Retry.of(value)


def test_an_unknown_field_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(
        ConfigError, match=r"retry has no option 'max_atempts'\. Did you mean 'max_attempts'\?"
    ):
        Retry.of({"max_atempts": 3})


def test_a_field_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="retry has no option 3"):
        Retry.of({3: 3})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_attempts", 0),
        ("max_attempts", True),
        ("max_attempts", 2.5),
        ("backoff", "random"),
        ("backoff", None),
        ("backoff", ["fixed"]),
        ("base_delay", -1),
        ("base_delay", math.nan),
        ("base_delay", "soon"),
        ("max_delay", math.inf),
        ("max_delay", None),
        ("jitter", 1),
        ("jitter", "no"),
        ("retry_on", "ValueError"),
        ("retry_on", int),
        ("retry_on", [ValueError, int]),
        ("retry_on", [ValueError, "KeyError"]),
        ("retry_on", is_transient),
    ],
)
def test_a_field_that_cannot_be_is_refused_by_its_name(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"Invalid {field}: "):
        Retry.of({field: value})


def test_delays_are_taken_in_every_form_and_kept_as_seconds() -> None:
    retry = Retry(base_delay="500ms", max_delay=timedelta(minutes=5))
    assert (retry.base_delay, retry.max_delay) == (0.5, 300.0)
    assert type(Retry(base_delay=1).base_delay) is float


@pytest.mark.parametrize(
    ("given_as", "kept_as"),
    [
        (OSError, (OSError,)),
        ([OSError, KeyError], (OSError, KeyError)),
        ((OSError,), (OSError,)),
        ((), ()),
        (callable, callable),
        (None, None),
    ],
)
def test_exception_classes_are_kept_as_a_tuple_and_a_function_as_itself(
    given_as: Any, kept_as: object
) -> None:
    assert Retry(retry_on=given_as).retry_on == kept_as


def test_a_plain_function_may_choose() -> None:
    def is_transient(error: BaseException) -> bool:
        return isinstance(error, OSError)

    assert Retry(retry_on=is_transient).retry_on is is_transient


def test_a_policy_cannot_be_changed() -> None:
    retry = Retry()
    with pytest.raises(AttributeError):
        retry.max_attempts = 5  # type: ignore[misc]


def test_a_changed_copy_is_checked_like_the_first() -> None:
    with pytest.raises(ConfigError, match="Invalid base_delay"):
        msgspec.structs.replace(Retry(), base_delay=-1)


# --- Delays ---------------------------------------------------------------------------------------


def test_exponential_backoff_doubles() -> None:
    assert plain_delays(backoff="exponential", base_delay=0.25) == [0.25, 0.5, 1.0, 2.0]


def test_linear_backoff_grows_by_its_base() -> None:
    assert plain_delays(backoff="linear", base_delay=3) == [3.0, 6.0, 9.0, 12.0]


def test_fixed_backoff_stays() -> None:
    assert plain_delays(backoff="fixed", base_delay=3) == [3.0, 3.0, 3.0, 3.0]


def test_power_backoff_is_the_base_to_the_power_of_the_attempt() -> None:
    assert plain_delays(backoff="power", base_delay=3) == [3.0, 9.0, 27.0, 81.0]


def test_no_delay_exceeds_the_longest() -> None:
    assert plain_delays(backoff="exponential", base_delay=1, max_delay=3) == [1.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize("backoff", BACKOFFS)
@pytest.mark.parametrize("attempt", [2, 1100, 10**9, 10**400])
def test_what_a_float_cannot_hold_is_the_longest_delay(backoff: str, attempt: int) -> None:
    retry = Retry.of({"backoff": backoff, "base_delay": 1e308, "max_delay": 60, "jitter": False})
    assert delay_after(retry, "w", attempt) == 60.0


@pytest.mark.parametrize("backoff", BACKOFFS)
def test_a_base_of_zero_never_waits(backoff: str) -> None:
    retry = Retry.of({"backoff": backoff, "base_delay": 0})
    assert [delay_after(retry, "w", attempt) for attempt in (1, 2, 5000)] == [0.0, 0.0, 0.0]


@given(
    backoff=st.sampled_from(BACKOFFS),
    base_delay=ANY_DELAY,
    max_delay=ANY_DELAY,
    jitter=st.booleans(),
    work_id=st.text(),
    attempt=st.integers(min_value=1, max_value=10**6),
)
def test_a_delay_is_always_finite_and_within_bounds(
    backoff: str, base_delay: float, max_delay: float, jitter: bool, work_id: str, attempt: int
) -> None:
    fields = {"backoff": backoff, "base_delay": base_delay, "max_delay": max_delay, "jitter": jitter}
    assert 0 <= delay_after(Retry.of(fields), work_id, attempt) <= max_delay


@given(work_id=st.text(), attempt=st.integers(min_value=1, max_value=20))
def test_jitter_takes_between_half_and_all_of_the_delay(work_id: str, attempt: int) -> None:
    delay = delay_after(Retry(backoff="fixed", base_delay=100), work_id, attempt)
    assert 50 <= delay < 100
    assert delay == delay_after(Retry(backoff="fixed", base_delay=100), work_id, attempt)


def test_jitter_uses_the_whole_range_evenly() -> None:
    retry = Retry(backoff="fixed", base_delay=100)
    delays = [delay_after(retry, f"w{number}", 1) for number in range(10_000)]
    counts = [sum(1 for delay in delays if low <= delay < low + 5) for low in range(50, 100, 5)]
    assert all(850 < count < 1150 for count in counts)


def test_works_that_met_once_do_not_meet_again() -> None:
    retry = Retry(backoff="fixed", base_delay=100)
    ids = sorted((f"w{number}" for number in range(2000)), key=lambda work_id: delay_after(retry, work_id, 1))
    later = [delay_after(retry, work_id, 2) for work_id in ids]
    apart = [abs(first - second) for first, second in pairwise(later)]
    assert 15 < sum(apart) / len(apart) < 18.5  # a third of the range, as for numbers drawn independently


def test_jitter_is_the_same_in_every_process() -> None:
    code = "from runcue.core.model.retry import *; print(repr(delay_after(Retry(base_delay=64), 'w1', 2)))"
    answers = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert answers == {f"{delay_after(Retry(base_delay=64), 'w1', 2)!r}\n"}
