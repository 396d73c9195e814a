"""What goes into a turn and what comes out of it."""

import math
from typing import Any

import pytest

from runcue.core.model.record import Record, Spec
from runcue.core.schedule.plan import Cancel, Entered, Plan, ReadRequest, Submit

SPEC = Spec("w", "t", b"{}", ())


@pytest.mark.parametrize("part", ["ids", "keys", "dependents_of"])
def test_a_decision_lacks_something_while_any_part_names_something(part: str) -> None:
    parts: dict[str, Any] = {part: {"w"}}
    assert ReadRequest(**parts)


def test_a_decision_that_names_nothing_lacks_nothing() -> None:
    assert not ReadRequest()


def test_two_items_are_never_the_same_however_alike_they_are() -> None:
    assert Cancel("w") != Cancel("w")
    assert Submit([SPEC], True) != Submit([SPEC], True)


def test_a_new_plan_is_empty_and_never_wakes() -> None:
    plan = Plan()
    assert repr(plan) == "<Plan wake_at=inf>"
    assert plan.wake_at == math.inf


def test_a_plan_shows_how_much_of_what_it_decided() -> None:
    plan = Plan()
    record = Record("w", SPEC, 1, 10.0, 10.0)
    plan.records["w"] = record
    plan.start += [record, record]
    plan.replies.append((Entered([(1, 10.0, 10.0)]), None))
    plan.wake_at = 12.5
    assert repr(plan) == "<Plan records=1 start=2 replies=1 wake_at=12.5>"
