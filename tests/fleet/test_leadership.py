"""Who decides, as one process sees it: it goes on, leaves it to others, and takes over when nobody does."""

import pytest
from msgspec.structs import replace

from runcue.core.model.state import NO_HEAD, Head
from runcue.engine import leadership
from runcue.engine.leadership import LONGEST, SHORTEST, Leadership
from runcue.ports import Takeover

NOW = 1_000.0


class Process:
    """One process, its clock, and who lives."""

    def __init__(self) -> None:
        self.time = 50.0
        self.dead: set[str] = set()
        self.leadership = Leadership("me", lambda worker: worker not in self.dead, lambda: self.time)

    def saw(self, head: Head, has_unread: bool = False, *, after: float = 0.0) -> Takeover | None:
        self.time += after
        self.leadership.observe(head, has_unread)
        return self.leadership.due(NOW)


OTHER = replace(NO_HEAD, decider="other", revision=7)


def test_a_process_decides_when_nobody_has_decided_yet() -> None:
    assert Process().leadership.due(NOW) == Takeover(None)


def test_who_decided_last_reads_everything_anew_after_a_failure() -> None:
    assert Process().saw(replace(NO_HEAD, decider="me")) == Takeover("me")


def test_another_that_lives_goes_on_deciding() -> None:
    assert Process().saw(OTHER) is None


def test_the_place_of_a_dead_one_is_taken_at_once_whatever_it_did_last() -> None:
    process = Process()
    process.dead.add("other")
    assert process.saw(OTHER) == Takeover("other")


def test_who_has_just_been_seen_to_decide_is_not_asked_whether_it_lives() -> None:
    process = Process()
    process.saw(OTHER)
    process.dead.add("other")
    assert process.saw(replace(OTHER, revision=8), after=0.001) is None
    assert process.saw(replace(OTHER, revision=8), after=2 * SHORTEST) == Takeover("other")


def test_what_is_not_taken_for_a_while_is_decided_here_if_nothing_was_decided_meanwhile() -> None:
    process = Process()
    assert process.saw(OTHER, has_unread=True) is None
    assert process.saw(OTHER, has_unread=True, after=SHORTEST * 0.9) is None
    assert process.saw(OTHER, has_unread=True, after=SHORTEST * 0.2) == Takeover("other", 7)


def test_who_decides_something_else_meanwhile_is_given_more_time() -> None:
    process = Process()
    process.saw(OTHER, has_unread=True)
    assert process.saw(replace(OTHER, revision=8), has_unread=True, after=SHORTEST) is None


def test_with_nothing_left_to_decide_nobody_takes_over() -> None:
    process = Process()
    process.saw(OTHER, has_unread=True)
    assert process.saw(OTHER, after=10 * LONGEST) is None


@pytest.mark.parametrize(("late", "expected"), [(SHORTEST, None), (2 * SHORTEST, Takeover("other", 7))])
def test_an_alarm_that_nobody_answers_is_answered_here(late: float, expected: Takeover | None) -> None:
    assert Process().saw(replace(OTHER, wake_at=NOW - late)) == expected


def test_where_decisions_take_long_a_process_waits_longer_but_not_for_ever() -> None:
    process = Process()
    process.saw(OTHER, has_unread=True)
    process.saw(OTHER, has_unread=True, after=0.1)
    process.saw(replace(OTHER, revision=8), after=0.1)
    assert process.leadership.patience == pytest.approx(leadership.TIMES * 0.1, rel=0.01)
    process.saw(OTHER, has_unread=True)
    process.saw(OTHER, has_unread=True, after=5.0)
    process.saw(replace(OTHER, revision=9), after=5.0)
    assert process.leadership.patience == LONGEST


def test_who_looks_seldom_does_not_take_that_for_a_slow_decision() -> None:
    process = Process()
    process.saw(OTHER, has_unread=True)
    process.saw(replace(OTHER, revision=8), after=0.9)
    assert process.leadership.patience == SHORTEST


def test_a_delay_that_does_not_happen_again_is_forgotten() -> None:
    process = Process()
    process.saw(OTHER, has_unread=True)
    process.saw(OTHER, has_unread=True, after=0.1)
    process.saw(replace(OTHER, revision=8))
    process.time += 100 * leadership.HALF_LIFE
    assert process.leadership.patience == SHORTEST
