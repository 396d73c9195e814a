"""Places that adapt: half of them after "too many", one more for each round of calls that ended well."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runcue.core.limits.service import Service
from runcue.core.model.state import Adaptive
from runcue.core.views.explain import snapshot
from tests.core.bench_of_core import START, Bench, limits
from tests.core.library import two

NOW = 100.0


def service_of(low: int = 2, start: int = 20, high: int = 100) -> Service:
    return Service(limits(adaptive=Adaptive(low, start, high)))


def round_of_successes(service: Service, amount: int, busy: int) -> None:
    """So many calls end well while so many others run."""
    for _ in range(amount):
        service.active = busy
        service.widen()


def bench_of(low: int = 2, start: int = 8, high: int = 100) -> Bench:
    return Bench(limits(adaptive=Adaptive(low, start, high)), status_interval=1e9)


def test_it_begins_where_it_was_told_to() -> None:
    assert service_of().room(NOW) == 20


def test_it_halves_once_for_all_calls_that_were_under_way() -> None:
    service = service_of()
    assert service.narrow(NOW, started_at=NOW - 1)
    assert [service.narrow(NOW + late, started_at=NOW - 1) for late in range(5)] == [False] * 5
    assert not service.narrow(NOW, started_at=NOW)  # in the same moment, for a clock that stands still
    assert service.cap == 10
    assert service.narrow(NOW + 9, started_at=NOW + 5)
    assert service.cap == 5


def test_it_never_has_fewer_than_its_least_nor_more_than_its_most() -> None:
    service = service_of(3, 4, 6)
    for number in range(5):
        service.narrow(NOW + 2 * number, NOW + 2 * number - 1)
    assert service.cap == 3
    round_of_successes(service, 500, busy=6)
    assert service.cap == 6
    assert not service.widen()


def test_a_round_of_successes_is_worth_one_place() -> None:
    service = service_of(1, 10, 100)
    round_of_successes(service, 11, busy=10)
    assert service.cap == 11
    round_of_successes(service, 11, busy=10)
    assert service.cap == 12


def test_places_that_are_not_used_do_not_become_more() -> None:
    service = service_of()
    round_of_successes(service, 1000, busy=9)
    assert service.cap == 20
    round_of_successes(service, 21, busy=10)
    assert service.cap == 21


def test_a_service_that_does_not_adapt_does_not() -> None:
    service = Service(limits(concurrent=5))
    assert not service.narrow(NOW, NOW)
    assert not service.widen()
    assert service.cap == 5


@given(
    steps=st.lists(st.sampled_from(["good", "good", "good", "bad", "late"]), max_size=200),
    low=st.integers(1, 5), more=st.integers(0, 5), most=st.integers(0, 20),
)  # fmt: skip
def test_whatever_happens_it_stays_within_its_bounds(
    steps: list[str], low: int, more: int, most: int
) -> None:
    service, now = service_of(low, low + more, low + more + most), NOW
    for step in steps:
        now += 1
        before = service.cap
        if step == "good":
            round_of_successes(service, 1, busy=service.cap)
            assert before <= service.cap <= before + 1
        else:
            service.narrow(now, now - 0.5 if step == "bad" else 0.0)
            assert service.cap == before if step == "late" else service.cap in (low, before // 2)
        assert low <= service.cap <= low + more + most


# --- Declared again, kept, and shown --------------------------------------------------------------


def test_new_bounds_hold_at_once_and_what_was_learnt_within_them_is_kept() -> None:
    service = service_of()
    service.narrow(NOW, NOW)
    service.declare(limits(adaptive=Adaptive(4, 50, 100)))
    assert service.cap == 10
    service.declare(limits(adaptive=Adaptive(12, 50, 100)))
    assert service.cap == 12
    service.declare(limits(adaptive=Adaptive(1, 5, 6)))
    assert service.cap == 6
    service.declare(limits(concurrent=3))
    assert (service.cap, service.width) == (3, None)
    service.declare(limits(adaptive=Adaptive(1, 5, 6)))
    assert service.cap == 5


def test_another_process_goes_on_with_what_was_learnt() -> None:
    service, other = service_of(), service_of()
    service.narrow(NOW, NOW - 1)
    other.load(service.state())
    assert other.cap == 10
    assert not other.narrow(NOW + 1, started_at=NOW - 1)
    plain = Service(limits(concurrent=5))
    plain.load(Service(limits(concurrent=5)).state())
    assert plain.cap == 5


def test_it_is_shown_as_it_is_now() -> None:
    service = service_of()
    service.narrow(NOW, NOW)
    shown = snapshot(service, NOW)
    assert (shown["concurrent"], shown["adaptive"]) == (10, {"min": 2, "start": 20, "max": 100})


# --- In a queue -----------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [0.0, 1.0])
def test_a_burst_of_refusals_halves_the_places_once(late: float) -> None:
    bench = bench_of()
    ids = [f"{number}" for number in range(20)]
    bench.submit(*ids)
    assert len(bench.running) == 8
    bench.after(late, *[bench.failure(work_id, "throttled", after=5) for work_id in bench.running])
    assert bench.scheduler.ledger.ready.services["api"].cap == 4
    bench.after(5)
    assert len(bench.running) == 4
    assert bench.why("19").details == "4/4 running"


def test_places_that_work_waits_for_become_more_while_all_goes_well() -> None:
    bench = bench_of(start=2)
    bench.submit(*(f"{number}" for number in range(60)))
    most = 0
    for _ in range(60):
        most = max(most, len(bench.running))
        bench.finish(bench.running[0])
    assert 8 <= most <= 12


def test_what_was_learnt_is_written_and_others_have_it() -> None:
    _, one, other = two(limits(adaptive=Adaptive(1, 4, 9)))
    one.submit("a")
    one.now = START + 1
    one.fail("a", "throttled", after=5)
    other.turn()
    assert other.scheduler.ledger.ready.services["api"].cap == 2
