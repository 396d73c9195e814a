"""Queue time made of two clocks, without a server."""

from __future__ import annotations

import pytest

from runcue.stores.postgres import clock as clocks
from runcue.stores.postgres.clock import ServerClock

EPOCH = 1_700_000_000.0


class Times:
    """The clock of this host, which is set by hand; the server's goes with it, and may jump."""

    def __init__(self) -> None:
        self.here = 5000.0
        self.jumped = 0.0
        self.rate = 1.0

    def __call__(self) -> float:
        return self.here

    @property
    def server(self) -> float:
        """What the server's clock says."""
        return EPOCH + (self.here - 5000.0) * self.rate + self.jumped

    def ask(
        self, clock: ServerClock, offset: float = 0.0, *, wait: float = 0.0, late: float = 0.0
    ) -> tuple[float, float]:
        """Ask the server, which answers after a while, and is heard after another."""
        asked_at = self.here
        self.here += wait
        said = self.server
        self.here += late
        return clock.hear(asked_at, said, offset, 0.0)


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    times = Times()
    monkeypatch.setattr(clocks, "boottime", times)
    return times


def test_between_turns_the_host_s_clock_goes_on(times: Times) -> None:
    clock = ServerClock()
    assert times.ask(clock) == (EPOCH, 0.0)
    times.here += 7
    assert clock.now() == EPOCH + 7
    assert clock.wall() == EPOCH + 7


@pytest.mark.parametrize("late", [0.4, 5.0, 300.0])
def test_an_answer_that_is_late_is_no_jump_and_sets_nothing_back(times: Times, late: float) -> None:
    clock = ServerClock()
    times.ask(clock)
    times.here += 1
    before = times.server
    assert times.ask(clock, late=late) == (before, 0.0), "a turn goes by the server's clock"
    assert clock.now() == pytest.approx(times.server, abs=0.2)
    assert times.ask(clock) == (times.server, 0.0)


@pytest.mark.parametrize("late", [5.0, 300.0])
def test_a_first_answer_that_is_late_is_no_jump_afterwards(times: Times, late: float) -> None:
    clock = ServerClock()
    times.ask(clock, late=late)
    for _ in range(3):
        times.here += 1
        assert times.ask(clock) == (times.server, 0.0)
    assert clock.now() == pytest.approx(times.server, abs=0.01)


def test_to_wait_for_one_s_turn_is_no_jump(times: Times) -> None:
    clock = ServerClock()
    times.ask(clock)
    for wait in (0.0, 30.0, 0.0):
        times.here += 1
        assert times.ask(clock, wait=wait) == (times.server, 0.0)


def test_clocks_that_drift_apart_come_together_again(times: Times) -> None:
    """The server's clock is slow by less than a clock may be: in the end its time counts."""
    clock = ServerClock()
    times.rate = 1 - clocks.DRIFT / 2
    for _ in range(2000):
        times.here += 1
        assert times.ask(clock) == (pytest.approx(times.server), 0.0)
    assert clock.now() == pytest.approx(times.server, abs=0.01)


@pytest.mark.parametrize("jump", [3600.0, -3600.0, 1.5, -1.5])
@pytest.mark.parametrize("late", [0.0, 0.3])
def test_a_jump_of_the_server_s_clock_moves_the_offset(times: Times, jump: float, late: float) -> None:
    clock = ServerClock()
    times.ask(clock)
    times.here += 10
    times.jumped = jump
    now, offset = times.ask(clock, late=late)
    assert now == pytest.approx(times.server - jump, abs=0.5)
    assert offset == pytest.approx(-jump, abs=0.5)
    times.here += 1
    assert times.ask(clock, offset) == (pytest.approx(times.server + offset), offset)
    assert clock.wall() == times.server


def test_an_offset_that_somebody_else_moved_is_taken_as_it_is(times: Times) -> None:
    clock = ServerClock()
    times.ask(clock)
    times.jumped = 3600.0
    assert times.ask(clock, -3600.0) == (times.server - 3600.0, -3600.0)
    assert times.ask(clock, -3500.0) == (times.server - 3500.0, -3500.0)
    assert clock.now() == times.server - 3500.0


def test_no_turn_is_before_the_last(times: Times) -> None:
    clock = ServerClock()
    assert clock.hear(times.here, EPOCH, 0.0, EPOCH + 0.5) == (EPOCH + 0.5, 0.0)
    assert clock.now() == EPOCH + 0.5
    times.here -= 1
    assert clock.now() == EPOCH + 0.5, "nor does it go back within a process"
