"""Quantities: exact sliding windows of amounts, reserved, entered, settled, given back, and used by others."""

import math
from collections import deque
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runcue.core.limits.meter import DryRun, Meter, Spending, checked, together
from runcue.core.limits.service import Limits, Service
from runcue.core.model.parse import Rate
from runcue.core.model.state import Quantity
from runcue.errors import InvalidOption
from tests.sample import fewer

NOW = 1_700_000_000.0


def service_of(*rates: Rate, name: str = "tokens") -> Service:
    """A service that sells one quantity under these rates."""
    return Service(Limits("api", quantities=(Quantity(name, rates),)))


def meter_with(limit: int, per: float, *uses: tuple[float, float], open: float = 0) -> Meter:
    meter = Meter("tokens", Rate(limit, per), deque(), open)
    for at, amount in uses:
        meter.add(at, amount)
    return meter


def spend(service: Service, amount: float, at: float = NOW) -> Spending:
    """A start that reserves so much."""
    spending = Spending((service,), {}, at)
    spending.settle("tokens", amount)
    return spending


# --- The window -----------------------------------------------------------------------------------


class Model:
    """What is used, as a plain list of it."""

    def __init__(self, *rates: Rate) -> None:
        self.rates = rates
        self.open: list[list[float]] = []
        self.entered: list[list[float]] = []  # at, amount
        self.elsewhere: list[list[float]] = []

    def room(self, rate: Rate, now: float) -> float:
        lately = [amount for at, amount in self.entered + self.elsewhere if now - at < rate.per]
        return rate.limit - sum(lately) - sum(amount for (amount,) in self.open)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "reserve", "reserve", "enter", "enter", "late", "settle", "settle", "return",
                         "elsewhere", "elsewhere", "less elsewhere", "wait", "wait"]),
        st.integers(0, 60),
        st.integers(0, 7),
    ),
    min_size=20,
    max_size=80,
)  # fmt: skip


@pytest.mark.no_cover
@settings(max_examples=fewer(200, 60))
@given(steps=STEPS)
def test_what_is_left_is_what_adding_up_everything_says_whatever_happens_in_whatever_order(
    steps: list[tuple[str, int, int]],
) -> None:
    rates = (Rate(50, 3.0), Rate(100, 10.0))
    service, model, now = service_of(*rates), Model(*rates), NOW
    unentered: list[tuple[Spending, list[float]]] = []
    entered: list[tuple[Spending, list[float]]] = []
    for step, amount, number in steps:
        if step == "reserve" and service.fits((("tokens", amount),), now):
            mine = [float(amount)]
            model.open.append(mine)
            unentered.append((spend(service, amount), mine))
        elif step in ("enter", "late") and unentered:
            spending, mine = unentered.pop(number % len(unentered))
            at = now if step == "enter" else now - 0.25
            spending.enter(at)
            model.open = [one for one in model.open if one is not mine]
            model.entered.append([at, mine[0]])
            entered.append((spending, model.entered[-1]))
        elif step == "settle" and entered + unentered:
            spending, mine = (entered + unentered)[number % len(entered + unentered)]
            assert spending.settle("tokens", amount) == amount - mine[-1]
            mine[-1] = amount
        elif step == "return" and unentered:
            spending, mine = unentered.pop(number % len(unentered))
            spending.returned()
            model.open = [one for one in model.open if one is not mine]
        elif step == "elsewhere":
            at = now + 0.05 * number
            service.use("tokens", at, amount)
            model.elsewhere.append([at, amount])
        elif step == "less elsewhere" and model.elsewhere:
            used = model.elsewhere[number % len(model.elsewhere)]
            less = min(amount, used[1])
            service.use("tokens", used[0], -less)
            used[1] -= less
        elif step == "wait":
            now += number / 2
        for meter in service.meters:
            assert meter.room(now) == model.room(meter.rate, now)
            assert all(one[0] < other[0] for one, other in pairwise(meter.uses))


@given(
    steps=st.lists(
        st.tuples(st.floats(0, 4), st.integers(1, 20), st.sampled_from([1.0, 0.5, 0.0])), max_size=60
    ),
    per=st.sampled_from([0.1, 1.0, 7.0]),
)
def test_a_checker_that_subtracts_finds_no_window_exceeded(
    steps: list[tuple[float, int, float]], per: float
) -> None:
    service, now = service_of(Rate(20, per)), NOW
    calls: list[Spending] = []
    for wait, amount, share in steps:
        now += wait * per
        if service.fits((("tokens", amount),), now):
            calls.append(spend(service, amount))
            calls[-1].enter(now)
            calls[-1].settle("tokens", amount * share)
    used = [(call.at or 0.0, call.amounts["tokens"]) for call in calls]
    for number, (first, _) in enumerate(used):
        assert sum(amount for at, amount in used[number:] if at - first < per) <= 20


@given(
    uses=st.lists(st.tuples(st.floats(NOW - 20, NOW), st.integers(1, 30)), max_size=8),
    amount=st.integers(1, 50),
    per=st.sampled_from([0.1, 7.0, 10.0]),
)
def test_it_opens_at_the_first_moment_at_which_so_much_fits_and_not_a_hair_earlier(
    uses: list[tuple[float, int]], amount: int, per: float
) -> None:
    meter = meter_with(50, per, *uses)
    if not meter.fits(amount, NOW):
        at = meter.opens_at(amount, NOW)
        assert at is not None
        assert at > NOW
        assert not meter_with(50, per, *uses).fits(amount, math.nextafter(at, 0))
        assert meter.fits(amount, at)


def test_it_does_not_open_by_time_alone_while_it_hangs_on_calls_that_were_not_entered() -> None:
    meter = meter_with(100, 60, (NOW, 30), open=60)
    assert meter.opens_at(30, NOW) == NOW + 60
    assert meter.opens_at(50, NOW) is None


def test_what_is_more_than_the_window_holds_never_fits() -> None:
    meter = meter_with(100, 60)
    assert (meter.holds(100), meter.holds(101)) == (True, False)
    assert not meter.fits(101, NOW)
    assert meter.opens_at(101, NOW) is None


def test_nothing_always_fits_even_where_more_was_used_than_is_allowed() -> None:
    meter = meter_with(100, 60, (NOW, 500))
    assert meter.room(NOW) == -400
    assert meter.fits(0, NOW)
    assert not meter.fits(0.001, NOW)


@pytest.mark.parametrize("share", [0.1, 1 / 3, 0.7])
def test_sums_of_fractions_fill_a_window_to_the_brim_and_no_further(share: float) -> None:
    meter, times = meter_with(7, 10.0), round(7 / share)
    for number in range(times):
        assert meter.fits(share, NOW + number * 0.001)
        meter.add(NOW + number * 0.001, share)
    assert not meter.fits(share, NOW + 1)
    assert meter.room(NOW + 20) == 7


def test_something_huge_leaves_no_trace_when_its_window_is_over() -> None:
    meter = meter_with(10, 10.0, (NOW, 0.1))
    meter.add(NOW + 1, 1e15)
    meter.add(NOW + 2, 0.3)
    assert meter.room(NOW + 11) == 10 - 0.3


# --- Reserved, entered, settled -------------------------------------------------------------------


def test_what_is_reserved_counts_however_long_the_handler_is_not_entered() -> None:
    service = service_of(Rate(100, 60))
    spend(service, 70)
    assert not service.fits((("tokens", 31),), NOW + 1000)
    assert service.fits((("tokens", 30),), NOW + 1000)


def test_it_counts_from_the_entry_not_from_the_grant() -> None:
    service = service_of(Rate(100, 60))
    spend(service, 70).enter(NOW + 5)
    assert [service.meters[0].room(at) for at in (NOW + 60, NOW + 64.9, NOW + 65)] == [30, 30, 100]


@pytest.mark.parametrize("is_entered", [False, True], ids=["before its entry", "after its entry"])
@pytest.mark.parametrize("used", [0, 10, 70, 250])
def test_what_was_really_used_takes_the_place_of_what_was_reserved(is_entered: bool, used: int) -> None:
    service = service_of(Rate(100, 60))
    spending = spend(service, 70)
    if is_entered:
        spending.enter(NOW)
    assert spending.settle("tokens", used) == used - 70
    if not is_entered:
        spending.enter(NOW)
    assert service.meters[0].room(NOW + 59) == 100 - used
    assert service.meters[0].room(NOW + 60) == 100


@pytest.mark.parametrize("used", [10, 250])
def test_settling_when_the_window_of_the_start_is_over_changes_nothing(used: int) -> None:
    service = service_of(Rate(100, 60))
    spending = spend(service, 70)
    spending.enter(NOW)
    later = spend(service, 5)
    later.enter(NOW + 30)
    assert service.meters[0].room(NOW + 60) == 95
    spending.settle("tokens", used)
    assert service.meters[0].room(NOW + 60) == 95
    assert service.meters[0].room(NOW + 90) == 100


def test_settling_twice_counts_the_last_and_adds_nothing_up() -> None:
    service = service_of(Rate(100, 60))
    spending = spend(service, 10)
    spending.enter(NOW)
    for used in (20, 90, 40):
        spending.settle("tokens", used)
    assert service.meters[0].room(NOW) == 60


def test_what_costs_nothing_at_first_may_turn_out_to_cost_something() -> None:
    service = service_of(Rate(100, 60))
    spending = Spending((service,), {}, NOW)
    spending.enter(NOW)
    spending.settle("tokens", 30)
    assert service.meters[0].room(NOW + 1) == 70


def test_fractions_that_were_reserved_and_entered_leave_nothing_reserved() -> None:
    service = service_of(Rate(1, 60))
    open_ = [spend(service, amount) for amount in (0.1, 0.2, 0.3)]
    for spending in open_:
        spending.returned()
    assert service.meters[0].room(NOW) == 1
    assert service.is_as_new(NOW)


# --- Limits that change meanwhile -----------------------------------------------------------------


def tokens(*rates: Rate) -> Limits:
    return Limits("api", quantities=(Quantity("tokens", rates),) if rates else ())


def test_new_limits_count_what_was_used_and_what_is_reserved() -> None:
    service = service_of(Rate(100, 60))
    spend(service, 10).enter(NOW)
    spend(service, 20)
    service.declare(tokens(Rate(50, 30), Rate(500, 60)))
    assert [meter.room(NOW + 29) for meter in service.meters] == [20, 470]
    assert [meter.room(NOW + 30) for meter in service.meters] == [30, 470]


def test_a_limit_that_was_lifted_and_is_back_knows_what_is_still_reserved() -> None:
    service = service_of(Rate(100, 60))
    spending = spend(service, 70)
    service.declare(tokens())
    service.declare(tokens(Rate(100, 60)))
    assert service.meters[0].room(NOW) == 30
    spending.enter(NOW)
    assert service.meters[0].room(NOW) == 30
    assert service.meters[0].room(NOW + 60) == 100


def test_nothing_is_given_back_that_a_new_limit_never_counted() -> None:
    service = service_of(Rate(100, 60))
    spending = spend(service, 70)
    spending.enter(NOW)
    service.declare(tokens())
    service.declare(tokens(Rate(100, 60)))
    assert service.meters[0].room(NOW + 1) == 100  # what was used before it was declared is not known to it
    spending.settle("tokens", 10)
    assert service.meters[0].room(NOW + 1) == 100


def test_no_more_is_taken_back_than_was_counted_at_that_time() -> None:
    meter = meter_with(100, 60, (NOW, 10), (NOW + 1, 20))
    meter.add(NOW, -15)
    assert meter.room(NOW + 2) == 80


def test_a_quantity_that_another_service_sells_at_first_and_this_one_later_is_not_owed_by_this_one() -> None:
    first = Service(Limits("a", quantities=(Quantity("tokens", (Rate(100, 60),)),)))
    second = Service(Limits("b", quantities=(Quantity("images", (Rate(10, 60),)),)))
    spending = Spending((first, second), {}, NOW)
    spending.settle("tokens", 40)
    spending.settle("images", 4)
    second.declare(Limits("b", quantities=(Quantity("tokens", (Rate(100, 60),)),)))
    spending.enter(NOW)
    assert [meter.room(NOW) for meter in (*first.meters, *second.meters)] == [60, 60]


# --- A rehearsal ----------------------------------------------------------------------------------


def test_a_rehearsal_tells_when_each_could_start_one_after_the_other() -> None:
    meter = meter_with(100, 60, (NOW - 50, 80))
    rehearsal = DryRun([meter], NOW)
    times = []
    for amount in (20, 50, 50, 100):
        at = rehearsal.peek((("tokens", amount),))
        rehearsal.start((("tokens", amount),), at)
        times.append(None if at is None else at - NOW)
    assert times == [0, 10, 60, 120]  # the third fits when the first left, the last when all others did
    assert meter.room(NOW) == 20  # it was a rehearsal


def test_a_rehearsal_passes_over_what_could_never_start() -> None:
    rehearsal = DryRun([meter_with(100, 60)], NOW)
    assert rehearsal.peek((("tokens", 101),)) is None
    rehearsal.start((("tokens", 101),), None)
    assert rehearsal.peek((("tokens", 100),)) == NOW


def test_a_rehearsal_counts_what_is_reserved_as_used_now() -> None:
    rehearsal = DryRun([meter_with(100, 60, (NOW + 0.05, 10), open=60)], NOW)
    assert rehearsal.peek((("tokens", 30),)) == NOW
    assert rehearsal.peek((("tokens", 40),)) == NOW + 60


def test_what_two_use_is_the_sum_of_each_quantity() -> None:
    one, other = (("tokens", 5.0), ("images", 1.0)), (("tokens", 7.0), ("pages", 2.0))
    assert dict(together(one, other)) == {"tokens": 12, "images": 1, "pages": 2}
    assert together(one, ()) is one


# --- What a handler says --------------------------------------------------------------------------


def test_amounts_are_numbers_of_zero_or_more() -> None:
    assert checked({"tokens": 5, "dollars": 0.25, "images": 0}) == {"tokens": 5, "dollars": 0.25, "images": 0}
    for wrong in (-1, math.nan, math.inf, True, "5", None):
        with pytest.raises(InvalidOption, match=r"charge\(tokens\)"):
            checked({"tokens": wrong})


def test_what_was_counted_before_is_corrected_at_the_moment_at_which_it_was_counted() -> None:
    service = service_of(Rate(100, 60))
    service.use("tokens", NOW, 50)
    spending = Spending((service,), {"tokens": 50}, NOW, NOW)
    assert spending.settle("tokens", 20) == -30
    assert (spending.amounts, service.meters[0].room(NOW)) == ({"tokens": 20}, 80)
    assert spending.settle("tokens", 70) == 50
    assert service.meters[0].room(NOW) == 30


def test_of_what_was_counted_at_another_moment_nothing_is_given_back() -> None:
    service = service_of(Rate(100, 60))
    service.use("tokens", NOW, 50)
    spending = Spending((service,), {"tokens": 50}, NOW + 1, NOW + 1)
    spending.settle("tokens", 20)
    assert service.meters[0].room(NOW + 1) == 50
