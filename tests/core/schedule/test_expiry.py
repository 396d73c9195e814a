"""Units that expire: they are not started after a while, whatever it is that they wait for."""

from typing import Any

import pytest

from runcue.core.schedule.plan import Cancel
from tests.core.bench_of_core import SLOW_RETRY, Bench, limits
from tests.core.library import two


def closed(**settings: Any) -> Bench:
    """A bench on which everything stays pending until the service is resumed."""
    bench = Bench(limits(), retry=SLOW_RETRY, **settings)
    bench.pause("api")
    return bench


def test_a_unit_that_has_not_started_in_time_fails_as_expired() -> None:
    bench = closed()
    bench.submit(bench.expiring("a", 10))
    assert bench.plan.wake_at == bench.now + 10
    bench.after(9.9)
    assert bench.state("a") == "pending"
    bench.after(0.1)
    assert (bench.state("a"), bench.error("a")) == ("failed", "expired")
    assert bench.facts("failed") == [{"will_retry": False, "duration": None}]


def test_a_unit_does_not_start_at_the_very_moment_when_it_expires() -> None:
    bench = closed()
    bench.submit(bench.expiring("a", 10))
    bench.now += 10
    bench.resume("api")
    assert (bench.started, bench.error("a")) == ([], "expired")


def test_a_running_unit_does_not_expire() -> None:
    bench = Bench()
    bench.submit(bench.expiring("a", 10))
    bench.after(20)
    bench.finish("a")
    assert bench.state("a") == "completed"


def test_a_unit_that_waits_for_its_retry_expires() -> None:
    bench = Bench(retry=SLOW_RETRY)
    bench.submit(bench.expiring("a", 15))
    bench.after(10)
    bench.fail("a")
    assert bench.after(4.9).start == []
    assert bench.state("a") == "pending"
    bench.after(0.1)
    assert bench.error("a") == "expired"


def test_a_unit_that_fails_when_its_time_is_over_is_not_tried_again() -> None:
    bench = Bench(retry=SLOW_RETRY)
    bench.submit(bench.expiring("a", 5))
    bench.after(6)
    bench.fail("a", after=0)
    assert (bench.started, bench.error("a")) == ([], "expired")
    assert [line.error for line in bench.record("a").history] == ["boom"]


def test_in_a_shared_queue_a_unit_whose_time_is_over_is_not_tried_again() -> None:
    _, one, _ = two(serving=["one"], retry=SLOW_RETRY)
    one.turn(one.submission(one.expiring("a", 5)))
    assert one.started == ["a"]
    one.after(6)
    one.turn(one.failure("a", after=0))
    assert (one.started, one.record("a").error) == ([], "expired")


def test_in_a_shared_queue_what_was_put_back_and_cancelled_at_once_is_not_looked_at() -> None:
    _, one, _ = two(serving=["one"], retry=SLOW_RETRY)
    one.turn(one.submission(one.expiring("a", 5)))
    one.after(6)
    one.turn(one.failure("a", after=0), Cancel("a"))
    assert one.record("a").error == "cancelled"


@pytest.mark.parametrize("wait", [{"delay": 60.0}, {"run_at": 1e6}, {"needs": ["nobody"]}])
def test_whatever_a_unit_waits_for_it_expires(wait: dict[str, object]) -> None:
    bench = Bench()
    bench.submit(bench.expiring("a", 10, **wait))
    bench.after(10)
    assert bench.error("a") == "expired"


def test_what_depends_on_an_expired_unit_fails_with_it() -> None:
    bench = closed()
    bench.submit(bench.expiring("a", 10))
    bench.submit("b", needs=["a"])
    bench.after(10)
    assert bench.error("b") == "prerequisite_failed"


def test_a_unit_that_is_retried_by_hand_has_its_time_once_more() -> None:
    bench = closed()
    bench.submit(bench.expiring("a", 10))
    bench.after(10)
    bench.revive("a")
    bench.after(9.9)
    assert bench.state("a") == "pending"
    bench.resume("api")
    assert bench.started == ["a"]


def test_a_warning_before_its_time_is_over_takes_nothing_from_it() -> None:
    bench = closed(pending_warn_after=4)
    bench.submit(bench.expiring("a", 10))
    bench.after(4)
    assert bench.told("pending_warning") == ["a"]
    bench.after(6)
    assert bench.error("a") == "expired"


def test_a_limit_that_was_passed_while_another_was_looked_at_still_ends_the_unit() -> None:
    bench = closed(pending_warn_after=4)
    bench.submit(bench.expiring("a", 3, delay=60.0))
    bench.after(100)
    assert bench.error("a") == "expired"


def test_an_explanation_of_a_pending_unit_says_when_it_expires() -> None:
    bench = closed()
    bench.submit(bench.expiring("a", 10))
    assert bench.why("a").expires_at == bench.now + 10
    bench.resume("api")
    assert bench.why("a").expires_at is None
