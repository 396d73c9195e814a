"""Queue time made of two clocks, without a server."""

from __future__ import annotations

import pytest

from runcue.stores.postgres import clock as clocks
from runcue.stores.postgres.clock import ServerClock

EPOCH = 1_700_000_000.0


class Times:
    """The clock of this host, which is set by hand."""

    def __init__(self) -> None:
        self.here = 5000.0

    def __call__(self) -> float:
        return self.here


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    times = Times()
    monkeypatch.setattr(clocks, "boottime", times)
    return times


def test_between_turns_the_host_s_clock_goes_on(times: Times) -> None:
    clock = ServerClock()
    assert clock.hear(EPOCH, 0.0, 0.0) == (EPOCH, 0.0)
    times.here += 7
    assert clock.now() == EPOCH + 7
    assert clock.wall() == EPOCH + 7


def test_what_is_heard_late_does_not_set_it_back(times: Times) -> None:
    clock = ServerClock()
    clock.hear(EPOCH, 0.0, 0.0)
    times.here += 1
    assert clock.hear(EPOCH + 0.6, 0.0, 0.0) == (EPOCH + 0.6, 0.0), "a turn goes by the server's clock"
    assert clock.now() == pytest.approx(EPOCH + 1, abs=0.01)


def test_clocks_that_drift_apart_come_together_again(times: Times) -> None:
    """The server's clock is slow by less than a clock may be: in the end its time counts."""
    clock = ServerClock()
    clock.hear(EPOCH, 0.0, 0.0)
    for step in range(1, 2001):
        times.here += 1
        clock.hear(EPOCH + step * (1 - clocks.DRIFT / 2), 0.0, 0.0)
    assert clock.now() == pytest.approx(EPOCH + 2000 * (1 - clocks.DRIFT / 2), abs=0.01)


@pytest.mark.parametrize("jump", [3600.0, -3600.0, 1.5, -1.5])
def test_a_jump_of_the_server_s_clock_moves_the_offset(times: Times, jump: float) -> None:
    clock = ServerClock()
    clock.hear(EPOCH, 0.0, 0.0)
    times.here += 10
    now, offset = clock.hear(EPOCH + 10 + jump, 0.0, 0.0)
    assert (now, offset) == pytest.approx((EPOCH + 10, -jump))
    times.here += 1
    assert clock.hear(EPOCH + 11 + jump, offset, 0.0) == pytest.approx((EPOCH + 11, offset))
    assert clock.wall() == EPOCH + 11 + jump


def test_an_offset_that_somebody_else_moved_is_taken_as_it_is(times: Times) -> None:
    clock = ServerClock()
    clock.hear(EPOCH, 0.0, 0.0)
    times.here += 10
    assert clock.hear(EPOCH + 3610, -3600.0, 0.0) == (EPOCH + 10, -3600.0)
    assert clock.hear(EPOCH + 3610, -3500.0, 0.0) == (EPOCH + 110, -3500.0)


def test_no_turn_is_before_the_last(times: Times) -> None:
    clock = ServerClock()
    assert clock.hear(EPOCH, 0.0, EPOCH + 0.5) == (EPOCH + 0.5, 0.0)
    assert clock.now() == EPOCH + 0.5
    times.here -= 1
    assert clock.now() == EPOCH + 0.5, "nor does it go back within a process"
