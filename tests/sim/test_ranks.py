"""Who is passed over: the count is right for any coming and going, and takes few steps however many there are."""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from runcue.sim.ranks import FIRST_SIZE, Ranks

ONE = st.tuples(st.integers(1, 3 * FIRST_SIZE), st.sampled_from([0.0, 0.5, 1.0, 10.0]))


@given(st.lists(st.tuples(ONE, st.booleans())), ONE)
@example([((1, 5.0), False), ((2000, 0.0), False)], (2000, 0.0))
@example([((1, 0.5), False)], (2049, 0.0))
@example([((1, 0.0), True), ((2, 5.0), False)], (3, 0.0))
def test_those_who_are_older_and_more_urgent_are_counted(
    told: list[tuple[tuple[int, float], bool]], asked: tuple[int, float]
) -> None:
    ranks, there = Ranks(), list[tuple[int, float]]()
    for one, goes in told:
        ranks.come(*one)
        there.append(one)
        assert ranks.above(*asked) == sum(age < asked[0] and priority > asked[1] for age, priority in there)
        if goes:
            ranks.go(*there.pop(0))
    for one in there:
        ranks.go(*one)
    assert ranks.above(3 * FIRST_SIZE, -1.0) == 0


class Counted(float):
    """A priority that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: float) -> bool:
        Counted.compared += 1
        return float(self) < float(other)


def test_the_steps_grow_with_the_logarithm_of_how_many_there_are() -> None:
    many = 4096
    ranks = Ranks()
    priorities = [Counted(number * 7919 % many) for number in range(many)]
    for age, priority in enumerate(priorities, 1):
        ranks.come(age, priority)
    for age, priority in enumerate(priorities, 1):
        ranks.above(age, priority)
        ranks.go(age, priority)
    assert Counted.compared < 3 * many * (math.log2(many) + 2) ** 2
