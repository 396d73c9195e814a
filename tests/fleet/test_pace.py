"""How soon a process goes on: at once while it has little to do, after a rest while it has much of little."""

import asyncio

import pytest

from runcue.engine.pace import LONGEST, MUCH, Pace
from runcue.testing import run


class Day:
    """A process and its clock; what it does takes as long as is said."""

    def __init__(self) -> None:
        self.time = 100.0
        self.pace = Pace(lambda: self.time)

    def spend(self, seconds: float, units: int = 1, *, is_alone: bool = False) -> None:
        self.pace.begins()
        self.time += seconds
        self.pace.ended(units, is_alone=is_alone)

    def rests(self) -> float:
        """For how long it rests now."""

        async def resting() -> float:
            loop = asyncio.get_running_loop()
            began = loop.time()
            await self.pace.rest()
            return loop.time() - began

        return run(resting())


def test_who_has_little_to_do_goes_on_at_once() -> None:
    day = Day()
    for _ in range(100):
        day.spend(0.002)
        day.time += 0.01
        assert day.rests() == 0


def test_who_does_one_thing_after_the_other_rests_as_long_as_it_works() -> None:
    day = Day()
    worked = rested = 0.0
    for _ in range(200):
        day.spend(0.004)
        worked += 0.004
        rest = day.rests()
        day.time += rest
        rested += rest
    assert rested == pytest.approx(worked, rel=0.1)


def test_nobody_rests_for_long_however_long_it_took() -> None:
    day = Day()
    day.spend(60.0)
    assert 0 < day.rests() <= LONGEST


@pytest.mark.parametrize(("units", "is_alone"), [(MUCH, False), (1, True)])
def test_who_had_much_to_decide_over_and_who_is_alone_goes_on_at_once(units: int, is_alone: bool) -> None:
    day = Day()
    for _ in range(20):
        day.spend(0.01, units, is_alone=is_alone)
        assert day.rests() == 0
