"""The circuit breaker: when a failing service is left alone, and how it is tried again."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runcue.core.limits.breaker import CLOSED, HALF_OPEN, LONGEST_WAIT, OPEN, UNLIMITED, WIDEST_RAMP, Breaker

NOW = 1_700_000_000.0


def fail(breaker: Breaker, now: float = NOW) -> str | None:
    breaker.started(now)
    return breaker.ended(breaker.epoch, False, now)


def succeed(breaker: Breaker, now: float = NOW) -> str | None:
    breaker.started(now)
    return breaker.ended(breaker.epoch, True, now)


def opened(threshold: int = 1, timeout: float = 10.0) -> Breaker:
    """A breaker that tripped NOW."""
    breaker = Breaker(threshold, timeout)
    for _ in range(threshold):
        fail(breaker)
    assert breaker.state == OPEN
    return breaker


def probing(timeout: float = 10.0) -> Breaker:
    """A breaker whose probe went out as soon as it might: at NOW + timeout."""
    breaker = opened(timeout=timeout)
    assert breaker.started(NOW + timeout) == HALF_OPEN
    return breaker


def closed_again() -> Breaker:
    """A breaker whose probe succeeded."""
    breaker = probing()
    assert breaker.ended(breaker.epoch, True, NOW + 11) == CLOSED
    return breaker


# --- closed ---------------------------------------------------------------------------------------


def test_a_closed_circuit_limits_nothing() -> None:
    breaker = Breaker(3, 10.0)
    assert breaker.started(NOW) is None
    assert breaker.room(NOW) == UNLIMITED
    assert breaker.changes_at() is None


def test_as_many_failures_in_a_row_as_the_threshold_open_it() -> None:
    breaker = Breaker(3, 10.0)
    assert [fail(breaker) for _ in range(3)] == [None, None, OPEN]


def test_one_success_starts_the_count_anew() -> None:
    breaker = Breaker(3, 10.0)
    told = [fail(breaker), fail(breaker), succeed(breaker), fail(breaker), fail(breaker), fail(breaker)]
    assert told == [None, None, None, None, None, OPEN]


def test_what_proves_nothing_is_neither_failure_nor_success() -> None:
    breaker = Breaker(2, 10.0)
    fail(breaker)
    breaker.started(NOW)
    assert breaker.ended(0, None, NOW) is None
    assert fail(breaker) == OPEN


# --- open -----------------------------------------------------------------------------------------


def test_nothing_starts_until_the_wait_is_over() -> None:
    breaker = opened(timeout=10.0)
    assert breaker.room(NOW) == 0
    assert breaker.room(math.nextafter(NOW + 10, 0)) == 0
    assert breaker.room(NOW + 10) == 1


@given(at=st.floats(min_value=0, max_value=4e9), timeout=st.floats(min_value=0.001, max_value=1e6))
@example(at=1_700_000_000.1, timeout=0.1)
@example(at=3.0000000000000004, timeout=0.1)
def test_an_open_circuit_names_the_first_moment_at_which_a_probe_may_go(at: float, timeout: float) -> None:
    breaker = Breaker(1, timeout)
    fail(breaker, at)
    until = breaker.changes_at()
    assert until is not None
    assert breaker.room(until) == 1
    assert breaker.room(math.nextafter(until, -math.inf)) == 0


def test_results_of_calls_from_before_the_trip_are_ignored() -> None:
    breaker = Breaker(1, 10.0)
    breaker.started(NOW)
    old = breaker.epoch
    fail(breaker)
    assert breaker.ended(old, True, NOW + 1) is None
    assert (breaker.state, breaker.failures) == (OPEN, 1)
    breaker.started(NOW + 10)
    assert breaker.ended(old, True, NOW + 11) is None
    assert breaker.ended(old, False, NOW + 11) is None
    assert breaker.state == HALF_OPEN


# --- half open ------------------------------------------------------------------------------------


def test_a_second_probe_waits_while_the_first_is_half_open() -> None:
    breaker = probing()
    assert breaker.room(NOW + 10) == 0
    assert breaker.room(NOW + 1000) == 0


def test_a_probe_has_a_deadline() -> None:
    breaker = probing(timeout=10.0)
    assert breaker.changes_at() == NOW + 20
    assert breaker.expire(math.nextafter(NOW + 20, 0)) is None
    assert breaker.expire(NOW + 20) == OPEN


def test_a_probe_past_its_deadline_has_failed_and_its_late_answer_is_ignored() -> None:
    breaker = probing(timeout=10.0)
    epoch = breaker.epoch
    breaker.expire(NOW + 20)
    assert breaker.ended(epoch, True, NOW + 21) is None
    assert breaker.state == OPEN
    assert breaker.changes_at() == NOW + 40


def test_time_alone_does_not_open_a_circuit_without_a_probe() -> None:
    assert Breaker(1, 10.0).expire(NOW) is None
    assert opened().expire(NOW + 1000) is None
    breaker = probing()
    breaker.ended(breaker.epoch, None, NOW + 11)
    assert breaker.expire(NOW + 1000) is None


def test_a_successful_probe_closes_it() -> None:
    breaker = probing()
    assert breaker.ended(breaker.epoch, True, NOW + 11) == CLOSED
    assert breaker.changes_at() is None


def test_a_failed_probe_opens_it_again_whatever_the_threshold() -> None:
    breaker = opened(threshold=5)
    breaker.started(NOW + 10)
    assert breaker.ended(breaker.epoch, False, NOW + 11) == OPEN


def test_a_probe_that_was_cancelled_or_lost_gives_its_place_back() -> None:
    breaker = probing()
    assert breaker.ended(breaker.epoch, None, NOW + 11) is None
    assert breaker.state == HALF_OPEN
    assert breaker.room(NOW + 11) == 1
    assert breaker.changes_at() is None


def test_the_probe_after_a_lost_one_is_a_probe_like_the_first() -> None:
    breaker = probing(timeout=10.0)
    breaker.ended(breaker.epoch, None, NOW + 11)
    assert breaker.started(NOW + 12) is None
    assert breaker.room(NOW + 12) == 0
    assert breaker.changes_at() == NOW + 22
    assert breaker.ended(breaker.epoch, True, NOW + 13) == CLOSED


def test_each_failed_probe_doubles_the_wait_up_to_eight_times_the_first() -> None:
    breaker = opened(timeout=10.0)
    now, waits = NOW, []
    for _ in range(6):
        until = breaker.changes_at()
        assert until is not None
        waits.append(until - now)
        now = until
        assert fail(breaker, now) == OPEN
    assert waits == [10, 20, 40, 80, 80, 80]
    assert LONGEST_WAIT == 8


def test_after_it_closed_the_next_trip_waits_as_long_as_the_first() -> None:
    breaker = probing(timeout=10.0)
    breaker.ended(breaker.epoch, False, NOW + 10)
    breaker.started(NOW + 30)
    breaker.ended(breaker.epoch, True, NOW + 30)
    assert fail(breaker, NOW + 31) == OPEN
    assert breaker.changes_at() == NOW + 41


# --- closed again ---------------------------------------------------------------------------------


def test_after_it_closed_capacity_doubles_with_each_round_of_successes_until_it_is_unlimited() -> None:
    breaker = closed_again()
    rounds = []
    while (room := breaker.room(NOW)) != UNLIMITED:
        rounds.append(room)
        for _ in range(room):
            breaker.started(NOW)
        for _ in range(room):
            breaker.ended(breaker.epoch, True, NOW)
    assert rounds == [2**step for step in range(11)]
    assert rounds[-1] == WIDEST_RAMP


def test_one_success_widens_the_ramp_only_when_it_was_one_wide() -> None:
    breaker = closed_again()
    rooms = []
    for _ in range(7):
        rooms.append(breaker.room(NOW))
        succeed(breaker)
    assert rooms == [1, 2, 2, 4, 4, 4, 4]


def test_a_second_trip_begins_the_ramp_anew() -> None:
    breaker = closed_again()
    succeed(breaker)
    succeed(breaker)  # half of what a ramp of two wants
    fail(breaker, NOW + 12)
    breaker.started(NOW + 22)
    breaker.ended(breaker.epoch, True, NOW + 22)
    rooms = []
    for _ in range(3):
        rooms.append(breaker.room(NOW + 22))
        succeed(breaker, NOW + 22)
    assert rooms == [1, 2, 2]


def test_running_calls_take_up_the_ramp_and_give_it_back() -> None:
    breaker = closed_again()
    succeed(breaker)
    breaker.started(NOW + 12)
    breaker.started(NOW + 12)
    assert breaker.room(NOW + 12) == 0
    breaker.ended(breaker.epoch, None, NOW + 13)
    assert breaker.room(NOW + 13) == 1
    breaker.ended(breaker.epoch, False, NOW + 14)
    assert breaker.state == OPEN


def test_calls_from_before_the_trip_do_not_take_up_the_ramp() -> None:
    breaker = Breaker(1, 10.0)
    for _ in range(5):
        breaker.started(NOW)
    fail(breaker)
    breaker.started(NOW + 10)
    breaker.ended(1, True, NOW + 11)
    breaker.ended(0, True, NOW + 11)
    assert breaker.room(NOW + 11) == 1


# --- Declaring again ------------------------------------------------------------------------------


def test_a_new_threshold_counts_from_the_next_failure() -> None:
    breaker = Breaker(5, 10.0)
    fail(breaker)
    fail(breaker)
    breaker.declare(2, 10.0)
    assert breaker.state == CLOSED
    assert fail(breaker) == OPEN


def test_a_trip_under_way_keeps_its_wait() -> None:
    breaker = opened(timeout=10.0)
    breaker.declare(1, 1.0)
    assert breaker.changes_at() == NOW + 10


@pytest.mark.parametrize("timeout", [1.0, 100.0])
def test_a_new_timeout_holds_from_the_next_trip(timeout: float) -> None:
    breaker = Breaker(1, 10.0)
    breaker.declare(1, timeout)
    fail(breaker)
    assert breaker.changes_at() == NOW + timeout


# --- Whatever happens -----------------------------------------------------------------------------


class AnyLife(RuleBasedStateMachine):
    """Starts where there is room, and ends of calls in any order, at any time."""

    @initialize(threshold=st.integers(1, 3), timeout=st.sampled_from([1.0, 10.0]))
    def begin(self, threshold: int, timeout: float) -> None:
        self.breaker = Breaker(threshold, timeout)
        self.now = NOW
        self.calls: list[int] = []
        self.told = CLOSED

    def hear(self, news: str | None) -> None:
        if news is not None:
            assert news != self.told
            self.told = news

    @rule(passed=st.sampled_from([0.0, 0.5, 1.0, 5.0, 10.0, 80.0]))
    def wait(self, passed: float) -> None:
        self.now += passed
        self.hear(self.breaker.expire(self.now))

    @precondition(lambda self: self.breaker.room(self.now) > 0)
    @rule()
    def start(self) -> None:
        self.hear(self.breaker.started(self.now))
        self.calls.append(self.breaker.epoch)

    @precondition(lambda self: self.calls)
    @rule(pick=st.integers(0, 50), verdict=st.sampled_from([True, False, False, None]))
    def end(self, pick: int, verdict: bool | None) -> None:
        epoch = self.calls.pop(pick % len(self.calls))
        self.hear(self.breaker.ended(epoch, verdict, self.now))

    @invariant()
    def news_tell_the_state(self) -> None:
        assert self.breaker.state == self.told

    @invariant()
    def running_is_what_was_started_since_the_last_trip(self) -> None:
        assert self.breaker.running == self.calls.count(self.breaker.epoch)

    @invariant()
    def at_most_one_probe_is_out(self) -> None:
        if self.breaker.state == HALF_OPEN:
            assert self.breaker.running + self.breaker.room(self.now) == 1

    @invariant()
    def it_is_never_stuck(self) -> None:
        if self.breaker.room(self.now) <= 0 and self.breaker.state != CLOSED:
            until = self.breaker.changes_at()
            assert until is not None
            assert self.now < until <= self.now + self.breaker.timeout * LONGEST_WAIT * (1 + 1e-9)


TestAnyLife = pytest.mark.no_cover(AnyLife.TestCase)
