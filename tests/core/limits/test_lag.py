"""How long after its grant a call may begin: as a rule a moment, and where that is not possible, longer."""

import pytest

from runcue.core.ledger.grants import HALF_LIFE
from runcue.core.limits.service import LEAST_SLACK, MOST_SLACK
from runcue.core.model.failure import Failure
from runcue.core.model.state import Grant
from runcue.core.schedule.plan import Entered, Outcome
from tests.core.bench_of_core import Bench, limits
from tests.core.library import two


def late_bench(rate: tuple[int, float] = (100, 1.0)) -> Bench:
    bench = Bench(limits(rate=rate, concurrent=100))
    bench.enters_at_once = False
    return bench


def slack(bench: Bench) -> float:
    """What the last start was given."""
    return max(bench.plan.rated.values()) - bench.now


@pytest.mark.parametrize(
    ("rate", "given"), [((100, 1.0), LEAST_SLACK), ((5, 2.0), 0.02), ((60, 60.0), MOST_SLACK)]
)
def test_it_is_a_hundredth_of_the_window_within_bounds(rate: tuple[int, float], given: float) -> None:
    bench = late_bench(rate)
    bench.submit("a")
    assert slack(bench) == pytest.approx(given)


def test_a_call_that_was_too_late_is_given_twice_as_long_until_that_is_enough() -> None:
    bench = late_bench()
    bench.submit("a")
    given = []
    for _ in range(8):
        bench.after(0.3, bench.failure("a", "late"))  # its commit took that long
        given.append(slack(bench))
    assert given[0] == pytest.approx(2 * LEAST_SLACK)
    assert given == sorted(given)
    assert given[-1] == pytest.approx(2 * 0.3)


def test_many_that_were_late_together_count_once() -> None:
    bench = late_bench()
    bench.submit(*"abcdefgh")
    bench.after(0.3, *[bench.failure(work_id, "late") for work_id in "abcdefgh"])
    assert slack(bench) == pytest.approx(2 * LEAST_SLACK)


def test_one_that_was_stopped_for_an_hour_does_not_make_others_wait_for_hours() -> None:
    bench = late_bench()
    bench.submit("a")
    bench.after(3600, bench.failure("a", "late"))
    assert slack(bench) == pytest.approx(2 * LEAST_SLACK)


def test_calls_that_take_longer_to_begin_than_is_usual_are_given_more_at_once() -> None:
    bench = late_bench()
    bench.submit("a")
    bench.after(0.009, Entered([(bench.tokens["a"], bench.now + 0.009, bench.now + 0.009)]))
    bench.submit("b")
    assert slack(bench) == pytest.approx(0.018)


def test_when_calls_begin_at_once_again_it_comes_down_in_time() -> None:
    bench = late_bench()
    bench.submit("a")
    bench.after(0.25, Entered([(bench.tokens["a"], bench.now + 0.25, bench.now + 0.25)]))
    given = []
    for name in "bcdef":
        bench.submit(name)
        given.append(slack(bench))
        bench.after(HALF_LIFE)
    assert given[:3] == [pytest.approx(0.5), pytest.approx(0.25), pytest.approx(0.125)]
    bench.after(10 * HALF_LIFE)
    bench.submit("last")
    assert slack(bench) == pytest.approx(LEAST_SLACK)


def test_a_handler_that_holds_the_loop_itself_is_no_delay() -> None:
    bench = late_bench()
    bench.submit("a")
    bench.after(3.0, Entered([(bench.tokens["a"], bench.now + 3.0, bench.now + 0.001)]))
    bench.submit("b")
    assert slack(bench) == pytest.approx(LEAST_SLACK)


def test_what_is_taken_back_is_what_was_counted_though_more_is_given_by_now() -> None:
    shared, one, _ = two(limits(rate=(100, 1.0)))
    one.enters_at_once = False
    one.submit("a")
    one.after(0.3, Outcome("a", one.tokens["a"], None, Failure("late", "late")))
    granted, *others = shared.grants
    assert Grant("api", granted.at, -1, work_id="a") in others
    assert max(grant.at for grant in others) - one.now == pytest.approx(2 * LEAST_SLACK)


def test_less_given_than_before_moves_counted_starts_together_but_no_grants() -> None:
    """Who takes over counts a start from when it had to have begun, whoever granted it from when it did."""
    shared, one, other = two(limits(rate=(2, 1.0)), serving=("one",))
    one.enters_at_once = False
    one.submit("slow")
    one.after(0.2, Entered([(one.tokens["slow"], one.now + 0.2, one.now + 0.2)]))
    one.after(HALF_LIFE)
    first = one.now
    one.submit("a", "b")
    one.after(0.0, Entered([(one.tokens[name], one.now, one.now) for name in "ab"]))
    one.submit("c")
    one.after(1.0)
    assert one.now == first + 1.0, "to the moment"
    a, b, c = (next(grant.at for grant in shared.grants if grant.work_id == name) for name in "abc")
    assert a == b == pytest.approx(first + 0.2)
    assert first + 1.0 < c < a + 1.0
    assert not other.plan.start
