"""Services and their limits: how many may start now, and when the next may."""

import math
from collections import deque
from itertools import pairwise

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from runcue.core.limits.service import UNLIMITED, Blocked, Limits, Service, Window
from runcue.core.model.failure import Failure
from runcue.core.model.parse import Rate
from runcue.core.model.record import Spec
from runcue.core.model.retry import Retry
from runcue.core.model.settings import Rule, Settings
from runcue.core.model.state import Grant
from runcue.core.schedule.gates import Allowance
from runcue.core.schedule.plan import Declare, Entered, Item, Outcome, Submit
from runcue.core.schedule.scheduler import Scheduler
from tests.core.bench_of_core import limits, sells

NOW = 1_700_000_000.0

TIMES = st.floats(min_value=0, max_value=4e9)
LENGTHS = st.floats(min_value=0.001, max_value=1e6)
STEPS = st.lists(
    st.tuples(
        st.one_of(st.just(0.0), st.floats(min_value=0, max_value=30)),
        st.sampled_from(["start", "start", "enter", "enter late", "give back"]),
        st.integers(min_value=0, max_value=9),
    ),
    max_size=60,
)


def window_with(limit: int, per: float, *stamps: float, waiting: int = 0) -> Window:
    return Window(Rate(limit, per), deque(sorted(stamps)), waiting)


def service_with(**limits: object) -> Service:
    return Service(Limits("api", **limits))  # type: ignore[arg-type]


def start(service: Service, at: float, amount: int = 1) -> None:
    """Grant that many starts and enter all of them at once."""
    service.active += amount
    service.granted(amount)
    for _ in range(amount):
        service.entered(at)


# --- One rate is an exact sliding window ----------------------------------------------------------


@given(
    limit=st.integers(min_value=1, max_value=5),
    per=st.floats(min_value=0.01, max_value=60),
    begin=TIMES,
    steps=STEPS,
)
def test_no_stretch_of_the_window_holds_more_entries_than_its_limit_and_no_start_is_refused_without_need(
    limit: int, per: float, begin: float, steps: list[tuple[float, str, int]]
) -> None:
    window = window_with(limit, per)
    granted: list[float] = []
    entered: list[float] = []
    now = begin
    for passed, action, pick in steps:
        now += passed
        room = window.room(now)
        used = len(granted) + sum(now - at < per for at in entered)
        assert room == limit - used
        if action == "start" and room > 0:
            window.open += 1
            granted.append(now)
        elif action == "give back" and granted:
            window.open -= 1
            granted.pop(pick % len(granted))
        elif action.startswith("enter") and granted:
            at = granted.pop(pick % len(granted))
            at = now if action == "enter" else at + (now - at) / 2
            window.entered(at)
            entered.append(at)
    entered.sort()
    assert all(late - early >= per for early, late in zip(entered, entered[limit:], strict=False))


def test_a_burst_at_the_edge_of_two_windows_is_held_back() -> None:
    window = window_with(5, 10.0)
    taken = []
    for now in [8.0] * 4 + [9.9] * 5 + [10.1] * 5 + [18.0] * 9:
        if window.room(now) > 0:
            window.open += 1
            window.entered(now)
            taken.append(now)
    assert taken == [8.0] * 4 + [9.9] + [18.0] * 4


def test_a_start_that_has_not_entered_its_handler_counts_however_old_its_grant_is() -> None:
    window = window_with(1, 10.0)
    window.open += 1
    assert window.room(NOW + 1000) == 0


def test_a_start_counts_from_its_entry_not_from_its_grant() -> None:
    window = window_with(1, 10.0)
    window.open += 1
    window.entered(NOW + 3)
    assert window.room(NOW + 10) == 0
    assert window.room(NOW + 13) == 1


def test_entries_may_be_reported_out_of_order() -> None:
    window = window_with(3, 10.0, waiting=3)
    for at in (5.0, 7.0, 6.0):
        window.entered(at)
    assert list(window.stamps) == [5.0, 6.0, 7.0]
    assert [window.room(at) for at in (14.9, 15.0, 16.0, 17.0)] == [0, 1, 2, 3]


# --- When a full window opens ---------------------------------------------------------------------


@given(stamp=TIMES, per=LENGTHS)
@example(stamp=1_700_000_000.1, per=0.1)
@example(stamp=0.1, per=0.7)
@example(stamp=0.6, per=1.25)
@example(stamp=4_503_599_627_370_497.5, per=1.0)
def test_a_full_window_opens_at_the_first_moment_with_room_and_not_a_hair_earlier(
    stamp: float, per: float
) -> None:
    window = window_with(1, per, stamp)
    assume(stamp + per > stamp)
    at = window.opens_at(stamp)
    assert at is not None
    assert window.room(math.nextafter(at, -math.inf)) == 0
    assert window.room(at) == 1


@given(
    limit=st.integers(min_value=1, max_value=4),
    stamps=st.lists(st.floats(min_value=NOW - 20, max_value=NOW), max_size=8),
    waiting=st.integers(min_value=0, max_value=4),
    per=st.floats(min_value=0.01, max_value=20),
)
def test_the_moment_a_window_opens_lies_ahead_or_hangs_on_an_entry(
    limit: int, stamps: list[float], waiting: int, per: float
) -> None:
    window = window_with(limit, per, *stamps, waiting=waiting)
    assume(window.room(NOW) <= 0)
    at = window.opens_at(NOW)
    if at is None:
        assert waiting >= limit
    else:
        assert at > NOW
        assert window.room(math.nextafter(at, -math.inf)) <= 0
        assert window.room(at) > 0


def test_a_window_filled_by_grants_alone_does_not_know_when_it_opens() -> None:
    assert window_with(2, 10.0, waiting=2).opens_at(NOW) is None


def test_a_window_over_its_limit_opens_when_all_of_the_excess_is_gone() -> None:
    window = window_with(1, 10.0, 1.0, 2.0, 3.0)
    assert window.opens_at(3.0) == 13.0


# --- When a place in the line has its turn --------------------------------------------------------


@given(
    limit=st.integers(min_value=1, max_value=5),
    per=st.integers(min_value=1, max_value=20),
    ages=st.lists(st.integers(min_value=0, max_value=25), max_size=12),
    waiting=st.integers(min_value=0, max_value=4),
    place=st.integers(min_value=0, max_value=30),
)
def test_a_place_in_the_line_has_its_turn_when_a_run_through_all_before_it_says_so(
    limit: int, per: int, ages: list[int], waiting: int, place: int
) -> None:
    now = 1000
    window = window_with(limit, per, *(now - age for age in ages), waiting=waiting)

    starts = sorted(now - age for age in ages if age < per) + [now] * waiting
    for _ in range(place + 1):
        at = now
        while sum(at - start < per for start in starts) >= limit:
            at += 1
        starts.append(at)

    assert window.turn_of(place, now) == starts[-1]


def test_a_far_place_in_a_wide_window_is_found_without_walking_there() -> None:
    window = window_with(1_000_000_000, 60.0)
    assert window.turn_of(10**15, NOW) == NOW + 60.0 * 1_000_000


# --- All limits of a service hold at once ---------------------------------------------------------


def test_a_service_without_limits_has_room() -> None:
    assert service_with().room(NOW) == UNLIMITED


def test_running_work_takes_room_until_it_ends() -> None:
    service = service_with(concurrent=2)
    service.active = 2
    assert service.room(NOW) == 0
    service.active = 1
    assert service.room(NOW) == 1


def test_the_tightest_of_several_rates_decides() -> None:
    service = service_with(rates=(Rate(3, 1.0), Rate(4, 60.0)), concurrent=10)
    start(service, NOW, 2)
    assert service.room(NOW) == 1
    assert service.room(NOW + 1) == 2
    start(service, NOW + 1, 2)
    assert service.room(NOW + 2) == 0


def test_concurrency_decides_when_it_is_tighter_than_the_rate() -> None:
    service = service_with(rates=(Rate(100, 1.0),), concurrent=3)
    start(service, NOW, 2)
    assert service.room(NOW) == 1


def test_a_circuit_decides_when_it_is_tighter_than_the_rest() -> None:
    service = service_with(concurrent=5, circuit_threshold=1, circuit_timeout=30.0)
    assert service.breaker is not None
    service.breaker.started(NOW)
    assert service.room(NOW) == 5
    service.breaker.ended(0, False, NOW)
    assert service.room(NOW) == 0
    assert service.room(NOW + 30) == 1


def test_a_paused_service_has_no_room() -> None:
    service = service_with()
    service.is_paused = True
    assert service.room(NOW) == 0


# --- Why nothing starts ---------------------------------------------------------------------------


def test_a_service_with_room_is_not_blocked() -> None:
    service = service_with(concurrent=1, rates=(Rate(1, 1.0),), circuit_threshold=1)
    assert service.blocked(NOW) is None


def test_a_paused_service_says_so_before_anything_else() -> None:
    service = service_with(concurrent=1)
    service.active = 1
    service.is_paused = True
    service.throttle(NOW, 10)
    assert service.blocked(NOW) == Blocked("paused")


def test_a_throttled_service_says_until_when() -> None:
    service = service_with()
    service.throttle(NOW, 12)
    assert service.blocked(NOW) == Blocked("throttled", NOW + 12, "the service asked to be left alone")
    assert service.blocked(NOW + 12) is None


def test_an_open_circuit_says_until_when() -> None:
    service = service_with(circuit_threshold=1, circuit_timeout=30.0)
    assert service.breaker is not None
    service.breaker.started(NOW)
    service.breaker.ended(0, False, NOW)
    assert service.blocked(NOW) == Blocked("circuit", NOW + 30, "open")


def test_a_rate_says_until_when_and_how_much_of_it_is_used() -> None:
    service = service_with(rates=(Rate(2, 60.0),))
    start(service, NOW, 2)
    assert service.blocked(NOW + 1) == Blocked("rate", NOW + 60, "2/2 used")


def test_of_several_full_rates_the_last_to_open_counts() -> None:
    service = service_with(rates=(Rate(1, 1.0), Rate(1, 60.0)))
    start(service, NOW)
    blocked = service.blocked(NOW)
    assert blocked is not None
    assert blocked.until == NOW + 60


def test_a_rate_full_of_open_grants_does_not_know_until_when() -> None:
    service = service_with(rates=(Rate(1, 1.0),))
    service.granted(1)
    assert service.blocked(NOW) == Blocked("rate", None, "1/1 used")


def test_full_concurrency_does_not_know_until_when() -> None:
    service = service_with(concurrent=2)
    service.active = 2
    assert service.blocked(NOW) == Blocked("concurrency", None, "2/2 running")


@given(
    concurrent=st.one_of(st.none(), st.integers(min_value=1, max_value=3)),
    rate=st.one_of(st.none(), st.integers(min_value=1, max_value=3)),
    threshold=st.one_of(st.none(), st.just(1)),
    running=st.integers(min_value=0, max_value=4),
    is_failed=st.booleans(),
    is_paused=st.booleans(),
    throttled=st.sampled_from([None, 0.0, 5.0]),
    later=st.floats(min_value=0, max_value=100),
)
def test_a_service_names_a_reason_exactly_when_it_has_no_room(
    concurrent: int | None,
    rate: int | None,
    threshold: int | None,
    running: int,
    is_failed: bool,
    is_paused: bool,
    throttled: float | None,
    later: float,
) -> None:
    rates = () if rate is None else (Rate(rate, 10.0),)
    service = service_with(
        concurrent=concurrent, rates=rates, circuit_threshold=threshold, circuit_timeout=20.0
    )
    start(service, NOW, running)
    if service.breaker is not None and is_failed:
        service.breaker.started(NOW)
        service.breaker.ended(0, False, NOW)
    service.is_paused = is_paused
    if throttled is not None:
        service.throttle(NOW, throttled)
    at = NOW + later
    blocked = service.blocked(at)
    assert (blocked is not None) == (service.room(at) <= 0)
    if blocked is not None and blocked.until is not None:
        assert blocked.until > at


# --- Being told "too many" ------------------------------------------------------------------------


def test_a_throttled_service_rests_for_the_time_it_asked_for() -> None:
    service = service_with()
    assert service.throttle(NOW, 12) == NOW + 12
    assert service.room(math.nextafter(NOW + 12, 0)) == 0
    assert service.room(NOW + 12) == UNLIMITED


def test_a_shorter_request_does_not_end_a_longer_rest() -> None:
    service = service_with()
    service.throttle(NOW, 60)
    assert service.throttle(NOW, 1) == NOW + 60


def test_without_a_given_time_the_rest_doubles_from_one_second_to_sixty() -> None:
    service = service_with()
    now, rests = NOW, []
    for _ in range(30):
        until = service.throttle(now, None)
        rests.append(until - now)
        now = until
    assert rests == [1, 2, 4, 8, 16, 32] + [60] * 24


def test_a_burst_that_was_already_in_flight_does_not_lengthen_the_rest() -> None:
    service = service_with()
    until = service.throttle(NOW, None)
    assert [service.throttle(NOW + 0.5, None) for _ in range(9)] == [until] * 9
    assert service.throttle(until, None) == until + 2


# --- Declaring again changes the limits live ------------------------------------------------------


def test_new_concurrency_holds_at_once_and_what_runs_goes_on() -> None:
    service = service_with(concurrent=5)
    service.active = 4
    service.declare(Limits("api", concurrent=2))
    assert (service.active, service.room(NOW)) == (4, -2)
    service.declare(Limits("api"))
    assert service.room(NOW) == UNLIMITED - 4


def test_starts_before_a_new_rate_go_on_counting_in_it() -> None:
    service = service_with(rates=(Rate(10, 60.0),))
    start(service, NOW, 4)
    service.declare(Limits("api", rates=(Rate(5, 60.0),)))
    assert service.room(NOW) == 1
    service.declare(Limits("api", rates=(Rate(3, 60.0),)))
    assert service.room(NOW) == -1
    assert service.blocked(NOW) == Blocked("rate", NOW + 60, "3/3 used")


def test_a_new_rate_remembers_as_much_as_the_longest_one_knew() -> None:
    service = service_with(rates=(Rate(10, 1.0), Rate(100, 60.0)))
    start(service, NOW, 2)
    service.room(NOW + 5)
    service.declare(Limits("api", rates=(Rate(3, 30.0), Rate(9, 1.0))))
    assert [window.room(NOW + 5) for window in service.windows] == [1, 9]


def test_new_rates_count_apart_from_each_other() -> None:
    service = service_with(rates=(Rate(5, 10.0),))
    start(service, NOW)
    service.declare(Limits("api", rates=(Rate(5, 1.0), Rate(5, 10.0))))
    assert [window.room(NOW + 5) for window in service.windows] == [5, 4]


def test_grants_not_yet_entered_go_on_counting_in_a_new_rate() -> None:
    service = service_with(rates=(Rate(5, 60.0),))
    service.granted(2)
    service.declare(Limits("api", rates=(Rate(3, 60.0),)))
    assert service.room(NOW) == 1
    service.entered(NOW)
    service.returned()
    assert service.room(NOW) == 2
    assert service.room(NOW + 60) == 3


def test_a_grant_that_outlives_its_rate_never_makes_room_in_a_later_one() -> None:
    service = service_with(rates=(Rate(1, 60.0),))
    service.granted(1)
    service.declare(Limits("api"))
    assert service.room(NOW) == UNLIMITED
    service.declare(Limits("api", rates=(Rate(2, 60.0),)))
    assert service.room(NOW) == 1
    service.entered(NOW + 1)
    assert service.room(NOW + 1) == 1
    assert service.room(NOW + 61) == 2


def test_a_grant_entered_while_there_is_no_rate_leaves_a_later_one_whole() -> None:
    service = service_with(rates=(Rate(1, 60.0),))
    service.granted(1)
    service.declare(Limits("api"))
    service.entered(NOW)
    service.declare(Limits("api", rates=(Rate(2, 60.0),)))
    assert service.room(NOW + 60) == 2


def test_a_circuit_comes_stays_and_goes_with_the_declaration() -> None:
    service = service_with()
    assert service.breaker is None
    service.declare(Limits("api", circuit_threshold=3))
    breaker = service.breaker
    assert breaker is not None
    service.declare(Limits("api", circuit_threshold=2, circuit_timeout=5.0))
    assert service.breaker is breaker
    assert (breaker.threshold, breaker.timeout) == (2, 5.0)
    service.declare(Limits("api"))
    assert service.breaker is None


# --- Grants and calls that outlive a declaration --------------------------------------------------


def started_with(*limits: Limits) -> tuple[Scheduler, int]:
    """A scheduler with these services, and one work that uses them all, started but not entered."""
    scheduler = Scheduler(Settings(), {"t": Rule(Retry())}, "tag")
    names = tuple(each.name for each in limits)
    scheduler.begin(NOW, NOW)
    scheduler.take_in([*map(Declare, limits), Submit([Spec("w", "t", b"{}", names)], is_plain=True)])
    plan = scheduler.plan(True, Allowance())
    return scheduler, plan.start[0].token


def take_in(scheduler: Scheduler, *items: Item) -> None:
    scheduler.begin(NOW + 1, NOW + 1)
    scheduler.take_in(items)
    scheduler.plan(True, Allowance())


@pytest.mark.parametrize("enters", [True, False])
def test_a_rate_declared_after_a_start_was_granted_is_never_wider_for_it(enters: bool) -> None:
    scheduler, token = started_with(Limits("a", rates=(Rate(5, 60.0),)), Limits("b"))
    take_in(scheduler, Declare(Limits("b", rates=(Rate(1, 60.0),))))
    if enters:
        take_in(scheduler, Entered([(token, NOW + 1, NOW + 1)]))
    take_in(scheduler, Outcome("w", token))
    services = scheduler.ledger.ready.services
    assert services["b"].room(NOW + 1000) == 1
    assert services["a"].room(NOW + 1) == (4 if enters else 5)


def test_a_call_from_before_a_circuit_was_declared_anew_does_not_judge_the_new_one() -> None:
    with_circuit = Limits("a", circuit_threshold=1)
    scheduler, token = started_with(with_circuit)
    take_in(scheduler, Declare(Limits("a")), Declare(with_circuit))
    take_in(scheduler, Outcome("w", token, failure=Failure("error", "boom")))
    breaker = scheduler.ledger.ready.services["a"].breaker
    assert breaker is not None
    assert (breaker.state, breaker.running) == ("closed", 0)


# --- How loaded it is -----------------------------------------------------------------------------


def test_pressure_is_that_of_the_fullest_limit() -> None:
    service = service_with(concurrent=10, rates=(Rate(4, 60.0),))
    assert service.pressure(NOW) == 0
    start(service, NOW, 3)
    assert service.pressure(NOW) == 0.75
    assert service.pressure(NOW + 60) == 0.3


@given(running=st.integers(min_value=0, max_value=9), cap=st.integers(min_value=1, max_value=5))
def test_pressure_stays_between_zero_and_one(running: int, cap: int) -> None:
    service = service_with(concurrent=9, rates=(Rate(9, 60.0),))
    start(service, NOW, running)
    service.declare(Limits("api", concurrent=cap, rates=(Rate(cap, 60.0),)))
    assert service.pressure(NOW) == pytest.approx(min(1.0, running / cap))
    assert 0 <= service.pressure(NOW) <= 1


@pytest.mark.parametrize("after", [None, 5.0])
def test_a_throttled_service_never_rests_for_less_than_it_did(after: float | None) -> None:
    service = service_with()
    times = [service.throttle(NOW + step / 10, after) for step in range(100)]
    assert all(early <= late for early, late in pairwise(times))


# --- What was started before ----------------------------------------------------------------------


def test_what_was_started_before_is_counted_once_for_each_start_and_in_order() -> None:
    service = Service(limits(rate=(10, 100.0)))
    service.recall([Grant("api", 1.0, 2), Grant("api", 3.0)])
    assert list(service.windows[0].stamps) == [1.0, 1.0, 3.0]
    assert service.room(50.0) == 7


def test_what_was_used_of_a_quantity_before_is_counted_where_it_is_sold() -> None:
    service = Service(sells(tokens=(100, 60.0)))
    service.recall([Grant("api", 1.0, 30, "tokens"), Grant("api", 1.0, 5, "images")])
    assert [meter.room(2.0) for meter in service.meters] == [70]
